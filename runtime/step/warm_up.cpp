#include "runtime/layout/result_ownership.h"
#include "runtime/step/runtime_impl.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

namespace gravure {

namespace {

class WarmUpScope {
 public:
  explicit WarmUpScope(Device& device) : device_(device) { device_.beginWarmUp(); }
  ~WarmUpScope() { device_.endWarmUp(); }

 private:
  Device& device_;
};

}  // namespace

int64_t Runtime::Impl::mostWarmUps() const { return std::max<int64_t>(options_.maxWarmups, 2); }

void Runtime::Impl::warmUp(EntryState& entry, llvm::function_ref<void()> run) {
  try {
    const WarmUpScope pool(*device_);
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
  warmUp(entry, [&] {
    ArenaSession session(timeline_.steps().size(), device_->tensorDevice());
    Recorder recorder(session);
    entry.executor->runUncaptured(&recorder, &session);
    record = session.takeRecord();
    entry.warmUp.thread = std::this_thread::get_id();
  });
  settle(entry, std::move(record));
}

/// While other entries warm up, a settled one goes on in their pool: what it left there would lie idle, and
/// be taken anew beside it. Not for ever, since those entries may never come.
void Runtime::Impl::runPlain(EntryState& entry) {
  const auto run = [&] { timed_ ? entry.executor->runTimed() : entry.executor->runUncaptured(); };
  if (callerCaptures_) return run();
  const bool waits = entry.warmUp.settled && !layout_ && !allSettled();
  if (waits && entry.warmUp.runs < mostWarmUps()) {
    warmUp(entry, run);
    return;
  }
  if (waits) device_->dropWarmUp();
  run();
}

/// Two runs that agree settle an entry. What still differs after the last warm-up is left alone.
void Runtime::Impl::settle(EntryState& entry, AllocationRecord record) {
  const bool compare = entry.warmUp.runs > 1;
  const auto differing =
      compare ? differingSteps(entry.warmUp.record, record, planning_) : std::vector<int64_t>();
  entry.warmUp.record = std::move(record);
  if (!compare) return;
  if (!differing.empty() && entry.warmUp.runs < mostWarmUps()) return;
  for (int64_t step : differing) {
    planning_[step] = StepPlanning::Results;
    once_.missed("unstable-allocations", timeline_.steps()[step],
                 "its allocations differ from run to run, so only its results are planned");
  }
  entry.warmUp.settled = true;
  for (Partition& partition : entry.served.partitions) partition.warmUp();
}

bool Runtime::Impl::allSettled() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const EntryState& e) { return e.warmUp.settled; });
}

/// The arena of a layout, and new books for who holds what of it.
ArenaShape Runtime::Impl::shapeOf(const ArenaLayout& layout) const {
  ArenaShape shape;
  shape.bytes = std::max<int64_t>(layout.plan.bytes, device_->alignment());
  shape.saved = layout.saved;
  shape.results = layout.results;
  shape.savedBook = std::make_shared<LoanBook>();
  for (const EntryState& entry : entries_) {
    for (size_t o = 0; o < entry.results.lent.size(); ++o)
      shape.resultBooks.push_back(std::make_shared<LoanBook>());
  }
  shape.resultsStay = options_.results == ResultPolicy::Static;
  return shape;
}

/// Lays the arena out and makes its memory; captures of an older one are forgotten, and "" returned. All as
/// it was, and why, if there is no memory for it.
std::string Runtime::Impl::plan() {
  std::vector<AllocationRecord> records;
  for (EntryState& entry : entries_) records.push_back(entry.warmUp.record);
  const auto droppedInTime = [&](size_t e, size_t o) {
    return entries_[e].results.watches[o].droppedInTime();
  };
  LayoutOptions options{device_->alignment(), reservedStorages(timeline_, codes_, droppedInTime),
                        options_.editBuffers};
  ArenaLayout layout =
      layOutArena(timeline_, codes_, records, devices_, planning_, options, remarks_);
  device_->dropWarmUp();
  const ArenaShape shape = shapeOf(layout);
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
  size_t book = 0;
  for (EntryState& entry : entries_) {
    for (auto& lent : entry.results.lent) lent = shape.resultBooks[book++];
  }
  if (const std::string why = slab->whyUnshared(); !why.empty() && first) {
    remarks_.add(RemarkKind::Analysis, "runtime", "arena-unshared",
                 why +
                     ": the arena is a block of PyTorch's allocator, which no other program uses");
  }
  layout_ = std::move(layout);
  installArena(std::move(slab), shape.savedBook);
  threads_ = at::get_num_threads();
  stats_.arenaBytes = layout_->plan.bytes;
  stats_.arenaLoad = layout_->plan.load;
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
    // What dies with the last step of an entry may be a result: it is poisoned once that was copied.
    const auto range = timeline_.entryRange(e);
    const int64_t last = range.second > range.first ? range.second - 1 : -1;
    const auto dyingAt = [&](int64_t step) {
      const bool now = step >= 0 && step != last && device_->poisons();
      return now ? layout_->dying[step] : std::vector<DeadBlock>();
    };
    if (last >= 0 && device_->poisons()) entries_[e].served.dying = layout_->dying[last];
    code.forEachCall([&](Call& call) { call.dying = dyingAt(call.step); });
    for (Own& own : code.owns) own.dying = dyingAt(own.step);
    auto& staged = entries_[e].served.staged;
    for (size_t s = 0; s < code.stages.size(); ++s) {
      std::vector<at::Tensor> buffers;
      for (size_t i = 0; i < code.stages[s].to.size(); ++i) {
        const Stage& stage = code.stages[s];
        const int64_t offset = layout_->staged[e][s][i];
        const int64_t remainder = stage.remainders.empty() ? 0 : stage.remainders[i];
        buffers.push_back(offset < 0 ? at::Tensor()
                                     : stagedBuffer(stage.node->output(i), offset + remainder));
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
