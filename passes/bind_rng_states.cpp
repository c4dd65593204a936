#include "passes/bind_rng_states.h"

#include "ir/core/args.h"
#include "ir/core/counted.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/fresh_name.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "ir/memory/entry_memory.h"
#include "passes/analysis/random_source.h"

#include <llvm/ADT/StringSet.h>

namespace gravure {
namespace {

constexpr const char* kPass = "bind-rng-states";

void refuseSavedState(const Node* node, const Node* partition) {
  TORCH_CHECK(false, describe(node), " in partition ", partitionIndex(partition),
              " draws from the saved state %", rngStateOf(node)->debugName(),
              ", which a replay cannot set; classify-capturability keeps such nodes on the host");
}

/// True if some node of the entry may draw. What memory analyses know of the nodes lies closer together
/// than the nodes, of which most programs have many and few that draw.
bool mayDraw(const Entry& entry, const KeptAnalyses& analyses) {
  const auto memory = analyses.enteredMemoryOf(entry, StagedOperands::Aliased);
  const Numbering& numbering = *memory->numbering;
  for (int32_t i = 0; i < numbering.size(); ++i) {
    if (numbering.facts(i).random) return true;
    bool inside = false;
    if (numbering.isNested(i))
      numbering.forEachNested(i, [&](const Node* node) { inside |= factsOf(node).random; });
    if (inside) return true;
  }
  return false;
}

/// Binds the states of one entry.
class EntryBinder {
 public:
  EntryBinder(Entry& entry, Remarks& remarks) : entry_(entry), remarks_(remarks) {
    for (size_t i = 0; i < entry.inputs.size(); ++i) {
      const InputInfo& info = entry.inputs[i];
      if (info.role != InputRole::RngState || info.name.find('#') != std::string::npos) continue;
      const bool named = !info.name.empty();
      states_.push_back(
          {named ? generatorDevice(c10::Device(info.name)).str() : "", entry.graph->inputs()[i]});
    }
  }

  /// True if any node was bound.
  bool bind() {
    for (Node* node : entry_.graph->nodes()) bindIn(node, nullptr);
    bool any = false;
    for (const State& state : states_) {
      if (state.bound == 0) continue;
      any = true;
      remarks_.add(RemarkKind::Passed, kPass, "rng-state-bound",
                   "%" + state.value->debugName() + " (" + state.device +
                       ") is the random state of " + counted(state.bound, "node") + " in " +
                       entry_.name);
    }
    return any;
  }

 private:
  struct State {
    std::string device;  // "cuda:0"
    Value* value = nullptr;
    int64_t bound = 0;                // nodes bound to it here
    const Node* partition = nullptr;  // the last one that takes it, and as what
    Value* parameter = nullptr;
  };

  void bindIn(Node* node, Node* partition) {
    if (!node->blocks().empty()) {
      Node* inside = isPartition(node) ? node : partition;
      for (Block* block : node->blocks()) {
        for (Node* inner : block->nodes()) bindIn(inner, inside);
      }
      return;
    }
    if (node->kind() == cg::saveRngState || !factsOf(node).random || !drawsRandom(node)) return;
    if (const Value* state = rngStateOf(node)) {
      if (partition && !isGenerator(state)) refuseSavedState(node, partition);
      return;
    }
    const auto source = randomSource(entry_, node);
    TORCH_INTERNAL_ASSERT(source && !source->state, describe(node));
    State& state = stateOf(source->device.str());
    ++state.bound;
    bindRngState(node, partition ? parameterOf(partition, state) : state.value);
  }

  State& stateOf(const std::string& device) {
    for (State& state : states_) {
      if (state.device == device) return state;
    }
    std::string name = "rng.";
    for (char c : device) {
      if (c != ':') name += c;
    }
    Value* value = entry_.graph->addInput(freshName(*entry_.graph, name));
    value->setType(c10::GeneratorType::get());
    entry_.inputs.push_back({InputRole::RngState, device});
    states_.push_back({device, value});
    return states_.back();
  }

  /// The block parameter through which `partition` sees the state: an operand it has, or a new one.
  Value* parameterOf(Node* partition, State& state) {
    if (state.partition == partition) return state.parameter;
    Block* block = partition->blocks().at(0);
    state.partition = partition;
    state.parameter = nullptr;
    for (size_t i = 0; i < partition->inputs().size(); ++i) {
      if (partition->input(i) == state.value) return state.parameter = block->inputs()[i];
    }
    addOperand(partition, state.value);
    const std::string suffix = ".p" + std::to_string(partitionIndex(partition));
    state.parameter = block->addInput(freshName(*entry_.graph, state.value->debugName() + suffix));
    state.parameter->setType(c10::GeneratorType::get());
    std::vector<OperandTag> tags = tagsOf(partition);
    TORCH_CHECK(tags.size() + 1 == partition->inputs().size(), "bind-rng-states: partition ",
                partitionIndex(partition), " has no tags yet; run tag-static-inputs first");
    tags.push_back({OperandKind::RngState, state.device});
    setTags(partition, tags);
    return state.parameter;
  }

  static void addOperand(Node* partition, Value* state) {
    const auto position = static_cast<uint32_t>(partition->inputs().size());
    partition->addInput(state);
    if (!hasArgs(partition)) return;
    auto args = c10::make_intrusive<ArgList>();
    args->args = argsOf(partition).args;
    args->rng = argsOf(partition).rng;
    args->args.push_back(InputArg{position});
    setArgs(partition, std::move(args));
  }

  Entry& entry_;
  Remarks& remarks_;
  std::vector<State> states_;  // a program has a handful
};

void verifyNode(const Node* node, const Node* partition) {
  if (!node->blocks().empty()) {
    for (const Block* block : node->blocks()) {
      for (const Node* inner : block->nodes())
        verifyNode(inner, isPartition(node) ? node : partition);
    }
    return;
  }
  if (node->kind() == cg::saveRngState || !factsOf(node).random || !drawsRandom(node)) return;
  const Value* state = rngStateOf(node);
  TORCH_CHECK(state, "bind-rng-states: ", describe(node), " draws and has no random state");
  if (!partition) return;
  if (!isGenerator(state)) refuseSavedState(node, partition);
  const bool isParameter = state->node() == partition->blocks().at(0)->param_node();
  TORCH_CHECK(isParameter, "bind-rng-states: ", describe(node), " in partition ",
              partitionIndex(partition), " draws from %", state->debugName(),
              ", which is no operand of the partition");
  const std::vector<OperandTag> tags = tagsOf(partition);
  TORCH_CHECK(state->offset() < tags.size() && tags[state->offset()].kind == OperandKind::RngState,
              "bind-rng-states: the random state %", state->debugName(), " of partition ",
              partitionIndex(partition), " is not tagged 'rng: …'");
}

}  // namespace

void bindRngStates(Program& program, PassContext& context) {
  context.unchanged = true;
  for (Entry& entry : program.entries) {
    if (!mayDraw(entry, context.analyses)) continue;
    if (EntryBinder(entry, context.remarks).bind()) context.unchanged = false;
  }
}

void verifyBindRngStates(const Program& program, const PassContext&) {
  for (const Entry& entry : program.entries) {
    TORCH_CHECK(entry.inputs.size() == entry.graph->inputs().size(),
                "bind-rng-states: ", entry.name, " has ", entry.graph->inputs().size(),
                " inputs and ", entry.inputs.size(), " roles");
    llvm::StringSet<> states;
    for (const InputInfo& info : entry.inputs) {
      TORCH_CHECK(info.role != InputRole::RngState || states.insert(info.name).second,
                  "bind-rng-states: ", entry.name, " has two inputs for the random state '",
                  info.name, "'");
    }
    for (const Node* node : entry.graph->nodes()) verifyNode(node, nullptr);
  }
}

}  // namespace gravure
