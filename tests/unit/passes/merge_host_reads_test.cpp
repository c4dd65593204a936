#include "passes/merge_host_reads.h"

#include "ir/core/cudagraph_ops.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

namespace gravure {
namespace {

test::PassRun merge(const std::string& text) {
  return {mergeHostReads, verifyMergeHostReads, text};
}

std::string reads(int count, const std::string& size) {
  std::string text =
      "graph step(%c : Float(" + size + ", strides=[1], device=cpu) {user_input \"c\"}):\n";
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    text += "  %s" + n + " : Float(device=cpu) = aten::select.int(%c, 0, " + n + ")\n" + "  %n" +
            n + " : float = aten::_local_scalar_dense(%s" + n + ")\n";
  }
  return text + "  return (%n0 {output \"n\"})";
}

size_t countOf(const Program& program, c10::Symbol kind) {
  size_t count = 0;
  for (const Node* node : program.entries[0].graph->nodes()) count += node->kind() == kind;
  return count;
}

}  // namespace

TEST_CASE("merge: as many elements as read_host takes, and no more") {
  CHECK(countOf(merge(reads(3, "4096")).program, cg::readHost) == 1);
  CHECK(countOf(merge(reads(3, "4097")).program, cg::readHost) == 0);
}

TEST_CASE("merge: an index out of range is left to fail where it stands") {
  const auto run = merge(reads(3, "2"));
  CHECK(countOf(run.program, cg::readHost) == 1);
  CHECK(countOf(run.program, c10::Symbol::fromQualString("aten::_local_scalar_dense")) == 1);
}

TEST_CASE("merge: two tensors make two copies, entry by entry") {
  const auto run = merge(
      "graph forward(%a : S {user_input \"a\"}, %b : S {user_input \"b\"}):\n"
      "  %m : float = aten::_local_scalar_dense(%a)\n"
      "  %n : float = aten::_local_scalar_dense(%b)\n"
      "  %o : float = aten::item(%a)\n"
      "  %p : float = aten::_local_scalar_dense(%b)\n"
      "  return (%m {output \"m\"}, %n {output \"n\"}, %o {output \"o\"}, %p {output \"p\"})\n"
      "graph backward(%a : S {user_input \"a\"}):\n"
      "  %m : float = aten::_local_scalar_dense(%a)\n"
      "  return (%m {output \"m\"})");
  CHECK(countOf(run.program, cg::readHost) == 2);
  CHECK(run.program.entries[1].graph->block()->nodes().begin()->kind() != cg::readHost);
  CHECK(run.context.remarks.count("host-reads-merged") == 2);
}

TEST_CASE("merge: the verifier finds wrong outputs") {
  auto run = merge(reads(2, "4"));
  for (Node* node : run.program.entries[0].graph->nodes()) {
    if (node->kind() == cg::readHost) node->eraseOutput(3);
  }
  CHECK_THROWS_WITH(verifyMergeHostReads(run.program, {}),
                    Catch::Contains("one output an element"));
}

}  // namespace gravure
