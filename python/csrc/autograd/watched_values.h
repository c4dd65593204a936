#pragma once
// Values that a backward needs as they were when its forward ended.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace gravure {

/// Keeps values, and notices when somebody writes into one, as autograd does for what it saves itself.
struct WatchedValues {
  WatchedValues() = default;
  explicit WatchedValues(std::vector<c10::IValue> values);

  /// TORCH_CHECK, in autograd's words, for a value that was written in between.
  void check() const;

  std::vector<c10::IValue> values;
  std::vector<uint32_t> versions;  // one a value
};

/// `value`, which a forward saves beside the `outputs` that it returns, as what knows nothing of the node that
/// keeps it: an output of that node would keep it alive for ever, and so would a view that knows one as
/// its base.
c10::IValue apartFrom(const c10::IValue& value, c10::ArrayRef<at::Tensor> outputs);

}  // namespace gravure
