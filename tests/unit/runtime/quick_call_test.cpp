// Calls that are done without the dispatcher give what the dispatcher gives.
#include "ir/text/program_text.h"
#include "runtime/program/compile_call.h"
#include "runtime/program/quick_call.h"
#include "tests/unit/runtime_fixture.h"

#include <limits>

using namespace gravure;

namespace {

/// The calls of a program, on a frame whose first slots are its inputs.
struct Calls {
  explicit Calls(const std::string& text) : program(readProgram(text)) {
    const Entry& entry = program.entries[0];
    const auto slotOf = [this](const Value* value) {
      const auto [at, made] = slots.try_emplace(value, static_cast<Slot>(slots.size()));
      (void)made;
      return at->second;
    };
    for (const Value* input : entry.graph->inputs()) (void)slotOf(input);
    for (const Node* node : entry.graph->nodes())
      calls.push_back(compileCall(node, DeviceMap{c10::kCPU, c10::kCPU}, slotOf));
  }

  /// Runs all calls, quickly where that is possible; how many were.
  int run(Frame& frame, bool quick) {
    frame.resize(slots.size() + 8);
    torch::jit::Stack stack;
    int done = 0;
    for (const Call& call : calls) {
      if (quick && call.quick && call.quick(call, frame)) {
        ++done;
        continue;
      }
      call.push(frame, stack);
      call.run(stack);
      call.store(stack, frame);
    }
    return done;
  }

  Program program;
  std::map<const Value*, Slot> slots;
  std::vector<Call> calls;
};

const char* const kArithmetic = R"(gravure 1
graph step(%a : float {symint "a"}, %b : float {symint "b"}):
  %c : float = aten::add.float(%a, %b)
  %d : float = aten::sub.float(1, %c)
  %e : float = aten::mul.float(%d, %b)
  %f : float = aten::div.float(%e, %a)
  %g : float = aten::pow.float(%a, %b)
  %h : float = aten::neg.float(%g)
  return (%f {output "f"}, %h {output "h"})
)";

const char* const kCounters = R"(gravure 1
graph step(%a : Float(device=cpu) {buffer "a"}, %b : Float(device=cpu) {buffer "b"},
           %one : Float(device=cpu) {constant "one"}):
  aten::_foreach_add_.Tensor([%a, %b], %one)
  %c : Float(device=cpu) = aten::add_.Tensor(%a, 1)
  %x : float = aten::_local_scalar_dense(%c)
  %y : float = aten::_local_scalar_dense(%b)
  return (%x {output "x"}, %y {output "y"})
)";

}  // namespace

TEST_CASE("law 1: arithmetic without the dispatcher has its bits", "[law1]") {
  Calls calls(kArithmetic);
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double a : {0.1, -3.7, 1e300, 1e-310, 0.999, infinite}) {
    for (const double b : {0.7, 2.0, -0.5, 1e-8, 41.0}) {
      Frame quick{a, b}, slow{a, b};
      CHECK(calls.run(quick, true) == 6);
      CHECK(calls.run(slow, false) == 0);
      for (size_t i = 0; i < calls.slots.size(); ++i) {
        const double x = quick[i].toDouble(), y = slow[i].toDouble();
        CHECK(std::memcmp(&x, &y, sizeof x) == 0);
      }
    }
  }
}

TEST_CASE("law 1: counters on the CPU count as the operators do", "[law1]") {
  for (const double start : {0.0, 7.0, 16777215.0, 16777216.0, 0.1}) {
    Calls calls(kCounters);
    const auto frame = [&] {
      return Frame{at::scalar_tensor(start), at::scalar_tensor(start + 2), at::scalar_tensor(1.0)};
    };
    Frame quick = frame(), slow = frame();
    CHECK(calls.run(quick, true) == 4);
    (void)calls.run(slow, false);
    for (size_t i = 0; i < 3; ++i) CHECK(sameBits(quick[i].toTensor(), slow[i].toTensor()));
    for (const auto& [value, slot] : calls.slots) {
      if (quick[slot].isDouble()) CHECK(quick[slot].toDouble() == slow[slot].toDouble());
    }
  }
}

TEST_CASE("what is no plain number of the CPU goes through the dispatcher") {
  Calls calls(kCounters);
  Frame frame{at::zeros({1, 1}), at::zeros({1}), at::scalar_tensor(1.0)};
  CHECK(calls.run(frame, true) == 0);
  CHECK(frame[0].toTensor().item<float>() == 2);
  Frame half{at::scalar_tensor(1.0, at::kHalf), at::scalar_tensor(1.0, at::kHalf),
             at::scalar_tensor(1.0)};
  CHECK(calls.run(half, true) == 0);
}
