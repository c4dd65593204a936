// Random programs through the passes up to partition-graph.

#include "tests/property/partition_programs.h"

#include "passes/analysis/partition_levels.h"
#include "passes/classify_capturability.h"
#include "passes/group_collectives.h"
#include "passes/merge_host_reads.h"
#include "passes/partition_graph/partition_graph.h"
#include "tests/catch.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>

using namespace gravure;
using namespace gravure::test;

namespace {

void prepare(Program& program, PassContext& context) {
  classifyCapturability(program, context);
  verifyClassifyCapturability(program, context);
  groupCollectives(program, context);
  verifyGroupCollectives(program, context);
  mergeHostReads(program, context);
  verifyMergeHostReads(program, context);
}

Colouring colouringOf(const Dependences& dependences) {
  Colouring colouring;
  colouring.dependences = &dependences;
  for (int32_t i = 0; i < dependences.size(); ++i) {
    const Node* node = dependences.numbering().node(i);
    colouring.captured.push_back(!hostReasonOf(node) && !factsOf(node).numbersOnly);
    colouring.fate.push_back(
        node->hasAttribute(attr::fate) ? static_cast<int32_t>(node->i(attr::fate)) : -1);
    colouring.fates = std::max(colouring.fates, colouring.fate.back() + 1);
  }
  return colouring;
}

/// The fewest (captured sections, sections) over all legal orders, by trying every set of nodes done so far.
std::pair<int, int> fewestByForce(const Colouring& colouring) {
  const int n = colouring.dependences->size();
  using Cost = std::pair<int, int>;
  const Cost none{n + 1, n + 1};
  std::vector<std::array<Cost, 2>> best(size_t{1} << n, {none, none});
  std::vector<uint32_t> before(n);
  for (int i = 0; i < n; ++i) {
    for (int32_t p : colouring.dependences->before(i)) before[i] |= 1u << p;
  }
  for (uint32_t done = 0; done < (1u << n); ++done) {
    for (int i = 0; i < n; ++i) {
      if (done >> i & 1 || (before[i] & done) != before[i]) continue;
      const bool captured = colouring.captured[i];
      for (int last = 0; last < 2; ++last) {
        Cost cost = done == 0 ? Cost{0, 0} : best[done][last];
        if (cost == none) continue;
        if (done == 0 || bool(last) != captured) cost = {cost.first + captured, cost.second + 1};
        Cost& at = best[done | 1u << i][captured];
        at = std::min(at, cost);
      }
    }
  }
  return std::min(best.back()[0], best.back()[1]);
}

/// Sections that any order needs: colour changes on the longest chain, found from each node on its own.
int longestChain(const Colouring& colouring) {
  std::vector<int> sections(colouring.dependences->size(), -1);
  const std::function<int(int)> ending = [&](int i) {
    if (sections[i] >= 0) return sections[i];
    int most = 1;
    for (int32_t p : colouring.dependences->before(i)) {
      most = std::max(most, ending(p) + (colouring.captured[p] != colouring.captured[i]));
    }
    return sections[i] = most;
  };
  int most = 0;
  for (int i = 0; i < colouring.dependences->size(); ++i) most = std::max(most, ending(i));
  return most;
}

std::vector<Node*> flat(const PartitionPlan& plan) {
  std::vector<Node*> order;
  for (const PlannedSection& section : plan.sections)
    order.insert(order.end(), section.nodes.begin(), section.nodes.end());
  return order;
}

/// TorchScript's own form of an entry, for AliasDb: constants are nodes. `lowered` maps the nodes.
std::shared_ptr<Graph> lower(const Entry& entry, std::unordered_map<const Node*, Node*>& lowered) {
  auto graph = std::make_shared<Graph>();
  std::unordered_map<const Value*, Value*> values;
  for (const Value* input : entry.graph->inputs()) {
    values[input] = graph->addInput()->setType(input->type());
  }
  const auto constant = [&](const c10::IValue& value) { return graph->insertConstant(value); };
  for (const Node* node : entry.graph->nodes()) {
    const auto& parameters = factsOf(node).schema->arguments();
    const ArgList& list = argsOf(node);
    std::vector<Value*> inputs;
    for (size_t p = 0; p < parameters.size(); ++p) {
      const Arg absent = AbsentArg{};
      const Arg& arg = p < list.args.size() ? list.args[p] : absent;
      if (arg.is<InputArg>()) {
        inputs.push_back(values.at(node->input(arg.as<InputArg>().index)));
      } else if (arg.is<double>()) {
        inputs.push_back(constant(arg.as<double>()));
      } else if (arg.is<int64_t>()) {
        inputs.push_back(constant(arg.as<int64_t>()));
      } else if (arg.is<std::string>()) {
        inputs.push_back(constant(arg.as<std::string>()));
      } else {
        REQUIRE(arg.is<AbsentArg>());
        inputs.push_back(constant(*parameters[p].default_value()));
      }
    }
    Node* copy = graph->insertNode(graph->create(node->kind(), inputs, node->outputs().size()));
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      values[node->output(o)] = copy->output(o)->setType(node->output(o)->type());
    }
    lowered[node] = copy;
  }
  for (const Value* result : entry.graph->outputs()) graph->registerOutput(values.at(result));
  return graph;
}

}  // namespace

TEST_CASE("levels are the fewest sections that the dependences allow, by force on small programs") {
  std::mt19937 rng(1);
  int best = 0, apart = 0;
  for (int trial = 0; trial < 600; ++trial) {
    RandomShape shape;
    shape.nodes = 1 + static_cast<int>(rng() % 8);
    shape.collectives = false;
    shape.host = 0.5;
    Program program = randomProgram(rng, shape);
    PassContext context;
    classifyCapturability(program, context);
    const Dependences dependences(program.entries[0]);
    const Colouring colouring = colouringOf(dependences);
    const auto levels = fewestLevels(colouring);
    REQUIRE(levels);
    const auto force = fewestByForce(colouring);
    REQUIRE(std::pair(int(levels->capturedSections()), int(levels->sections())) == force);
    ++best;
    apart += levels->sections() > 2;
  }
  CHECK(best == 600);
  CHECK(apart > 30);  // the programs are not all trivial
}

TEST_CASE("on large programs levels equal the longest chain and never exceed program order") {
  std::mt19937 rng(2);
  int fewer = 0, kept = 0;
  for (int trial = 0; trial < 60; ++trial) {
    RandomShape shape;
    shape.nodes = 300;
    shape.collectives = false;
    shape.host = 0.02 + 0.4 * (trial % 7) / 7.0;
    Program program = randomProgram(rng, shape);
    PassContext context;
    classifyCapturability(program, context);
    const Dependences dependences(program.entries[0]);
    const Colouring colouring = colouringOf(dependences);
    const auto levels = fewestLevels(colouring);
    REQUIRE(levels);
    // The chain that needs most sections, or one more where two such chains begin with either colour.
    const int chain = longestChain(colouring);
    CHECK(levels->sections() >= chain);
    CHECK(levels->sections() <= chain + 1);
    context.options.minPartitionSize = 1;
    context.options.memoryGrowth = 1e9;
    const PartitionPlan plan = planPartitions(program.entries[0], context.options);
    CHECK(plan.levelPartitions <= plan.programOrderPartitions);
    // The placement that is taken has no more sections; partitions of views alone were given up.
    if (plan.keptOnHost.empty()) CHECK(plan.levelSections == levels->sections());
    kept += plan.keptOnHost.empty();
    fewer += plan.levelPartitions < plan.programOrderPartitions;
  }
  CHECK(fewer > 20);
  CHECK(kept > 10);
}

TEST_CASE("plans are legal, the rewrite keeps what each node sees, and verifiers agree") {
  std::mt19937 rng(3);
  int captured = 0, merged = 0, open = 0, inParts = 0;
  for (int trial = 0; trial < 400; ++trial) {
    RandomShape shape;
    shape.nodes = 5 + static_cast<int>(rng() % 120);
    shape.host = 0.3 * (trial % 5) / 5.0;
    Program program = randomProgram(rng, shape);
    PassContext context;
    context.options.minPartitionSize = trial % 4;
    context.options.memoryGrowth = trial % 2 == 0 ? 0.0 : 0.1;
    context.options.memorySlack = trial % 5 == 0 ? 1000 : 0;
    context.options.order = trial % 3 == 0 ? PartitionOrder::Program : PartitionOrder::Levels;
    prepare(program, context);
    open += context.remarks.count("open-collective");
    merged += context.remarks.count("host-reads-merged");
    const auto expected = SymbolicRun(program.entries[0]).outcome();
    const PartitionPlan plan = planPartitions(program.entries[0], context.options);
    REQUIRE(plan.verify(program.entries[0]) == "");
    captured += plan.partitionCount();
    inParts += plan.order == PartitionOrder::Levels && plan.levelParts > 1;
    if (plan.order == PartitionOrder::Levels) {
      const double peak = plan.programOrderPeak;
      const double most =
          peak + std::max<double>(peak * context.options.memoryGrowth, context.options.memorySlack);
      CHECK(plan.levelPeak <= most);
    }
    partitionGraph(program, context);
    verifyPartitionGraph(program, context);
    REQUIRE(SymbolicRun(program.entries[0]).outcome() == expected);
  }
  CHECK(captured > 400);
  CHECK(merged > 10);
  CHECK(inParts > 5);
  CHECK(open > 10);
}

TEST_CASE("the verifier refuses exactly the orders that break a dependence") {
  std::mt19937 rng(4);
  int legal = 0, illegal = 0;
  for (int trial = 0; trial < 400; ++trial) {
    RandomShape shape;
    shape.nodes = 12;
    Program program = randomProgram(rng, shape);
    const Entry& entry = program.entries[0];
    const Dependences dependences(entry);
    const int32_t n = dependences.size();
    std::vector<int32_t> order(n);
    for (int32_t i = 0; i < n; ++i) order[i] = i;
    for (int swaps = 1 + static_cast<int>(rng() % 2); swaps > 0; --swaps) {
      const size_t at = rng() % (n - 1);
      std::swap(order[at], order[at + 1]);
    }
    std::vector<int32_t> place(n);
    for (int32_t at = 0; at < n; ++at) place[order[at]] = at;
    bool isLegal = true;
    for (int32_t i = 0; i < n; ++i) {
      for (int32_t p : dependences.before(i)) isLegal &= place[p] < place[i];
    }
    PartitionPlan plan;
    plan.sections.emplace_back();
    for (int32_t i : order) plan.sections[0].nodes.push_back(dependences.numbering().node(i));
    const std::string clash = plan.verify(entry);
    // Boundaries are checked last, and this plan lists none.
    const bool accepted = clash.empty() || clash.find("does not list") != std::string::npos;
    INFO(clash);
    CHECK(accepted == isLegal);
    ++(isLegal ? legal : illegal);
  }
  CHECK(legal > 50);
  CHECK(illegal > 50);
}

TEST_CASE("a damaged plan is refused") {
  std::mt19937 rng(5);
  int tried = 0;
  for (int trial = 0; trial < 60; ++trial) {
    RandomShape shape;
    shape.nodes = 40;
    Program program = randomProgram(rng, shape);
    PassContext context;
    prepare(program, context);
    const Entry& entry = program.entries[0];
    const PartitionPlan plan = planPartitions(entry, context.options);
    REQUIRE(plan.verify(entry) == "");
    const auto refuses = [&](const char* what, const std::function<bool(PartitionPlan&)>& damage) {
      PartitionPlan damaged = plan;
      if (!damage(damaged)) return;
      INFO(what);
      CHECK(damaged.verify(entry) != "");
      ++tried;
    };
    const size_t r = rng() % plan.sections.size();
    refuses("a node dropped", [&](PartitionPlan& p) {
      p.sections[r].nodes.pop_back();
      return true;
    });
    refuses("a node twice", [&](PartitionPlan& p) {
      p.sections[r].nodes.push_back(plan.sections[0].nodes[0]);
      return true;
    });
    refuses("a section turned", [&](PartitionPlan& p) {
      p.sections[r].captured = !p.sections[r].captured;
      return true;
    });
    refuses("a partition renumbered", [&](PartitionPlan& p) {
      p.sections[r].index += 1;
      return true;
    });
    refuses("an input missing", [&](PartitionPlan& p) {
      if (p.sections[r].inputs.empty()) return false;
      p.sections[r].inputs.pop_back();
      return true;
    });
    refuses("an output missing", [&](PartitionPlan& p) {
      if (p.sections[r].outputs.empty()) return false;
      p.sections[r].outputs.pop_back();
      return true;
    });
    refuses("a host node captured", [&](PartitionPlan& p) {
      if (p.sections.size() < 2) return false;
      PlannedSection& a = p.sections[0];
      PlannedSection& b = p.sections[1];
      (a.captured ? a : b).nodes.push_back((a.captured ? b : a).nodes.back());
      (a.captured ? b : a).nodes.pop_back();
      return true;
    });
  }
  CHECK(tried > 300);
}

TEST_CASE("AliasDb allows every planned order") {
  std::mt19937 rng(6);
  int moved = 0;
  for (int trial = 0; trial < 120; ++trial) {
    RandomShape shape;
    shape.nodes = 30;
    shape.writeInputs = false;  // AliasDb takes all inputs for aliases of one another
    Program program = randomProgram(rng, shape);
    PassContext context;
    context.options.memoryGrowth = 1e9;
    classifyCapturability(program, context);
    groupCollectives(program, context);
    const Entry& entry = program.entries[0];
    const std::vector<Node*> order = flat(planPartitions(entry, context.options));
    std::unordered_map<const Node*, Node*> lowered;
    auto graph = lower(entry, lowered);
    torch::jit::AliasDb oracle(graph);
    Node* last = nullptr;
    for (const Node* planned : order) {
      Node* node = lowered.at(planned);
      if (last && node->isBefore(last)) FAIL(describe(planned) << " was moved along");
      // The first node that is not placed yet; constants may stand in between.
      Node* next = last ? last->next() : graph->param_node()->next();
      while (next->kind() == c10::prim::Constant) next = next->next();
      if (next != node) {
        REQUIRE(oracle.moveBeforeTopologicallyValid(node, next));
        ++moved;
        REQUIRE((next->prev() == node));
      }
      last = node;
    }
  }
  CHECK(moved > 200);
}
