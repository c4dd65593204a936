// What a profiler is told of captured calls: each by the numbers of the work that it left in its graph.
#include "tests/unit/law_fixture.h"

#include <set>
#include <string>

using namespace gravure;

namespace {

/// The numbers of all that is told of, one for each node of a graph.
std::vector<uint64_t> numbersOf(const std::vector<Runtime::TracedCall>& calls) {
  std::vector<uint64_t> numbers;
  for (const Runtime::TracedCall& call : calls) {
    for (size_t i = 0; i < call.count; ++i) numbers.push_back(call.first + i);
  }
  return numbers;
}

}  // namespace

TEST_CASE("captured calls are told of in their order, each by numbers of its own") {
  SideBySide pair;
  CHECK(pair.runtime->tracedCalls().empty());
  for (int i = 0; i < 2; ++i) CHECK(pair.step());
  CHECK(pair.runtime->tracedCalls().empty());  // warmed up
  for (int i = 0; i < 3; ++i) CHECK(pair.step());
  const auto calls = pair.runtime->tracedCalls();
  const auto numbers = numbersOf(calls);
  CHECK(std::set(numbers.begin(), numbers.end()).size() == numbers.size());

  // Those of the text that work on the device: views leave nothing in a graph.
  std::vector<std::string> told;
  for (const Runtime::TracedCall& call : calls) {
    CHECK(*call.entry == "step");
    CHECK(call.count == 1);
    told.push_back(std::to_string(call.partition) + " " + call.node->kind().toQualString());
  }
  CHECK(told == std::vector<std::string>{"0 aten::mm", "0 aten::relu", "0 aten::native_dropout",
                                         "0 aten::sum", "1 aten::add", "1 aten::native_dropout",
                                         "1 aten::mean", "1 aten::mm", "1 aten::mean",
                                         "1 aten::copy_"});
}

TEST_CASE("captures that wait for their addresses to come again are told of, too") {
  SideBySide pair;
  for (int i = 0; i < 5; ++i) CHECK(pair.step());
  const size_t once = pair.runtime->tracedCalls().size();
  const at::Tensor before = pair.w;
  pair.w = before.detach().clone();
  for (int i = 0; i < 5; ++i) CHECK(pair.step());
  REQUIRE(pair.runtime->stats().captureSets == 2);
  const auto calls = pair.runtime->tracedCalls();
  CHECK(calls.size() == 2 * once);
  const auto numbers = numbersOf(calls);
  CHECK(std::set(numbers.begin(), numbers.end()).size() == numbers.size());
}
