#include "ir/check/defined_memory.h"

#include "ir/memory/storage_accesses.h"
#include "ir/text/program_text.h"
#include "tests/catch.h"
#include "tests/unit/ir/memory_fixture.h"

#include <llvm/ADT/IntEqClasses.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gravure {
namespace {

Program programOf(const std::string& statements) {
  return readProgram(
      test::withTensorTypes("graph(%x : R {buffer \"x\"}, %y : R {buffer \"y\"}, %p : bool "
                            "{user_input \"p\"}):\n" +
                            statements + "  return (%x {output \"x\"})"));
}

using Bound = std::vector<std::pair<int64_t, int64_t>>;

/// Collectives of all kinds on few tensors, with waits on any name, views, writes, lists and
/// branches.
std::string randomStatements(std::mt19937_64& random) {
  std::vector<std::string> values{"x", "y"};
  std::string text;
  const auto any = [&] { return "%" + values[random() % values.size()]; };
  const int count = 3 + static_cast<int>(random() % 14);
  for (int i = 0; i < count; ++i) {
    const std::string v = "v" + std::to_string(i);
    const std::string r = "  %" + v + " : R = ";
    const std::string pair = "  %" + v + " : R, %" + v + "b : R = ";
    switch (random() % 11) {
      case 0: text += r + "aten::relu(" + any() + ")\n"; break;
      case 1: text += r + "aten::alias(" + any() + ")\n"; break;
      case 2: text += r + "aten::add_.Tensor(" + any() + ", " + any() + ")\n"; break;
      case 3: text += r + "_c10d_functional::all_reduce(" + any() + ", \"sum\", \"0\")\n"; break;
      case 4: text += r + "_c10d_functional::all_reduce_(" + any() + ", \"sum\", \"0\")\n"; break;
      case 5:
      case 6: {
        const std::string inPlace = random() % 2 ? "_" : "";
        text += pair + "_c10d_functional::all_reduce_coalesced" + inPlace + "([" + any() + ", " +
                any() + "], \"sum\", \"0\")\n";
        values.push_back(v + "b");
        break;
      }
      case 7:
        text += "  %" + v + " : R = prim::If(%p)\n    block0():\n      %" + v +
                "i : R = _c10d_functional::all_reduce(" + any() + ", \"sum\", \"0\")\n      %" + v +
                "j : R = _c10d_functional::wait_tensor(%" + v + "i)\n      -> (%" + v +
                "j)\n    block1():\n      -> (" + any() + ")\n";
        break;
      default: text += r + "_c10d_functional::wait_tensor(" + any() + ")\n"; break;
    }
    values.push_back(v);
  }
  return text;
}

/// Nodes that share a fate, by the smallest of each class.
std::vector<unsigned> fates(int32_t nodes, const Bound& bound) {
  llvm::IntEqClasses classes(nodes);
  for (const auto& [a, b] : bound) classes.join(static_cast<unsigned>(a), static_cast<unsigned>(b));
  std::vector<unsigned> leaders;
  for (int32_t i = 0; i < nodes; ++i) leaders.push_back(classes.findLeader(i));
  return leaders;
}

}  // namespace

TEST_CASE("defined memory: waits, what is left and what is bound") {
  const Program program =
      programOf("  %a : R, %b : R = _c10d_functional::all_reduce_coalesced([%x, %y], \"sum\", "
                "\"0\")\n"
                "  %v : R = aten::alias(%a)\n"
                "  %w : R = _c10d_functional::wait_tensor(%v)\n"
                "  %u : R = aten::relu(%w)\n"
                "  %s : R = aten::add_.Tensor(%y, %u)\n"
                "  %z : R = _c10d_functional::wait_tensor(%b)\n"
                "  %l : R = _c10d_functional::all_reduce(%z, \"sum\", \"0\")\n");
  const DefinedMemory memory(program.entries[0]);
  REQUIRE(memory.collectives().size() == 2);
  CHECK(memory.storageOf(program.entries[0].graph->inputs()[2]) == -1);
  const DefinedCollective& first = memory.collectives()[0];
  CHECK(first.position == 0);
  CHECK(first.reads.size() == 2);
  CHECK(first.writes.size() == 2);
  CHECK(first.waits == std::vector<int64_t>{2, 5});
  CHECK(first.left.empty());
  CHECK(memory.collectives()[1].left.size() == 1);
  // The view and the write, and neither what reads what was waited for nor the next collective.
  CHECK(memory.bound() == Bound{{0, 2}, {0, 5}, {0, 1}, {0, 4}});
}

TEST_CASE("defined memory: many open collectives on one buffer are bound by few pairs") {
  constexpr int kMany = 5000;
  const auto many = [&](const std::string& name, const std::string& call, const std::string& end) {
    std::string statements;
    for (int i = 0; i < kMany; ++i) {
      const std::string number = std::to_string(i);
      statements += "  %" + name + number + " : R = " + call;
      statements += (end.empty() ? "" : number + end) + "\n";
    }
    return statements;
  };
  const std::string waits = many("w", "_c10d_functional::wait_tensor(%r", ")");
  const auto check = [&](const Program& program) {
    const DefinedMemory memory(program.entries[0]);
    const Numbering numbering(program.entries[0]);
    const StorageAccesses accesses(numbering);
    CHECK(memory.bound().size() < 6 * kMany);
    CHECK(accesses.clashes().size() < 6 * kMany);
    Bound found;
    for (const CollectiveSpan& span : accesses.spans()) {
      for (int64_t wait : span.waits) found.emplace_back(span.begin, wait);
    }
    for (const CollectiveClash& clash : accesses.clashes())
      found.emplace_back(accesses.spans()[clash.span].begin, clash.position);
    const auto classes = fates(numbering.size(), found);
    CHECK(classes == fates(numbering.size(), memory.bound()));
    return classes;
  };
  // Each writes what all before it still write: one fate, which the first wait ends for all of them.
  const auto inPlace =
      check(programOf(many("r", "_c10d_functional::all_reduce_(%x, \"sum\", \"0\")", "") + waits));
  for (int i = 0; i <= kMany; ++i) CHECK(inPlace[i] == 0);
  // All read what many nodes then write: one fate.
  const auto written =
      check(programOf(many("r", "_c10d_functional::all_reduce(%x, \"sum\", \"0\")", "") +
                      many("s", "aten::add_.Tensor(%x, %y)", "") + waits));
  for (unsigned leader : written) CHECK(leader == 0);
}

TEST_CASE("defined memory agrees with the analysis on random programs") {
  std::mt19937_64 random(7);
  size_t collectives = 0, waits = 0, bound = 0;
  for (int run = 0; run < 2000; ++run) {
    const std::string statements = randomStatements(random);
    INFO(statements);
    const Program program = programOf(statements);
    const DefinedMemory memory(program.entries[0]);
    const Numbering numbering(program.entries[0]);
    const StorageAccesses accesses(numbering);

    std::map<int32_t, int64_t> defined;  // by storage of the analysis
    std::set<int64_t> seen;
    for (int32_t t = 0; t < numbering.tensorCount(); ++t) {
      const Value* value = numbering.value(numbering.valueOfTensor(t));
      const auto [at, isNew] =
          defined.try_emplace(accesses.storageOf(value), memory.storageOf(value));
      REQUIRE(at->second == memory.storageOf(value));
      if (isNew) REQUIRE(seen.insert(at->second).second);
    }

    REQUIRE(memory.collectives().size() == accesses.spans().size());
    const auto asDefined = [&](const auto& storages) {
      std::set<int64_t> all;
      for (int64_t storage : storages) all.insert(defined.at(static_cast<int32_t>(storage)));
      return all;
    };
    for (size_t c = 0; c < accesses.spans().size(); ++c) {
      const DefinedCollective& work = memory.collectives()[c];
      const CollectiveSpan& span = accesses.spans()[c];
      CHECK(work.position == span.begin);
      CHECK(work.waits == span.waits);
      CHECK(work.left == span.left);
      CHECK(std::set<int64_t>(work.reads.begin(), work.reads.end()) == asDefined(span.reads));
      CHECK(std::set<int64_t>(work.writes.begin(), work.writes.end()) == asDefined(span.writes));
      waits += work.waits.size();
    }
    collectives += accesses.spans().size();

    std::set<std::vector<int64_t>> asWait, asWaitDefined;  // node, storage, writes
    for (const DefinedWaitAccess& access : memory.waitAccesses())
      asWaitDefined.insert({access.position, access.storage, access.writes});
    for (int32_t i = 0; i < numbering.size(); ++i) {
      accesses.forEachWrittenByWait(i, [&](int32_t storage) {
        asWait.insert({i, defined.at(storage), true});
      });
      accesses.forEachReadByWait(i, [&](int32_t storage) {
        asWait.insert({i, defined.at(storage), false});
      });
    }
    CHECK(asWait == asWaitDefined);

    Bound found;
    for (const CollectiveSpan& span : accesses.spans()) {
      for (int64_t wait : span.waits) found.emplace_back(span.begin, wait);
    }
    for (const CollectiveClash& clash : accesses.clashes())
      found.emplace_back(accesses.spans()[clash.span].begin, clash.position);
    CHECK(fates(numbering.size(), found) == fates(numbering.size(), memory.bound()));
    bound += found.size();
  }
  CHECK(collectives > 2000);
  CHECK(waits > 1000);
  CHECK(bound > 3000);
}

}  // namespace gravure
