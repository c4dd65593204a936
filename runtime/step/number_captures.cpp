#include "runtime/step/number_captures.h"

#include "runtime/layout/misplaced_results.h"

#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {
namespace {

/// Unset bytes of parameters hold what was in memory: each capture finds another pattern there.
constexpr uint8_t kPaints[] = {0x00, 0xA5, 0x3B, 0xFE, 0x5B, 0xC4, 0x81, 0x7D};
constexpr int kRounds = 6;  // each without the numbers that were found to decide which kernels run
constexpr int kMoreCaptures = 4;  // to find out whether bytes are noise

/// Why an operator's parameter of this type may not change between replays; "" if it may.
std::string whyNoNumber(const c10::Type& type, NumberUse use) {
  switch (type.kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType: return "";
    case c10::TypeKind::TensorType:
      return use == NumberUse::Tensor ? "" : "an operator takes it as a tensor";
    case c10::TypeKind::OptionalType:
      return whyNoNumber(*type.castRaw<c10::OptionalType>()->getElementType(), use);
    case c10::TypeKind::ListType:
      return whyNoNumber(*type.castRaw<c10::ListType>()->getElementType(), use);
    default: return "an operator takes it as " + type.str();
  }
}

class NumberFinder {
 public:
  NumberFinder(const Launch& launch, const Frame& frame, std::string whyNone) : launch_(launch) {
    found_.ofCall.resize(launch.calls.size());
    for (size_t i = 0; i < launch.operands.size(); ++i) {
      const Slot slot = launch.operands[i];
      if (frame[slot].isDouble()) candidates_.push_back({slot, i, whyNone});
    }
  }

  LaunchNumbers find() {
    if (candidates_.empty()) return std::move(found_);
    for (const Call& call : launch_.calls) {
      const auto* schema = call.handle ? &call.handle->schema() : nullptr;
      for (size_t p = 0; p < call.operands.size(); ++p) {
        const bool known = schema && p < schema->arguments().size();
        look(call.operands[p], known ? schema->arguments()[p].type().get() : nullptr);
      }
    }
    for (Candidate& each : candidates_) {
      if (each.why.empty()) {
        each.number = static_cast<int32_t>(found_.numbers.size());
        found_.numbers.push_back({each.slot, each.operand});
      } else {
        found_.baked.emplace_back(each.operand, each.why);
      }
    }
    for (size_t c = 0; c < launch_.calls.size(); ++c) {
      for (const Operand& operand : launch_.calls[c].operands) collect(operand, found_.ofCall[c]);
    }
    return std::move(found_);
  }

 private:
  struct Candidate {
    Slot slot;
    size_t operand;
    std::string why;  // it is baked in
    int32_t number = -1;
  };

  Candidate* of(Slot slot) {
    const auto at = llvm::find_if(candidates_, [&](const auto& each) { return each.slot == slot; });
    return at == candidates_.end() ? nullptr : &*at;
  }

  void look(const Operand& operand, const c10::Type* type) {
    for (const Operand& member : operand.members) look(member, type);
    if (operand.kind != Operand::Kind::FromSlot) return;
    Candidate* const found = of(operand.slot);
    if (!found || !found->why.empty()) return;
    found->why =
        type ? whyNoNumber(*type, operand.use) : "what takes it is no operator of PyTorch's";
  }

  void collect(const Operand& operand, std::vector<int32_t>& numbers) {
    for (const Operand& member : operand.members) collect(member, numbers);
    if (operand.kind != Operand::Kind::FromSlot) return;
    const Candidate* const found = of(operand.slot);
    if (!found || found->number < 0 || llvm::is_contained(numbers, found->number)) return;
    numbers.push_back(found->number);
  }

  const Launch& launch_;
  std::vector<Candidate> candidates_;
  LaunchNumbers found_;
};

/// Other values in the frame, for the time of a capture.
class NumbersInFrame {
 public:
  NumbersInFrame(Frame& frame, const std::vector<PatchedNumber>& numbers,
                 const std::vector<double>& values)
      : frame_(frame), numbers_(numbers), before_(valuesOf(numbers, frame)) {
    give(values);
  }
  ~NumbersInFrame() { give(before_); }
  NumbersInFrame(const NumbersInFrame&) = delete;
  NumbersInFrame& operator=(const NumbersInFrame&) = delete;

 private:
  void give(const std::vector<double>& values) {
    for (size_t i = 0; i < numbers_.size(); ++i) frame_[numbers_[i].slot] = values[i];
  }

  Frame& frame_;
  const std::vector<PatchedNumber>& numbers_;
  std::vector<double> before_;
};

CapturedWork trialOf(const CaptureContext& context, const std::vector<PatchedNumber>& numbers,
                     const std::vector<double>& values, int paint) {
  const NumbersInFrame given(context.frame, numbers, values);
  const auto leave = [&] {
    context.stack.clear();
    context.session.leaveCall();
    for (const Call& call : context.launch.calls) releaseSlots(call.outputs, context.frame);
  };
  try {
    auto capture = context.device.beginCapture({});
    TORCH_INTERNAL_ASSERT(capture->watchWork(kPaints[paint % std::size(kPaints)]));
    captureCalls(context.launch, context.frame, context.stack, *capture, context.session);
    CapturedWork work = capture->endTrial();
    leave();
    return work;
  } catch (...) {
    leave();
    throw;
  }
}

/// The captures of one round, and what they show.
class TrialRound {
 public:
  /// `kept`: by number, whether it has its value in all captures.
  TrialRound(const LaunchNumbers& numbers, const std::vector<bool>& kept,
             const Executable& executable, const CaptureContext& context)
      : numbers_(numbers), context_(context), ofCall_(numbers.ofCall) {
    const std::vector<double> values = valuesOf(numbers.numbers, context.frame);
    trials_.push_back({values, {executable.work()}});
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      std::vector<double> others = trialValues(values, seed);
      for (size_t i = 0; i < kept.size(); ++i)
        if (kept[i]) others[i] = values[i];
      trials_.push_back({std::move(others), {}});
    }
    for (auto& each : ofCall_) llvm::erase_if(each, [&](int32_t number) { return kept[number]; });
    for (const int group : {0, 0, 1, 1, 2, 3}) capture(group);
  }

  FoundPlaces find() {
    FoundPlaces found = findPlaces(trials_, ofCall_);
    for (int more = 0; more < kMoreCaptures && found.undecided && !found.structure; ++more) {
      // Of each: a byte that was never set may differ in the only capture of one of them.
      for (const int group : {0, 1, 2, 3}) capture(group);
      found = findPlaces(trials_, ofCall_);
    }
    return found;
  }
  const std::vector<NumberTrial>& trials() const { return trials_; }

 private:
  void capture(int group) {
    NumberTrial& trial = trials_[group];
    trial.works.push_back(trialOf(context_, numbers_.numbers, trial.values, ++captures_));
  }

  const LaunchNumbers& numbers_;
  const CaptureContext& context_;
  std::vector<std::vector<int32_t>> ofCall_;
  std::vector<NumberTrial> trials_;
  int captures_ = 0;
};

}  // namespace

LaunchNumbers numbersOf(const Launch& launch, const Frame& frame, bool draws) {
  std::string whyNone;
  if (draws) whyNone = "its partition draws random numbers";
  if (!launch.groups.empty()) whyNone = "its partition has collectives";
  return NumberFinder(launch, frame, std::move(whyNone)).find();
}

void captureCalls(const Launch& launch, Frame& frame, torch::jit::Stack& stack, Capture& capture,
                  ArenaSession& session) {
  for (const Call& call : launch.calls) {
    session.leaveCall();
    call.push(frame, stack);
    session.enterCall(call.position);
    try {
      capture.call(call, call.rngIn(frame), stack);
    } catch (c10::Error& error) {
      addLocation(error, call.node);
      throw;
    }
    TORCH_CHECK(!anyMisplaced(call, stack, session), describe(call.node),
                ": allocates otherwise than in warm-up, and a result came to lie where another one "
                "does");
    call.store(stack, frame);
    // Operands stay: if the capture fails, the calls run one by one.
    for (Slot slot : call.releases) {
      const auto& kept = launch.releases;
      if (!std::binary_search(kept.begin(), kept.end(), slot)) frame[slot] = c10::IValue();
    }
  }
}

std::unique_ptr<NumberPatches> findPatches(LaunchNumbers& numbers, const Executable& executable,
                                           const CaptureContext& context) {
  const size_t count = numbers.numbers.size();
  std::vector<bool> kept(count, false);  // whether a number keeps its value in all captures
  std::vector<std::string> why(count);
  for (int round = 0; round < kRounds && llvm::is_contained(kept, false); ++round) {
    TrialRound trials(numbers, kept, executable, context);
    FoundPlaces found = trials.find();
    for (size_t i = 0; i < count; ++i) {
      if (found.refused[i].empty()) continue;
      if (!kept[i]) why[i] = found.refused[i];
      kept[i] = true;
    }
    if (found.structure) continue;
    std::vector<PatchedNumber> patched;
    std::vector<int32_t> patchedIndex(count, -1);
    std::vector<std::vector<double>> values(trials.trials().size());
    for (size_t i = 0; i < count; ++i) {
      if (kept[i]) continue;
      patchedIndex[i] = static_cast<int32_t>(patched.size());
      patched.push_back(numbers.numbers[i]);
      for (size_t t = 0; t < values.size(); ++t) values[t].push_back(trials.trials()[t].values[i]);
    }
    for (NumberPlace& each : found.places) each.number = patchedIndex[each.number];
    for (size_t i = 0; i < count; ++i)
      if (kept[i]) numbers.baked.emplace_back(numbers.numbers[i].operand, why[i]);
    numbers.numbers = patched;
    if (patched.empty()) return nullptr;
    auto patches = std::make_unique<NumberPatches>(std::move(patched), std::move(found),
                                                   values.front(), executable);
    for (const std::vector<double>& each : values) patches->note(each, "");
    return patches;
  }
  for (size_t i = 0; i < count; ++i)
    numbers.baked.emplace_back(numbers.numbers[i].operand,
                               why[i].empty() ? "too many others decide which kernels run"
                                              : why[i]);
  numbers.numbers.clear();
  return nullptr;
}

bool provePatches(NumberPatches& patches, const Executable& executable,
                  const CaptureContext& context) {
  const std::vector<double> values = valuesOf(patches.numbers(), context.frame);
  std::vector<CapturedWork> works;
  std::string why = "not compared yet";
  // Bytes that mean nothing show themselves sooner or later.
  for (int paint = 1; paint <= 2 + kMoreCaptures && !why.empty(); ++paint) {
    works.push_back(trialOf(context, patches.numbers(), values, paint));
    const bool others = !sameStructure(executable.work(), works.back());
    if (others || works.size() > 1) why = patches.differs(executable, values, works);
    if (others) break;
  }
  patches.note(values, why);
  return why.empty();
}

}  // namespace gravure
