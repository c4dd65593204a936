#include "runtime/layout/result_ownership.h"
#include "runtime/program/guards.h"
#include "runtime/step/runtime_impl.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {

namespace {

class WarmUpScope {
 public:
  WarmUpScope(Device& device, int64_t expected) : device_(device) { device_.beginWarmUp(expected); }
  ~WarmUpScope() { device_.endWarmUp(); }

 private:
  Device& device_;
};

}  // namespace

int64_t Runtime::Impl::mostWarmUps() const { return std::max<int64_t>(options_.maxWarmups, 2); }

/// For Device::beginWarmUp(): what the step that begins with `entry` takes at once, as recorded in the last one.
int64_t Runtime::Impl::expectedBytes(const EntryState& entry) {
  if (&entry != &entries_.front()) return Device::kStepGoesOn;
  if (layout_) return 0;
  std::vector<AllocationRecord> records;
  for (const EntryState& each : entries_) {
    if (each.warmUp.record.empty()) return 0;
    records.push_back(each.warmUp.record);
  }
  LayoutOptions options;
  options.alignment = device_->alignment();
  return arenaLoad(timeline_, codes_, records, devices_, planning_, options);
}

void Runtime::Impl::warmUp(EntryState& entry, llvm::function_ref<void()> run) {
  try {
    const WarmUpScope pool(*device_, expectedBytes(entry));
    run();
  } catch (...) {
    // Out of memory perhaps: what the pool keeps would be missing to whoever handles that.
    entry.executor->clear();
    device_->dropWarmUp();
    throw;
  }
  ++entry.warmUp.runs;
}

void Runtime::Impl::runRecorded(EntryState& entry) {
  AllocationRecord record;
  entry.warmUp.recording.reset();
  warmUp(entry, [&] {
    ArenaSession session(timeline_.nodes().size(), device_->tensorDevice());
    Recorder recorder(session);
    entry.executor->runUncaptured(&recorder, &session);
    record = session.takeRecord();
    entry.warmUp.thread = std::this_thread::get_id();
  });
  takeRecord(entry, std::move(record));
  shareRecording(entry);
}

/// Node by node, recording nothing. Until the arena is laid out, one that has warmed up goes on in the pool, where
/// what it used lies idle else, and as much would be taken beside it. Not for ever, since entries that still
/// warm up may never come.
void Runtime::Impl::runPlain(EntryState& entry) {
  const auto run = [&] { timed_ ? entry.executor->runTimed() : entry.executor->runUncaptured(); };
  if (callerCaptures_) return run();
  const bool waits = entry.warmUp.complete && !layout_;
  if (waits && entry.warmUp.runs < mostWarmUps()) {
    warmUp(entry, run);
    return;
  }
  if (waits && !allWarmedUp()) device_->dropWarmUp();
  run();
}

/// Two recorded runs that agree complete the warm-up of an entry. Calls that still differ in the last one are planned in part.
void Runtime::Impl::takeRecord(EntryState& entry, AllocationRecord record) {
  const bool compare = entry.warmUp.runs > 1;
  const auto differing = compare ? differingCalls(timeline_, entry.warmUp.record, record, planning_)
                                 : std::vector<int64_t>();
  entry.warmUp.record = std::move(record);
  if (!compare && !isTaught(entry)) return;
  if (!differing.empty() && entry.warmUp.runs < mostWarmUps()) return;
  for (const int64_t position : differing) {
    planning_[position] = CallPlanning::Results;
    entry.warmUp.unsteady.push_back(position);
    once_.missed("unstable-allocations", timeline_.nodes()[position],
                 "its allocations differ from run to run, so only its results are planned");
  }
  entry.warmUp.complete = true;
  for (Partition& partition : entry.served.partitions) partition.warmUp();
}

/// What is known of the entry now, for other programs of this text.
void Runtime::Impl::shareRecording(EntryState& entry) {
  if (apart_ || communication_) return;
  EntryRecording recording;
  recording.record = entry.warmUp.record;
  entry.code->forEachCall([&](Call& call) { recording.calls.push_back(call.recorded); });
  for (const Stage& stage : entry.code->stages) {
    recording.remainders.push_back(stage.remainders);
    recording.reads.push_back(stage.reads);
  }
  recording.strides = entry.inputs.strides;
  recording.unsteady = entry.warmUp.unsteady;
  recording.thread = entry.warmUp.thread;
  recording.runs = entry.warmUp.runs;
  recording.complete = entry.warmUp.complete;
  entry.warmUp.recording = std::make_shared<const EntryRecording>(std::move(recording));
  shared_->post(&entry - entries_.data(), entry.warmUp.recording);
}

/// Takes what other programs of this text have recorded, as if it were this one's.
void Runtime::Impl::followOthers() {
  if (apart_ || shared_->version() == followed_) return;
  followed_ = shared_->version();
  for (size_t e = 0; e < entries_.size(); ++e) {
    EntryWarmUp& own = entries_[e].warmUp;
    if (own.complete) continue;
    const auto found = shared_->of(e);
    if (found && (found->complete || found->runs > own.runs)) takeRecording(entries_[e], found);
  }
}

void Runtime::Impl::takeRecording(EntryState& entry,
                                  const std::shared_ptr<const EntryRecording>& found) {
  const EntryRecording& recording = *found;
  entry.warmUp.recording = found;
  entry.warmUp.record = recording.record;
  entry.warmUp.unsteady = recording.unsteady;
  entry.warmUp.thread = recording.thread;
  entry.warmUp.runs = recording.runs;
  entry.warmUp.complete = recording.complete;
  entry.inputs.strides = recording.strides;
  size_t next = 0;
  entry.code->forEachCall([&](Call& call) { call.recorded = recording.calls[next++]; });
  for (size_t s = 0; s < entry.code->stages.size(); ++s) {
    entry.code->stages[s].remainders = recording.remainders[s];
    entry.code->stages[s].reads = recording.reads[s];
  }
  for (const int64_t position : recording.unsteady) planning_[position] = CallPlanning::Results;
  if (!recording.complete) return;
  for (Partition& partition : entry.served.partitions) partition.warmUp();
}

/// Whether a program of other sizes has shown that one run of `entry` tells what it allocates.
bool Runtime::Impl::isTaught(const EntryState& entry) const {
  if (!taught_) return false;
  const auto found = taught_->of(&entry - entries_.data());
  return found && found->complete && found->runs <= 2 && found->unsteady.empty();
}

/// Whether the holder of an output drops it before the next step begins: as seen here, or else by programs
/// that learn together.
bool Runtime::Impl::isDropped(size_t entry, size_t output) const {
  const ResultWatch& watch = entries_[entry].results.watches[output];
  if (watch.hasSeen()) return watch.droppedInTime();
  return shared_->wasDropped(entry, output) || (taught_ && taught_->wasDropped(entry, output));
}

/// Before `entry` runs: whether what its last run saved is gone, and nobody has read it.
void Runtime::Impl::noteUnread(EntryState& entry) {
  const auto& infos = entry.code->entry->outputs;
  bool any = false, gone = true;
  for (const bool saved : {true, false}) {
    for (size_t o = 0; o < infos.size() && o < entry.results.watches.size(); ++o) {
      const ResultWatch& watch = entry.results.watches[o];
      const bool own = !entry.code->ofInput[entry.code->outputs[o]];
      if (!own || !watch.wasHandedOut() || (infos[o].role == OutputRole::Saved) != saved) continue;
      any = true;
      gone &= watch.isGone();
    }
    if (any) break;  // where nothing is saved but inputs, all that is returned tells it
  }
  entry.unreadRuns = any && gone ? entry.unreadRuns + 1 : 0;
}

/// Some entry has never run: the others are captured without it, until it comes.
bool Runtime::Impl::isPartial() const {
  return layout_ && std::any_of(entries_.begin(), entries_.end(),
                                [](const EntryState& e) { return !e.planned; });
}

/// An entry that the arena was laid out without has run.
bool Runtime::Impl::hasLateEntry() const {
  return layout_ && std::any_of(entries_.begin(), entries_.end(), [](const EntryState& e) {
           return !e.planned && e.warmUp.runs > 0;
         });
}

/// Whether it is time to lay the arena out, or to do it once more: all entries are warmed up, or those
/// that are not never come.
bool Runtime::Impl::mayPlan() const {
  constexpr int64_t kMostUnread = 3;
  if (layout_ && !isPartial()) return false;
  if (allWarmedUp()) return !layout_ || loans_->outstanding() == 0;
  if (layout_ || communication_) return false;
  return std::all_of(entries_.begin(), entries_.end(), [](const EntryState& entry) {
    if (entry.warmUp.complete) return true;
    const auto isUnread = [](const EntryState* each) {
      return each->warmUp.complete && each->unreadRuns >= kMostUnread;
    };
    return entry.warmUp.runs == 0 && !entry.producers.empty() &&
           std::all_of(entry.producers.begin(), entry.producers.end(), isUnread);
  });
}

bool Runtime::Impl::allWarmedUp() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const EntryState& e) { return e.warmUp.complete; });
}

/// Outputs, unlike gradients, are what people keep: only those are lent that were seen to be dropped.
void Runtime::Impl::copyHeldOutputs(const std::vector<std::vector<bool>>& dropped) {
  for (size_t e = 0; e < codes_.size(); ++e) {
    const std::vector<OutputInfo>& infos = codes_[e].entry->outputs;
    for (size_t o = 0; o < dropped[e].size() && o < infos.size(); ++o) {
      const bool lent = codes_[e].ownership[o] == Ownership::Lent;
      if (lent && !dropped[e][o] && infos[o].role == OutputRole::Output)
        copyFromNowOn(codes_[e], o);
    }
  }
}

/// The arena of a layout, and new books for who holds what of it.
ArenaShape Runtime::Impl::shapeOf(const ArenaLayout& layout) const {
  ArenaShape shape;
  shape.bytes = std::max<int64_t>(layout.plan.bytes, device_->alignment());
  shape.saved = layout.saved;
  shape.results = layout.results;
  shape.used = layout.used;
  shape.savedBook = std::make_shared<LoanBook>();
  for (const EntryState& entry : entries_) {
    auto& books = shape.resultBooks.emplace_back();
    for (size_t o = 0; o < entry.results.lent.size(); ++o)
      books.push_back(std::make_shared<LoanBook>());
  }
  shape.resultsStay = options_.results == ResultPolicy::Static;
  if (shared_->isForSeveral()) shape.inFlightWith = shared_;
  shape.amongMany = SavingProgram::areMany(device_->tensorDevice());
  return shape;
}

/// What this program has recorded as an arena, with what is `reserved`. Programs of the same text that have
/// recorded the same share it; each notes in its own calls where their memory is planned.
std::shared_ptr<const SharedLayout> Runtime::Impl::layOut(std::vector<Exclusive> reserved) {
  auto laid = std::make_shared<SharedLayout>();
  laid->flat = flat_;
  laid->planning = planning_;
  laid->reserved = std::move(reserved);
  bool alike = !options_.editBuffers;
  for (const EntryState& entry : entries_) {
    laid->recordings.push_back(entry.warmUp.recording);
    alike &= entry.warmUp.recording || entry.warmUp.record.empty();
  }
  const auto forEachRow = [this](auto&& visit) {
    for (EntryState& entry : entries_) {
      if (entry.warmUp.record.empty()) continue;  // what a run that failed has left is no recording
      entry.code->forEachCall([&](Call& call) {
        for (RecordedTensor& tensor : call.recorded.tensors) visit(tensor.row);
      });
    }
  };
  const auto note = [this](const Remarks& remarks) {
    for (const Remark& remark : remarks.all())
      remarks_.add(remark.kind, remark.pass, remark.name, remark.message) = remark;
  };
  if (const auto found = alike ? shared_->layoutOf(*laid) : nullptr) {
    size_t next = 0;
    forEachRow([&](int32_t& row) { row = found->rows.at(next++); });
    note(found->remarks);
    return found;
  }
  forEachRow([](int32_t& row) { row = -1; });  // of an earlier layout
  std::vector<AllocationRecord> records;
  for (const EntryState& entry : entries_) records.push_back(entry.warmUp.record);
  const LayoutOptions options{device_->alignment(), laid->reserved, options_.editBuffers};
  laid->layout =
      layOutArena(timeline_, codes_, records, devices_, planning_, options, laid->remarks);
  forEachRow([&](int32_t row) { laid->rows.push_back(row); });
  note(laid->remarks);
  if (alike) shared_->noteLayout(laid);
  return laid;
}

/// Lays the arena out and makes its memory; captures of an older one are forgotten, and "" returned. All as
/// it was, and why, if there is no memory for it.
std::string Runtime::Impl::plan(const EntryState& next) {
  std::vector<std::vector<bool>> dropped;
  for (size_t e = 0; e < entries_.size(); ++e) {
    std::vector<bool>& each = dropped.emplace_back();
    for (size_t o = 0; o < entries_[e].results.watches.size(); ++o) each.push_back(isDropped(e, o));
  }
  const auto droppedInTime = [&](size_t e, size_t o) { return dropped[e][o]; };
  copyHeldOutputs(dropped);
  const auto droppedInEntry = [&](size_t e, size_t o) {
    const auto& infos = codes_[e].entry->outputs;
    return o < infos.size() && infos[o].role == OutputRole::Output &&
           entries_[e].results.watches[o].droppedBeforeLater();
  };
  const std::shared_ptr<const SharedLayout> laid =
      layOut(reservedStorages(timeline_, codes_, droppedInTime, droppedInEntry));
  const ArenaLayout& layout = laid->layout;
  device_->dropWarmUp();
  ArenaShape shape = shapeOf(layout);
  shape.entered = static_cast<size_t>(&next - entries_.data());
  std::shared_ptr<Slab> slab;
  try {
    slab = device_->makeSlab(shape);
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    TORCH_CHECK(!options_.requireCapture, "no memory for the arena of ", layout.plan.bytes,
                " bytes: ", reason, "; free memory, or use a smaller batch");
    const std::string which = layout_ ? "another" : "the";
    return missed("make " + which, "no-arena",
                  "no memory for " + which + " arena of " + std::to_string(layout.plan.bytes) +
                      " bytes: " + reason +
                      (layout_
                           ? "; steps run uncaptured while results are held"
                           : "; steps run uncaptured, and it is tried again from time to time"));
  }
  const bool first = !std::exchange(planned_, true);
  if (layout_) forgetArena();
  if (first) remarkThreads();
  for (size_t e = 0; e < entries_.size(); ++e) entries_[e].results.lent = shape.resultBooks[e];
  if (const std::string why = slab->whyUnshared(); !why.empty() && first) {
    remarks_.add(RemarkKind::Analysis, "runtime", "arena-unshared",
                 why +
                     ": the arena is a block of PyTorch's allocator, which no other program uses");
  }
  layout_ = {laid, &layout};
  for (size_t e = 0; e < entries_.size(); ++e) {
    entries_[e].planned = entries_[e].warmUp.complete;
    entries_[e].results.dropped = dropped[e];
    for (size_t o = 0; o < dropped[e].size(); ++o)
      entries_[e].results.droppedInEntry[o] = dropped[e][o] && droppedInEntry(e, o);
    if (!apart_ && !communication_ && llvm::is_contained(dropped[e], true))
      shared_->postDropped(e, std::move(dropped[e]));
  }
  installArena(std::move(slab), shape.savedBook);
  threads_ = at::get_num_threads();
  stats_.arenaBytes = layout_->plan.bytes;
  stats_.arenaLoad = layout_->plan.load;
  stats_.heldBytes = 0;
  for (const Extent& extent : layout_->saved) stats_.heldBytes += extent.end - extent.begin;
  installLayout();
  return "";
}

/// Says which entries call much on the host, on another thread than the first entry's: a processor that
/// work moves to is slow at first (docs/benchmarks.md, "One thread or two").
void Runtime::Impl::remarkThreads() {
  constexpr int64_t kMany = 32;
  for (const EntryState& entry : entries_) {
    if (entry.warmUp.thread == entries_.front().warmUp.thread) continue;
    const auto& code = entry.code->instructions;
    const int64_t calls = std::count_if(code.begin(), code.end(), [](const Instruction& each) {
      return each.kind == Instruction::Kind::Call;
    });
    if (calls < kMany) continue;
    remarks_.add(RemarkKind::Missed, "runtime", "threads-differ",
                 "entry '" + entry.code->entry->name + "' makes " + std::to_string(calls) +
                     " calls on the host in each step, on another thread than entry '" +
                     entries_.front().code->entry->name +
                     "': torch.autograd.set_multithreading_enabled(False) has the thread that "
                     "calls backward() run it, which is faster on most machines");
  }
}

void Runtime::Impl::forgetArena() {
  for (EntryState& entry : entries_) {
    forgetCaptures(entry);
    entry.wasServed = false;
    entry.served.staged.clear();
    std::fill(entry.results.statics.begin(), entry.results.statics.end(), at::Tensor());
    std::fill(entry.results.together.begin(), entry.results.together.end(), at::Tensor());
  }
}

void Runtime::Impl::installLayout() {
  for (size_t e = 0; e < codes_.size(); ++e) {
    EntryCode& code = codes_[e];
    // What dies with the last call of an entry may be a result: it is poisoned once that was copied.
    const auto range = timeline_.entryRange(e);
    const int64_t last = range.second > range.first ? range.second - 1 : -1;
    const auto dyingAt = [&](int64_t position) {
      const bool now = position >= 0 && position != last && device_->poisons();
      return now ? layout_->dying[position] : std::vector<DeadBlock>();
    };
    if (last >= 0 && device_->poisons()) entries_[e].served.dying = layout_->dying[last];
    code.forEachCall([&](Call& call) { call.dying = dyingAt(call.position); });
    for (Own& own : code.owns) own.dying = dyingAt(own.position);
    auto& staged = entries_[e].served.staged;
    for (size_t s = 0; s < code.stages.size(); ++s) {
      std::vector<at::Tensor> buffers;
      for (size_t i = 0; i < code.stages[s].to.size(); ++i) {
        const Stage& stage = code.stages[s];
        const int64_t offset = layout_->staged[e][s][i];
        const int64_t remainder = stage.remainders.empty() ? 0 : stage.remainders[i];
        buffers.push_back(offset < 0 ? at::Tensor()
                                     : stagedBuffer(stage.node->output(i), offset + remainder));
        if (offset >= 0 && !stage.reads.empty()) setReads(buffers.back(), stage.reads[i]);
      }
      staged.push_back(std::move(buffers));
    }
  }
}

at::Tensor Runtime::Impl::stagedBuffer(const Value* value, int64_t offset) const {
  const auto& type = *value->type()->castRaw<c10::TensorType>();
  const auto keep = [slab = slab_](void*) {};
  return at::from_blob(
      slab_->base() + offset, *type.sizes().concrete_sizes(), *type.strides().concrete_sizes(),
      keep, at::TensorOptions().dtype(*type.scalarType()).device(device_->tensorDevice()));
}

}  // namespace gravure
