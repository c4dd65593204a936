#include "ir/facts/value_types.h"
#include "runtime/host/host_capture.h"

#include <llvm/ADT/StringSet.h>

#include <algorithm>
#include <string_view>

namespace gravure {
namespace {

/// Operators that wait for the device and read it, whatever their operands are.
const llvm::StringSet<>& hostReaders() {
  static const llvm::StringSet<> names = {"aten::_local_scalar_dense",
                                          "aten::item",
                                          "aten::is_nonzero",
                                          "aten::equal",
                                          "aten::allclose",
                                          "aten::nonzero",
                                          "aten::argwhere",
                                          "aten::nonzero_numpy",
                                          "aten::masked_select",
                                          "aten::_unique",
                                          "aten::_unique2",
                                          "aten::unique_dim",
                                          "aten::unique_consecutive",
                                          "aten::unique_dim_consecutive",
                                          "aten::bincount",
                                          "aten::histogram",
                                          "aten::matrix_exp",
                                          "aten::multinomial",
                                          "aten::linalg_lstsq",
                                          "aten::linalg_eig",
                                          "aten::linalg_eigvals",
                                          "aten::_linalg_check_errors",
                                          "aten::_linalg_eigvals",
                                          "aten::_ctc_loss",
                                          "aten::_embedding_bag_backward",
                                          "aten::isin",
                                          "aten::set_",
                                          "aten::pin_memory",
                                          "aten::_pin_memory",
                                          "aten::_assert_scalar",
                                          "aten::_sparse_coo_tensor_unsafe",
                                          "aten::to_sparse",
                                          "cudagraph::read_host",
                                          "cudagraph::save_rng_state"};
  return names;
}

std::string qualifiedName(const Call& call) {
  return call.handle ? call.handle->schema().name() : call.node->kind().toQualString();
}

bool isMask(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == c10::ScalarType::Bool ||
                              tensor.scalar_type() == c10::ScalarType::Byte);
}

/// A mask among the indices is turned into positions, which reads it.
bool hasMaskIndex(const torch::jit::Stack& operands) {
  if (operands.size() < 2 || !operands[1].isList()) return false;
  for (const c10::IValue& index : operands[1].toListRef()) {
    if (index.isTensor() && isMask(index.toTensor())) return true;
  }
  return false;
}

/// A single value for a masked write is a masked fill, which reads nothing.
bool fillsMask(const torch::jit::Stack& operands) {
  return operands.size() > 2 && operands[2].isTensor() && operands[2].toTensor().numel() == 1;
}

/// Kernels take a CPU tensor without dimensions beside one of the device as a number; copies do not.
bool isTakenAsNumber(const Node* node, const Value* input) {
  const auto* type = input->type()->castRaw<c10::TensorType>();
  const auto device = deviceOf(input);
  if (!device || !device->is_cpu() || type->dim() != size_t{0}) return false;
  const std::string_view name = node->kind().toUnqualString();
  if (name == "copy_" || name == "copy") return false;
  return std::any_of(node->inputs().begin(), node->inputs().end(), [](const Value* other) {
    const auto at = deviceOf(other);
    return at && !at->is_cpu();
  });
}

bool copiesBetweenDevices(const Node* node) {
  std::optional<bool> cpu;
  const auto differs = [&](const Value* value) {
    const auto device = deviceOf(value);
    if (!device) return false;
    const bool here = device->is_cpu();
    const bool different = cpu && *cpu != here;
    cpu = here;
    return different;
  };
  for (const Value* input : node->inputs()) {
    if (!isTakenAsNumber(node, input) && differs(input)) return true;
  }
  for (const Value* output : node->outputs()) {
    if (differs(output)) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> refusedInCapture(const Call& call, const torch::jit::Stack& operands,
                                            const c10::IValue& rng) {
  const std::string name = qualifiedName(call);
  if (hostReaders().contains(name)) return "it reads device data on the host";
  if (rng.isTensor()) return "it sets the state of a generator";
  if (name == "aten::index" && hasMaskIndex(operands)) return "it reads a mask on the host";
  const bool writesIndexed =
      name == "aten::index_put" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
  if (writesIndexed && hasMaskIndex(operands) && !fillsMask(operands)) {
    return "it reads a mask on the host";
  }
  if (name == "aten::repeat_interleave" && !operands.empty() && operands.back().isNone()) {
    return "its size depends on data";
  }
  if (name == "aten::tensor_split" && operands.size() > 1 && operands[1].isTensor()) {
    return "it reads its indices on the host";
  }
  if (copiesBetweenDevices(call.node)) return "it copies between pageable memory and the device";
  return std::nullopt;
}

}  // namespace gravure
