#include "passes/analysis/dependences.h"

#include "ir/core/cudagraph_ops.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

#include <algorithm>

namespace gravure {
namespace {

struct Read {
  explicit Read(const std::string& text)
      : program(readProgram(test::expandTypes(text))), dependences(program.entries[0]) {}

  /// Nodes that node `i` is linked to, sorted.
  std::vector<int32_t> before(int32_t i) const {
    auto links = dependences.before(i).vec();
    std::sort(links.begin(), links.end());
    return links;
  }

  Program program;
  Dependences dependences;
};

using Links = std::vector<int32_t>;

}  // namespace

TEST_CASE("dependences: data flow links each definition once") {
  const Read read("graph step(%x : T {user_input \"x\"}):\n"
                  "  %a : T = aten::relu(%x)\n"
                  "  %b : T = aten::add.Tensor(%a, %a)\n"
                  "  %c : T = aten::relu(%x)\n  return (%b {output \"b\"}, %c {output \"c\"})");
  CHECK(read.before(0) == Links{});
  CHECK(read.before(1) == Links{0});
  CHECK(read.before(2) == Links{});
}

TEST_CASE("dependences: a write through a view stands between the reads of the storage") {
  const Read read(
      "graph step(%x : T {buffer \"x\"}, %y : T {user_input \"y\"}):\n"
      "  %a : T = aten::relu(%x)\n"             // 0 reads
      "  %v : T = aten::alias(%x)\n"            // 1
      "  %b : T = aten::relu(%x)\n"             // 2 reads
      "  %w : T = aten::add_.Tensor(%v, %y)\n"  // 3 writes through the view
      "  %c : T = aten::relu(%x)\n"             // 4 reads what was written
      "  %d : T = aten::relu(%y)\n"             // 5 has nothing to do with it
      "  %e : T = aten::mul_.Tensor(%x, %y)\n"  // 6 writes again
      "  return (%a {output \"a\"}, %b {output \"b\"}, %c {output \"c\"}, %d {output \"d\"})");
  CHECK(read.before(3) == Links{0, 1, 2});
  CHECK(read.before(4) == Links{3});
  CHECK(read.before(5) == Links{});
  CHECK(read.before(6) == Links{3, 4});
}

TEST_CASE("dependences: hidden writes and writes in a branch count") {
  const Read read("graph step(%x : T {user_input \"x\"}, %s : R {buffer \"s\"}, %p : bool "
                  "{user_input \"p\"}):\n"
                  "  %a : R = aten::relu(%s)\n"
                  "  %o : T = prim::If(%p)\n"
                  "    block0():\n"
                  "      %i : R = aten::mul_.Tensor(%s, %s)\n      -> (%x)\n"
                  "    block1():\n      -> (%x)\n"
                  "  %b : R = aten::relu(%s)\n"
                  "  %c : T = aten::relu_(%o)\n"  // the branch hands out %x itself
                  "  %d : T = aten::relu(%x)\n"
                  "  return (%a {output \"a\"}, %b {output \"b\"}, %d {output \"d\"})");
  CHECK(read.before(1) == Links{0});
  CHECK(read.before(2) == Links{1});
  CHECK(read.before(4) == Links{3});
}

TEST_CASE("dependences: draws keep their order, by generator") {
  const Read read(
      "graph step(%x : G {user_input \"x\"}, %g : Generator {rng_state \"cuda:0\"},\n"
      "           %h : Generator {rng_state \"cuda:0#1\"}, %y : T {user_input \"y\"}):\n"
      "  %a : G = aten::bernoulli.p(%x, 0.5)\n"          // 0: cuda's default
      "  %b : G = aten::bernoulli.p(%x, 0.5) rng(%h)\n"  // 1: the paired one
      "  %c : G = aten::bernoulli.p(%x, 0.5) rng(%g)\n"  // 2: the default by name
      "  %d : T = aten::bernoulli.p(%y, 0.5)\n"          // 3: the CPU's
      "  %st : Byte(8, strides=[1], device=cpu) = cudagraph::save_rng_state(\"cpu\")\n"  // 4
      "  %e : T = aten::bernoulli.p(%y, 0.5) rng(%st)\n"  // 5: puts the state back
      "  %f : T = aten::bernoulli.p(%y, 0.5)\n"           // 6
      "  %k : G = aten::bernoulli.p(%x, 0.5) rng(%h)\n"   // 7
      "  return (%a {output \"a\"}, %k {output \"k\"})");
  CHECK(read.before(1) == Links{});
  CHECK(read.before(2) == Links{0});
  CHECK(read.before(3) == Links{});
  CHECK(read.before(4) == Links{3});
  CHECK(read.before(5) == Links{4});  // data alone
  CHECK(read.before(6) == Links{4});
  CHECK(read.before(7) == Links{1});
}

TEST_CASE("dependences: an operator told not to draw is free") {
  const Read read("graph step(%x : T {user_input \"x\"}):\n"
                  "  %a : T, %m : B = aten::native_dropout(%x, 0.5, True)\n"
                  "  %b : T, %n : B = aten::native_dropout(%x, 0.5, False)\n"
                  "  %c : T, %o : B = aten::native_dropout(%x, 0.5, True)\n"
                  "  return (%a {output \"a\"}, %b {output \"b\"}, %c {output \"c\"})");
  CHECK(read.before(1) == Links{});
  CHECK(read.before(2) == Links{0});
}

TEST_CASE("dependences: collectives start in order, their waits need not keep it") {
  const Read read("graph step(%x : R {user_input \"x\"}):\n"
                  "  %a : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"
                  "  %b : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"
                  "  %c : R = _c10d_functional::wait_tensor(%b)\n"
                  "  %d : R = _c10d_functional::wait_tensor(%a)\n"
                  "  return (%c {output \"c\"}, %d {output \"d\"})");
  CHECK(read.before(1) == Links{0});
  CHECK(read.before(2) == Links{1});
  CHECK(read.before(3) == Links{0});
}

TEST_CASE("dependences: what stood behind a wait or in front of a start stays there") {
  const Read read("graph step(%x : R {buffer \"x\"}, %y : R {user_input \"y\"}):\n"
                  "  %v : R = aten::alias(%x)\n"                                    // 0
                  "  %e : R = aten::mul_.Tensor(%x, %y)\n"                          // 1
                  "  %a : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"   // 2 reads %x
                  "  %r : R = aten::relu(%a)\n"                                     // 3 too early
                  "  %b : R = _c10d_functional::wait_tensor(%a)\n"                  // 4
                  "  %u : R = aten::add_.Tensor(%v, %y)\n"                          // 5 writes it
                  "  %s : R = aten::relu(%a)\n"                                     // 6
                  "  %c : R = _c10d_functional::all_reduce_(%x, \"sum\", \"0\")\n"  // 7 writes it
                  "  %d : R = _c10d_functional::wait_tensor(%c)\n"                  // 8
                  "  %t : R = aten::relu(%v)\n"                                     // 9
                  "  return (%b {output \"b\"}, %t {output \"t\"})");
  CHECK(read.before(4) == Links{1, 2, 3});
  CHECK(read.before(5) == Links{0, 1, 2, 4});
  CHECK(read.before(6) == Links{2, 4});
  CHECK(read.before(8) == Links{7});
  CHECK(read.before(9) == Links{0, 8});
}

TEST_CASE("dependences: effects keep their order") {
  const Read read("graph step(%x : B {user_input \"x\"}, %k : int {symint \"k\"}):\n"
                  "  %p : bool = aten::gt.int(%k, 0)\n"
                  "  aten::_assert_scalar(%p, \"positive\")\n"
                  "  %q : bool = aten::gt.int(%k, 1)\n"
                  "  aten::_assert_scalar(%q, \"large\")\n"
                  "  return (%x {output \"x\"})");
  CHECK(read.before(2) == Links{});
  CHECK(read.before(3) == Links{1, 2});
}

TEST_CASE("storage accesses: views share their operand's storage, and an input's is external") {
  const Read read("graph step(%x : T {user_input \"x\"}):\n"
                  "  %a : T = aten::relu(%x)\n"
                  "  %v : T = aten::alias(%a)\n"
                  "  %w : T = aten::alias(%v)\n"
                  "  %y : T = aten::alias(%x)\n  return (%w {output \"w\"}, %y {alias %x})");
  const StorageAccesses& accesses = read.dependences.accesses();
  const auto storage = [&](int32_t node) {
    return accesses.storageOf(accesses.numbering().node(node)->output());
  };
  const Value* input = read.program.entries[0].graph->inputs()[0];
  CHECK(storage(0) == storage(2));
  CHECK(storage(3) == accesses.storageOf(input));
  CHECK(storage(3) != storage(0));
  CHECK(accesses.isExternal(storage(3)));
  CHECK_FALSE(accesses.isExternal(storage(1)));
  CHECK_FALSE(accesses.isWritten(storage(0)));
}

}  // namespace gravure
