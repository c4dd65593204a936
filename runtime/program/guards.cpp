#include "runtime/program/guards.h"

#include "ir/core/args.h"
#include "ir/core/same_device.h"

#include <ATen/core/Generator.h>

#include <cstring>
#include <sstream>

namespace gravure {
namespace {

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream os;
  (os << ... << parts);
  return os.str();
}

bool sameNumber(const c10::IValue& a, const c10::IValue& b) {
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isDouble() && b.isDouble()) {
    const double x = a.toDouble(), y = b.toDouble();
    return std::memcmp(&x, &y, sizeof(double)) == 0;
  }
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  if (a.isGenerator() && b.isGenerator()) return a.toGenerator() == b.toGenerator();
  return false;
}

bool sameNumber(const at::Tensor& a, const at::Tensor& b) {
  return b.defined() && b.is_cpu() && b.dim() == 0 && b.scalar_type() == a.scalar_type() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.element_size()) == 0;
}

std::string sizesText(const std::vector<int64_t>& sizes) {
  std::string text = "(";
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += (i ? ", " : "") + (sizes[i] < 0 ? std::string("*") : std::to_string(sizes[i]));
  }
  return text + ")";
}

}  // namespace

std::string describeValue(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor& tensor = value.toTensor();
    return text(tensor.scalar_type(), sizesText(tensor.sizes().vec()), " on ", tensor.device());
  }
  if (value.isScalar()) return text(value.tagKind(), " ", value.toScalar());
  return value.tagKind();
}

std::string inputName(const Entry& entry, size_t index) {
  std::string where = text("input ", index, " of ", entry.name);
  if (index >= entry.inputs.size()) return where;
  const InputInfo& info = entry.inputs[index];
  const std::string label =
      info.name.empty() ? entry.graph->inputs()[index]->debugName() : info.name;
  return text(info.role == InputRole::Unspecified ? "input" : roleName(info.role), " \"", label,
              "\" (", where, ")");
}

namespace {

/// A saved random state has the size that its device gives it.
bool isRandomState(const Value* value) {
  for (const auto& use : value->uses()) {
    if (rngStateOf(use.user) == value) return true;
  }
  return false;
}

}  // namespace

InputCheck::InputCheck(const Entry& entry, size_t index, const DeviceMap& devices)
    : name_(inputName(entry, index)), type_(entry.graph->inputs()[index]->type()) {
  const bool known = index < entry.inputs.size();
  const InputRole role = known ? entry.inputs[index].role : InputRole::Unspecified;
  kept_ = role == InputRole::Parameter || role == InputRole::Buffer;
  generator_ = type_->kind() == c10::TypeKind::GeneratorType;
  const auto* tensor = type_->castRaw<c10::TensorType>();
  if (!tensor) return;
  // A saved value is what forward returned, whatever it was traced as: attention keeps its seeds on the
  // CPU outside captures, and a layer norm of bfloat16 with weights of float its means as float there.
  if (role != InputRole::Saved) {
    dtype_ = tensor->scalarType();
    if (tensor->device()) device_ = devices(*tensor->device());
  }
  dims_ = tensor->dim();
  if (!dims_ || isRandomState(entry.graph->inputs()[index])) return;
  const auto sizes = tensor->sizes().sizes();
  for (size_t i = 0; sizes && i < sizes->size(); ++i) sizes_.push_back((*sizes)[i].value_or(-1));
}

void InputCheck::fail(const std::string& expected, const std::string& found) const {
  TORCH_CHECK(false, name_, ": expected ", expected, ", got ", found);
  std::abort();
}

void InputCheck::check(const c10::IValue& value) const {
  if (generator_) {
    if (!value.isGenerator() && !value.isNone()) fail("a Generator, or None", describeValue(value));
    return;
  }
  if (type_->kind() == c10::TypeKind::TensorType) {
    if (!value.isTensor() || !value.toTensor().defined()) fail("a tensor", describeValue(value));
    checkTensor(value.toTensor());
    return;
  }
  const bool fits = [&] {
    switch (type_->kind()) {
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType: return value.isInt();
      case c10::TypeKind::FloatType: return value.isDouble();
      case c10::TypeKind::BoolType: return value.isBool();
      case c10::TypeKind::NumberType: return value.isScalar();
      case c10::TypeKind::StringType: return value.isString();
      default: return true;
    }
  }();
  if (!fits) fail(type_->str(), describeValue(value));
}

void InputCheck::checkTensor(const at::Tensor& tensor) const {
  if (dtype_ && tensor.scalar_type() != *dtype_) {
    // Dynamo does not look whether a model was converted after it was compiled.
    fail(text("dtype ", *dtype_),
         text("dtype ", tensor.scalar_type(),
              kept_ ? "; after a model was converted compile it again (torch._dynamo.reset()), or "
                      "export it again"
                    : "; convert it, or export a program for it"));
  }
  if (device_ && !sameDevice(tensor.device(), *device_)) {
    fail(text("a tensor on ", *device_), text("one on ", tensor.device()));
  }
  if (!dims_) return;
  const auto sizes = tensor.sizes();
  bool fits = sizes.size() == *dims_;
  for (size_t i = 0; fits && i < sizes_.size(); ++i) fits = sizes_[i] < 0 || sizes_[i] == sizes[i];
  if (!fits) fail("shape " + sizesText(sizes_), "shape " + sizesText(sizes.vec()));
}

OperandGuard::OperandGuard(const c10::IValue& captured, bool keep) {
  if (!captured.isTensor() || !captured.toTensor().defined()) {
    other_ = captured;
    return;
  }
  const at::Tensor& tensor = captured.toTensor();
  tensor_ = true;
  layout_ = {tensor.const_data_ptr(), tensor.scalar_type(),
             tensor.device(),         tensor.sizes().vec(),
             tensor.strides().vec(),  readsOf(*tensor.unsafeGetTensorImpl())};
  if (keep) {
    kept_ = tensor.storage();
  } else {
    sameAlive_ = tensor.getIntrusivePtr();
    same_ = tensor.unsafeGetTensorImpl();
  }
}

OperandGuard OperandGuard::ofNumber(const at::Tensor& captured) {
  TORCH_INTERNAL_ASSERT(captured.is_cpu() && captured.dim() == 0, "a guard of a number");
  OperandGuard guard;
  guard.number_ = captured.clone();
  guard.kept_ = captured.storage();
  return guard;
}

OperandGuard OperandGuard::ofDropped(const at::Tensor& captured) {
  OperandGuard guard(captured, /*keep=*/true);
  guard.kept_ = {};
  return guard;
}

bool OperandGuard::holdsSlowly(const c10::IValue& value) const {
  if (number_.defined()) return value.isTensor() && sameNumber(number_, value.toTensor());
  if (!tensor_) return sameNumber(other_, value);
  if (!value.isTensor()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() && tensor.const_data_ptr() == layout_.address && sameLayout(tensor);
}

bool OperandGuard::sameLayout(const at::Tensor& tensor) const {
  return tensor.scalar_type() == layout_.dtype &&
         tensor.sizes() == at::IntArrayRef(layout_.sizes) &&
         tensor.strides() == at::IntArrayRef(layout_.strides) &&
         readsOf(*tensor.unsafeGetTensorImpl()) == layout_.reads;
}

bool OperandGuard::differsInAddressAlone(const c10::IValue& value) const {
  return tensor_ && value.isTensor() && value.toTensor().defined() &&
         sameLayout(value.toTensor()) && value.toTensor().const_data_ptr() != layout_.address;
}

bool OperandGuard::differsInStrides(const c10::IValue& value) const {
  if (!tensor_ || !value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.scalar_type() == layout_.dtype &&
         tensor.sizes() == at::IntArrayRef(layout_.sizes) &&
         tensor.strides() != at::IntArrayRef(layout_.strides);
}

std::string OperandGuard::difference(const c10::IValue& value) const {
  if (holdsSlowly(value)) return "";
  if (number_.defined()) return text("expected the number ", number_, ", found another one");
  if (!tensor_) {
    const std::string both =
        text("expected ", describeValue(other_), ", found ", describeValue(value));
    return why_.empty() ? both : both + ", and replays cannot be given another one: " + why_;
  }
  if (!value.isTensor() || !value.toTensor().defined()) {
    return text("expected a tensor, found ", describeValue(value));
  }
  const at::Tensor& tensor = value.toTensor();
  if (tensor.scalar_type() != layout_.dtype) {
    return text("expected dtype ", layout_.dtype, ", found ", tensor.scalar_type());
  }
  if (tensor.sizes() != at::IntArrayRef(layout_.sizes)) {
    return text("expected shape ", sizesText(layout_.sizes), ", found ",
                sizesText(tensor.sizes().vec()));
  }
  if (tensor.strides() != at::IntArrayRef(layout_.strides)) {
    return text("expected strides ", sizesText(layout_.strides), ", found ",
                sizesText(tensor.strides().vec()));
  }
  if (readsOf(*tensor.unsafeGetTensorImpl()) != layout_.reads)
    return "expected a tensor whose bytes are read as they were, found one conjugated or negated";
  return text("expected address ", layout_.address, ", found ", tensor.const_data_ptr());
}

}  // namespace gravure
