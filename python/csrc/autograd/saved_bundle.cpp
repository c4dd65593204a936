#include "python/csrc/autograd/saved_bundle.h"

#include "python/csrc/autograd/watched_values.h"

#include <c10/core/TensorImpl.h>
#include <torch/library.h>

#include <utility>

namespace gravure {

namespace {

struct Bundle {
  uint8_t byte = 0;  // the tensor's memory
  bool taken = false;
  WatchedValues saved;
};

void dropBundle(void* context) { delete static_cast<Bundle*>(context); }

Bundle* bundleOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  if (memory.get_deleter() != &dropBundle) return nullptr;
  return static_cast<Bundle*>(memory.get_context());
}

}  // namespace

at::Tensor makeBundle(std::vector<c10::IValue> values) {
  auto* bundle = new Bundle{0, false, WatchedValues(std::move(values))};
  const c10::Device cpu(c10::DeviceType::CPU);
  c10::DataPtr memory(&bundle->byte, bundle, &dropBundle, cpu);
  c10::Storage storage(c10::Storage::use_byte_size_t(), 1, std::move(memory), /*allocator=*/nullptr,
                       /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(c10::ScalarType::Byte));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(1);
  return tensor;
}

std::vector<c10::IValue> bundled(const at::Tensor& tensor, bool last) {
  Bundle* bundle = bundleOf(tensor);
  TORCH_CHECK(bundle,
              "a backward was given something else in the place of what its forward saved: a "
              "hook on saved tensors that was set later copied it; set the hook before "
              "the first call");
  TORCH_CHECK(!bundle->taken,
              "Trying to backward through the graph a second time: what its forward "
              "saved is gone. Specify retain_graph=True the first time");
  bundle->saved.check();
  if (!last) return bundle->saved.values;
  bundle->taken = true;
  return std::move(bundle->saved.values);
}

namespace {

at::Tensor bundle(at::TensorList values) {
  return makeBundle(std::vector<c10::IValue>(values.begin(), values.end()));
}

/// `types` are for who traces it.
std::vector<at::Tensor> unbundle(const at::Tensor& tensor, c10::string_view /*types*/) {
  std::vector<at::Tensor> tensors;
  for (c10::IValue& value : bundled(tensor, /*last=*/false)) {
    tensors.push_back(std::move(value).toTensor());
  }
  return tensors;
}

}  // namespace

// saved_bundle.py declares them.
TORCH_LIBRARY_IMPL(gravure, CompositeExplicitAutograd, m) {
  m.impl("bundle", &bundle);
  m.impl("unbundle", &unbundle);
}

}  // namespace gravure
