#pragma once
// Whether callers drop results in time for the next step, seen before the arena is laid out.

#include <ATen/core/Tensor.h>

namespace gravure {

/// Of one output of an entry. A training loop drops its gradients after the optimizer's step: then the
/// next forward may use their memory. One that clears them between forward and backward does not.
class ResultWatch {
 public:
  /// A step has returned `result`.
  void handOut(const at::Tensor& result) {
    if (!result.defined() || !result.has_storage()) return;
    last_ = result.storage().getWeakStorageImpl();
    handedOut_ = true;
  }
  /// An entry that comes before its own in the program begins.
  void nextStepBegins() {
    if (!handedOut_) return;
    seen_ = true;
    held_ |= !last_.expired();
  }
  /// Its own entry begins, which is the first of the program. The step before speaks for those to come: in
  /// the first one gradients may become `.grad` itself, to which all later ones are added.
  void ownStepBegins() {
    if (!handedOut_) return;
    seen_ = true;
    held_ = !last_.expired();
  }
  /// An entry that comes after its own in the program begins.
  void laterEntryBegins() {
    if (!handedOut_) return;
    seenLater_ = true;
    heldLater_ |= !last_.expired();
  }
  /// True if nobody held it whenever a later entry began, which was seen at least once.
  bool droppedBeforeLater() const { return seenLater_ && !heldLater_; }
  /// True if a step has returned it, and nobody holds it any more.
  bool isGone() const { return handedOut_ && last_.expired(); }
  bool wasHandedOut() const { return handedOut_; }
  /// Whether a next step was seen to begin.
  bool hasSeen() const { return seen_; }
  /// True if nobody held it where a next step began, which was seen at least once.
  bool droppedInTime() const { return seen_ && !held_; }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> last_{c10::intrusive_ptr<c10::StorageImpl>()};
  bool handedOut_ = false, seen_ = false, held_ = false;
  bool seenLater_ = false, heldLater_ = false;
};

}  // namespace gravure
