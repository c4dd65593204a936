#include "ir/check/call_check.h"

#include "ir/facts/unpacked_list.h"
#include "ir/facts/value_types.h"
#include "ir/text/call_target.h"
#include "ir/text/constant_text.h"
#include "ir/text/program_text.h"
#include "ir/text/type_printer.h"

#include <algorithm>

namespace gravure {
namespace {

using c10::Type;
using c10::TypeKind;

/// SymInt as int, and so on: a program writes both as the plain one.
TypeKind plain(TypeKind kind) {
  switch (kind) {
    case TypeKind::SymIntType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType: return TypeKind::IntType;
    case TypeKind::SymFloatType: return TypeKind::FloatType;
    case TypeKind::SymBoolType: return TypeKind::BoolType;
    default: return kind;
  }
}

const Type& optionalElement(const Type& type) {
  return *type.expectRef<c10::OptionalType>().getElementType();
}

bool numberFits(TypeKind from, TypeKind to) {
  from = plain(from);
  to = plain(to);
  if (from == to || from == TypeKind::NumberType || to == TypeKind::NumberType) return true;
  if (to == TypeKind::ComplexType) return true;
  if (to == TypeKind::FloatType) return from == TypeKind::IntType || from == TypeKind::BoolType;
  return to == TypeKind::IntType && from == TypeKind::BoolType;
}

/// True if a value of type `from` may be an argument where `to` is asked for.
bool valueFits(const Type& from, const Type& to) {
  if (from.kind() == TypeKind::AnyType) return true;
  switch (to.kind()) {
    case TypeKind::AnyType:
    case TypeKind::VarType: return true;
    case TypeKind::OptionalType:
      if (from.kind() == TypeKind::NoneType) return true;
      if (from.kind() == TypeKind::OptionalType) {
        return valueFits(optionalElement(from), optionalElement(to));
      }
      return valueFits(from, optionalElement(to));
    case TypeKind::ListType:
      return from.kind() == TypeKind::ListType &&
             valueFits(*from.containedType(0), *to.containedType(0));
    case TypeKind::TensorType:
      // A number stands for a tensor without dimensions; a Tensor? is checked when it is used.
      if (from.kind() == TypeKind::OptionalType) return valueFits(optionalElement(from), to);
      return from.kind() == TypeKind::TensorType || isNumber(from.kind());
    default: break;
  }
  if (isNumber(plain(to.kind())))
    return isNumber(from.kind()) && numberFits(from.kind(), to.kind());
  return from.kind() == to.kind() || from.isSubtypeOf(to);
}

bool scalarFits(TypeKind from, const Type& to) {
  // PyTorch takes None for a tensor as an undefined one; kernels that allow it say so nowhere.
  if (to.kind() == TypeKind::TensorType) return isNumber(from) || from == TypeKind::NoneType;
  if (isNumber(from)) return isNumber(plain(to.kind())) && numberFits(from, to.kind());
  return from == to.kind();
}

/// What kind of type a constant that is no list has.
TypeKind kindOf(const Arg& constant) {
  if (constant.is<bool>()) return TypeKind::BoolType;
  if (constant.is<int64_t>()) return TypeKind::IntType;
  if (constant.is<double>()) return TypeKind::FloatType;
  if (constant.is<c10::complex<double>>()) return TypeKind::ComplexType;
  if (constant.is<std::string>()) return TypeKind::StringType;
  if (constant.is<c10::Device>()) return TypeKind::DeviceObjType;
  return TypeKind::NoneType;
}

bool argFits(const Node* node, const Arg& arg, const Type& type, bool fixedLength) {
  if (arg.is<InputArg>()) {
    const Type& from = *node->input(arg.as<InputArg>().index)->type();
    return valueFits(from, type) || (fixedLength && type.kind() == TypeKind::ListType &&
                                     valueFits(from, *type.containedType(0)));
  }
  switch (type.kind()) {
    case TypeKind::AnyType:
    case TypeKind::VarType: return true;
    case TypeKind::OptionalType:
      return arg.is<NoneArg>() || argFits(node, arg, optionalElement(type), fixedLength);
    case TypeKind::ListType: {
      const Type& member = *type.containedType(0);
      if (arg.is<ListArg>()) {
        const auto& elements = arg.as<ListArg>().elements;
        return std::all_of(elements.begin(), elements.end(),
                           [&](const Arg& e) { return argFits(node, e, member, false); });
      }
      return fixedLength && !arg.elements() && argFits(node, arg, member, false);
    }
    case TypeKind::TupleType: {
      if (!arg.is<TupleArg>()) return false;
      const auto& elements = arg.as<TupleArg>().elements;
      const auto members = type.containedTypes();
      if (elements.size() != members.size()) return false;
      for (size_t i = 0; i < elements.size(); ++i) {
        if (!argFits(node, elements[i], *members[i], false)) return false;
      }
      return true;
    }
    // None in a Tensor parameter is an undefined tensor, as torch.ops takes it.
    case TypeKind::TensorType:
      return arg.is<NoneArg>() || (!arg.elements() && scalarFits(kindOf(arg), type));
    default: return !arg.elements() && scalarFits(kindOf(arg), type);
  }
}

std::string argText(const Node* node, const Arg& arg) {
  if (arg.is<InputArg>()) {
    const Value* value = node->input(arg.as<InputArg>().index);
    return "%" + value->debugName() + " of type " + typeText(*value->type());
  }
  std::string text;
  const auto* members = arg.elements();
  if (!members) {
    appendConstant(text, arg);
    return text;
  }
  const bool list = arg.is<ListArg>();
  text += list ? "[" : "(";
  for (const Arg& member : *members) {
    if (text.size() > 80) return text + ", …";
    if (text.size() > 1) text += ", ";
    text += argText(node, member);
  }
  return text + (list ? "]" : ")");
}

/// True if an output of type `type` may hold what the schema returns as `returned`.
bool outputFits(const Type& type, const Type& returned) {
  switch (returned.kind()) {
    case TypeKind::AnyType:
    case TypeKind::VarType: return true;
    // An operator may leave a tensor undefined.
    case TypeKind::TensorType:
      return type.kind() == TypeKind::TensorType || type.kind() == TypeKind::NoneType ||
             (type.kind() == TypeKind::OptionalType && outputFits(optionalElement(type), returned));
    case TypeKind::OptionalType:
      return type.kind() == TypeKind::NoneType || outputFits(type, optionalElement(returned)) ||
             (type.kind() == TypeKind::OptionalType &&
              outputFits(optionalElement(type), optionalElement(returned)));
    case TypeKind::ListType:
      return type.kind() == TypeKind::ListType &&
             outputFits(*type.containedType(0), *returned.containedType(0));
    case TypeKind::NumberType: return isNumber(type.kind());
    default: return plain(type.kind()) == plain(returned.kind()) || type.isSubtypeOf(returned);
  }
}

std::string wrongOutput(const Value* output, const Type& returned) {
  return "the output %" + output->debugName() + " is " + typeText(*output->type()) +
         ", but the operator returns " + typeText(returned);
}

}  // namespace

bool constantFits(const Arg& constant, const Type& type) {
  return argFits(nullptr, constant, type, false);
}

std::string checkArguments(const Node* node, const c10::FunctionSchema& schema) {
  const auto& args = argsOf(node).args;
  const auto& parameters = schema.arguments();
  if (args.size() > parameters.size() && !schema.is_vararg()) {
    return "there are " + std::to_string(args.size()) + " arguments for " +
           std::to_string(parameters.size()) + " parameters of " + schemaText(schema);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const c10::Argument& parameter = parameters[i];
    if (i >= args.size() || args[i].is<AbsentArg>()) {
      if (parameter.default_value()) continue;
      return "the argument '" + parameter.name() + "' is missing; the schema is " +
             schemaText(schema);
    }
    if (argFits(node, args[i], *parameter.type(), parameter.N().has_value())) continue;
    return "the argument '" + parameter.name() + "' is " + argText(node, args[i]) + ", expected " +
           parameter.type()->str();
  }
  return "";
}

std::string checkOutputs(const Node* node, const c10::FunctionSchema& schema) {
  if (schema.is_varret()) return "";
  const auto& returns = schema.returns();
  const auto outputs = node->outputs();
  const auto unpacked = unpackedList(node, schema);
  // What is not read has no name; an empty list has no members.
  const bool oneList = returns.size() == 1 && returns[0].type()->kind() == TypeKind::ListType;
  if (!unpacked && !oneList && outputs.size() != returns.size()) {
    return "there are " + std::to_string(outputs.size()) + " outputs, but the operator returns " +
           std::to_string(returns.size());
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const size_t at = returnOf(i, unpacked);
    const Type& returned = *returns[at].type();
    const bool isMember = unpacked && at == unpacked->at;
    if (!outputFits(*outputs[i]->type(), isMember ? *returned.containedType(0) : returned)) {
      return wrongOutput(outputs[i], returned);
    }
  }
  return "";
}

}  // namespace gravure
