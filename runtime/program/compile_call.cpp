#include "runtime/program/compile_call.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_facts.h"
#include "runtime/program/host_reads.h"
#include "runtime/program/quick_call.h"
#include "runtime/program/transfers.h"

#include <ATen/ScalarOps.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/runtime/operator.h>

namespace gravure {
namespace {

using c10::TypeKind;

/// The type below Optional.
const c10::Type& bare(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional ? *optional->getElementType() : type;
}

class OperandCompiler {
 public:
  OperandCompiler(const Node* node, const DeviceMap& devices,
                  const std::function<Slot(const Value*)>& slotOf)
      : node_(node), devices_(devices), slotOf_(slotOf) {}

  Operand compile(const Arg& arg, const c10::Argument& parameter) const {
    Operand operand = compile(arg, *parameter.real_type());
    // A number given for `int[2] stride` stands for each member.
    const auto* list = bare(*parameter.real_type()).castRaw<c10::ListType>();
    const bool number = operand.kind == Operand::Kind::Constant && operand.constant.isScalar();
    if (list && number) {
      TORCH_CHECK(parameter.N(), describe(node_), ": parameter '", parameter.name(),
                  "' takes a list, not a number");
      Operand repeated;
      repeated.kind = Operand::Kind::List;
      repeated.elementType = list->getElementType();
      repeated.members.assign(*parameter.N(), compile(arg, *list->getElementType()));
      return fold(std::move(repeated));
    }
    return operand;
  }

  /// The schema's default, for an absent argument.
  Operand defaultOf(const c10::Argument& parameter) const {
    TORCH_CHECK(parameter.default_value(), describe(node_), ": parameter '", parameter.name(),
                "' is missing and has no default");
    return constant(mapped(*parameter.default_value()));
  }

 private:
  static Operand constant(c10::IValue value) {
    Operand operand;
    operand.constant = std::move(value);
    return operand;
  }

  c10::IValue mapped(c10::IValue value) const {
    return value.isDevice() ? c10::IValue(devices_(value.toDevice())) : value;
  }

  Operand compile(const Arg& arg, const c10::Type& declared) const {
    const c10::Type& type = bare(declared);
    if (arg.is<InputArg>()) return fromSlot(node_->input(arg.as<InputArg>().index), type);
    if (const auto* members = arg.elements()) return sequence(arg, *members, type);
    return constant(literal(arg, declared));
  }

  Operand fromSlot(const Value* value, const c10::Type& type) const {
    Operand operand;
    operand.kind = Operand::Kind::FromSlot;
    operand.slot = slotOf_(value);
    const TypeKind kind = value->type()->kind();
    const bool number = kind == TypeKind::IntType || kind == TypeKind::FloatType ||
                        kind == TypeKind::BoolType || kind == TypeKind::NumberType ||
                        kind == TypeKind::ComplexType || kind == TypeKind::SymIntType;
    if (!number) return operand;
    operand.use = numberUse(type, kind == TypeKind::BoolType);
    return operand;
  }

  static NumberUse numberUse(const c10::Type& type, bool isBool) {
    switch (type.kind()) {
      case TypeKind::TensorType: return NumberUse::Tensor;
      case TypeKind::FloatType: return NumberUse::Double;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
      case TypeKind::NumberType: return isBool ? NumberUse::Int : NumberUse::AsIs;
      default: return NumberUse::AsIs;
    }
  }

  Operand sequence(const Arg& arg, const std::vector<Arg>& members, const c10::Type& type) const {
    Operand operand;
    const auto* list = type.castRaw<c10::ListType>();
    const auto* tuple = type.castRaw<c10::TupleType>();
    operand.kind =
        tuple || (!list && arg.is<TupleArg>()) ? Operand::Kind::Tuple : Operand::Kind::List;
    operand.elementType = list ? list->getElementType() : c10::TypePtr(c10::AnyType::get());
    for (size_t i = 0; i < members.size(); ++i) {
      const c10::TypePtr element =
          tuple && i < tuple->elements().size() ? tuple->elements()[i] : operand.elementType;
      operand.members.push_back(compile(members[i], *element));
    }
    return fold(std::move(operand));
  }

  /// A list of constants is a constant.
  static Operand fold(Operand operand) {
    for (const Operand& member : operand.members) {
      if (member.kind != Operand::Kind::Constant) return operand;
    }
    return constant(operand.fetch({}));
  }

  c10::IValue literal(const Arg& arg, const c10::Type& declared) const {
    const c10::Type& type = bare(declared);
    c10::IValue value = std::visit(
        [&](const auto& held) -> c10::IValue {
          using T = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> ||
                        std::is_same_v<T, double> || std::is_same_v<T, std::string> ||
                        std::is_same_v<T, c10::complex<double>>) {
            return held;
          } else if constexpr (std::is_same_v<T, c10::Device>) {
            return devices_(held);
          } else {
            return {};
          }
        },
        arg.value);
    // As torch.ops does: None is no tensor where one may be left out, else an undefined one.
    if (value.isNone() && declared.kind() == TypeKind::TensorType) return at::Tensor();
    const bool number = value.isScalar();
    if (!number) return value;
    if (type.kind() == TypeKind::TensorType) {
      at::Tensor tensor = c10::scalar_to_tensor(value.toScalar());
      tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
      return tensor;
    }
    if (type.kind() == TypeKind::FloatType && value.isInt())
      return static_cast<double>(value.toInt());
    const bool integer = type.kind() == TypeKind::IntType || type.kind() == TypeKind::SymIntType;
    if (integer && value.isBool()) return int64_t{value.toBool()};
    return value;
  }

  const Node* node_;
  const DeviceMap& devices_;
  const std::function<Slot(const Value*)>& slotOf_;
};

/// A factory without a device makes its tensor on the CPU. A program that computes on the CPU means
/// its compute device by that, wherever it runs.
void placeFactory(std::vector<Operand>& operands, const c10::FunctionSchema& schema,
                  const DeviceMap& devices) {
  if (!devices.from.is_cpu() || devices.to.is_cpu()) return;
  for (const auto& parameter : schema.arguments()) {
    if (parameter.type()->isSubtypeOf(*c10::TensorType::get())) return;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    Operand& operand = operands[i];
    const bool open = operand.kind == Operand::Kind::Constant && operand.constant.isNone();
    if (schema.arguments()[i].name() == "device" && open) operand.constant = devices.to;
  }
}

void compileOperator(Call& call, const OpFacts& facts, const DeviceMap& devices,
                     const std::function<Slot(const Value*)>& slotOf) {
  const Node* node = call.node;
  const c10::FunctionSchema& schema = *facts.schema;
  if (facts.transfer != Transfer::None) {
    call.operation = transferOf(facts.transfer);
  } else if (facts.handle) {
    call.handle = facts.handle;
  } else {
    auto operation = facts.jitOperator->getOperation(node);
    call.operation = [operation](torch::jit::Stack& stack) mutable { operation(stack); };
  }
  const auto& args = argsOf(node).args;
  TORCH_CHECK(args.size() <= schema.arguments().size(), describe(node), ": ", args.size(),
              " arguments for ", schema.arguments().size(), " parameters");
  const OperandCompiler compiler(node, devices, slotOf);
  std::vector<Operand> operands;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& parameter = schema.arguments()[i];
    const bool given = i < args.size() && !args[i].is<AbsentArg>();
    operands.push_back(given ? compiler.compile(args[i], parameter)
                             : compiler.defaultOf(parameter));
  }
  placeFactory(operands, schema, devices);
  call.operands = Operands(std::move(operands));

  const auto outputs = node->outputs();
  const auto& returns = schema.returns();
  call.unpacked = unpackedList(node, schema);
  TORCH_CHECK(call.unpacked || outputs.empty() || outputs.size() == returns.size(), describe(node),
              ": has ", outputs.size(), " outputs where its operator returns ", returns.size());
}

void compileConstant(Call& call) {
  const auto value = torch::jit::toIValue(call.node->output());
  TORCH_CHECK(value, describe(call.node), ": a constant that cannot be evaluated");
  call.operation = [held = *value](torch::jit::Stack& stack) { stack.push_back(held); };
}

void inOrder(Call& call, const std::function<Slot(const Value*)>& slotOf) {
  std::vector<Operand> operands;
  for (const Value* input : call.node->inputs()) {
    Operand& operand = operands.emplace_back();
    operand.kind = Operand::Kind::FromSlot;
    operand.slot = slotOf(input);
  }
  call.operands = Operands(std::move(operands));
}

}  // namespace

Call compileCall(const Node* node, const DeviceMap& devices,
                 const std::function<Slot(const Value*)>& slotOf) {
  Call call;
  call.node = node;
  const OpFacts& facts = factsOf(node);
  if (facts.schema) {
    compileOperator(call, facts, devices, slotOf);
  } else if (node->kind() == c10::prim::Constant) {
    compileConstant(call);
  } else if (node->kind() == cg::readHost) {
    inOrder(call, slotOf);
    call.operation = readHostOperation(node);
  } else if (node->kind() == cg::saveRngState) {
    call.operation = saveRngStateOperation(node, devices);
  } else {
    TORCH_CHECK(false, describe(node), ": not an operator call; emit-runtime-calls must have run");
  }
  if (const Value* state = rngStateOf(node)) call.rng = slotOf(state);
  call.draws = facts.schema && drawsRandom(node);
  call.leavesOpen = leavesOpen(facts);
  for (const Value* output : node->outputs()) call.outputs.push_back(slotOf(output));
  call.quick = quickCallOf(call);
  return call;
}

}  // namespace gravure
