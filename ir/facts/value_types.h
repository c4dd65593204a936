#pragma once
// What the types of values say, without a look at operators: number or tensor, bytes, device.

#include "ir/core/program.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace gravure {

/// True for int, float, bool and complex, and for what stands for them: Scalar, SymInt and its like.
bool isNumber(c10::TypeKind kind);
bool isNumber(const Value* value);
bool isGenerator(const Value* value);
/// The type of one tensor; nullptr for all other values, lists of tensors among them.
const c10::TensorType* tensorTypeOf(const Value* value);
/// True for types that hold tensor storage (Tensor, Tensor[], Tensor?).
bool holdsTensors(const c10::Type& type);
bool isTensorValue(const Value* value);

/// Bytes of the storage that a fresh tensor of this type needs; nullopt if a size or stride is
/// known only at run time or the type is no complete tensor type.
std::optional<int64_t> storageBytes(const c10::Type& type);
/// Device of a tensor value, nullopt if its type does not say.
std::optional<c10::Device> deviceOf(const Value* value);
/// True if every size and stride of the tensor type is known.
bool hasStaticShape(const Value* value);

/// The device whose work is captured: one that is not the CPU, wherever a tensor is on one, however many are
/// on the CPU. Of several that of most parameters, else of the first input, else of the first node.
c10::Device computeDevice(const Program& program);

}  // namespace gravure
