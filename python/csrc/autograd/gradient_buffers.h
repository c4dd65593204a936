#pragma once
// The buffers that a step adds its gradients to (passes/accumulate_gradients.h): `.grad` of the
// tensors that they belong to.

#include "ir/core/program.h"
#include "ir/core/remark.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

namespace gravure {

struct GradientMemory;

/// Which inputs of an entry are gradient buffers, and whose memory each is, step by step.
///
/// A `.grad` that is there is the buffer itself, and the program adds to it in place. One that is None
/// becomes memory of ours, the same each time and for all programs of that tensor; it begins as -0, to
/// which a gradient adds up to its own bits. A gradient is *apart* if the program cannot add to `.grad`,
/// or may not write to what it was before, because somebody holds it: from then on the program adds it to
/// memory of ours that nobody sees, and the sum is given to `.grad` as autograd gives a gradient.
/// Captures hold in all cases.
class GradientBuffers {
 public:
  explicit GradientBuffers(const Entry& entry);

  bool empty() const { return buffers_.empty(); }
  /// checkGradientOf() of each tensor that a gradient belongs to.
  void check(const std::vector<c10::IValue>& inputs, bool hooks) const;
  /// Before a step: puts a buffer for each gradient into `inputs`, one value an entry input, which were
  /// checked.
  void prepare(std::vector<c10::IValue>& inputs, Remarks& remarks);
  /// After the step, with the same inputs.
  void finish(const std::vector<c10::IValue>& inputs);
  /// Instead of finish(), if prepare() or the step threw: what was None is None again.
  void abandon(const std::vector<c10::IValue>& inputs);

 private:
  struct Buffer {
    size_t input = 0;                      // of the entry: the buffer itself
    size_t owner = 0;                      // of the entry: the tensor that the gradient belongs to
    std::string name;                      // of that tensor
    std::shared_ptr<GradientMemory> ours;  // what `.grad` becomes where it is None
    at::Tensor apart;                      // what the program adds to once the gradient is apart
    const void* last = nullptr;            // where it lay in the last step
    int64_t moves = 0;                     // to another `.grad`
    bool none = false;                     // `.grad` was None before this step
  };
  /// The memory of one input.
  struct Span {
    const char* begin = nullptr;
    const char* end = nullptr;
    size_t input = 0;
    bool operator<(const Span& other) const { return begin < other.begin; }
  };

  at::Tensor choose(Buffer& buffer, const at::Tensor& owner, Remarks& remarks);
  static void putApart(Buffer& buffer, const at::Tensor& owner, const std::string& why,
                       Remarks& remarks);
  void separate(std::vector<c10::IValue>& inputs, Remarks& remarks);
  std::vector<size_t> findMeeting(const std::vector<c10::IValue>& inputs);
  std::vector<size_t> meetingAmongAll(const std::vector<c10::IValue>& inputs);
  static Span spanOf(const c10::IValue& value, size_t input);

  std::vector<Buffer> buffers_;
  std::vector<int64_t> bufferOf_;      // by input: among buffers_, -1 if it is none
  std::vector<const void*> compared_;  // by input: where it lay when memory was last compared
  std::vector<Span> spans_;            // of the buffers, ascending
  std::vector<at::Tensor> begun_;      // memory of ours that begins anew in this step
};

}  // namespace gravure
