#include "passes/plan_memory.h"

#include "ir/core/attributes.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/same_device.h"
#include "ir/facts/value_types.h"
#include "ir/memory/storage_accesses.h"
#include "ir/memory/timeline.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/Support/FormatVariadic.h>

#include <algorithm>

namespace gravure {
namespace {

constexpr const char* kPass = "plan-memory";

/// An offset that is written at an output of a leaf node, or at an operand of a partition.
struct PlannedOffset {
  Node* node = nullptr;
  c10::Symbol attribute;
  size_t position = 0;
  int32_t buffer = -1;
};

/// The planned values of a program, and where their offsets are written. Several partitions may take
/// one staged copy.
class PlannedValues {
 public:
  PlannedValues(const Program& program, const KeptAnalyses& analyses)
      : kept_(analyses.timelineOf(program, StagedOperands::Copied)), timeline_(*kept_),
        device_(computeDevice(program)) {
    buffers.reserve(timeline_.storages().size());
    offsets.reserve(timeline_.storages().size());
    for (size_t e = 0; e < program.entries.size(); ++e) {
      for (Node* node : program.entries[e].graph->nodes()) add(node, timeline_.entryRange(e).first);
    }
  }

  std::vector<Buffer> buffers;
  std::vector<PlannedOffset> offsets;
  std::vector<Node*> without;  // partitions, and leaves none of whose outputs has an offset
  int64_t unsized = 0;         // allocating results whose size is known only at run time

 private:
  void add(Node* node, int64_t entryBegin) {
    if (!isPartition(node)) {
      const size_t before = offsets.size();
      addResults(node);
      if (offsets.size() == before) without.push_back(node);
      return;
    }
    without.push_back(node);
    if (node->kind() == cg::partition) addStaged(node, entryBegin);
    for (Node* inner : node->blocks().at(0)->nodes()) add(inner, entryBegin);
  }

  void addResults(Node* node) {
    // What runs inside a branch is allocated by calls that may not come.
    if (!node->blocks().empty()) return;
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      const Value* output = node->output(o);
      if (!timeline_.allocates(output) || !onDevice(output)) continue;
      const StorageLife& storage = timeline_.storages()[timeline_.storageOf(output)];
      const auto bytes = storage.first == output ? storage.bytes : storageBytes(*output->type());
      if (!bytes) ++unsized;
      if (!bytes || *bytes == 0) continue;
      const int64_t begin = timeline_.positionOf(node);
      const std::string label = "%" + output->debugName();
      offsets.push_back({node, attr::arena, o, addBuffer(output, begin, *bytes, label)});
    }
  }

  void addStaged(Node* node, int64_t entryBegin) {
    const std::vector<OperandTag> tags = tagsOf(node);
    for (size_t i = 0; i < tags.size(); ++i) {
      if (tags[i].kind != OperandKind::Staged) continue;
      const Value* operand = node->input(i);
      const auto bytes = storageBytes(*operand->type());
      if (!bytes || *bytes == 0) continue;
      const auto [known, isNew] = staged_.try_emplace(operand, -1);
      if (isNew) {
        const bool isInput = operand->node()->kind() == c10::prim::Param;
        const Value* copy = node->blocks().at(0)->inputs().at(i);
        const std::string label = "%" + operand->debugName() + ".staged";
        known->second = addBuffer(copy, isInput ? entryBegin : firstStep(node), *bytes, label);
      }
      offsets.push_back({node, attr::staging, i, known->second});
    }
  }

  int32_t addBuffer(const Value* value, int64_t begin, int64_t bytes, std::string label) {
    const StorageLife& storage = timeline_.storages()[timeline_.storageOf(value)];
    Buffer buffer;
    buffer.begin = begin;
    buffer.end = std::max(storage.end, begin + 1);
    buffer.bytes = bytes;
    buffer.label = std::move(label);
    buffers.push_back(std::move(buffer));
    return static_cast<int32_t>(buffers.size()) - 1;
  }

  int64_t firstStep(const Node* partition) const {
    for (const Node* inner : partition->blocks().at(0)->nodes()) return timeline_.positionOf(inner);
    return 0;
  }

  bool onDevice(const Value* value) const {
    const auto device = deviceOf(value);
    return device && sameDevice(*device, device_);
  }

  const std::shared_ptr<const Timeline> kept_;
  const Timeline& timeline_;
  c10::Device device_;
  llvm::DenseMap<const Value*, int32_t> staged_;  // buffer of its copy
};

size_t positionsOf(const PlannedOffset& planned) {
  return planned.attribute == attr::arena ? planned.node->outputs().size()
                                          : planned.node->inputs().size();
}

/// Those of one node and attribute follow one another.
void write(const std::vector<PlannedOffset>& planned, const MemoryPlan& plan) {
  for (size_t i = 0; i < planned.size();) {
    const PlannedOffset& first = planned[i];
    std::vector<int64_t> offsets(positionsOf(first), -1);
    for (; i < planned.size() && planned[i].node == first.node &&
           planned[i].attribute == first.attribute;
         ++i) {
      offsets[planned[i].position] = plan.buffers[planned[i].buffer].offset;
    }
    first.node->is_(first.attribute, std::move(offsets));
  }
}

/// Of an earlier run; where offsets are written anew, these replace them.
void dropOld(Node* node) {
  for (const c10::Symbol name : {attr::arena, attr::staging}) dropAttribute(node, name);
  if (isPartition(node)) return;  // its nodes are leaves of their own
  for (Block* block : node->blocks()) {
    for (Node* inner : block->nodes()) dropOld(inner);
  }
}

int64_t countOffsets(const Block* block) {
  int64_t count = 0;
  for (const Node* node : block->nodes()) {
    for (const c10::Symbol name : {attr::arena, attr::staging}) {
      for (int64_t offset : intsAttr(node, name)) count += offset >= 0;
    }
    for (const Block* inner : node->blocks()) count += countOffsets(inner);
  }
  return count;
}

MemoryPlan readBack(PlannedValues& values, const PassOptions& options) {
  MemoryPlan plan;
  plan.alignment = options.alignment;
  for (const PlannedOffset& planned : values.offsets) {
    const std::vector<int64_t> written = intsAttr(planned.node, planned.attribute);
    const int64_t offset = planned.position < written.size() ? written[planned.position] : -1;
    Buffer& buffer = values.buffers[planned.buffer];
    TORCH_CHECK(buffer.offset < 0 || buffer.offset == offset, "plan-memory: ", buffer.label,
                " is at ", buffer.offset, " for one partition and at ", offset, " for another");
    buffer.offset = offset;
  }
  plan.buffers = std::move(values.buffers);
  plan.load = peakLoad(plan.buffers, plan.alignment);
  for (const Buffer& buffer : plan.buffers) {
    plan.bytes = std::max(plan.bytes, buffer.offset + buffer.bytes);
  }
  plan.bytes = (plan.bytes + plan.alignment - 1) / plan.alignment * plan.alignment;
  return plan;
}

}  // namespace

MemoryPlan planMemory(const Program& program, const PassOptions& options) {
  return planBuffers(PlannedValues(program, {}).buffers, options.alignment);
}

MemoryPlan writtenPlan(const Program& program, const PassOptions& options,
                       const KeptAnalyses& analyses) {
  PlannedValues values(program, analyses);
  return readBack(values, options);
}

void planMemory(Program& program, PassContext& context) {
  PlannedValues values(program, context.analyses);
  for (Node* node : values.without) dropOld(node);
  const MemoryPlan plan = planBuffers(std::move(values.buffers), context.options.alignment);
  write(values.offsets, plan);
  std::string message = llvm::formatv("arena of {0} bytes for {1} buffers; load {2}, ratio {3:f4}",
                                      plan.bytes, plan.buffers.size(), plan.load, plan.ratio())
                            .str();
  if (values.unsized > 0) {
    message += "; " + std::to_string(values.unsized) + " results have no size before the run";
  }
  context.remarks.add(RemarkKind::Analysis, kPass, "arena-planned", std::move(message));
}

void verifyPlanMemory(const Program& program, const PassContext& context) {
  PlannedValues values(program, context.analyses);
  const auto expected = static_cast<int64_t>(values.offsets.size());
  const MemoryPlan plan = readBack(values, context.options);
  const std::string fault = plan.verify();
  TORCH_CHECK(fault.empty(), "plan-memory: ", fault);
  int64_t written = 0;
  for (const Entry& entry : program.entries) written += countOffsets(entry.graph->block());
  TORCH_CHECK(written == expected, "plan-memory: ", written, " offsets are written where ",
              expected, " values are planned");
}

}  // namespace gravure
