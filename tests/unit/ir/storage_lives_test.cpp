#include "ir/memory/storage_lives.h"

#include "ir/text/program_text.h"
#include "tests/catch.h"
#include "tests/unit/ir/memory_fixture.h"

#include <string>
#include <tuple>
#include <utility>

namespace gravure {
namespace {

struct Memory {
  explicit Memory(const std::string& statements, const std::string& results = "%x {output \"x\"}",
                  Partitions partitions = Partitions::AsNodes,
                  StagedOperands staged = StagedOperands::Aliased)
      : program(readProgram(test::withTensorTypes(
            "graph(%x : R {user_input \"x\"}, %y : R {buffer \"y\"}, %p : bool "
            "{user_input \"p\"}):\n" +
            statements + "  return (" + results + ")"))),
        numbering(program.entries[0], partitions), accesses(numbering, staged),
        lives(livesInProgramOrder(accesses)) {}

  int32_t storage(const std::string& name) const {
    for (int32_t t = 0; t < numbering.tensorCount(); ++t) {
      const Value* value = numbering.value(numbering.valueOfTensor(t));
      if (value->debugName() == name) return accesses.storageOf(value);
    }
    FAIL("no tensor is called " + name);
    return -1;
  }
  std::pair<int32_t, int32_t> life(const std::string& name) const {
    const Life& life = lives.at(storage(name));
    return {life.begin, life.end};
  }

  Program program;
  Numbering numbering;
  StorageAccesses accesses;
  std::vector<Life> lives;
};

using Range = std::pair<int32_t, int32_t>;

}  // namespace

TEST_CASE("storage accesses: maker, first value and holder of a storage") {
  const Memory memory("  %a : R = aten::relu(%x)\n"
                      "  %v : R = aten::alias(%a)\n"
                      "  %b : R = aten::relu(%v)\n"
                      "  %w : R = aten::alias(%x)\n",
                      "%v {output \"v\"}");
  const StorageAccesses& accesses = memory.accesses;
  CHECK(accesses.storageCount() == 4);
  CHECK(memory.storage("a") == memory.storage("v"));
  CHECK(accesses.firstOf(memory.storage("v"))->debugName() == "a");
  CHECK(accesses.makerOf(memory.storage("v")) == 0);
  CHECK(accesses.makerOf(memory.storage("b")) == 2);
  CHECK(accesses.makerOf(memory.storage("w")) == -1);
  CHECK(accesses.isExternal(memory.storage("w")));
  CHECK_FALSE(accesses.isExternal(memory.storage("a")));
  CHECK(accesses.isHeld(memory.storage("a")));
  CHECK_FALSE(accesses.isHeld(memory.storage("b")));
  const auto isAlias = [&](int32_t node) {
    return accesses.isAlias(Numbering::indexOf(memory.numbering.node(node)->output()));
  };
  CHECK_FALSE(isAlias(0));
  CHECK(isAlias(1));
  CHECK(isAlias(3));
}

TEST_CASE("storage accesses: a branch's result is what its blocks end with, made by the branch") {
  const Memory memory("  %o : R = prim::If(%p)\n"
                      "    block0():\n      %i : R = aten::relu(%x)\n      -> (%i)\n"
                      "    block1():\n      -> (%y)\n"
                      "  %r : R = prim::If(%p)\n"
                      "    block0():\n      %j : R = aten::relu(%x)\n      -> (%j)\n"
                      "    block1():\n      %k : R = aten::relu(%y)\n      -> (%k)\n");
  CHECK(memory.storage("o") == memory.storage("y"));
  CHECK(memory.accesses.isExternal(memory.storage("i")));
  CHECK(memory.storage("r") == memory.storage("k"));
  CHECK(memory.accesses.makerOf(memory.storage("r")) == 1);
}

TEST_CASE("lives: from the maker to the last that has it in use, to the end if it is held") {
  const Memory memory("  %a : R = aten::relu(%x)\n"
                      "  %b : R = aten::relu(%a)\n"
                      "  %unread : R = aten::relu(%x)\n"
                      "  %v : R = aten::alias(%a)\n"
                      "  %c : R = aten::relu(%v)\n"
                      "  %d : R = aten::relu(%c)\n",
                      "%b {output \"b\"}");
  CHECK(memory.life("a") == Range(0, 5));
  CHECK(memory.life("unread") == Range(2, 3));
  CHECK(memory.life("b") == Range(1, 6));
  CHECK(memory.life("c") == Range(4, 6));
}

TEST_CASE("lives: what a collective has open lives to its last wait, without one to the end") {
  const Memory memory(
      "  %a : R = aten::relu(%x)\n"
      "  %b : R = aten::relu(%x)\n"
      "  %m : R, %n : R = _c10d_functional::all_reduce_coalesced([%a, %b], \"sum\", "
      "\"0\")\n"
      "  %mw : R = _c10d_functional::wait_tensor(%m)\n"
      "  %nw : R = _c10d_functional::wait_tensor(%n)\n"
      "  %c : R = aten::relu(%x)\n"
      "  %l : R = _c10d_functional::all_reduce(%c, \"sum\", \"0\")\n"
      "  %d : R = aten::relu(%x)\n");
  CHECK(memory.life("a") == Range(0, 5));
  CHECK(memory.life("b") == Range(1, 5));
  CHECK(memory.life("m") == Range(2, 5));
  CHECK(memory.accesses.isLeftOpen(memory.storage("c")));
  CHECK_FALSE(memory.accesses.isLeftOpen(memory.storage("a")));
  CHECK(memory.life("c") == Range(5, 8));
  CHECK(memory.life("l") == Range(6, 8));
}

TEST_CASE("numbering: statements of an entered partition stand in its place") {
  const char* text = "  %a : R = aten::relu(%x)\n"
                     "  %b.out : R = cudagraph::partition[index=0](%a)\n"
                     "    block0(%a.p0 : R):\n"
                     "      %h : R = aten::relu(%a.p0)\n"
                     "      %b : R = aten::relu(%h)\n      -> (%b)\n"
                     "  %c : R = aten::relu(%b.out)\n";
  const Memory whole(text);
  CHECK(whole.numbering.size() == 3);
  CHECK(whole.accesses.makerOf(whole.storage("b")) == 1);
  const Memory entered(text, "%x {output \"x\"}", Partitions::Entered);
  CHECK(entered.numbering.size() == 4);
  CHECK(entered.storage("a") == entered.storage("a.p0"));
  CHECK(entered.storage("b") == entered.storage("b.out"));
  CHECK(entered.accesses.firstOf(entered.storage("b.out"))->debugName() == "b");
  CHECK(entered.accesses.makerOf(entered.storage("b.out")) == 2);
  CHECK(entered.life("a") == Range(0, 2));
  CHECK(entered.life("h") == Range(1, 3));
  CHECK(entered.life("b") == Range(2, 4));
}

TEST_CASE("lives: staged operands are read where they are copied, the copies made there") {
  const char* text = "  %a : R = aten::relu(%y)\n"
                     "  %v : R = aten::alias(%a)\n"
                     "  %b : R = aten::relu(%y)\n"
                     "  %c.out : R = cudagraph::partition[index=0, tags=[\"staged: user input\", "
                     "\"staged: control "
                     "flow\"]](%x, %v)\n"
                     "    block0(%x.p0 : R, %v.p0 : R):\n"
                     "      %c : R = aten::relu(%v.p0)\n"
                     "      %d : R = aten::add.Tensor(%x.p0, %v.p0)\n      -> (%d)\n"
                     "  %e : R = aten::relu(%y)\n";
  const Memory aliased(text, "%y {output \"y\"}", Partitions::Entered);
  CHECK(aliased.storage("x") == aliased.storage("x.p0"));
  CHECK(aliased.life("a") == Range(0, 5));
  const Memory copied(text, "%y {output \"y\"}", Partitions::Entered, StagedOperands::Copied);
  CHECK(copied.storage("x") != copied.storage("x.p0"));
  CHECK_FALSE(copied.accesses.isExternal(copied.storage("x.p0")));
  CHECK(copied.life("x") == Range(0, 1));
  CHECK(copied.life("x.p0") == Range(0, 5));
  CHECK(copied.life("a") == Range(0, 4));
  CHECK(copied.life("v.p0") == Range(3, 5));
}

TEST_CASE(
    "live bytes: the peak of an order counts made storages from their maker to their last use") {
  const Memory memory("  %a : R = aten::relu(%x)\n"
                      "  %b : R = aten::relu(%a)\n"
                      "  %c : R = aten::relu(%x)\n"
                      "  %d : R = aten::relu(%c)\n"
                      "  %n : Tensor = aten::relu(%x)\n",
                      "%b {output \"b\"}, %x {output \"x\"}");
  const LiveBytes live(memory.accesses);
  // In turns: a result, what is made and what it is made of.
  CHECK(live.peak({0, 1, 2, 3, 4}) == 3 * 16);
  // All makers first: a, c, then b behind both.
  CHECK(live.peak({0, 2, 1, 3, 4}) == 3 * 16);
  CHECK(live.peak({4, 2, 3, 0, 1}) == 2 * 16);
  const Memory open("  %a : R = aten::relu(%x)\n"
                    "  %l : R = _c10d_functional::all_reduce(%a, \"sum\", \"0\")\n"
                    "  %b : R = aten::relu(%x)\n");
  CHECK(LiveBytes(open.accesses).peak({0, 1, 2}) == 3 * 16);
  const Memory over("  %a : R = aten::relu(%x)\n"
                    "  %l : R = _c10d_functional::all_reduce(%a, \"sum\", \"0\")\n"
                    "  %w : R = _c10d_functional::wait_tensor(%l)\n"
                    "  %b : R = aten::relu(%x)\n");
  CHECK(LiveBytes(over.accesses).peak({0, 1, 2, 3}) == 2 * 16);
}

}  // namespace gravure
