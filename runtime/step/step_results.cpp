#include "runtime/results/copy_places.h"
#include "runtime/step/runtime_impl.h"

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
              std::shared_ptr<LoanBook> saved, std::shared_ptr<Slab> slab, bool serving,
              bool inside = false)
      : entry_(entry), code_(*entry.code), frame_(frame), kept_(kept), saved_(std::move(saved)),
        slab_(std::move(slab)), lender_(slab_), serving_(serving), inside_(inside) {}

  std::vector<c10::IValue> take() {
    for (size_t o = 0; o < code_.outputs.size(); ++o) results_.push_back(takeOne(o));
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

 private:
  struct Target {
    size_t output;
    int64_t member;  // of a list, -1: the output itself
  };

  c10::IValue takeOne(size_t output) {
    const Slot slot = code_.outputs[output];
    const c10::IValue& value = frame_[slot];
    const OutputInfo* info =
        output < code_.entry->outputs.size() ? &code_.entry->outputs[output] : nullptr;
    if (info && info->role == OutputRole::Mutation && info->input >= 0) return kept_[info->input];
    if (code_.sources[slot] == SlotSource::Input) return kept_[slot];
    if (value.isTensorList()) return takeList(output, value);
    if (!value.isTensor() || !value.toTensor().defined()) return value;
    const at::Tensor& tensor = value.toTensor();
    const bool alias = info && info->role == OutputRole::Alias;
    // What a capture allocated outside the arena is its graph's: the next replay writes it.
    const bool ofGraph = serving_ && !alias && code_.isMadeByLaunch(slot);
    const bool asEager = info && isCopiedAsEager(info->role);
    if (code_.ownership[output] == Ownership::Static && slab_ && !inside_) {
      return handStatic(output, tensor, asEager);
    }
    if (inSlab(tensor, slab_.get())) {
      return serving_ ? hand(output, tensor, asEager) : copyLater(output, tensor, asEager);
    }
    if (ofGraph) {
      const bool saved = code_.ownership[output] == Ownership::Saved;
      return saved ? hand(output, tensor, asEager) : copyLater(output, tensor, asEager);
    }
    if (alias && info->input >= 0) {
      const c10::IValue& input = kept_[info->input];
      if (input.isTensor() && sameView(tensor, input.toTensor())) return input;
    }
    // A partition hands on the same tensor each step; of what is held together nobody sees it.
    const bool seen = !entry_.heldTogether[output];
    return serving_ && seen && code_.sources[slot] == SlotSource::Launch ? shallowCopy(tensor)
                                                                         : value;
  }

  /// A served step's value that lies in the arena.
  c10::IValue hand(size_t output, const at::Tensor& tensor, bool asEager) {
    switch (code_.ownership[output]) {
      case Ownership::Saved: entry_.lentSaved = true; return handSaved(output, tensor);
      case Ownership::Lent:
        // One with gaps, or with several elements in one place, is laid out anew for its holder.
        if (!tensor.is_non_overlapping_and_dense()) return copyLater(output, tensor, asEager);
        return lender_.lend(tensor, entry_.lent[output]);
      default: return copyLater(output, tensor, asEager);
    }
  }

  /// Of what is held together, the first is the loan.
  at::Tensor handSaved(size_t output, const at::Tensor& tensor) {
    const bool together = entry_.heldTogether[output] && inSlab(tensor, slab_.get());
    if (!together || !std::exchange(lentTogether_, true)) return lender_.lend(tensor, saved_);
    at::Tensor& known = entry_.together[output];
    if (!sameView(known, tensor)) known = lender_.lendAlongside(tensor, saved_);
    return known;
  }

  /// The same tensor each step, from the first that was served on; what lies elsewhere is copied to it.
  c10::IValue handStatic(size_t output, const at::Tensor& tensor, bool asEager) {
    at::Tensor& handed = entry_.statics[output];
    const bool here = inSlab(tensor, slab_.get());
    if (!handed.defined()) {
      if (!here) return serving_ ? copyLater(output, tensor, asEager) : c10::IValue(tensor);
      handed = unlent(tensor, slab_);
    }
    if (!sameView(handed, tensor)) copyPlaces(handed, tensor);
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
  const std::shared_ptr<LoanBook> saved_;
  const std::shared_ptr<Slab> slab_;
  Lender lender_;
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
                                                    ArenaSession* serving) {
  if (serving) serving->enterStep(-1);
  // A lent input may come out of an uncaptured step, too.
  ResultTaker taker(entry, entry.executor->frame(), kept, loans_, callerCaptures_ ? nullptr : slab_,
                    serving != nullptr);
  std::vector<c10::IValue> results = taker.take();
  for (size_t o = 0; !layout_ && !callerCaptures_ && o < results.size(); ++o) {
    if (results[o].isTensor()) entry.watches[o].handOut(results[o].toTensor());
  }
  stats_.copiedResultBytes += taker.copiedBytes();
  return results;
}

std::vector<c10::IValue> Runtime::Impl::takeInside(EntryState& entry, const Frame& frame,
                                                   const KeptInputs& kept,
                                                   std::shared_ptr<Slab> slab) {
  return ResultTaker(entry, frame, kept, nullptr, std::move(slab), /*serving=*/false,
                     /*inside=*/true)
      .take();
}

}  // namespace gravure
