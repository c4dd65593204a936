#include "ir/facts/value_types.h"

#include <ATen/core/jit_type.h>
#include <llvm/ADT/STLExtras.h>

#include <unordered_map>

namespace gravure {
namespace {

/// True if all sizes and strides are known. Allocates nothing, unlike TensorType::sizes().
bool isStatic(const c10::TensorType& type) {
  const auto& strides = type.stride_properties().sizes();
  const auto rank = type.symbolic_sizes().rank();
  return rank && strides && strides->size() == *rank && type.symbolic_sizes().isComplete() &&
         llvm::all_of(*strides, [](const std::optional<c10::Stride>& stride) {
           return stride && stride->stride_index_ && stride->stride_;
         });
}

}  // namespace

bool isNumber(c10::TypeKind kind) {
  switch (kind) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::ComplexType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::SymFloatType:
    case c10::TypeKind::SymBoolType: return true;
    default: return false;
  }
}

bool isNumber(const Value* value) { return isNumber(value->type()->kind()); }

bool isGenerator(const Value* value) {
  return value->type()->kind() == c10::TypeKind::GeneratorType;
}

const c10::TensorType* tensorTypeOf(const Value* value) {
  return value->type()->castRaw<c10::TensorType>();
}

bool holdsTensors(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  return llvm::any_of(type.containedTypes(),
                      [](const c10::TypePtr& contained) { return holdsTensors(*contained); });
}

bool isTensorValue(const Value* value) { return holdsTensors(*value->type()); }

std::optional<int64_t> storageBytes(const c10::Type& type) {
  const auto* tensor = type.castRaw<c10::TensorType>();
  if (!tensor || !tensor->scalarType() || !isStatic(*tensor)) return std::nullopt;
  const c10::SymbolicShape& shape = tensor->symbolic_sizes();
  int64_t elements = 1;
  for (const auto& stride : *tensor->stride_properties().sizes()) {
    const int64_t size = shape[*stride->stride_index_].static_size();
    if (size == 0) return 0;
    elements += (size - 1) * static_cast<int64_t>(*stride->stride_);
  }
  return elements * static_cast<int64_t>(c10::elementSize(*tensor->scalarType()));
}

std::optional<c10::Device> deviceOf(const Value* value) {
  const auto* tensor = tensorTypeOf(value);
  return tensor ? tensor->device() : std::nullopt;
}

bool hasStaticShape(const Value* value) {
  const auto* tensor = tensorTypeOf(value);
  return tensor && isStatic(*tensor);
}

c10::Device computeDevice(const Program& program) {
  const auto captures = [](const std::optional<c10::Device>& device) {
    return device && !device->is_cpu() && !device->is_meta();
  };
  std::unordered_map<c10::Device, size_t> parameters;
  std::optional<c10::Device> first;
  for (const Entry& entry : program.entries) {
    for (size_t i = 0; i < entry.graph->inputs().size(); ++i) {
      const auto device = deviceOf(entry.graph->inputs()[i]);
      if (!captures(device)) continue;
      if (!first) first = device;
      const bool counted = i < entry.inputs.size() && entry.inputs[i].role == InputRole::Parameter;
      if (counted) ++parameters[*device];
    }
  }
  if (!parameters.empty()) {
    auto most = parameters.begin();
    for (auto at = parameters.begin(); at != parameters.end(); ++at) {
      const bool tie = at->second == most->second;
      if (at->second > most->second || (tie && at->first.str() < most->first.str())) most = at;
    }
    return most->first;
  }
  if (first) return *first;
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      for (const Value* output : node->outputs()) {
        if (const auto device = deviceOf(output); captures(device)) return *device;
      }
    }
  }
  return c10::Device(c10::kCPU);
}

}  // namespace gravure
