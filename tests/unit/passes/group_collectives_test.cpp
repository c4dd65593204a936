#include "passes/group_collectives.h"

#include "ir/core/cudagraph_ops.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

namespace gravure {
namespace {

test::PassRun group(const std::string& statements) {
  return {groupCollectives, verifyGroupCollectives,
          "graph step(%x : R {user_input \"x\"}, %y : R {buffer \"y\"}):\n" + statements +
              "  return (%x {output \"x\"})"};
}

/// Fates by node, -1 for none.
std::vector<int64_t> fates(const Program& program) {
  std::vector<int64_t> all;
  for (const Node* node : program.entries[0].graph->nodes()) {
    all.push_back(node->hasAttribute(attr::fate) ? node->i(attr::fate) : -1);
  }
  return all;
}

using Fates = std::vector<int64_t>;
constexpr const char* kReduce = "_c10d_functional::all_reduce(%x, \"sum\", \"0\")\n";

}  // namespace

TEST_CASE("fates: a program without collectives is left alone") {
  const auto run = group("  %a : R = aten::relu(%x)\n");
  CHECK(fates(run.program) == Fates{-1});
  CHECK(run.context.remarks.all().empty());
}

TEST_CASE("fates: a second wait on the same result is free") {
  const auto run = group(std::string("  %a : R = ") + kReduce +
                         "  %b : R = _c10d_functional::wait_tensor(%a)\n"
                         "  %c : R = aten::relu(%b)\n"
                         "  %d : R = _c10d_functional::wait_tensor(%b)\n");
  CHECK(fates(run.program) == Fates{0, 0, -1, -1});
}

TEST_CASE("fates: code that waits itself needs none, and leaves another's as it is") {
  const auto run = group(std::string("  %a : R = ") + kReduce +
                         "  %b : R = gravure::compiled_communicating(\"code\", 2, [%x], [\"0\"], "
                         "[\"all_reduce\"])\n"
                         "  %c : R = aten::relu(%b)\n"
                         "  %d : R = _c10d_functional::wait_tensor(%a)\n");
  CHECK(fates(run.program) == Fates{0, -1, -1, 0});
}

TEST_CASE("fates: a node that touches two open collectives unites them") {
  const auto run = group(std::string("  %a : R = ") + kReduce + "  %b : R = " + kReduce +
                         "  %c : R = aten::add.Tensor(%a, %b)\n"
                         "  %d : R = _c10d_functional::wait_tensor(%a)\n"
                         "  %e : R = _c10d_functional::wait_tensor(%b)\n");
  CHECK(fates(run.program) == Fates{0, 0, 0, 0, 0});
}

TEST_CASE("fates: an in-place collective is open on its operand") {
  const auto run = group("  %a : R = _c10d_functional::all_reduce_(%y, \"sum\", \"0\")\n"
                         "  %r : R = aten::relu(%y)\n"
                         "  %b : R = _c10d_functional::wait_tensor(%a)\n"
                         "  %s : R = aten::relu(%y)\n");
  CHECK(fates(run.program) == Fates{0, 0, 0, -1});
}

TEST_CASE("fates: fates that pull each other apart over the host do not both stay") {
  // %a's member depends on the host read of %b's, and %b's on the host read of %a's.
  auto run = group(std::string("  %a : R = ") + kReduce + "  %b : R = " + kReduce +
                   "  %c : H = aten::sum(%a)\n"
                   "  %d : H = aten::sum(%b)\n"
                   "  %m : float = aten::_local_scalar_dense[host=\"host-sync\"](%c)\n"
                   "  %n : float = aten::_local_scalar_dense[host=\"host-sync\"](%d)\n"
                   "  %v : R = aten::mul_.Scalar[host=\"host-number\"](%y, %m)\n"
                   "  %e : R = aten::add_.Tensor(%b, %v)\n"
                   "  %w : R = aten::mul.Scalar[host=\"host-number\"](%x, %n)\n"
                   "  %f : R = aten::add_.Tensor(%a, %w)\n"
                   "  %g : R = _c10d_functional::wait_tensor(%a)\n"
                   "  %h : R = _c10d_functional::wait_tensor(%b)\n");
  CHECK(run.context.remarks.count("open-collective") >= 4);
}

TEST_CASE("fates: the verifier wants every member and one verdict") {
  auto run = group(std::string("  %a : R = ") + kReduce +
                   "  %b : R = _c10d_functional::wait_tensor(%a)\n");
  Node* wait =
      run.program.entries[0].graph->outputs()[0]->owningGraph()->block()->nodes().begin()->next();
  wait->removeAttribute(attr::fate);
  CHECK_THROWS_WITH(verifyGroupCollectives(run.program, run.context),
                    Catch::Contains("has fate -1, expected 0"));
  wait->i_(attr::fate, 2);
  CHECK_THROWS_WITH(verifyGroupCollectives(run.program, run.context),
                    Catch::Contains("has fate 2, expected 1"));
  wait->i_(attr::fate, 0);
  setHostReason(wait, HostReason::UserRequest);
  CHECK_THROWS_WITH(verifyGroupCollectives(run.program, run.context),
                    Catch::Contains("must run on the host"));
}

TEST_CASE("fates: the verifier sees a fate that a host node pulls apart") {
  auto run = group(std::string("  %a : R = ") + kReduce +
                   "  %c : H = aten::sum(%a)\n"
                   "  %m : float = aten::_local_scalar_dense[host=\"host-sync\"](%c)\n"
                   "  %v : R = aten::mul_.Scalar[host=\"host-number\"](%y, %m)\n"
                   "  %e : R = aten::add_.Tensor(%a, %v)\n"
                   "  %b : R = _c10d_functional::wait_tensor(%a)\n");
  verifyGroupCollectives(run.program, run.context);
  for (Node* node : run.program.entries[0].graph->nodes()) {
    if (hostReasonOf(node) == HostReason::OpenCollective) clearHostReason(node);
  }
  CHECK_THROWS_WITH(verifyGroupCollectives(run.program, run.context),
                    Catch::Contains("depends on a part of its fate, and another part on it"));
}

TEST_CASE("fates: the verifier wants the fate of its start on a node that clashes") {
  auto run = group("  %a : R = _c10d_functional::all_reduce_(%y, \"sum\", \"0\")\n"
                   "  %r : R = aten::relu(%y)\n"
                   "  %b : R = _c10d_functional::wait_tensor(%a)\n");
  for (Node* node : run.program.entries[0].graph->nodes()) {
    if (node->kind() == c10::aten::relu) clearFate(node);
  }
  CHECK_THROWS_WITH(verifyGroupCollectives(run.program, run.context),
                    Catch::Contains("aten::relu"));
}

}  // namespace gravure
