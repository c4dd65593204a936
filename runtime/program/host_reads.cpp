#include "runtime/program/host_reads.h"

#include "ir/core/args.h"
#include "runtime/device/rng.h"

#include <ATen/ops/empty.h>

namespace gravure {
namespace {

/// The elements in host memory: the tensor itself where it lies there and is dense.
at::Tensor onHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.contiguous();
  at::Tensor copy =
      at::empty(tensor.sizes(), tensor.options().device(c10::kCPU).pinned_memory(true));
  copy.copy_(tensor);  // waits
  return copy;
}

c10::IValue element(const at::Tensor& flat, int64_t i) {
  switch (flat.scalar_type()) {
    case c10::ScalarType::Long: return flat.const_data_ptr<int64_t>()[i];
    case c10::ScalarType::Int: return int64_t{flat.const_data_ptr<int32_t>()[i]};
    case c10::ScalarType::Bool: return flat.const_data_ptr<bool>()[i];
    case c10::ScalarType::Float: return double{flat.const_data_ptr<float>()[i]};
    case c10::ScalarType::Double: return flat.const_data_ptr<double>()[i];
    default: return c10::IValue(flat.view({-1})[i].item());
  }
}

}  // namespace

std::function<void(torch::jit::Stack&)> readHostOperation(const Node* node) {
  return [node](torch::jit::Stack& stack) {
    const at::Tensor flat = onHost(stack.back().toTensor());
    stack.clear();
    const auto count = static_cast<int64_t>(node->outputs().size());
    TORCH_CHECK(flat.numel() == count, describe(node), ": reads ", count,
                " elements of a tensor of ", flat.numel());
    for (int64_t i = 0; i < count; ++i) stack.push_back(element(flat, i));
  };
}

std::function<void(torch::jit::Stack&)> saveRngStateOperation(const Node* node,
                                                              const DeviceMap& devices) {
  const auto& args = argsOf(node).args;
  TORCH_CHECK(args.size() == 1, describe(node), ": takes one device");
  TORCH_CHECK(args[0].is<std::string>() || args[0].is<c10::Device>(), describe(node),
              ": takes a device, such as \"cpu\"");
  const c10::Device device = args[0].is<std::string>() ? c10::Device(args[0].as<std::string>())
                                                       : args[0].as<c10::Device>();
  return [device = devices(device)](torch::jit::Stack& stack) {
    stack.push_back(stateOf(defaultGenerator(device)));
  };
}

}  // namespace gravure
