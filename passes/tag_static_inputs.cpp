#include "passes/tag_static_inputs.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/facts/value_types.h"
#include "ir/memory/storage_accesses.h"
#include "ir/memory/timeline.h"

#include <llvm/ADT/DenseSet.h>

#include <algorithm>

namespace gravure {
namespace {

constexpr const char* kPass = "tag-static-inputs";

/// A CPU tensor in a program of another device. classify-capturability lets only constants without
/// dimensions into a partition: kernels take them as numbers.
bool isHostConstant(const Value* value, c10::Device device) {
  const auto at = deviceOf(value);
  return at && at->is_cpu() && !device.is_cpu();
}

/// The word for inputs that a caller gives anew each step.
const char* stagedWord(InputRole role) {
  switch (role) {
    case InputRole::Tangent: return "tangent";
    case InputRole::Saved: return "saved value";
    default: return "user input";
  }
}

/// What the storages of a program are to its partitions.
class StorageUses {
 public:
  StorageUses(const Program& program, const KeptAnalyses& analyses)
      : kept_(analyses.timelineOf(program, StagedOperands::Aliased)), timeline_(*kept_),
        device_(computeDevice(program)), traits_(timeline_.storages().size()) {
    for (size_t i = 0; i < traits_.size(); ++i)
      traits_[i].written = timeline_.storages()[i].written;
    for (const Node* node : timeline_.nodes()) noteBranch(node);
    for (const Entry& entry : program.entries) {
      noteInputs(entry);
      noteAliases(entry);
    }
  }

  struct Traits {
    bool written = false;
    bool handedBack = false;   // the entry returns a view of it under the role alias
    bool controlFlow = false;  // prim::If may have brought it about
    bool givenAnew = false;    // an input that the caller gives anew each step belongs to it
    InputRole role = InputRole::Unspecified;  // of that input, else of the first input
    bool inPlace() const { return written || handedBack; }
  };

  /// nullptr for values that hold no storage.
  const Traits* of(const Value* value) const {
    const int64_t id = timeline_.storageOf(value);
    return id < 0 ? nullptr : &traits_[id];
  }
  bool isFresh(const Value* value) const {
    return timeline_.storages()[timeline_.storageOf(value)].origin == StorageOrigin::Fresh;
  }
  c10::Device device() const { return device_; }

 private:
  void noteBranch(const Node* node) {
    if (node->blocks().empty()) return;
    for (const Value* output : node->outputs()) {
      if (const int64_t id = timeline_.storageOf(output); id >= 0) traits_[id].controlFlow = true;
    }
  }

  void noteInputs(const Entry& entry) {
    for (size_t i = 0; i < entry.graph->inputs().size(); ++i) {
      const int64_t id = timeline_.storageOf(entry.graph->inputs()[i]);
      if (id < 0) continue;
      const InputRole role = entry.inputs[i].role;
      const bool fresh = timeline_.storages()[id].origin == StorageOrigin::Fresh;
      // A saved value that forward returned is what it was there.
      const bool known =
          role == InputRole::Saved && (fresh || traits_[id].role != InputRole::Unspecified);
      if (known) continue;
      const bool anew = !isKeptByCaller(role) && role != InputRole::RngState;
      if (traits_[id].role == InputRole::Unspecified || (anew && !traits_[id].givenAnew)) {
        traits_[id].role = role == InputRole::Unspecified ? InputRole::UserInput : role;
      }
      traits_[id].givenAnew |= anew;
    }
  }

  void noteAliases(const Entry& entry) {
    for (size_t o = 0; o < entry.graph->outputs().size(); ++o) {
      const Value* output = entry.graph->outputs()[o];
      // The input itself is handed back as it came.
      if (entry.outputs[o].role != OutputRole::Alias || output->node()->kind() == c10::prim::Param)
        continue;
      if (const int64_t id = timeline_.storageOf(output); id >= 0) traits_[id].handedBack = true;
    }
  }

  const std::shared_ptr<const Timeline> kept_;
  const Timeline& timeline_;
  c10::Device device_;
  std::vector<Traits> traits_;
};

OperandTag tagInput(const InputInfo& info, const Value* input, const StorageUses& uses) {
  const StorageUses::Traits& traits = *uses.of(input);
  if (isKeptByCaller(info.role)) return {OperandKind::Static, roleName(info.role)};
  std::string word = stagedWord(info.role);
  if (info.role == InputRole::Saved) {
    if (uses.isFresh(input)) return {OperandKind::Static, word};
    if (!traits.givenAnew)
      return {OperandKind::Static, std::string("saved ") + roleName(traits.role)};
    if (traits.role != InputRole::Saved) word = std::string("saved ") + stagedWord(traits.role);
  }
  if (traits.written) return {OperandKind::Static, "mutated " + word};
  if (traits.handedBack) return {OperandKind::Static, "aliased " + word};
  return {OperandKind::Staged, word};
}

OperandTag tagHostResult(const Value* value, const StorageUses& uses) {
  const StorageUses::Traits& traits = *uses.of(value);
  const bool moves = traits.givenAnew || traits.controlFlow;
  if (moves && !traits.inPlace()) {
    return {OperandKind::Staged, traits.givenAnew
                                     ? std::string("view of ") + stagedWord(traits.role)
                                     : std::string("control flow")};
  }
  if (traits.givenAnew) {
    return {OperandKind::Static, std::string("view of ") +
                                     (traits.written ? "mutated " : "aliased ") +
                                     stagedWord(traits.role)};
  }
  if (!uses.isFresh(value))
    return {OperandKind::Static, std::string("view of ") + roleName(traits.role)};
  return {OperandKind::Static, "host node"};
}

OperandTag tagOperand(const Entry& entry, const Node* partition, const Value* value,
                      const StorageUses& uses) {
  const bool isInput = value->node()->kind() == c10::prim::Param;
  const InputInfo* info = isInput ? &entry.inputs.at(value->offset()) : nullptr;
  const std::string name = info && !info->name.empty() ? info->name : "%" + value->debugName();
  if (isGenerator(value)) return {OperandKind::RngState, name};
  if (!isTensorValue(value)) return {OperandKind::Guarded, name};
  TORCH_CHECK(hasStaticShape(value), "partition ", partitionIndex(partition),
              ": the shape of operand %", value->debugName(),
              " is known only at run time, so it cannot be captured; run ",
              "classify-capturability before partition-graph");
  if (isHostConstant(value, uses.device())) return {OperandKind::Guarded, "host constant"};
  if (isInput) return tagInput(*info, value, uses);
  if (isPartition(value->node())) {
    return {OperandKind::Static, "partition " + std::to_string(partitionIndex(value->node()))};
  }
  return tagHostResult(value, uses);
}

/// Says each thing once a value, however many partitions take it.
class TagRemarks {
 public:
  explicit TagRemarks(Remarks& remarks) : remarks_(remarks) {}

  void add(const Node* partition, const Value* value, const OperandTag& tag) {
    const bool inPlace =
        tag.kind == OperandKind::Static && (tag.why.find("mutated ") != std::string::npos ||
                                            tag.why.find("aliased ") != std::string::npos);
    const bool isInput = value->node()->kind() == c10::prim::Param;
    const bool copied = tag.kind == OperandKind::Staged && !isInput;
    if ((!inPlace && !copied) || !said_.insert(value).second) return;
    const std::string what = "%" + value->debugName();
    if (inPlace) {
      remarks_.add(
          RemarkKind::Analysis, kPass, "input-in-place", partition,
          what + " (" + tag.why +
              ") stays the caller's, because a staged copy would swallow what "
              "the program writes to it or returns of it; the partition is replayed only while its "
              "address stays the same");
    } else {
      remarks_.add(RemarkKind::Analysis, kPass, "operand-staged", partition,
                   what + " (" + tag.why +
                       ") has a new address each step and is copied before the replay");
    }
  }

 private:
  Remarks& remarks_;
  llvm::DenseSet<const Value*> said_;
};

void checkTag(const Entry& entry, const Node* node, size_t i, const OperandTag& tag,
              const StorageUses& uses) {
  const Value* value = node->input(i);
  const auto fail = [&](const char* why) {
    TORCH_CHECK(false, "tag-static-inputs: operand %", value->debugName(), " of partition ",
                partitionIndex(node), " is tagged '", tagText(tag), "', ", why);
  };
  if (isGenerator(value) != (tag.kind == OperandKind::RngState))
    fail("which its type does not agree with");
  if (isGenerator(value)) return;
  const bool number = !isTensorValue(value) || isHostConstant(value, uses.device());
  if (number != (tag.kind == OperandKind::Guarded)) fail("which its type does not agree with");
  if (number) return;
  if (!hasStaticShape(value)) fail("but its shape is known only at run time");
  const StorageUses::Traits* traits = uses.of(value);
  if (!traits) fail("but it holds no storage");
  if (tag.kind == OperandKind::Staged) {
    if (traits->inPlace()) fail("but the program writes to it or returns a view of it");
    if (!traits->givenAnew && !traits->controlFlow)
      fail("though its address is the same each step");
    return;
  }
  if (value->node()->kind() != c10::prim::Param || traits->inPlace()) return;
  const InputRole role = entry.inputs.at(value->offset()).role;
  const bool saved = role == InputRole::Saved && !traits->givenAnew;
  if (!isKeptByCaller(role) && !saved) fail("but the caller gives it anew each step");
}

}  // namespace

void tagStaticInputs(Program& program, PassContext& context) {
  const StorageUses uses(program, context.analyses);
  TagRemarks remarks(context.remarks);
  for (Entry& entry : program.entries) {
    for (Node* node : entry.graph->nodes()) {
      if (!isPartition(node)) continue;
      std::vector<OperandTag> tags;
      tags.reserve(node->inputs().size());
      for (const Value* value : node->inputs()) {
        tags.push_back(tagOperand(entry, node, value, uses));
        remarks.add(node, value, tags.back());
      }
      setTags(node, tags);
    }
  }
}

void verifyTagStaticInputs(const Program& program, const PassContext& context) {
  const StorageUses uses(program, context.analyses);
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      if (!isPartition(node)) continue;
      const std::vector<OperandTag> tags = tagsOf(node);
      TORCH_CHECK(tags.size() == node->inputs().size(), "tag-static-inputs: partition ",
                  partitionIndex(node), " has ", node->inputs().size(), " operands and ",
                  tags.size(), " tags");
      for (size_t i = 0; i < tags.size(); ++i) checkTag(entry, node, i, tags[i], uses);
    }
  }
}

}  // namespace gravure
