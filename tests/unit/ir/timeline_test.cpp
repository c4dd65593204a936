#include "ir/memory/timeline.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/text/program_text.h"
#include "tests/unit/type_names.h"

#include "tests/catch.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/irparser.h>

#include <map>
#include <random>

using namespace gravure;

namespace {

class Lives {
 public:
  explicit Lives(const std::string& text, bool copiesStaged = false)
      : program(readProgram(test::expandTypes(text))),
        timeline(Timeline::build(program, copiesStaged)) {
    for (const Entry& entry : program.entries) collect(entry.graph->block(), entry.name);
  }

  /// "x", or "backward/x" where two entries have a value of that name.
  const Value* value(const std::string& name) const {
    const auto at = values_.find(name);
    INFO(name);
    REQUIRE(at != values_.end());
    return at->second;
  }
  int64_t storage(const std::string& name) const { return timeline.storageOf(value(name)); }
  const StorageLife& life(const std::string& name) const {
    return timeline.storages().at(storage(name));
  }
  bool shared(const std::string& a, const std::string& b) const { return storage(a) == storage(b); }
  std::pair<int64_t, int64_t> range(const std::string& name) const {
    return {life(name).begin, life(name).end};
  }

  Program program;
  Timeline timeline;

 private:
  void collect(const Block* block, const std::string& entry) {
    for (const Value* input : block->inputs()) add(input, entry);
    for (const Node* node : block->nodes()) {
      for (const Value* output : node->outputs()) add(output, entry);
      for (const Block* inner : node->blocks()) collect(inner, entry);
    }
  }
  void add(const Value* value, const std::string& entry) {
    values_.try_emplace(value->debugName(), value);
    values_[entry + "/" + value->debugName()] = value;
  }
  std::map<std::string, const Value*> values_;
};

using Range = std::pair<int64_t, int64_t>;

}  // namespace

TEST_CASE("a storage lives from its call to after its last reader") {
  const Lives lives(R"(graph(%x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %b : T = aten::relu(%a)
    %c : T = aten::add.Tensor(%b, %a)
    %d : T = aten::relu(%c)
    %unread : T = aten::relu(%x)
    return (%d {loss}))");
  CHECK(lives.timeline.nodes().size() == 5);
  CHECK(lives.range("a") == Range(0, 3));
  CHECK(lives.range("b") == Range(1, 3));
  CHECK(lives.range("c") == Range(2, 4));
  CHECK(lives.range("unread") == Range(4, 5));
  CHECK(lives.life("a").bytes == 64);
  CHECK(lives.life("a").origin == StorageOrigin::Fresh);
  CHECK(lives.life("a").first == lives.value("a"));
  CHECK_FALSE(lives.life("a").result);
  // What is returned lives to the end of the entry.
  CHECK(lives.range("d") == Range(3, 5));
  CHECK(lives.life("d").result);
  CHECK(lives.life("x").origin == StorageOrigin::External);
}

TEST_CASE("views and in-place results keep their operand alive") {
  const Lives lives(R"(graph(%x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %t : C = aten::t(%a)
    %v : C = aten::view(%t, [4, 4])
    %m : T = aten::mul_.Scalar(%a, 2.)
    %b : T = aten::relu(%x)
    %c : C = aten::relu(%v)
    %loss : S = aten::sum(%b)
    return (%loss {loss}))");
  CHECK(lives.shared("a", "t"));
  CHECK(lives.shared("a", "v"));
  CHECK(lives.shared("a", "m"));
  CHECK_FALSE(lives.shared("a", "b"));
  CHECK(lives.range("a") == Range(0, 6));
  CHECK(lives.timeline.allocates(lives.value("a")));
  CHECK_FALSE(lives.timeline.allocates(lives.value("t")));
  CHECK_FALSE(lives.timeline.allocates(lives.value("m")));
  CHECK_FALSE(lives.timeline.allocates(lives.value("x")));
}

TEST_CASE("members of an unpacked list are views of their operand") {
  const Lives lives(R"(graph(%x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %p : Float(2, 4, strides=[4, 1], device=cpu), %q : Float(2, 4, strides=[4, 1], device=cpu) = aten::split.Tensor(%a, 2)
    %b : T = aten::relu(%x)
    %loss : S = aten::sum(%q)
    return (%loss {loss}))");
  CHECK(lives.shared("a", "p"));
  CHECK(lives.shared("a", "q"));
  CHECK(lives.range("a") == Range(0, 4));
}

TEST_CASE("partitions are entered; parameters and results are their operands and inner values") {
  const Lives lives(R"(graph(%w : T {parameter "w"}, %x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %v.out : C, %y.out : T = cudagraph::partition[index=0](%a, %w)
      block0(%a.p0 : T, %w.p0 : T):
        %v : C = aten::t(%a.p0)
        %h : T = aten::relu(%w.p0)
        %y : T = aten::relu(%h)
        -> (%v, %y)
    %u : T = aten::relu(%x)
    %z : C = aten::relu(%v.out)
    %loss : S = aten::sum(%y.out)
    return (%loss {loss}))");
  CHECK(lives.timeline.nodes().size() == 7);
  CHECK(lives.timeline.positionOf(lives.value("h")->node()) == 2);
  CHECK(lives.timeline.positionOf(lives.value("y.out")->node()) == -1);
  CHECK(lives.shared("a", "a.p0"));
  CHECK(lives.shared("a", "v.out"));
  CHECK(lives.shared("y", "y.out"));
  CHECK(lives.shared("w", "w.p0"));
  CHECK(lives.range("a") == Range(0, 6));
  CHECK(lives.range("h") == Range(2, 4));
  CHECK(lives.range("y") == Range(3, 7));
  CHECK(lives.life("y").first == lives.value("y"));
  CHECK_FALSE(lives.timeline.allocates(lives.value("y.out")));
}

TEST_CASE("a partition's result that nobody reads dies with the call that made it") {
  const Lives lives(R"(graph(%x : T {user_input "x"}):
    %a.out : T, %b.out : T = cudagraph::launch[index=0, tags=["static: x"]](%x)
      block0(%x.p0 : T):
        %a : T = aten::relu(%x.p0)
        %b : T = aten::relu(%x.p0)
        -> (%a, %b)
    %loss : S = aten::sum(%b.out)
    return (%loss {loss}))");
  CHECK(lives.range("a") == Range(0, 1));
  CHECK(lives.range("b") == Range(1, 3));
}

TEST_CASE("saved outputs live until backward's last reader, and are one storage with its inputs") {
  const Lives lives(R"(graph forward(%w : T {parameter "w"}, %x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %b : T = aten::relu(%a)
    %loss : S = aten::sum(%b)
    return (%loss {loss}, %a {saved "a"}, %b {saved "b"}, %w {saved "w"}, %x {saved "x"})
  graph backward(%a : T {saved "a"}, %b : T {saved "b"}, %w : T {saved "w"}, %x : T {saved "x"}, %t : S {tangent "loss"}):
    %g : T = aten::mul.Tensor(%a, %t)
    %h : T = aten::mul.Tensor(%g, %w)
    %k : T = aten::mul.Tensor(%h, %x)
    return (%k {gradient "w"}))");
  CHECK(lives.timeline.entryRange(0) == Range(0, 3));
  CHECK(lives.timeline.entryRange(1) == Range(3, 6));
  CHECK(lives.shared("forward/a", "backward/a"));
  CHECK(lives.range("forward/a") == Range(0, 4));
  CHECK(lives.life("a").origin == StorageOrigin::Fresh);
  CHECK_FALSE(lives.life("a").result);
  // Saved and never read: to the end of forward.
  CHECK(lives.range("forward/b") == Range(1, 3));
  // A saved parameter stays the caller's.
  CHECK(lives.shared("forward/w", "backward/w"));
  CHECK(lives.life("backward/w").origin == StorageOrigin::External);
  CHECK(lives.life("backward/x").origin == StorageOrigin::External);
  CHECK(lives.life("loss").end == 3);
}

TEST_CASE("saved values that a later entry makes one storage") {
  const Lives lives(R"(graph forward(%x : T {user_input "x"}):
    %u : T = aten::relu(%x)
    %a : T = aten::relu(%u)
    %b : T = aten::relu(%u)
    %loss : S = aten::sum(%b)
    return (%loss {loss}, %a {saved "a"}, %b {saved "b"})
  graph backward(%a : T {saved "a"}, %b : T {saved "b"}, %p : bool {user_input "p"}):
    %c : T = prim::If(%p)
      block0():
        -> (%a)
      block1():
        -> (%b)
    %g : T = aten::mul.Tensor(%c, %c)
    return (%g {gradient "x"}))");
  CHECK(lives.shared("forward/a", "forward/b"));
  // The first of the two begins it.
  CHECK(lives.range("forward/a") == Range(1, 6));
  CHECK(lives.life("forward/a").origin == StorageOrigin::Fresh);
}

TEST_CASE("a saved value and the caller's that are one storage are the caller's") {
  const Lives lives(R"(graph forward(%x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %loss : S = aten::sum(%a)
    return (%loss {loss}, %a {saved "a"})
  graph backward(%a : T {saved "a"}, %y : T {user_input "y"}, %p : bool {user_input "p"}):
    %c : T = prim::If(%p)
      block0():
        -> (%a)
      block1():
        -> (%y)
    %g : T = aten::mul.Tensor(%c, %c)
    return (%g {gradient "x"}))");
  CHECK(lives.shared("forward/a", "backward/y"));
  CHECK(lives.life("backward/y").origin == StorageOrigin::External);
}

TEST_CASE("a saved output that no entry reads is a result") {
  const Lives lives(R"(graph forward(%x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %b : T = aten::relu(%a)
    return (%b {loss}, %a {saved "a"}))");
  CHECK(lives.life("a").result);
  CHECK(lives.range("a") == Range(0, 2));
}

TEST_CASE("own ends its operands and gives memory of the caller's") {
  const Lives lives(R"(graph(%x : T {user_input "x"}):
    %x.staged : T = cudagraph::stage(%x)
    %a : T = aten::relu(%x.staged)
    %b : T = aten::relu(%a)
    %a.own : T = cudagraph::own(%a)
    %c : T = aten::relu(%b)
    return (%a.own {loss}, %c {output "c"}))");
  CHECK(lives.range("a") == Range(1, 4));
  CHECK_FALSE(lives.life("a").result);
  CHECK_FALSE(lives.shared("a", "a.own"));
  CHECK(lives.life("a.own").origin == StorageOrigin::External);
  CHECK_FALSE(lives.timeline.allocates(lives.value("a.own")));
  CHECK(lives.life("x.staged").origin == StorageOrigin::Fresh);
  CHECK(lives.range("x.staged") == Range(0, 2));
  CHECK(lives.timeline.allocates(lives.value("x.staged")));
}

TEST_CASE("a collective's operands and results live until its wait") {
  const Lives lives(R"(graph(%x : R {user_input "x"}):
    %a : R = aten::relu(%x)
    %y : R = _c10d_functional::all_reduce(%a, "sum", "0")
    %b : R = aten::relu(%x)
    %z : R = _c10d_functional::wait_tensor(%y)
    %c : R = aten::relu(%b)
    %d : R = aten::relu(%z)
    return (%d {loss}))");
  CHECK(lives.range("a") == Range(0, 4));
  CHECK(lives.shared("y", "z"));
  CHECK(lives.range("y") == Range(1, 6));
}

TEST_CASE("operands of a coalesced collective live until its last wait") {
  const Lives lives(R"(graph(%x : R {user_input "x"}):
    %a : R = aten::relu(%x)
    %b : R = aten::relu(%x)
    %y : R, %z : R = _c10d_functional::all_reduce_coalesced([%a, %b], "sum", "0")
    %yw : R = _c10d_functional::wait_tensor(%y)
    %u : R = aten::relu(%yw)
    %zw : R = _c10d_functional::wait_tensor(%z)
    %v : R = aten::add.Tensor(%u, %zw)
    return (%v {loss}))");
  CHECK(lives.range("a") == Range(0, 6));
  CHECK(lives.range("b") == Range(1, 6));
}

TEST_CASE("a collective's memory lives until a wait through a list member, or to the end") {
  const Lives lives(R"(graph(%x : R {user_input "x"}):
    %a : R = aten::relu(%x)
    %b : R = aten::relu(%x)
    %l : Tensor[] = _c10d_functional::all_reduce_coalesced([%a], "sum", "0")
    %m : R = aten::__getitem__.t(%l, 0)
    %w : R = _c10d_functional::wait_tensor(%m)
    %c : R = aten::relu(%w)
    %z : R = _c10d_functional::all_reduce(%b, "sum", "0")
    %d : R = aten::relu(%c)
    %e : R = aten::relu(%d)
    return (%e {loss}))");
  CHECK(lives.range("a") == Range(0, 5));
  CHECK(lives.shared("l", "w"));
  CHECK(lives.range("b") == Range(1, 9));
  CHECK(lives.range("z") == Range(6, 9));
}

TEST_CASE("what a branch reads is read by the whole of it") {
  const Lives lives(R"(graph(%x : T {user_input "x"}, %n : int {symint "n"}):
    %a : T = aten::relu(%x)
    %b : T = aten::relu(%x)
    %c : bool = aten::gt.int(%n, 3)
    %r : T = prim::If(%c)
      block0():
        %i : T = aten::relu(%a)
        -> (%i)
      block1():
        -> (%b)
    %loss : S = aten::sum(%r)
    return (%loss {loss}))");
  CHECK(lives.timeline.nodes().size() == 5);
  CHECK(lives.timeline.positionOf(lives.value("i")->node()) == -1);
  CHECK(lives.range("a") == Range(0, 4));
  CHECK(lives.shared("r", "i"));
  CHECK(lives.shared("r", "b"));
  CHECK(lives.range("b") == Range(1, 5));
  CHECK_FALSE(lives.timeline.allocates(lives.value("r")));
}

TEST_CASE("staged operands have a storage of their own when asked") {
  const char* text = R"(graph(%x : T {user_input "x"}):
    %a.out : T = cudagraph::partition[index=0, tags=["staged: user input"]](%x)
      block0(%x.p0 : T):
        %a : T = aten::relu(%x.p0)
        -> (%a)
    %b : T = aten::relu(%x)
    %c.out : T = cudagraph::partition[index=1, tags=["staged: user input", "static: partition 0"]](%x, %a.out)
      block0(%x.p1 : T, %a.p1 : T):
        %c : T = aten::add.Tensor(%x.p1, %a.p1)
        %d : T = aten::relu(%c)
        -> (%d)
    %e : T = aten::relu(%x)
    return (%c.out {loss}))";
  const Lives aliased(text);
  CHECK(aliased.shared("x", "x.p0"));
  const Lives copied(text, true);
  CHECK_FALSE(copied.shared("x", "x.p0"));
  CHECK(copied.shared("x.p0", "x.p1"));
  CHECK(copied.life("x.p0").origin == StorageOrigin::Fresh);
  CHECK(copied.life("x.p0").end == 3);
  CHECK(copied.shared("a", "a.p1"));
}

TEST_CASE("sizes known only at run time have no bytes") {
  const Lives lives(R"(graph(%x : T {user_input "x"}):
    %i : Long(*, 2, strides=[2, 1], device=cpu) = aten::nonzero(%x)
    return (%i {output "i"}))");
  CHECK_FALSE(lives.life("i").bytes.has_value());
}

namespace {

/// A random entry of fresh, viewing and in-place operators, and the same in standard TorchScript.
std::string randomEntry(uint64_t seed, bool constantNodes) {
  std::mt19937_64 random(seed);
  std::vector<std::string> values{"x", "w"};
  std::string body, constants;
  if (constantNodes) {
    constants =
        "  %one : int = prim::Constant[value=1]()\n  %zero : int = prim::Constant[value=0]()\n";
  }
  for (int i = 0; i < 30; ++i) {
    const std::string a = values[random() % values.size()], b = values[random() % values.size()];
    const std::string v = "v" + std::to_string(i);
    const std::string one = constantNodes ? "%one" : "1", zero = constantNodes ? "%zero" : "0";
    std::string call;
    switch (random() % 7) {
      case 0: call = "aten::relu(%" + a + ")"; break;
      case 1: call = "aten::t(%" + a + ")"; break;
      case 2:
        call = std::string("aten::add") + (constantNodes ? "" : ".Tensor") + "(%" + a + ", %" + b +
               (constantNodes ? ", %one)" : ")");
        break;
      case 3:
        call = std::string("aten::transpose") + (constantNodes ? "" : ".int") + "(%" + a + ", " +
               zero + ", " + one + ")";
        break;
      case 4:
        call = std::string("aten::mul_") + (constantNodes ? "" : ".Tensor") + "(%" + a + ", %" + b +
               ")";
        break;
      case 5: call = "aten::detach(%" + a + ")"; break;
      default: call = "aten::mm(%" + a + ", %" + b + ")";
    }
    body += "  %" + v + " : Tensor = " + call + "\n";
    values.push_back(v);
  }
  return constants + body;
}

}  // namespace

TEST_CASE("what TorchScript's AliasDb says may alias is one storage here") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Lives lives("graph(%x : Tensor {user_input \"x\"}, %w : Tensor {parameter \"w\"}):\n" +
                      randomEntry(seed, false) + "  return (%v29 {loss})");
    auto standard = std::make_shared<Graph>();
    std::unordered_map<std::string, Value*> values;
    torch::jit::parseIR("graph(%x : Tensor, %w : Tensor):\n" + randomEntry(seed, true) +
                            "  return (%v29)",
                        standard.get(), values);
    const torch::jit::AliasDb oracle(standard);
    // Two inputs of a graph may be one tensor to AliasDb; a program's inputs are distinct.
    int aliases = 0;
    for (int i = 0; i < 30; ++i) {
      for (int j = 0; j < i; ++j) {
        const std::string a = "v" + std::to_string(i), b = "v" + std::to_string(j);
        if (!oracle.mayContainAlias(values.at(a), values.at(b))) continue;
        const bool external = lives.life(a).origin == StorageOrigin::External &&
                              lives.life(b).origin == StorageOrigin::External;
        if (external) continue;
        CAPTURE(a, b);
        CHECK(lives.shared(a, b));
        ++aliases;
      }
    }
    CHECK(aliases > 0);
  }
}
