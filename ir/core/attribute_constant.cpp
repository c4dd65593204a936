#include "ir/core/attribute_constant.h"

#include "ir/core/program.h"

#include <optional>

namespace gravure {
namespace {

template <typename T>
Arg listOf(const std::vector<T>& values) {
  ListArg list;
  for (const T& value : values) list.elements.emplace_back(value);
  return list;
}

std::optional<Arg> constantOf(const c10::IValue& value) {
  if (value.isNone()) return Arg(NoneArg());
  if (value.isBool()) return Arg(value.toBool());
  if (value.isInt()) return Arg(value.toInt());
  if (value.isDouble()) return Arg(value.toDouble());
  if (value.isComplexDouble()) return Arg(value.toComplexDouble());
  if (value.isString()) return Arg(value.toStringRef());
  if (value.isDevice()) return Arg(value.toDevice());
  std::vector<Arg> members;
  const auto append = [&](const auto& values) {
    for (const c10::IValue& member : values) {
      auto constant = constantOf(member);
      if (!constant) return false;
      members.push_back(std::move(*constant));
    }
    return true;
  };
  if (value.isList()) {
    if (append(value.toListRef())) return Arg(ListArg{std::move(members)});
  } else if (value.isTuple()) {
    if (append(value.toTupleRef().elements())) return Arg(TupleArg{std::move(members)});
  }
  return std::nullopt;
}

c10::IValue ivalueOf(const Arg& constant) {
  if (constant.is<bool>()) return constant.as<bool>();
  if (constant.is<int64_t>()) return constant.as<int64_t>();
  if (constant.is<double>()) return constant.as<double>();
  if (constant.is<std::string>()) return constant.as<std::string>();
  if (constant.is<c10::complex<double>>()) return constant.as<c10::complex<double>>();
  if (constant.is<c10::Device>()) return constant.as<c10::Device>();
  if (constant.is<ListArg>()) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const Arg& member : constant.as<ListArg>().elements) list.push_back(ivalueOf(member));
    return list;
  }
  if (constant.is<TupleArg>()) {
    std::vector<c10::IValue> members;
    for (const Arg& member : constant.as<TupleArg>().elements) members.push_back(ivalueOf(member));
    return c10::ivalue::Tuple::create(std::move(members));
  }
  return {};
}

template <typename T>
std::optional<std::vector<T>> allOf(const std::vector<Arg>& members) {
  std::vector<T> values;
  for (const Arg& member : members) {
    if (!member.is<T>()) return std::nullopt;
    values.push_back(member.as<T>());
  }
  if (values.empty()) return std::nullopt;
  return values;
}

}  // namespace

Arg attributeConstant(const Node* node, c10::Symbol name) {
  using torch::jit::AttributeKind;
  switch (node->kindOf(name)) {
    case AttributeKind::i: return node->i(name);
    case AttributeKind::f: return node->f(name);
    case AttributeKind::s: return node->s(name);
    case AttributeKind::c: return node->c(name);
    case AttributeKind::is: return listOf(node->is(name));
    case AttributeKind::fs: return listOf(node->fs(name));
    case AttributeKind::ss: return listOf(node->ss(name));
    case AttributeKind::cs: return listOf(node->cs(name));
    case AttributeKind::ival: {
      if (auto constant = constantOf(node->ival(name))) return *constant;
      break;
    }
    default: break;
  }
  TORCH_CHECK(false, describe(node), ": the attribute '", name.toUnqualString(),
              "' holds a value that a program cannot (", toString(node->kindOf(name)),
              "); make it an input of the entry");
}

void setAttributeConstant(Node* node, c10::Symbol name, const Arg& constant) {
  if (constant.is<int64_t>()) {
    node->i_(name, constant.as<int64_t>());
  } else if (constant.is<double>()) {
    node->f_(name, constant.as<double>());
  } else if (constant.is<std::string>()) {
    node->s_(name, constant.as<std::string>());
  } else if (constant.is<c10::complex<double>>()) {
    node->c_(name, constant.as<c10::complex<double>>());
  } else {
    if (constant.is<ListArg>()) {
      const auto& members = constant.as<ListArg>().elements;
      if (auto values = allOf<int64_t>(members)) return void(node->is_(name, std::move(*values)));
      if (auto values = allOf<double>(members)) return void(node->fs_(name, std::move(*values)));
      if (auto values = allOf<std::string>(members)) {
        return void(node->ss_(name, std::move(*values)));
      }
      if (auto values = allOf<c10::complex<double>>(members)) {
        return void(node->cs_(name, std::move(*values)));
      }
    }
    node->ival_(name, ivalueOf(constant));
  }
}

}  // namespace gravure
