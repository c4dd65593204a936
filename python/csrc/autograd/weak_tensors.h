#pragma once
// Tensors that Python has, too: inputs that a program does not keep alive, and what a backward lets go of.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <utility>
#include <vector>

namespace gravure {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
/// By position among an entry's inputs.
using WeakTensors = std::vector<std::pair<int64_t, WeakTensor>>;

/// Keeps such inputs alive for one call. The second reference to a tensor of Python's takes Python's lock,
/// and so does letting go of it (Note [PyObject preservation for Tensor and Storages], c10): here once
/// for all, and nowhere else in the call.
class AliveTensors {
 public:
  explicit AliveTensors(const WeakTensors& weak);
  ~AliveTensors();
  AliveTensors(const AliveTensors&) = delete;
  AliveTensors& operator=(const AliveTensors&) = delete;

  /// One for each that was given; undefined where it is gone.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

/// Keeps those of `values` that Python has, too, and that are `ofCaller`, until all are let go of at once:
/// each last reference but Python's own would take its lock, on a thread of autograd's a microsecond or
/// more. The others go as soon as nobody needs them: compiled code gives their memory back.
class LetGoTogether {
 public:
  LetGoTogether(const std::vector<c10::IValue>& values, const std::vector<bool>& ofCaller);
  ~LetGoTogether();
  LetGoTogether(const LetGoTogether&) = delete;
  LetGoTogether& operator=(const LetGoTogether&) = delete;

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace gravure
