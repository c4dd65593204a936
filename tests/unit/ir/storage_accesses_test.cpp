#include "ir/memory/storage_accesses.h"

#include "ir/text/program_text.h"
#include "tests/catch.h"
#include "tests/unit/ir/memory_fixture.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace gravure {
namespace {

struct Read {
  explicit Read(const std::string& statements)
      : program(readProgram(
            test::withTensorTypes("graph(%x : R {buffer \"x\"}, %y : R {buffer \"y\"}, %p : bool "
                                  "{user_input \"p\"}):\n" +
                                  statements + "  return (%x {output \"x\"})"))),
        numbering(program.entries[0]), accesses(numbering) {}

  const CollectiveSpan& span(size_t i) const { return accesses.spans().at(i); }
  std::vector<std::string> names(const llvm::SmallVectorImpl<int64_t>& storages) const {
    std::vector<std::string> found;
    for (int64_t storage : storages)
      found.push_back(accesses.firstOf(static_cast<int32_t>(storage))->debugName());
    return found;
  }
  /// Of node `i`, by name, sorted, each once.
  std::vector<std::string> written(int32_t i) const {
    std::vector<std::string> found;
    accesses.forEachWritten(i,
                            [&](int32_t s) { found.push_back(accesses.firstOf(s)->debugName()); });
    return sorted(std::move(found));
  }
  std::vector<std::string> readByWait(int32_t i) const {
    std::vector<std::string> found;
    accesses.forEachReadByWait(
        i, [&](int32_t s) { found.push_back(accesses.firstOf(s)->debugName()); });
    return sorted(std::move(found));
  }
  std::vector<std::pair<int64_t, size_t>> clashes() const {
    std::vector<std::pair<int64_t, size_t>> found;
    for (const CollectiveClash& clash : accesses.clashes())
      found.emplace_back(clash.position, clash.span);
    return found;
  }
  const Value* result(int32_t i) const { return numbering.node(i)->output(0); }

  Program program;
  Numbering numbering;
  StorageAccesses accesses;

 private:
  static std::vector<std::string> sorted(std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }
};

using Names = std::vector<std::string>;
using Positions = std::vector<int64_t>;
using Clashes = std::vector<std::pair<int64_t, size_t>>;

}  // namespace

TEST_CASE("storage accesses: a wait reads the operand and writes the result") {
  const Read read("  %a : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"
                  "  %b : R = aten::relu(%y)\n"
                  "  %c : R = _c10d_functional::wait_tensor(%a)\n"
                  "  %d : R = aten::add_.Tensor(%x, %y)\n");
  REQUIRE(read.accesses.spans().size() == 1);
  CHECK(read.span(0).begin == 0);
  CHECK(read.span(0).end == 2);
  CHECK(read.span(0).left.empty());
  CHECK(read.names(read.span(0).reads) == Names{"x"});
  CHECK(read.names(read.span(0).writes) == Names{"a"});
  CHECK(read.readByWait(2) == Names{"x"});
  CHECK(read.written(2) == Names{"a"});
  CHECK(read.readByWait(1).empty());
  CHECK(read.written(3) == Names{"x"});
  CHECK(read.clashes().empty());
}

TEST_CASE("storage accesses: what all_reduce_ writes is open for writing under every name") {
  const Read read("  %v : R = aten::alias(%x)\n"
                  "  %a : R = _c10d_functional::all_reduce_(%x, \"sum\", \"0\")\n"
                  "  %r : R = aten::relu(%v)\n"
                  "  %c : R = _c10d_functional::wait_tensor(%a)\n"
                  "  %s : R = aten::relu(%v)\n");
  CHECK(read.names(read.span(0).writes) == Names{"x"});
  CHECK(read.span(0).reads.empty());
  CHECK(read.written(3) == Names{"x"});
  CHECK(read.clashes() == Clashes{{2, 0}});
}

TEST_CASE("storage accesses: a collective is waited for through views and list members") {
  const Read read("  %l : L = _c10d_functional::all_reduce_coalesced([%x, %y], \"sum\", \"0\")\n"
                  "  %m : R = aten::__getitem__.t(%l, 0)\n"
                  "  %v : R = aten::alias(%m)\n"
                  "  %w : R = _c10d_functional::wait_tensor(%v)\n"
                  "  %r : R = aten::relu(%m)\n");
  CHECK(read.accesses.storageOf(read.result(1)) == read.accesses.storageOf(read.result(0)));
  CHECK(read.span(0).end == 3);
  CHECK(read.span(0).left.empty());
}

TEST_CASE(
    "storage accesses: each of several results wants its wait; the first and the last count") {
  const Read read("  %a : R, %b : R, %c : R = _c10d_functional::all_reduce_coalesced([%x, %y, %x], "
                  "\"sum\", \"0\")\n"
                  "  %d : R = _c10d_functional::wait_tensor(%a)\n"
                  "  %e : R = _c10d_functional::wait_tensor(%b)\n"
                  "  %f : R = _c10d_functional::wait_tensor(%b)\n"
                  "  %g : R = _c10d_functional::wait_tensor(%c)\n"
                  "  %h : R = _c10d_functional::wait_tensor(%c)\n");
  CHECK(read.span(0).end == 4);
  CHECK(read.span(0).waits == Positions{1, 2, 4});
  CHECK(read.readByWait(1) == Names{"x", "y"});
  CHECK(read.written(1) == Names{"a", "b", "c"});
  CHECK(read.readByWait(2).empty());
  CHECK(read.written(2) == Names{"b"});
  CHECK(read.readByWait(4) == Names{"x", "y"});
  CHECK(read.written(5).empty());
}

TEST_CASE("storage accesses: results that share a storage are told apart by their names") {
  const Read read("  %a : R, %b : R = _c10d_functional::all_reduce_coalesced_([%x, %y], \"sum\", "
                  "\"0\")\n"
                  "  %v : R = aten::alias(%a)\n"
                  "  %d : R = _c10d_functional::wait_tensor(%v)\n"
                  "  %e : R = _c10d_functional::wait_tensor(%a)\n"
                  "  %f : R = _c10d_functional::wait_tensor(%b)\n");
  CHECK(read.span(0).end == 4);
  const Read operand(
      "  %a : R, %b : R = _c10d_functional::all_reduce_coalesced_([%x, %y], \"sum\", "
      "\"0\")\n"
      "  %d : R = _c10d_functional::wait_tensor(%x)\n"
      "  %f : R = aten::relu(%b)\n");
  CHECK(operand.span(0).end == 1);
}

TEST_CASE("storage accesses: without a wait a collective is open to the end") {
  const Read read("  %a : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"
                  "  %b : R = aten::add_.Tensor(%x, %y)\n");
  CHECK(read.span(0).end == 2);
  REQUIRE(read.span(0).left.size() == 1);
  CHECK(read.span(0).left[0]->debugName() == "a");
  CHECK(read.clashes() == Clashes{{1, 0}});
}

TEST_CASE("storage accesses: a collective on what another one still writes waits for both") {
  const Read read("  %a : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"
                  "  %b : R = _c10d_functional::all_reduce_(%a, \"sum\", \"0\")\n"
                  "  %c : R = _c10d_functional::wait_tensor(%b)\n");
  CHECK(read.clashes() == Clashes{{1, 0}});
  CHECK(read.span(0).end == 2);
  CHECK(read.span(1).end == 2);
}

TEST_CASE(
    "storage accesses: of a storage that holds several allocations, each collective clashes") {
  const Read read("  %a : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"
                  "  %b : R = _c10d_functional::all_reduce(%y, \"sum\", \"0\")\n"
                  "  %c : R, %d : R = _c10d_functional::all_reduce_coalesced_([%b, %a], \"sum\", "
                  "\"0\")\n");
  CHECK(read.accesses.storageOf(read.result(0)) == read.accesses.storageOf(read.result(1)));
  const Clashes found = read.clashes();
  const std::set<std::pair<int64_t, size_t>> clashes(found.begin(), found.end());
  CHECK(clashes == std::set<std::pair<int64_t, size_t>>{{2, 0}, {2, 1}});
}

TEST_CASE("storage accesses: what a branch starts and waits for lies in one node") {
  const Read read("  %o : R = prim::If(%p)\n"
                  "    block0():\n"
                  "      %a : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"
                  "      %b : R = _c10d_functional::wait_tensor(%a)\n      -> (%b)\n"
                  "    block1():\n      -> (%y)\n"
                  "  %u : R = aten::add_.Tensor(%x, %y)\n");
  CHECK(read.span(0).begin == 0);
  CHECK(read.span(0).end == 0);
  CHECK(read.readByWait(0) == Names{"x"});
  CHECK(read.clashes().empty());
}

TEST_CASE("storage accesses: a value is final once the collective that writes it is over") {
  const Read read("  %a : R = _c10d_functional::all_reduce(%x, \"sum\", \"0\")\n"
                  "  %v : R = aten::alias(%a)\n"
                  "  %b : R = _c10d_functional::wait_tensor(%a)\n"
                  "  %c : R = aten::alias(%b)\n"
                  "  %d : R = aten::relu(%b)\n");
  CHECK_FALSE(read.accesses.isNeverWritten(read.result(0)));
  CHECK_FALSE(read.accesses.isNeverWritten(read.result(1)));
  CHECK(read.accesses.isNeverWritten(read.result(2)));
  CHECK(read.accesses.isNeverWritten(read.result(3)));
  CHECK(read.accesses.isNeverWritten(read.result(4)));
  CHECK(read.accesses.isWritten(read.accesses.storageOf(read.result(0))));
  CHECK_FALSE(read.accesses.isWritten(read.accesses.storageOf(read.result(4))));
}

}  // namespace gravure
