#include "runtime/layout/arena_layout.h"

#include "ir/core/args.h"
#include "ir/facts/compiled_op.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "runtime/layout/low_placement.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/IntEqClasses.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace gravure {
namespace {

/// Lives of the program's storages, joined where a recorded run showed that two are one.
class Lives {
 public:
  explicit Lives(const Timeline& timeline)
      : classes_(static_cast<unsigned>(timeline.storages().size())) {
    for (const StorageLife& life : timeline.storages()) {
      ends_.push_back(life.end);
      heldUntil_.push_back(life.heldUntil);
    }
  }

  int64_t find(int64_t storage) const {
    return classes_.findLeader(static_cast<unsigned>(storage));
  }
  /// True if they were apart.
  bool join(int64_t a, int64_t b) {
    a = find(a), b = find(b);
    if (a == b) return false;
    const int64_t end = std::max(ends_[a], ends_[b]);
    const int64_t heldUntil = std::max(heldUntil_[a], heldUntil_[b]);
    const unsigned both = classes_.join(static_cast<unsigned>(a), static_cast<unsigned>(b));
    ends_[both] = end;
    heldUntil_[both] = heldUntil;
    return true;
  }
  int64_t end(int64_t storage) const { return ends_[find(storage)]; }
  /// True if it ends with the call that reads it last, and not with an entry or the program.
  bool endsWithReader(int64_t storage) const { return end(storage) > heldUntil_[find(storage)]; }

 private:
  llvm::IntEqClasses classes_;
  std::vector<int64_t> ends_, heldUntil_;  // by leader
};

/// Time within calls: as many moments in each as it makes allocations where their order is known, else one.
class Moments {
 public:
  explicit Moments(std::vector<int64_t> widths) : starts_(std::move(widths)) {
    int64_t sum = 0;
    for (int64_t& each : starts_) sum += std::exchange(each, sum);
    starts_.push_back(sum);
  }
  /// When the call at `position` has made `allocations`: where the next call begins if these are all.
  int64_t at(int64_t position, int64_t allocations) const {
    if (position + 1 >= static_cast<int64_t>(starts_.size())) return starts_.back();
    return starts_[position] + std::min(allocations, starts_[position + 1] - starts_[position]);
  }
  int64_t positionAt(int64_t moment) const {
    return llvm::upper_bound(starts_, moment) - starts_.begin() - 1;
  }

 private:
  std::vector<int64_t> starts_;  // by position; and one more
};

/// Calls visit(slot) for each value that fills a parameter, members of lists too.
template <typename Visit>
void forEachSlot(const Operand& operand, Visit&& visit) {
  if (operand.kind == Operand::Kind::FromSlot) visit(operand.slot);
  for (const Operand& member : operand.members) forEachSlot(member, visit);
}

int64_t storageOfOutput(const Call& call, const EntryCode& code, const RecordedTensor& tensor) {
  const auto output = static_cast<size_t>(tensor.output);
  return output < call.outputs.size() ? code.storages[call.outputs[output]] : -1;
}

bool isComputed(const Value* value, const DeviceMap& devices) {
  const auto device = deviceOf(value);
  return !device || devices.computes(*device);
}

struct Life {
  int64_t begin = 0, end = -1;  // positions
  bool reserved = false;        // a result that the caller holds when the step is over
  int64_t born = begin;         // of the call that writes it; its bytes may be kept before
  // Where the order within a call is known, allocations of that call:
  int64_t beginAfter = 0;    // made before it, by the call at `begin`
  int64_t endBefore = kAll;  // made when it is over, by the call at `end` - 1
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
};

class LayoutBuilder {
 public:
  LayoutBuilder(const Timeline& timeline, std::vector<EntryCode>& codes,
                const std::vector<AllocationRecord>& records,
                const std::vector<CallPlanning>& planning, const DeviceMap& devices,
                Remarks& remarks)
      : timeline_(timeline), codes_(codes), records_(records), planning_(planning),
        devices_(devices), remarks_(remarks), lives_(timeline) {
    layout_.serve.resize(timeline.nodes().size());
    layout_.dying.resize(timeline.nodes().size());
    layout_.operands.resize(timeline.nodes().size());
    widths_.assign(timeline.nodes().size(), 1);
  }

  ArenaLayout build(const LayoutOptions& options) {
    collect(options);
    layout_.plan = planBuffers(std::move(buffers_), options.alignment);
    placeLow(layout_.plan, saved_, staysOn_);
    const std::string fault = layout_.plan.verify();
    TORCH_INTERNAL_ASSERT(fault.empty(), fault);
    for (size_t i = 0; i < offsets_.size(); ++i) *offsets_[i] = layout_.plan.buffers[i].offset;
    noteDeaths();
    noteOperands();
    noteResting();
    noteUsed();
    return std::move(layout_);
  }

  int64_t load(const LayoutOptions& options) {
    collect(options);
    return peakLoad(buffers_, options.alignment);
  }

 private:
  /// What is to be placed.
  void collect(const LayoutOptions& options) {
    for (EntryCode& code : codes_) {
      code.forEachCall([&](Call& call) { joinAliases(call, code); });
    }
    for (size_t s = 0; s < options.reserved.size(); ++s) {
      if (options.reserved[s] == Exclusive::None) continue;
      Exclusive& known = reserved_[lives_.find(static_cast<int64_t>(s))];
      known = std::max(known, options.reserved[s]);
    }
    for (size_t e = 0; e < codes_.size(); ++e) {
      codes_[e].forEachCall([&](const Call& call) { noteOrder(call, codes_[e], records_[e]); });
    }
    moments_.emplace(widths_);
    for (size_t e = 0; e < codes_.size(); ++e) {
      planStages(codes_[e]);
      codes_[e].forEachCall([&](Call& call) { planCall(call, codes_[e], records_[e]); });
    }
    if (options.edit) options.edit(buffers_);
  }

  void joinAliases(const Call& call, const EntryCode& code) {
    for (const RecordedTensor& tensor : call.recorded.tensors) {
      if (tensor.operandSlot == kNoSlot) continue;
      const int64_t output = storageOfOutput(call, code, tensor);
      const int64_t operand = code.storages[tensor.operandSlot];
      if (output < 0 || operand < 0 || !lives_.join(output, operand)) continue;
      remarks_.add(RemarkKind::Analysis, "runtime", "unexpected-alias", call.node,
                   "an output shares its operand's memory, which the operator's facts do not say; "
                   "the memory is kept for both");
    }
  }

  /// Whether `call` gave back what it allocated, and let go of operands, in an order that is planned by.
  bool isOrdered(const Call& call, const AllocationRecord& record) const {
    return call.position >= 0 && planning_[call.position] == CallPlanning::All && !record.empty() &&
           compiledCalls(call.node) > 0;
  }

  /// Before anything is planned: moments within the call, and which storages end there.
  void noteOrder(const Call& call, const EntryCode& code, const AllocationRecord& record) {
    if (!isOrdered(call, record)) return;
    widths_[call.position] =
        std::max<int64_t>(static_cast<int64_t>(record[call.position].size()), 1);
    llvm::DenseMap<int64_t, int64_t>
        ends;  // by leader: when the last of its operands was let go of
    const auto note = [&](Slot slot) {
      const int64_t storage = slot == kNoSlot ? -1 : code.storages[slot];
      if (storage < 0) return;
      const auto at =
          llvm::find_if(call.recorded.letGo, [&](const LetGo& each) { return each.slot == slot; });
      const int64_t before = at == call.recorded.letGo.end() ? LetGo::kNever : at->before;
      int64_t& end = ends.try_emplace(lives_.find(storage), 0).first->second;
      end = std::max(end, before);
    };
    for (const Operand& operand : call.operands) forEachSlot(operand, note);
    for (const auto& [storage, before] : ends) {
      const bool last = lives_.end(storage) == call.position + 1 && lives_.endsWithReader(storage);
      if (last && before < widths_[call.position])
        endsBefore_[storage] = std::max<int64_t>(before, 1);  // not before the call
    }
  }

  void planCall(Call& call, const EntryCode& code, const AllocationRecord& record) {
    const int64_t position = call.position;
    if (position < 0 || planning_[position] == CallPlanning::None) return;
    if (record.empty()) return;  // its entry has not run
    const bool loose = planning_[position] == CallPlanning::Results;
    const bool ordered = isOrdered(call, record);
    const auto& allocations = record[position];
    auto& row = layout_.serve[position];
    row.reserve(allocations.size());
    for (size_t k = 0; k < allocations.size(); ++k) {
      const auto ordinal = static_cast<int32_t>(k);
      if (loose && !holdsResult(call, ordinal)) continue;
      Life life = lifeOf(call, code, allocations[k], ordinal);
      for (RecordedTensor& tensor : call.recorded.tensors) {
        if (tensor.ordinal == ordinal) tensor.row = static_cast<int32_t>(row.size());
      }
      row.push_back({allocations[k].bytes, -1, loose, ordered});
      if (life.end < 0) continue;
      if (ordered && life.begin == position) life.beginAfter = ordinal;
      add(&row.back().offset, life, allocations[k].bytes, call.node, ordinal);
    }
  }

  /// True for the memory of a result of known shape.
  bool holdsResult(const Call& call, int32_t ordinal) const {
    for (const RecordedTensor& tensor : call.recorded.tensors) {
      const auto outputs = call.node->outputs();
      const auto output = static_cast<size_t>(tensor.output);
      if (tensor.ordinal == ordinal && output < outputs.size()) {
        return hasStaticShape(outputs[output]) && isComputed(outputs[output], devices_);
      }
    }
    return false;
  }

  /// Positions [begin, end) at which an allocation of `call` is in use; end -1 if that cannot be told.
  Life lifeOf(const Call& call, const EntryCode& code, const RecordedAllocation& allocation,
              int32_t ordinal) {
    Life life{call.position, -1, false};
    for (const RecordedTensor& tensor : call.recorded.tensors) {
      if (tensor.ordinal != ordinal) continue;
      const int64_t storage = storageOfOutput(call, code, tensor);
      if (storage < 0) return {call.position, -1, false};
      const auto reserved = reserved_.find(lives_.find(storage));
      if (reserved != reserved_.end()) {
        Life whole = reservedFrom(call.position, reserved->second);
        whole.end = std::max(whole.end, lives_.end(storage));  // joined with what lives longer
        return whole;
      }
      life = until(storage, life);
    }
    if (life.end < 0 && allocation.freedAt == call.position) {
      life.end = call.position + 1;
      const int64_t made = std::max<int64_t>(allocation.freedBefore, ordinal + 1);
      if (compiledCalls(call.node) > 0) life.endBefore = made;
    }
    return life;
  }

  /// `life`, and as long as `storage` lives, at least to the end of the call that it begins in.
  Life until(int64_t storage, Life life) const {
    const int64_t end = std::max(lives_.end(storage), life.begin + 1);
    if (end < life.end) return life;
    const auto within = endsBefore_.find(lives_.find(storage));
    const bool early =
        within != endsBefore_.end() && end == lives_.end(storage) && end > life.begin + 1;
    const int64_t before = early ? within->second : Life::kAll;
    life.endBefore = end > life.end ? before : std::max(life.endBefore, before);
    life.end = end;
    return life;
  }

  /// In the caller's hands until the next run of its entry: when its own runs again nobody holds it,
  /// so what comes before it there may use its memory.
  Life reservedFrom(int64_t position, Exclusive reservation) const {
    const bool first = position < timeline_.entryRange(0).second;
    const int64_t begin = first || reservation != Exclusive::Always ? position : 0;
    int64_t end = static_cast<int64_t>(timeline_.nodes().size());
    for (size_t e = 0; reservation == Exclusive::InEntry && e < codes_.size(); ++e) {
      const auto [from, to] = timeline_.entryRange(e);
      if (from <= position && position < to) end = to;
    }
    return {begin, end, /*reserved=*/true, position};
  }

  void planStages(EntryCode& code) {
    std::vector<std::vector<int64_t>> offsets;
    for (const Stage& stage : code.stages) offsets.emplace_back(stage.to.size(), -1);
    layout_.staged.push_back(std::move(offsets));
    for (size_t s = 0; s < code.stages.size(); ++s) {
      const Stage& stage = code.stages[s];
      for (size_t i = 0; i < stage.to.size(); ++i) {
        const auto outputs = stage.node->outputs();
        const auto bytes = storageBytes(*outputs[i]->type());
        const auto device = deviceOf(outputs[i]);
        const int64_t storage = code.storages[stage.to[i]];
        if (!bytes || *bytes == 0 || storage < 0 || stage.position < 0) continue;
        if (device && !devices_.computes(*device)) continue;
        // The copy is this node's even where facts take it for its operand's alias.
        const Life life = until(storage, {stage.position, -1, false});
        const int64_t remainder = stage.remainders.empty() ? 0 : stage.remainders[i];
        add(&layout_.staged.back()[s][i], life, *bytes + remainder, stage.node,
            static_cast<int64_t>(i));
      }
    }
  }

  void add(int64_t* offset, Life life, int64_t bytes, const Node* node, int64_t number) {
    offsets_.push_back(offset);
    std::string label = describe(node) + " #" + std::to_string(number);
    const int64_t end = moments_->at(life.end - 1, life.endBefore);
    buffers_.push_back(
        {moments_->at(life.begin, life.beginAfter), end, bytes, -1, std::move(label)});
    staysOn_.push_back(life.reserved);
    born_.push_back(life.reserved ? life.born : life.begin);
    saved_.push_back(!life.reserved && crossesEntries(life));
  }

  /// True if it is alive when one entry has run and the next one has not.
  bool crossesEntries(const Life& life) const {
    for (size_t e = 0; e + 1 < codes_.size(); ++e) {
      const int64_t boundary = timeline_.entryRange(e).second;
      if (life.begin < boundary && life.end > boundary) return true;
    }
    return false;
  }

  void noteResting() {
    layout_.results.resize(codes_.size());
    for (size_t i = 0; i < layout_.plan.buffers.size(); ++i) {
      if (!saved_[i] && !staysOn_[i]) continue;
      const Extent extent = extentOf(layout_.plan.buffers[i]);
      if (!staysOn_[i]) {
        layout_.saved.push_back(extent);
        continue;
      }
      // A later entry may return what an earlier one has made: a gradient that is a saved value.
      for (size_t e = entryAt(born_[i]); e < codes_.size(); ++e)
        layout_.results[e].push_back(extent);
    }
  }

  size_t entryAt(int64_t position) const {
    size_t entry = 0;
    while (entry + 1 < codes_.size() && position >= timeline_.entryRange(entry).second) ++entry;
    return entry;
  }

  /// A result is written by the entry that returns it, and read by its holder.
  void noteUsed() {
    for (size_t e = 0; e < codes_.size(); ++e) {
      const auto [first, last] = timeline_.entryRange(e);
      std::vector<Extent> found;
      for (size_t i = 0; i < layout_.plan.buffers.size(); ++i) {
        const Buffer& buffer = layout_.plan.buffers[i];
        const int64_t end = staysOn_[i] ? born_[i] + 1 : endPosition(buffer);
        if (born_[i] < last && end > first) found.push_back(extentOf(buffer));
      }
      llvm::sort(found, [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
      std::vector<Extent>& joined = layout_.used.emplace_back();
      for (const Extent& each : found) {
        if (joined.empty() || joined.back().end < each.begin) joined.push_back(each);
        joined.back().end = std::max(joined.back().end, each.end);
      }
    }
  }

  /// What dies within a call may lie where something is that this call made, and that lives on.
  void noteDeaths() {
    const auto calls = static_cast<int64_t>(layout_.dying.size());
    std::vector<std::vector<Extent>> survivors(calls);  // by position
    for (size_t i = 0; i < layout_.plan.buffers.size(); ++i) {
      const Buffer& buffer = layout_.plan.buffers[i];
      const int64_t begin = moments_->positionAt(buffer.begin);
      const bool livesOn = staysOn_[i] || endPosition(buffer) > begin + 1;
      if (livesOn && widths_[begin] > 1) survivors[begin].push_back(extentOf(buffer));
    }
    for (std::vector<Extent>& each : survivors)
      llvm::sort(each, [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (size_t i = 0; i < layout_.plan.buffers.size(); ++i) {
      const Buffer& buffer = layout_.plan.buffers[i];
      const int64_t last = endPosition(buffer) - 1;
      if (last >= calls || staysOn_[i]) continue;
      Extent rest = extentOf(buffer);
      for (const Extent& other : survivors[last]) {
        if (other.end <= rest.begin || other.begin >= rest.end) continue;
        if (other.begin > rest.begin)
          layout_.dying[last].push_back({rest.begin, other.begin - rest.begin});
        rest.begin = std::max(rest.begin, std::min(other.end, rest.end));
      }
      if (rest.begin < rest.end) layout_.dying[last].push_back({rest.begin, rest.end - rest.begin});
    }
  }

  /// Operands whose bytes another buffer may take before the call is over that reads them last.
  void noteOperands() {
    for (const Buffer& buffer : layout_.plan.buffers) {
      const int64_t last = endPosition(buffer) - 1;
      const bool within = buffer.end < moments_->at(last + 1, 0);
      if (within && moments_->positionAt(buffer.begin) < last)
        layout_.operands[last].push_back(extentOf(buffer));
    }
  }

  static Extent extentOf(const Buffer& buffer) {
    return {buffer.offset, buffer.offset + buffer.bytes};
  }
  int64_t endPosition(const Buffer& buffer) const {
    return moments_->positionAt(buffer.end - 1) + 1;
  }

  const Timeline& timeline_;
  std::vector<EntryCode>& codes_;
  const std::vector<AllocationRecord>& records_;
  const std::vector<CallPlanning>& planning_;
  const DeviceMap& devices_;
  Remarks& remarks_;
  Lives lives_;
  llvm::DenseMap<int64_t, Exclusive> reserved_;  // by leader in lives_
  ArenaLayout layout_;
  llvm::DenseMap<int64_t, int64_t> endsBefore_;  // likewise: allocations of its last call
  std::vector<int64_t> widths_;                  // by position: moments in the call
  std::optional<Moments> moments_;
  std::vector<Buffer> buffers_;
  std::vector<int64_t> born_;      // by buffer: Life::born
  std::vector<bool> staysOn_;      // by buffer: Life::reserved
  std::vector<bool> saved_;        // by buffer: alive from one entry to the next, and no result
  std::vector<int64_t*> offsets_;  // stable: rows are reserved before their members are claimed
};

}  // namespace

CallPlanning callPlanning(const Node* node, const DeviceMap& devices) {
  bool any = false, all = true;
  for (const Value* output : node->outputs()) {
    if (!isTensorValue(output) || !output->hasUses())
      continue;  // an undefined gradient, among others
    const bool known = hasStaticShape(output) && isComputed(output, devices);
    any |= known;
    all &= known;
  }
  const Value* rng = rngStateOf(node);  // nothing is allocated by the size of a random state
  for (const Value* input : node->inputs()) {
    if (input == rng || input->type()->kind() != c10::TypeKind::TensorType) continue;
    all &= hasStaticShape(input);
  }
  // Threads of a backend of the CPU's give back what is in it when they please.
  if (devices.to.is_cpu() && factsOf(node).waitsInside) all = false;
  if (all) return CallPlanning::All;
  return any ? CallPlanning::Results : CallPlanning::None;
}

namespace {

/// As far as the plan reads them: it asks when memory was given back within its call, not when else, and
/// of compiled code in which order. A collective's buffers are, by threads of its backend, sooner or later.
bool sameAllocations(const std::vector<RecordedAllocation>& a,
                     const std::vector<RecordedAllocation>& b, int64_t position, bool compiled) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return x.bytes == y.bytes && (x.freedAt == position) == (y.freedAt == position) &&
           (!compiled || x.freedBefore == y.freedBefore);
  });
}

}  // namespace

std::vector<int64_t> differingCalls(const Timeline& timeline, const AllocationRecord& a,
                                    const AllocationRecord& b,
                                    const std::vector<CallPlanning>& planning) {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    const bool compiled = compiledCalls(timeline.nodes()[i]) > 0;
    if (planning[i] == CallPlanning::All && !sameAllocations(a[i], b[i], position, compiled))
      positions.push_back(position);
  }
  return positions;
}

ArenaLayout layOutArena(const Timeline& timeline, std::vector<EntryCode>& codes,
                        const std::vector<AllocationRecord>& records, const DeviceMap& devices,
                        const std::vector<CallPlanning>& planning, const LayoutOptions& options,
                        Remarks& remarks) {
  return LayoutBuilder(timeline, codes, records, planning, devices, remarks).build(options);
}

int64_t arenaLoad(const Timeline& timeline, std::vector<EntryCode>& codes,
                  const std::vector<AllocationRecord>& records, const DeviceMap& devices,
                  const std::vector<CallPlanning>& planning, const LayoutOptions& options) {
  Remarks remarks;  // for whoever lays the arena out
  return LayoutBuilder(timeline, codes, records, planning, devices, remarks).load(options);
}

}  // namespace gravure
