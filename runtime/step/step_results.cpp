#include "runtime/results/tensor_copies.h"
#include "runtime/step/runtime_impl.h"

#include <optional>
#include <utility>

namespace gravure {
namespace {

bool sameView(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() &&
         a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// Gives an entry's outputs away, so that nothing the arena may reuse is in the caller's hands.
class ResultTaker {
 public:
  /// `saved`: who holds saved values. `slab`: the arena, whether or not this step was served from it.
  ResultTaker(EntryState& entry, const Frame& frame, const KeptInputs& kept,
              const std::shared_ptr<LoanBook>& saved, const std::shared_ptr<Slab>& slab,
              bool serving, bool inside = false)
      : entry_(entry), code_(*entry.code), frame_(frame), kept_(kept), saved_(saved), slab_(slab),
        serving_(serving), inside_(inside) {}

  std::vector<c10::IValue> take(const Seal* seal = nullptr) {
    results_.reserve(code_.outputs.size());
    for (size_t o = 0; o < code_.outputs.size(); ++o)
      results_.push_back(takeOne(o, seal ? seal->result(o) : HandOut()));
    if (sources_.empty()) return std::move(results_);
    std::vector<at::Tensor> copies = ownedCopies(sources_);
    for (size_t i = 0; i < copies.size(); ++i) {
      copiedBytes_ += static_cast<int64_t>(copies[i].nbytes());
      if (targets_[i].member < 0) {
        results_[targets_[i].output] = std::move(copies[i]);
      } else {
        results_[targets_[i].output].toTensorList().set(targets_[i].member, std::move(copies[i]));
      }
    }
    return std::move(results_);
  }
  int64_t copiedBytes() const { return copiedBytes_; }
  /// By where the value lies now.
  HandOut decide(size_t output) const {
    using How = HandOut::How;
    const Slot slot = code_.outputs[output];
    const c10::IValue& value = frame_[slot];
    const OutputInfo* info = infoOf(output);
    if (info && info->role == OutputRole::Mutation && info->input >= 0)
      return {How::Input, false, info->input};
    if (code_.sources[slot] == SlotSource::Input) return {How::Input, false, slot};
    if (value.isTensorList()) return {How::Members};
    if (!value.isTensor() || !value.toTensor().defined()) return {How::AsIs};
    const at::Tensor& tensor = value.toTensor();
    const bool alias = info && info->role == OutputRole::Alias;
    // What a capture allocated outside the arena is its graph's: the next replay writes it.
    const bool ofGraph = serving_ && !alias && code_.isMadeByLaunch(slot);
    const bool asEager = info && isCopiedAsEager(info->role);
    const Ownership ownership = code_.ownership[output];
    if (ownership == Ownership::Static && slab_ && !inside_) return {How::Static, asEager};
    const bool here = inSlab(tensor, slab_.get());
    if (here || ofGraph) {
      if (serving_ && ownership == Ownership::Saved) return {How::Saved};
      // One with gaps, or with several elements at one address, is laid out anew for its holder.
      const bool lent = here && serving_ && ownership == Ownership::Lent;
      if (lent && tensor.is_non_overlapping_and_dense()) return {How::Lent};
      return {How::Copied, asEager};
    }
    if (alias && info->input >= 0) {
      const c10::IValue& input = kept_[info->input];
      if (input.isTensor() && sameView(tensor, input.toTensor()))
        return {How::Input, false, info->input};
    }
    // Of what is held together nobody sees that it is the same tensor each step.
    const bool seen = !entry_.results.heldTogether[output];
    const bool apart = serving_ && seen && code_.sources[slot] == SlotSource::Launch;
    return {apart ? How::Apart : How::AsIs};
  }

  /// The same for all steps in which each partition is replayed; undecided where that does not say it.
  HandOut decideForAll(size_t output) const {
    using How = HandOut::How;
    const Slot slot = code_.outputs[output];
    const HandOut now = decide(output);
    const OutputInfo* info = infoOf(output);
    const bool structural =
        code_.sources[slot] == SlotSource::Input || (info && info->role == OutputRole::Mutation);
    if (structural) return now;
    const bool alias = info && info->role == OutputRole::Alias;
    if (alias || !frame_[slot].isTensor() || !handedOn(slot)) return {};
    const at::Tensor& handed = entry_.results.statics[output];
    const bool same = now.how == How::Static && sameView(handed, frame_[slot].toTensor());
    return same ? HandOut{How::Same} : now;
  }

 private:
  struct Target {
    size_t output;
    int64_t member;  // of a list, -1: the output itself
  };

  c10::IValue takeOne(size_t output, HandOut handOut) {
    using How = HandOut::How;
    if (handOut.how == How::Undecided) handOut = decide(output);
    const c10::IValue& value = frame_[code_.outputs[output]];
    switch (handOut.how) {
      case How::Undecided:
      case How::AsIs: return value;
      case How::Apart: return shallowCopy(value.toTensor());
      case How::Input: return kept_[handOut.input];
      case How::Static: return handStatic(output, value.toTensor(), handOut.asEager);
      case How::Same: return entry_.results.statics[output];
      case How::Saved: entry_.lentSaved = true; return handSaved(output, value.toTensor());
      case How::Lent: return lender().lend(value.toTensor(), entry_.results.lent[output]);
      case How::Copied: return copyLater(output, value.toTensor(), handOut.asEager);
      case How::Members: return takeList(output, value);
    }
    return value;
  }

  /// nullptr where the entry says nothing of the output.
  const OutputInfo* infoOf(size_t output) const {
    const auto& infos = code_.entry->outputs;
    return output < infos.size() ? &infos[output] : nullptr;
  }

  /// Whether a partition made the value, as it is or as an Own instruction hands it on.
  bool handedOn(Slot slot) const {
    if (code_.sources[slot] == SlotSource::Launch) return true;
    if (code_.sources[slot] != SlotSource::Own) return false;
    for (const Own& own : code_.owns) {
      for (size_t i = 0; i < own.to.size(); ++i) {
        if (own.to[i] == slot) return code_.sources[own.from[i]] == SlotSource::Launch;
      }
    }
    return false;
  }

  Lender& lender() {
    if (!lender_) lender_.emplace(slab_);
    return *lender_;
  }

  /// Of what is held together, the first is the loan.
  at::Tensor handSaved(size_t output, const at::Tensor& tensor) {
    const bool together = entry_.results.heldTogether[output] && inSlab(tensor, slab_.get());
    if (!together || !std::exchange(lentTogether_, true)) return lender().lend(tensor, saved_);
    at::Tensor& known = entry_.results.together[output];
    if (!sameView(known, tensor)) known = lender().lendAlongside(tensor, saved_);
    return known;
  }

  /// The same tensor each step, from the first that was served on; what lies elsewhere is copied to it.
  c10::IValue handStatic(size_t output, const at::Tensor& tensor, bool asEager) {
    at::Tensor& handed = entry_.results.statics[output];
    const bool here = inSlab(tensor, slab_.get());
    if (!handed.defined()) {
      if (!here) return serving_ ? copyLater(output, tensor, asEager) : c10::IValue(tensor);
      handed = unlent(tensor, slab_);
    }
    if (!sameView(handed, tensor)) copyTensor(handed, tensor);
    return handed;
  }

  c10::IValue copyLater(size_t output, const at::Tensor& tensor, bool asEager) {
    sources_.push_back({tensor, asEager});
    targets_.push_back({output, -1});
    return {};
  }

  c10::IValue takeList(size_t output, const c10::IValue& value) {
    c10::List<at::Tensor> taken;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (inSlab(tensor, slab_.get())) {
        sources_.push_back({tensor});
        targets_.push_back({output, static_cast<int64_t>(taken.size())});
      }
      taken.push_back(tensor);
    }
    return taken;
  }

  EntryState& entry_;
  const EntryCode& code_;
  const Frame& frame_;
  const KeptInputs& kept_;
  const std::shared_ptr<LoanBook>& saved_;
  const std::shared_ptr<Slab>& slab_;
  std::optional<Lender> lender_;
  const bool serving_;
  const bool inside_;  // of another step: it hands out what is its own
  bool lentTogether_ = false;
  std::vector<c10::IValue> results_;
  std::vector<CopySource> sources_;
  std::vector<Target> targets_;
  int64_t copiedBytes_ = 0;
};

}  // namespace

std::vector<c10::IValue> Runtime::Impl::takeResults(EntryState& entry, const KeptInputs& kept,
                                                    ArenaSession* serving, const Seal* seal) {
  if (serving) serving->leaveCall();
  // A lent input may come out of an uncaptured step, too.
  const std::shared_ptr<Slab> none;
  ResultTaker taker(entry, entry.executor->frame(), kept, loans_, callerCaptures_ ? none : slab_,
                    serving != nullptr);
  std::vector<c10::IValue> results = taker.take(seal);
  for (size_t o = 0; !entry.planned && !callerCaptures_ && o < results.size(); ++o) {
    if (results[o].isTensor()) entry.results.watches[o].handOut(results[o].toTensor());
  }
  stats_.copiedResultBytes += taker.copiedBytes();
  return results;
}

/// For a seal, behind a served step: one an output.
std::vector<HandOut> Runtime::Impl::handOuts(EntryState& entry, const KeptInputs& kept) const {
  const ResultTaker taker(entry, entry.executor->frame(), kept, loans_, slab_, /*serving=*/true);
  std::vector<HandOut> found;
  for (size_t o = 0; o < entry.code->outputs.size(); ++o) found.push_back(taker.decideForAll(o));
  return found;
}

std::vector<c10::IValue> Runtime::Impl::takeInside(EntryState& entry, const Frame& frame,
                                                   const KeptInputs& kept,
                                                   std::shared_ptr<Slab> slab) {
  const std::shared_ptr<LoanBook> none;
  return ResultTaker(entry, frame, kept, none, slab, /*serving=*/false, /*inside=*/true).take();
}

}  // namespace gravure
