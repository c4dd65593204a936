#include "runtime/runtime.h"

#include "ir/torch_private/tensor_prefetch.h"
#include "runtime/device/step_mark.h"
#include "runtime/device/step_scope.h"
#include "runtime/results/results.h"
#include "runtime/step/runtime_impl.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <set>

namespace gravure {
namespace {

/// Operators run as their kernels do in eager: below autograd, without the caller's autocast.
class BelowAutograd {
 public:
  BelowAutograd() {
    if (!c10::GradMode::is_enabled()) gradMode_.emplace(true);
  }

 private:
  c10::impl::ExcludeDispatchKeyGuard excluded_{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                               c10::autocast_dispatch_keyset};
  // As in eager's forward: some kernels, oneDNN's LSTM among them, keep no workspace without it.
  std::optional<c10::AutoGradMode> gradMode_;
};

/// Whose turn it is.
class Running {
 public:
  explicit Running(std::atomic<bool>& running) : running_(running) { set(true); }
  ~Running() { set(false); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  // Whoever is inside of the step was started by it, so no order is needed.
  void set(bool value) { running_.store(value, std::memory_order_relaxed); }

  std::atomic<bool>& running_;
};

}  // namespace

KeptInputs::KeptInputs(const EntryCode& code, const std::vector<c10::IValue>& inputs)
    : code_(code) {
  const auto keep = [&](size_t index) {
    if (values_.empty()) values_.resize(inputs.size());
    values_[index] = inputs[index];
  };
  for (const size_t index : code.written) {
    if (!llvm::is_contained(code.donated, index)) {
      keep(index);
    } else if (inputs[index].isTensor() && inputs[index].toTensor().defined()) {
      donated_.push_back(inputs[index].toTensor().unsafeGetTensorImpl()->version_counter());
    }
  }
  const auto& outputs = code.entry->outputs;
  for (size_t o = 0; o < code.outputs.size(); ++o) {
    const Slot slot = code.outputs[o];
    if (code.sources[slot] == SlotSource::Input) keep(slot);
    if (o < outputs.size() && outputs[o].input >= 0) keep(outputs[o].input);
  }
}

namespace {

/// Of the inputs among `values` that count what the entry writes; none of them if there are no values.
void bumpVersionsOf(const EntryCode& code, const std::vector<c10::IValue>& values) {
  if (values.empty()) return;
  const auto& counted = code.counted;
  for (size_t i = 0; i < counted.size(); ++i) {
    if (i + kFarAhead < counted.size()) prefetchVersion(values[counted[i + kFarAhead]]);
    if (!values[counted[i]].isTensor()) continue;
    const at::Tensor& tensor = values[counted[i]].toTensor();
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace

void KeptInputs::bumpVersions() const {
  bumpVersionsOf(code_, values_);
  for (c10::VariableVersion version : donated_) {
    if (version.enabled()) version.bump();
  }
}

Runtime::Impl::Impl(std::shared_ptr<const FlatProgram> flat, std::unique_ptr<Device> device,
                    RuntimeOptions options)
    : flat_(std::move(flat)), device_(std::move(device)), options_(std::move(options)),
      codes_(flat_->codes), planning_(flat_->planning) {
  device_->installAllocator();
  communication_ = Communication::of(codes_, *device_, options_, remarks_);
  for (size_t e = 0; e < codes_.size(); ++e) {
    const size_t outputs = codes_[e].outputs.size();
    EntryState state;
    state.code = &codes_[e];
    state.inputs.checks = flat_->checks[e];
    for (size_t o = 0; o < outputs; ++o) state.results.lent.push_back(std::make_shared<LoanBook>());
    state.results.statics.resize(outputs);
    state.results.heldTogether.resize(outputs);
    state.results.together.resize(outputs);
    state.results.watches.resize(outputs);
    state.results.dropped.resize(outputs);
    state.results.droppedInEntry.resize(outputs);
    state.executor = std::make_unique<Executor>(codes_[e], *device_, stats_, once_, options_,
                                                communication_.get());
    state.served.partitions.resize(codes_[e].launches.size());
    state.inputs.moving = std::make_unique<MovingInputs>(codes_[e]);
    entries_.push_back(std::move(state));
  }
  for (size_t e = 0; e < entries_.size(); ++e) {
    for (const size_t from : flat_->producers[e]) entries_[e].producers.push_back(&entries_[from]);
  }
  shared_ = std::make_shared<SharedWarmUp>(entries_.size(), flat_->operators);
}

EntryState& Runtime::Impl::find(const std::string& name) {
  for (EntryState& entry : entries_) {
    if (entry.code->entry->name == name) return entry;
  }
  std::string known;
  for (const Entry& entry : program_.entries) known += (known.empty() ? "" : ", ") + entry.name;
  TORCH_CHECK(false, "the program has no entry '", name, "'; it has ", known);
}

std::vector<c10::IValue> Runtime::Impl::run(const std::string& name,
                                            std::vector<c10::IValue> inputs, bool uncaptured,
                                            bool timed, const KernelSettings* settings) {
  const bool inside = StepScope::isInside();
  const auto turn = inside ? std::unique_lock<std::mutex>() : waitForTurn("a step");
  TORCH_CHECK(alive_, "this runtime was shut down; make another one to run '", name, "'");
  EntryState& entry = find(name);
  TORCH_CHECK(inputs.size() == entry.inputs.checks.size(), "entry '", name, "' takes ",
              entry.inputs.checks.size(), " inputs, got ", inputs.size());
  const BelowAutograd guards;
  const bool keepsLent = uncaptured && !timed;
  if (inside) return runInside(entry, std::move(inputs), keepsLent);
  const StepScope scope;
  const Running running(running_);
  noteInsideSteps();
  callerCaptures_ = device_->callerCaptures();
  timed_ = timed;
  settings_ = settings ? *settings : KernelSettings::now();
  const StepPath path = communication_ ? commonPath(entry, inputs, uncaptured)
                                       : choosePath(entry, inputs, uncaptured);
  // It may read saved values, though none in a graph of the caller's, which comes after nothing.
  if (path.kind != StepPath::Kind::Served && slab_ && !callerCaptures_) slab_->follow();
  if (keepsLent) copyDonated(entry, inputs);
  try {
    return step(entry, std::move(inputs), path);
  } catch (const std::exception&) {
    if (communication_) communication_->stepFailed();
    throw;
  }
}

Runtime::Straight Runtime::Impl::runStraight(const std::string& name,
                                             const std::vector<c10::IValue>& inputs,
                                             const std::vector<int64_t>& watched,
                                             const std::vector<double>& counts) {
  if (StepScope::isInside()) return {};
  const auto turn = waitForTurn("a step");
  if (!alive_ || communication_ || options_.uncaptured || !layout_) return {};
  EntryState& entry = find(name);
  if (inputs.size() != entry.inputs.checks.size()) return {};
  const Seal* const seal = straightSeal(entry, inputs, watched);
  if (!seal) return {};
  const BelowAutograd guards;
  const StepScope scope;
  const Running running(running_);
  noteInsideSteps();
  callerCaptures_ = device_->callerCaptures();
  if (callerCaptures_ || !computeNumbers(entry, inputs, watched)) return {};
  settings_ = KernelSettings::now();
  const NumberCode& numbers = *entry.straight.numbers;
  if (!watched.empty()) {
    std::vector<double> now = numbers.counts(/*behind=*/false);
    if (now != counts) return {false, std::move(now)};
  }
  const Frame& frame = entry.executor->frame();
  for (size_t i = 0; i < entry.code->launches.size(); ++i)
    if (!seal->launch(i).holds(frame)) return {};
  StepPath path;
  if (!enterSealed(entry, *seal, inputs, path) || path.kind != StepPath::Kind::Served) return {};
  const StepMark mark([&] { return "gravure: " + name + ", captured"; });
  if (lentOverwritten_ != path.overwritesLent) lentOverwritten_ = path.overwritesLent;
  launchAll(entry, *seal, inputs);
  return {true, numbers.counts(/*behind=*/true)};
}

/// All that a step does behind the choice of its path.
void Runtime::Impl::launchAll(EntryState& entry, const Seal& seal,
                              const std::vector<c10::IValue>& inputs) {
  ++stats_.steps;
  stats_.stagedBytes = 0;
  stats_.copiedResultBytes = 0;
  stats_.hostCalls += entry.straight.numbers->calls();
  entry.straight.numbers->count();
  std::vector<c10::IValue> replaced;  // where inputs move: by the copies that captures read
  if (!entry.inputs.moving->empty()) replaced = inputs;
  const MovedInputs moved(*entry.inputs.moving, replaced, /*served=*/true);
  ArenaSession session(layout_->serve, slab_, device_->tensorDevice(), &layout_->operands);
  bool straight = false;
  // Else numbers alone are in the frame, and what graphs export in each replay.
  const auto cleaner = c10::make_scope_exit([&] {
    if (!straight) entry.executor->clear();
  });
  straight = entry.executor->runLaunches(entry.served, session, seal,
                                         replaced.empty() ? inputs : replaced);
  session.leaveCall();
  moved.copyBack();
  bumpVersionsOf(*entry.code, inputs);
  entry.wasServed = true;
  for (const DeadBlock& block : entry.served.dying)
    device_->poison(slab_->base() + block.offset, block.bytes);
}

/// Threads take turns. One that is inside of a step cannot wait for the end of the same.
std::unique_lock<std::mutex> Runtime::Impl::waitForTurn(const char* what) {
  TORCH_CHECK(!running_ || !StepScope::isInside(), what,
              " cannot be taken from inside of a running step of the same program");
  return std::unique_lock(turn_);
}

/// A step that an operator of a running step brought about, of this program or of another one: node by
/// node in a frame of its own. What is captured stays as it is, since its memory may be in use, and a
/// graph that is being captured would keep addresses that mean nothing when it is replayed. It takes no
/// turn, since the one whose turn it is may be waiting for it.
std::vector<c10::IValue> Runtime::Impl::runInside(EntryState& entry,
                                                  std::vector<c10::IValue> inputs, bool keepsLent) {
  std::shared_ptr<Slab> slab;
  {
    const std::lock_guard lock(arena_);
    slab = slab_;
  }
  checkInputs(entry, inputs);
  checkMemory(entry, inputs);
  const bool lent = givenValuesIn(slab.get(), entry, inputs);
  checkLentValues(entry, lent);
  if (lent) slab->follow();
  if (keepsLent) copyDonated(entry, inputs);
  insideSteps_.fetch_add(1, std::memory_order_relaxed);
  RuntimeStats stats;
  Remarks remarks;
  RemarkOnce once(remarks);
  Executor executor(*entry.code, *device_, stats, once, options_);
  const KeptInputs kept(*entry.code, inputs);
  // What it allocates is not the outer step's, whose plan would have it at one offset of its arena.
  const ArenaSession apart(0, device_->tensorDevice());
  fillFrame(*entry.code, executor.frame(), inputs, /*served=*/false);
  executor.runUncaptured();
  kept.bumpVersions();
  return takeInside(entry, executor.frame(), kept, std::move(slab));
}

/// For a run whose inputs are given to another one: compiled code writes over copies.
void Runtime::Impl::copyDonated(const EntryState& entry, std::vector<c10::IValue>& inputs) {
  std::vector<CopySource> sources;
  llvm::SmallVector<size_t, 16> copied;
  for (const size_t index : entry.code->donated) {
    if (!inputs[index].isTensor() || !inputs[index].toTensor().defined()) continue;
    sources.push_back({inputs[index].toTensor(), /*asEager=*/true});
    copied.push_back(index);
  }
  if (sources.empty()) return;
  const ArenaSession apart(0, device_->tensorDevice());  // no step's allocations
  std::vector<at::Tensor> copies = ownedCopies(sources);
  for (size_t i = 0; i < copied.size(); ++i) inputs[copied[i]] = std::move(copies[i]);
}

void Runtime::Impl::noteInsideSteps() {
  if (insideSteps_.load(std::memory_order_relaxed) == 0) return;
  const int64_t steps = insideSteps_.exchange(0);
  stats_.steps += steps;
  stats_.uncapturedSteps += steps;
  once_.missedAs("", "step-inside", nullptr,
                 "a step was run by an operator of another step: it ran uncaptured");
}

std::vector<c10::IValue> Runtime::Impl::step(EntryState& entry, std::vector<c10::IValue> inputs,
                                             const StepPath& path) {
  const bool served = path.kind == StepPath::Kind::Served;
  const StepMark mark([&] {
    const bool recorded = path.kind == StepPath::Kind::Recorded;
    const char* const how = served ? "captured" : recorded ? "warm-up" : "uncaptured";
    return "gravure: " + entry.code->entry->name + ", " + how;
  });
  ++stats_.steps;
  stats_.stagedBytes = 0;
  stats_.copiedResultBytes = 0;
  if (!served) ++stats_.uncapturedSteps;
  const KeptInputs kept(*entry.code, inputs);
  const auto cleaner = c10::make_scope_exit([&] { entry.executor->clear(); });
  const MovedInputs moved(*entry.inputs.moving, inputs, served);
  fillFrame(*entry.code, entry.executor->frame(), inputs, served);
  if (served) {
    if (lentOverwritten_ != path.overwritesLent) lentOverwritten_ = path.overwritesLent;
    return runServed(entry, kept, moved, path.seal);
  }
  path.kind == StepPath::Kind::Recorded ? runRecorded(entry) : runPlain(entry);
  if (!callerCaptures_) entry.ranWithGroups = true;
  kept.bumpVersions();
  return takeResults(entry, kept, nullptr);
}

std::vector<c10::IValue> Runtime::Impl::runServed(EntryState& entry, const KeptInputs& kept,
                                                  const MovedInputs& moved, const Seal* seal) {
  const int64_t captures = stats_.captures;
  ArenaSession session(layout_->serve, slab_, device_->tensorDevice(), &layout_->operands);
  try {
    if (!entry.executor->runServed(entry.served, session, seal)) seal = nullptr;
  } catch (...) {  // what was captured before the error is replayed in the next step
    if (stats_.captures != captures) collectInputGuards(entry);
    throw;
  }
  if (stats_.captures != captures) collectInputGuards(entry);
  if (!session.mismatches().empty()) remarkMismatches(session);
  session.leaveCall();
  moved.copyBack();
  kept.bumpVersions();
  auto results = takeResults(entry, kept, &session, seal);
  entry.wasServed = true;
  if (!seal && !entry.seals.cover(entry.served.partitions)) sealEntry(entry, kept);
  for (const DeadBlock& block : entry.served.dying)
    device_->poison(slab_->base() + block.offset, block.bytes);
  return results;
}

/// Whether a replay of `entry` may write where `lender`'s output lies, which is lent.
bool Runtime::Impl::writesOver(const EntryState& entry, const EntryState& lender, size_t output) {
  if (&lender == &entry) return true;
  return &lender < &entry ? lender.results.droppedInEntry[output] : lender.results.dropped[output];
}

/// Behind a step that was served: where all of its partitions are captured, the next one may go straight.
void Runtime::Impl::sealEntry(EntryState& entry, const KeptInputs& kept) {
  entry.seals.breakCurrent();
  const auto isCaptured = [](const Partition& each) { return each.captured() != nullptr; };
  if (!llvm::all_of(entry.served.partitions, isCaptured)) return;
  Seal::Contents contents = sealLaunches(*entry.code, entry.inputs.checks, *entry.inputs.moving,
                                         entry.served.partitions, entry.served.staged);
  contents.results = handOuts(entry, kept);
  for (EntryState& lender : entries_) {
    for (size_t o = 0; o < lender.results.lent.size(); ++o) {
      const bool lends =
          lender.code->ownership[o] == Ownership::Lent || lender.results.lent[o]->outstanding() > 0;
      if (lends && writesOver(entry, lender, o)) contents.books.push_back(lender.results.lent[o]);
    }
  }
  const auto isSaved = [](const InputInfo& each) { return each.role == InputRole::Saved; };
  if (llvm::none_of(entry.code->entry->inputs, isSaved)) contents.readsLent = false;
  entry.seals.add(std::move(contents));
}

void Runtime::Impl::fillFrame(const EntryCode& code, Frame& frame, std::vector<c10::IValue>& inputs,
                              bool served) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Slot slot = code.inputs[i];
    c10::IValue& value = inputs[i];
    const bool read = !served || code.readOnHost[slot];
    const bool detach =
        read && value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad();
    frame[slot] = detach ? c10::IValue(shallowCopy(value.toTensor())) : std::move(value);
  }
  inputs.clear();
}

void Runtime::Impl::collectInputGuards(EntryState& entry) {
  entry.inputs.guards.clear();
  std::vector<bool> seen(entry.inputs.checks.size(), false);
  for (const Partition& partition : entry.served.partitions) {
    if (!partition.captured()) continue;
    for (const auto& [slot, guard] : partition.captured()->inputGuards) {
      if (seen[slot] || entry.inputs.moving->isStaged(slot)) continue;
      seen[slot] = true;
      entry.inputs.guards.emplace_back(slot, guard);
    }
  }
  const auto byIndex = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(entry.inputs.guards.begin(), entry.inputs.guards.end(), byIndex);
}

void Runtime::Impl::remarkMismatches(const ArenaSession& session) {
  for (const int64_t position : session.mismatches()) {
    once_.missed("allocation-mismatch", timeline_.nodes()[position],
                 "its allocations differ from those of the warm-up; those that are not in the plan "
                 "came from PyTorch's allocator");
  }
}

void Runtime::Impl::installArena(std::shared_ptr<Slab> slab, std::shared_ptr<LoanBook> loans) {
  const std::lock_guard lock(arena_);
  slab_.swap(slab);
  loans_ = std::move(loans);
}

/// Its arena was made before there were calls in flight beside its own.
void Runtime::Impl::joinInFlight() {
  const std::lock_guard lock(arena_);
  if (slab_) slab_->joinInFlight(shared_);
}

void Runtime::Impl::shutdown() {
  if (!alive_.exchange(false)) return;
  if (communication_) {
    device_->finishReplays();  // still watched: they end although a rank died
    communication_->letGo();
  }
  for (EntryState& entry : entries_) {
    entry.executor->clear();
    entry.results.statics.clear();
    entry.results.together.clear();
    entry.seals.breakAll();  // graphs first
    entry.served.partitions.clear();
    entry.served.staged.clear();
    entry.inputs.guards.clear();
    entry.inputs.moving->forget();
  }
  installArena(nullptr, loans_);  // lent and shared results keep its memory
  saving_.reset();
}

Runtime::Runtime(Program program, std::unique_ptr<Device> device, RuntimeOptions options) {
  TORCH_CHECK(device, "a runtime needs a device");
  auto flat = std::make_shared<const FlatProgram>(std::move(program), device->tensorDevice(),
                                                  options.results);
  impl_ = std::make_unique<Impl>(std::move(flat), std::move(device), std::move(options));
}
Runtime::Runtime(const Runtime& other, std::unique_ptr<Device> device, RuntimeOptions options) {
  TORCH_CHECK(device, "a runtime needs a device");
  const std::shared_ptr<const FlatProgram>& flat = other.impl_->flat_;
  TORCH_CHECK(device->tensorDevice() == flat->devices.to, "a further runtime of a program on ",
              flat->devices.to, " was given a device on ", device->tensorDevice(),
              "; make it of the program's text");
  TORCH_CHECK(options.results == flat->results,
              "a further runtime of a program was given another policy of results than the first; "
              "make it of the program's text");
  impl_ = std::make_unique<Impl>(flat, std::move(device), std::move(options));
}
Runtime::~Runtime() {
  // In a forked child the device cannot be used, nor given anything back: all of it is the parent's.
  if (impl_ && impl_->process_ != getpid()) (void)impl_.release();
}

std::vector<c10::IValue> Runtime::run(const std::string& entry, std::vector<c10::IValue> inputs,
                                      const KernelSettings* settings) {
  return impl_->run(entry, std::move(inputs), /*uncaptured=*/false, /*timed=*/false, settings);
}
std::vector<c10::IValue> Runtime::runUncaptured(const std::string& entry,
                                                std::vector<c10::IValue> inputs) {
  return impl_->run(entry, std::move(inputs), /*uncaptured=*/true);
}
std::vector<c10::IValue> Runtime::runTimed(const std::string& entry,
                                           std::vector<c10::IValue> inputs) {
  return impl_->run(entry, std::move(inputs), /*uncaptured=*/true, /*timed=*/true);
}
Runtime::Straight Runtime::runStraight(const std::string& entry,
                                       const std::vector<c10::IValue>& inputs,
                                       const std::vector<int64_t>& watched,
                                       const std::vector<double>& counts) {
  return impl_->runStraight(entry, inputs, watched, counts);
}
const Program& Runtime::program() const { return impl_->program_; }
Device& Runtime::device() { return *impl_->device_; }
const RuntimeStats& Runtime::stats() const {
  impl_->stats_.captureSets = 0;
  for (const EntryState& entry : impl_->entries_)
    impl_->stats_.captureSets =
        std::max(impl_->stats_.captureSets, static_cast<int64_t>(entry.seals.count()));
  return impl_->stats_;
}
Remarks& Runtime::remarks() { return impl_->remarks_; }

std::vector<PartitionState> Runtime::partitionStates(const std::string& entry) const {
  const EntryState& state = impl_->find(entry);
  std::vector<PartitionState> states;
  for (const Partition& partition : state.served.partitions) states.push_back(partition.state());
  return states;
}

Runtime::WrittenNumbers Runtime::writtenNumbers() const {
  WrittenNumbers written;
  for (const EntryState& entry : impl_->entries_) {
    for (const Partition& partition : entry.served.partitions) {
      if (!partition.captured() || !partition.captured()->patches) continue;
      const NumberPatches& patches = *partition.captured()->patches;
      written.numbers += static_cast<int64_t>(patches.numbers().size());
      written.kernels += patches.kernels();
    }
  }
  return written;
}

std::vector<Runtime::TracedCall> Runtime::tracedCalls() const {
  std::vector<TracedCall> traced;
  std::set<const CapturedPartition*> seen;  // a seal has those of the partitions
  for (const EntryState& entry : impl_->entries_) {
    const auto add = [&](size_t index, const CapturedPartition* captured) {
      if (!captured || !captured->executable || !seen.insert(captured).second) return;
      const Launch& launch = entry.code->launches[index];
      const TraceNumbers numbers = captured->executable->traceNumbers();
      size_t begin = 0;
      for (size_t c = 0; c < numbers.ends.size() && c < launch.calls.size(); ++c) {
        const size_t count = numbers.ends[c] - begin;
        if (count > 0)
          traced.push_back({.node = launch.calls[c].node,
                            .entry = &entry.code->entry->name,
                            .partition = launch.index,
                            .first = numbers.first + begin,
                            .count = count});
        begin = numbers.ends[c];
      }
    };
    for (size_t i = 0; i < entry.served.partitions.size(); ++i)
      add(i, entry.served.partitions[i].captured().get());
    entry.seals.forEachCapture(add);
  }
  return traced;
}

const MemoryPlan& Runtime::memoryPlan() const {
  return impl_->layout_ ? impl_->layout_->plan : impl_->noPlan_;
}
bool Runtime::communicates() const { return impl_->communication_ != nullptr; }
void Runtime::holdTogether(const std::string& entry, const std::vector<int64_t>& outputs) {
  const auto turn = impl_->waitForTurn("results");
  EntryState& state = impl_->find(entry);
  for (int64_t output : outputs) state.results.heldTogether.at(output) = true;
  state.seals.breakAll();
}

void Runtime::warmUpWith(const Runtime& other) {
  const auto turn = impl_->waitForTurn("its warm-up");
  // Ranks count their own runs.
  if (impl_->communication_ || !other.impl_->shared_->isLike(*impl_->shared_)) return;
  impl_->shared_ = other.impl_->shared_;
  impl_->shared_->join();
  other.impl_->joinInFlight();
}

void Runtime::learnFrom(const Runtime& other) {
  const auto turn = impl_->waitForTurn("its warm-up");
  if (impl_->communication_ || !other.impl_->shared_->isLike(*impl_->shared_)) return;
  impl_->taught_ = other.impl_->shared_;
}

bool Runtime::holdsSaved() const { return impl_->loans_->outstanding() > 0; }
bool Runtime::readsSaved(const std::string& entry) const {
  const auto& infos = impl_->find(entry).code->entry->inputs;
  return llvm::any_of(infos, [](const InputInfo& each) { return each.role == InputRole::Saved; });
}
std::string Runtime::sharedInputs(const std::string& entry,
                                  const std::vector<c10::IValue>& inputs) const {
  return Impl::sharedInputs(impl_->find(entry), inputs);
}
bool Runtime::hasSaved(const std::string& entry, const std::vector<c10::IValue>& inputs) const {
  return impl_->givenLentValues(impl_->find(entry), inputs);
}

void Runtime::dropCaptures(const std::string& group) {
  const auto turn = impl_->waitForTurn("the captures");
  Communication* const communication = impl_->communication_.get();
  if (!impl_->alive_ || !communication || !(group.empty() || communication->uses(group))) return;
  impl_->device_->synchronize();
  for (EntryState& entry : impl_->entries_) Impl::forgetCaptures(entry);
  communication->letGo();
}
void Runtime::shutdown() {
  const auto turn = impl_->waitForTurn("its memory");
  impl_->shutdown();
}

}  // namespace gravure
