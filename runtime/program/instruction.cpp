#include "runtime/program/instruction.h"

#include "ir/core/location.h"

#include <ATen/ScalarOps.h>

namespace gravure {
namespace {

c10::IValue wrappedNumber(const c10::IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

c10::IValue convert(const c10::IValue& value, NumberUse use) {
  switch (use) {
    case NumberUse::AsIs: return value;
    case NumberUse::Tensor:
      return value.isScalar() || value.isBool() ? wrappedNumber(value) : value;
    case NumberUse::Int: return value.isBool() ? c10::IValue(int64_t{value.toBool()}) : value;
    case NumberUse::Double:
      return value.isInt() ? c10::IValue(static_cast<double>(value.toInt())) : value;
  }
  return value;
}

c10::IValue fetchList(const Operand& operand, const Frame& frame) {
  const auto& members = operand.members;
  const auto collect = [&](auto list, auto&& take) {
    list.reserve(members.size());
    for (const Operand& member : members) list.push_back(take(member.fetch(frame)));
    return c10::IValue(std::move(list));
  };
  const c10::Type& type = *operand.elementType;
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return collect(c10::List<at::Tensor>(),
                     [](c10::IValue v) { return std::move(v).toTensor(); });
    case c10::TypeKind::OptionalType:
      if (type.castRaw<c10::OptionalType>()->getElementType()->kind() ==
          c10::TypeKind::TensorType) {
        return collect(c10::List<std::optional<at::Tensor>>(), [](c10::IValue v) {
          return v.isNone() ? std::optional<at::Tensor>() : std::move(v).toTensor();
        });
      }
      break;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return collect(c10::List<int64_t>(), [](const c10::IValue& v) { return v.toInt(); });
    case c10::TypeKind::FloatType:
      return collect(c10::List<double>(), [](const c10::IValue& v) { return v.toDouble(); });
    case c10::TypeKind::BoolType:
      return collect(c10::List<bool>(), [](const c10::IValue& v) { return v.toBool(); });
    default: break;
  }
  return collect(c10::impl::GenericList(operand.elementType), [](c10::IValue v) { return v; });
}

}  // namespace

c10::IValue Operand::fetch(const Frame& frame) const {
  switch (kind) {
    case Kind::Constant: return constant;
    case Kind::FromSlot: return use == NumberUse::AsIs ? frame[slot] : convert(frame[slot], use);
    case Kind::List: return fetchList(*this, frame);
    case Kind::Tuple: {
      std::vector<c10::IValue> values;
      for (const Operand& member : members) values.push_back(member.fetch(frame));
      return c10::ivalue::Tuple::create(std::move(values));
    }
  }
  return {};
}

void Call::push(const Frame& frame, torch::jit::Stack& stack) const {
  for (const Operand& operand : operands) {
    if (operand.kind == Operand::Kind::FromSlot && operand.use == NumberUse::AsIs) {
      stack.push_back(frame[operand.slot]);
    } else if (operand.kind == Operand::Kind::Constant) {
      stack.push_back(operand.constant);
    } else {
      stack.push_back(operand.fetch(frame));
    }
  }
}

void Call::store(torch::jit::Stack& stack, Frame& frame) const {
  if (unpacked) {
    TORCH_CHECK(stack.size() > unpacked->at, describe(node), ": returned ", stack.size(),
                " values where its operator returns more");
    const c10::IValue list = std::move(stack[unpacked->at]);
    const auto members = list.toListRef();
    TORCH_CHECK(members.size() == unpacked->members, describe(node), ": returned a list of ",
                members.size(), " where the program has ", unpacked->members,
                " outputs; its operands differ from those of the export");
    for (size_t i = 0; i < outputs.size(); ++i) {
      const size_t at = returnOf(i, unpacked);
      frame[outputs[i]] = at == unpacked->at ? members[i - at] : std::move(stack[at]);
    }
  } else {
    TORCH_CHECK(stack.size() >= outputs.size(), describe(node), ": returned ", stack.size(),
                " values where the program has ", outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) frame[outputs[i]] = std::move(stack[i]);
  }
  stack.clear();
}

void addLocation(c10::Error& error, const Node* node) {
  if (error.msg().find(describe(node)) != std::string::npos) return;
  error.add_context("in " + describeWithSource(node));
}

}  // namespace gravure
