#include "runtime/program/flatten.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/nested_nodes.h"
#include "ir/facts/compiled_op.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/recurrent_operators.h"
#include "ir/facts/value_types.h"
#include "runtime/program/compile_call.h"
#include "runtime/results/results.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/StringRef.h>

#include <algorithm>
#include <iterator>

namespace gravure {
namespace {

/// Whether eager counts the writes of the operator that `node` calls. It does not where the schema is silent:
/// batch norm's write running statistics, of two calls whose backwards come behind both.
bool countsVersions(const Node* node) {
  const c10::FunctionSchema* const schema = factsOf(node).schema;
  return !schema || schema->is_mutable() || llvm::StringRef(schema->name()).ends_with("_");
}

class Flattener {
 public:
  Flattener(const Entry& entry, const Timeline& timeline, const DeviceMap& devices)
      : timeline_(timeline), devices_(devices) {
    code_.entry = &entry;
  }

  EntryCode flatten() {
    const Graph& graph = *code_.entry->graph;
    for (const Value* input : graph.inputs())
      code_.inputs.push_back(define(input, SlotSource::Input));
    code_.instructions = flattenBlock(graph.block());
    for (const Value* output : graph.outputs()) code_.outputs.push_back(slotOf(output));
    code_.slots = next_;
    findHostReads();
    code_.storages.assign(next_, -1);
    for (auto [value, slot] : slots_) {
      if (isTensorValue(value)) code_.storages[slot] = timeline_.storageOf(value);
    }
    findViewsOfInputs();
    findWrittenInputs();
    forEachNode(graph.block(),
                [this](const Node* node) { code_.hasCudnnDropout |= usesCudnnDropout(node); });
    return std::move(code_);
  }

 private:
  Slot define(const Value* value, SlotSource source) {
    auto [at, fresh] = slots_.try_emplace(value, next_);
    if (fresh) {
      ++next_;
      code_.sources.push_back(source);
    }
    return at->second;
  }

  Slot slotOf(const Value* value) const {
    auto at = slots_.find(value);
    TORCH_CHECK(at != slots_.end(), "value %", value->debugName(),
                " is used where it is not defined");
    return at->second;
  }

  std::vector<Slot> slotsOf(at::ArrayRef<const Value*> values) const {
    std::vector<Slot> slots;
    slots.reserve(values.size());
    for (const Value* value : values) slots.push_back(slotOf(value));
    return slots;
  }

  std::vector<Instruction> flattenBlock(const Block* block) {
    std::vector<Instruction> instructions;
    for (const Node* node : block->nodes()) instructions.push_back(flattenNode(node));
    return instructions;
  }

  Instruction flattenNode(const Node* node) {
    const auto append = [](auto& list, auto item, Instruction::Kind kind) {
      list.push_back(std::move(item));
      return Instruction{kind, static_cast<uint32_t>(list.size() - 1)};
    };
    using Kind = Instruction::Kind;
    if (node->kind() == cg::launch)
      return append(code_.launches, flattenLaunch(node), Kind::Launch);
    if (node->kind() == cg::stage) return append(code_.stages, flattenStage(node), Kind::Stage);
    if (node->kind() == cg::own) return append(code_.owns, flattenOwn(node), Kind::Own);
    if (node->kind() == c10::prim::If) return append(code_.branches, flattenIf(node), Kind::Branch);
    TORCH_CHECK(node->kind() != cg::partition, describe(node),
                ": a partition that emit-runtime-calls has not turned into a launch");
    return append(code_.calls, flattenCall(node, SlotSource::Call), Kind::Call);
  }

  Call flattenCall(const Node* node, SlotSource source) {
    for (const Value* output : node->outputs()) define(output, source);
    Call call = compileCall(node, devices_, [this](const Value* v) { return slotOf(v); });
    call.position = timeline_.positionOf(node);
    call.letsGo = compiledCalls(node) > 0;
    return call;
  }

  Launch flattenLaunch(const Node* node) {
    TORCH_CHECK(node->blocks().size() == 1, describe(node), ": needs one block");
    const Block* block = node->blocks()[0];
    TORCH_CHECK(block->inputs().size() == node->inputs().size(), describe(node), ": ",
                node->inputs().size(), " operands for ", block->inputs().size(),
                " block parameters");
    TORCH_CHECK(block->outputs().size() == node->outputs().size(), describe(node), ": ",
                node->outputs().size(), " outputs for ", block->outputs().size(), " block results");
    Launch launch;
    launch.node = node;
    launch.index = partitionIndex(node);
    launch.operands = slotsOf(node->inputs());
    for (size_t i = 0; i < launch.operands.size(); ++i) {
      slots_[block->inputs()[i]] = launch.operands[i];
    }
    const auto nodes = block->nodes();
    launch.calls.reserve(static_cast<size_t>(std::distance(nodes.begin(), nodes.end())));
    for (const Node* inner : nodes) {
      TORCH_CHECK(inner->blocks().empty(), describe(inner), ": nested blocks cannot be captured");
      launch.calls.push_back(flattenCall(inner, SlotSource::Launch));
    }
    llvm::DenseSet<Slot> seen(launch.operands.begin(), launch.operands.end());
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      const Slot slot = slotOf(block->outputs()[i]);
      slots_[node->outputs()[i]] = slot;
      if (seen.insert(slot).second) launch.outputs.push_back(slot);
    }
    return launch;
  }

  Stage flattenStage(const Node* node) {
    TORCH_CHECK(node->inputs().size() == node->outputs().size(), describe(node),
                ": needs one output an operand");
    Stage stage;
    stage.node = node;
    stage.position = timeline_.positionOf(node);
    stage.from = slotsOf(node->inputs());
    for (const Value* output : node->outputs())
      stage.to.push_back(define(output, SlotSource::Stage));
    return stage;
  }

  Own flattenOwn(const Node* node) {
    TORCH_CHECK(node->inputs().size() == node->outputs().size(), describe(node),
                ": needs one output an operand");
    Own own;
    own.node = node;
    own.position = timeline_.positionOf(node);
    own.from = slotsOf(node->inputs());
    for (const Value* output : node->outputs()) {
      own.to.push_back(define(output, SlotSource::Own));
      own.asEager.push_back(isReturnedAsEager(output));
    }
    return own;
  }

  bool isReturnedAsEager(const Value* value) const {
    const auto& infos = code_.entry->outputs;
    return std::any_of(value->uses().begin(), value->uses().end(), [&](const auto& use) {
      return use.user->kind() == c10::prim::Return && use.offset < infos.size() &&
             isCopiedAsEager(infos[use.offset].role);
    });
  }

  Branch flattenIf(const Node* node) {
    TORCH_CHECK(node->blocks().size() == 2 && node->inputs().size() == 1, describe(node),
                ": needs a condition and two blocks");
    Branch branch;
    branch.node = node;
    branch.condition = slotOf(node->input(0));
    for (const Value* output : node->outputs()) define(output, SlotSource::Branch);
    for (size_t side = 0; side < 2; ++side) {
      const Block* block = node->blocks()[side];
      branch.body[side] = flattenBlock(block);
      // Which side runs is not known when lifetimes are planned.
      for (const Instruction& inner : branch.body[side]) {
        if (inner.kind == Instruction::Kind::Call) code_.calls[inner.index].position = -1;
      }
      TORCH_CHECK(block->outputs().size() == node->outputs().size(), describe(node),
                  ": each block needs ", node->outputs().size(), " results");
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        branch.moves[side].emplace_back(slotOf(block->outputs()[i]), slotOf(node->outputs()[i]));
      }
    }
    return branch;
  }

  void findViewsOfInputs() {
    llvm::DenseSet<int64_t> storages;
    for (Slot input : code_.inputs) storages.insert(code_.storages[input]);
    for (Slot slot = 0; slot < next_; ++slot) {
      const int64_t storage = code_.storages[slot];
      code_.ofInput.push_back(storage >= 0 && storages.contains(storage));
    }
  }

  static void forEachSlot(const Operand& operand, const std::function<void(Slot)>& visit) {
    if (operand.kind == Operand::Kind::FromSlot) visit(operand.slot);
    for (const Operand& member : operand.members) forEachSlot(member, visit);
  }

  void findHostReads() {
    code_.readOnHost.assign(next_, false);
    const auto read = [this](Slot slot) {
      if (slot != kNoSlot) code_.readOnHost[slot] = true;
    };
    for (const Call& call : code_.calls) {
      for (const Operand& operand : call.operands) forEachSlot(operand, read);
    }
    for (const Own& own : code_.owns) std::for_each(own.from.begin(), own.from.end(), read);
    for (const Branch& branch : code_.branches) {
      for (const auto& moves : branch.moves) {
        for (auto [from, to] : moves) read(from);
      }
    }
    for (const Slot slot : code_.outputs) {
      // An input is given back as it came.
      if (code_.sources[slot] != SlotSource::Input) read(slot);
    }
  }

  /// Inputs whose memory some node of this entry writes, through any alias. What `forward` writes and saves is not written again by `backward`. Those that are
  /// donated are among them: who still needs one is told by its version.
  void findWrittenInputs() {
    llvm::DenseSet<int64_t> written, counted, donated;
    forEachNode(code_.entry->graph->block(), [&](const Node* node) {
      for (const Value* value : donatedOperands(node)) donated.insert(timeline_.storageOf(value));
      for (const Value* value : writtenInputs(node)) {
        written.insert(timeline_.storageOf(value));
        if (countsVersions(node)) counted.insert(timeline_.storageOf(value));
      }
    });
    const auto inputs = code_.entry->graph->inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t storage = timeline_.storageOf(inputs[i]);
      if (storage < 0) continue;
      if (written.contains(storage)) code_.written.push_back(i);
      if (counted.contains(storage)) code_.counted.push_back(i);
      if (donated.contains(storage)) code_.donated.push_back(i);
    }
  }

  const Timeline& timeline_;
  const DeviceMap& devices_;
  EntryCode code_;
  llvm::DenseMap<const Value*, Slot> slots_;
  Slot next_ = 0;
};

/// Walks the instructions backwards and releases each slot where it is read last.
class ReleasePlacer {
 public:
  explicit ReleasePlacer(EntryCode& code) : code_(code), live_(code.slots, false) {
    for (Slot slot : code.outputs) live_[slot] = true;
  }

  void place() { placeIn(code_.instructions); }

 private:
  /// Notes a use; true if it is the last one in program order.
  bool use(Slot slot) {
    if (slot == kNoSlot || live_[slot]) return false;
    live_[slot] = true;
    return true;
  }
  void useAll(const std::vector<Slot>& slots, std::vector<Slot>& releases) {
    for (Slot slot : slots) {
      if (use(slot)) releases.push_back(slot);
    }
  }
  void useOperand(const Operand& operand, std::vector<Slot>& releases) {
    if (operand.kind == Operand::Kind::FromSlot && use(operand.slot))
      releases.push_back(operand.slot);
    for (const Operand& member : operand.members) useOperand(member, releases);
  }

  void placeInCall(Call& call) {
    // An output that nobody reads goes at once.
    useAll(call.outputs, call.releases);
    for (const Operand& operand : call.operands) useOperand(operand, call.releases);
    if (use(call.rng)) call.releases.push_back(call.rng);
  }

  void placeIn(const std::vector<Instruction>& instructions) {
    for (auto it = instructions.rbegin(); it != instructions.rend(); ++it) placeIn(*it);
  }

  void placeIn(const Instruction& instruction) {
    switch (instruction.kind) {
      case Instruction::Kind::Call: placeInCall(code_.calls[instruction.index]); break;
      case Instruction::Kind::Launch: placeInLaunch(code_.launches[instruction.index]); break;
      case Instruction::Kind::Stage: {
        Stage& stage = code_.stages[instruction.index];
        useAll(stage.to, stage.releases);
        useAll(stage.from, stage.releases);
        break;
      }
      case Instruction::Kind::Own: {
        Own& own = code_.owns[instruction.index];
        useAll(own.to, own.releases);
        useAll(own.from, own.releases);
        break;
      }
      case Instruction::Kind::Branch: placeInBranch(code_.branches[instruction.index]); break;
    }
  }

  void placeInLaunch(Launch& launch) {
    std::vector<Slot> operands = launch.operands;
    std::sort(operands.begin(), operands.end());
    for (auto it = launch.calls.rbegin(); it != launch.calls.rend(); ++it) {
      placeInCall(*it);
      for (Slot slot : it->releases) {
        if (std::binary_search(operands.begin(), operands.end(), slot))
          launch.releases.push_back(slot);
      }
    }
    useAll(launch.operands, launch.releases);  // those that no call reads
    std::sort(launch.releases.begin(), launch.releases.end());
  }

  /// What one side of a branch reads stays until the branch is over: the other side may run.
  void placeInBranch(Branch& branch) {
    for (int side = 0; side < 2; ++side) {
      for (auto [from, to] : branch.moves[side]) {
        useAll({to}, branch.releases);
        useAll({from}, branch.releases);
      }
    }
    for (int side = 0; side < 2; ++side) {
      readBy(branch.body[side], branch.releases);
      placeIn(branch.body[side]);
    }
    useAll({branch.condition}, branch.releases);
  }

  void readBy(const std::vector<Instruction>& instructions, std::vector<Slot>& releases) {
    for (const Instruction& instruction : instructions) {
      if (instruction.kind == Instruction::Kind::Branch) {
        const Branch& inner = code_.branches[instruction.index];
        useAll({inner.condition}, releases);
        for (int side = 0; side < 2; ++side) readBy(inner.body[side], releases);
        continue;
      }
      TORCH_CHECK(
          instruction.kind == Instruction::Kind::Call,
          "a branch of prim::If holds a cudagraph:: node; emit-runtime-calls leaves none there");
      const Call& call = code_.calls[instruction.index];
      for (const Operand& operand : call.operands) useOperand(operand, releases);
      useAll(call.outputs, releases);
      useAll({call.rng}, releases);
    }
  }

  EntryCode& code_;
  std::vector<bool> live_;
};

}  // namespace

EntryCode flatten(const Entry& entry, const Timeline& timeline, const DeviceMap& devices) {
  EntryCode code = Flattener(entry, timeline, devices).flatten();
  ReleasePlacer(code).place();
  return code;
}

}  // namespace gravure
