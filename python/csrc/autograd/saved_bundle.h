#pragma once
// What a forward saves for its backward alone, as one tensor in the hands of autograd.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace gravure {

/// Holds `values` for as long as the returned tensor's memory lives: one byte on the CPU, at an address of
/// its own. Views and detached versions of it are as good; a copy of it holds nothing.
at::Tensor makeBundle(std::vector<c10::IValue> values);

/// The values in the bundle that `tensor` is. With `last` they are taken out: nobody will ask again.
/// TORCH_CHECK for another tensor, for an empty bundle, and for a value that was written in between.
std::vector<c10::IValue> bundled(const at::Tensor& tensor, bool last);

}  // namespace gravure
