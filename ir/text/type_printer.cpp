#include "ir/text/type_printer.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <string>

namespace gravure {
namespace {

void printDims(const c10::VaryingShape<int64_t>& dims, std::string& out) {
  const size_t rank = *dims.size();
  for (size_t i = 0; i < rank; ++i) {
    if (i) out += ", ";
    out += dims[i] ? std::to_string(*dims[i]) : "*";
  }
}

std::string tensorText(const c10::TensorType& type) {
  const auto sizes = type.sizes();
  const bool ranked = sizes.size().has_value();
  std::string out = type.scalarType() ? c10::toString(*type.scalarType()) : "Tensor";
  if (!ranked && type.scalarType()) out += "Tensor";
  std::string parts;
  const auto begin = [&](const char* name) {
    if (!parts.empty()) parts += ", ";
    parts += name;
  };
  if (ranked && *sizes.size() > 0) {
    printDims(sizes, parts);
    const auto strides = type.strides();
    const auto& dims = strides.sizes();
    const bool any = dims && dims->size() == *sizes.size() &&
                     std::any_of(dims->begin(), dims->end(), [](auto& d) { return d.has_value(); });
    if (any) {
      begin("strides=[");
      printDims(strides, parts);
      parts += "]";
    }
  } else if (ranked && !type.scalarType()) {
    begin("rank=0");
  }
  if (type.requiresGrad()) begin(*type.requiresGrad() ? "requires_grad=1" : "requires_grad=0");
  if (type.device()) {
    begin("device=");
    parts += type.device()->str();
  }
  // Float() is a tensor without dimensions, FloatTensor one of which they are not known.
  if (!parts.empty() || (ranked && type.scalarType())) out += "(" + parts + ")";
  return out;
}

std::string joined(c10::ArrayRef<c10::TypePtr> types) {
  std::string out;
  for (const c10::TypePtr& type : types) {
    if (!out.empty()) out += ", ";
    out += typeText(*type);
  }
  return out;
}

}  // namespace

std::string typeText(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType: return tensorText(type.expectRef<c10::TensorType>());
    case c10::TypeKind::ListType: return typeText(*type.containedType(0)) + "[]";
    case c10::TypeKind::OptionalType:
      return typeText(*type.expectRef<c10::OptionalType>().getElementType()) + "?";
    case c10::TypeKind::TupleType: return "(" + joined(type.containedTypes()) + ")";
    case c10::TypeKind::DictType: return "Dict(" + joined(type.containedTypes()) + ")";
    case c10::TypeKind::FutureType: return "Future(" + joined(type.containedTypes()) + ")";
    default: return type.str();
  }
}

}  // namespace gravure
