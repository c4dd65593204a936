#pragma once
// The inputs of an update of parameters, which stay the same from step to step: parameters, their state, and
// the gradients that the parameters have.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

class UpdateInputs {
 public:
  /// Gradients of the tensors at `owners` are the inputs at `gradients`; numbers those at `numbers`, in order.
  /// `without`: tensors that must have no gradient. They and `values` are kept alive, gradients are not.
  UpdateInputs(std::vector<c10::IValue> values, std::vector<int64_t> gradients,
               std::vector<int64_t> owners, std::vector<int64_t> numbers,
               std::vector<int64_t> counters, std::vector<at::Tensor> without, std::string name);

  /// Takes the gradients that there are now, and `numbers`. False where one is missing, or one of `without`
  /// has got one.
  bool take(const std::vector<double>& numbers);
  /// Lets go of the gradients: what lends their memory must find nobody who holds it.
  void drop();

  const std::vector<c10::IValue>& values() const { return values_; }
  /// Inputs that conditions are on.
  const std::vector<int64_t>& counters() const { return counters_; }
  /// For who watches.
  const std::string& name() const { return name_; }

 private:
  struct Gradient {
    size_t input = 0;
    const c10::TensorImpl* owner = nullptr;  // in values_
  };
  std::vector<c10::IValue> values_;
  std::vector<Gradient> gradients_;
  std::vector<int64_t> numbers_, counters_;
  std::vector<at::Tensor> without_;
  std::string name_;
};

}  // namespace gravure
