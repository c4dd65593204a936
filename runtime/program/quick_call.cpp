#include "runtime/program/quick_call.h"

#include "ir/core/program.h"
#include "ir/facts/op_facts.h"

#include <llvm/ADT/StringSwitch.h>

#include <cmath>

namespace gravure {

bool isOneNumber(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == c10::kStrided &&
         tensor.dim() == 0 && !tensor.is_neg() && !tensor.is_conj() &&
         (tensor.scalar_type() == c10::kFloat || tensor.scalar_type() == c10::kDouble);
}

bool isConstantOne(const Operand& operand) {
  if (operand.kind != Operand::Kind::Constant || !operand.constant.isScalar()) return false;
  return operand.constant.toScalar().toDouble() == 1;
}

namespace {

/// nullptr for a list or a tuple.
const c10::IValue* valueOf(const Operand& operand, const Frame& frame) {
  if (operand.kind == Operand::Kind::Constant) return &operand.constant;
  return operand.kind == Operand::Kind::FromSlot ? &frame[operand.slot] : nullptr;
}

bool fetch(const Operand& operand, const Frame& frame, double& number) {
  const c10::IValue* const value = valueOf(operand, frame);
  if (!value || !value->isDouble()) return false;
  number = value->toDouble();
  return true;
}

double add(double a, double b) { return a + b; }
double sub(double a, double b) { return a - b; }
double mul(double a, double b) { return a * b; }
double div(double a, double b) { return a / b; }
double power(double a, double b) { return std::pow(a, b); }

template <double (*function)(double, double)>
bool binary(const Call& call, Frame& frame) {
  double a = 0, b = 0;
  if (!fetch(call.operands[0], frame, a) || !fetch(call.operands[1], frame, b)) return false;
  if (function == div && b == 0) return false;  // the operator knows what to say
  frame[call.outputs[0]] = function(a, b);
  return true;
}

bool negate(const Call& call, Frame& frame) {
  double a = 0;
  if (!fetch(call.operands[0], frame, a)) return false;
  frame[call.outputs[0]] = -a;
  return true;
}

double numberOf(const at::Tensor& tensor) {
  if (tensor.scalar_type() == c10::kLong)
    return static_cast<double>(*tensor.const_data_ptr<int64_t>());
  return tensor.scalar_type() == c10::kFloat ? static_cast<double>(*tensor.const_data_ptr<float>())
                                             : *tensor.const_data_ptr<double>();
}

bool read(const Call& call, Frame& frame) {
  const Operand& operand = call.operands[0];
  if (operand.kind != Operand::Kind::FromSlot || !frame[operand.slot].isTensor()) return false;
  const at::Tensor& tensor = frame[operand.slot].toTensor();
  if (!isOneNumber(tensor)) return false;
  const double number = numberOf(tensor);
  frame[call.outputs[0]] = number;
  return true;
}

const at::Tensor* tensorOf(const Operand& operand, const Frame& frame) {
  const c10::IValue* const value = valueOf(operand, frame);
  return value && value->isTensor() && isOneNumber(value->toTensor()) ? &value->toTensor()
                                                                      : nullptr;
}

/// A number of Python's that stands for a tensor: an int in `step += 1`.
const at::Tensor* numberTensor(const Operand& operand, const Frame& frame) {
  const bool wrapped = operand.kind == Operand::Kind::Constant && operand.constant.isTensor() &&
                       operand.constant.toTensor().defined() &&
                       operand.constant.toTensor().scalar_type() == c10::kLong &&
                       operand.constant.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
  return wrapped ? &operand.constant.toTensor() : tensorOf(operand, frame);
}

/// Of one dtype, or a wrapped number, which takes the other's.
bool addsAlike(const at::Tensor& counter, const at::Tensor& other) {
  return counter.scalar_type() == other.scalar_type() ||
         other.unsafeGetTensorImpl()->is_wrapped_number();
}

void count(const at::Tensor& counter, double by) {
  if (counter.scalar_type() == c10::kFloat) {
    float* const at = counter.mutable_data_ptr<float>();
    *at = *at + static_cast<float>(by);
  } else {
    *counter.mutable_data_ptr<double>() += by;
  }
}

/// aten::add_.Tensor(self, other, alpha=1)
bool countOne(const Call& call, Frame& frame) {
  const at::Tensor* const counter = tensorOf(call.operands[0], frame);
  const at::Tensor* const other = numberTensor(call.operands[1], frame);
  const bool plain = counter && other && call.operands[0].kind == Operand::Kind::FromSlot &&
                     isConstantOne(call.operands[2]) && addsAlike(*counter, *other);
  if (!plain) return false;
  count(*counter, numberOf(*other));
  if (!call.outputs.empty()) frame[call.outputs[0]] = frame[call.operands[0].slot];
  return true;
}

/// aten::_foreach_add_.Tensor(self, other, alpha=1), without a result.
bool countAll(const Call& call, Frame& frame) {
  const Operand& counters = call.operands[0];
  const at::Tensor* const other = tensorOf(call.operands[1], frame);
  if (!other || counters.kind != Operand::Kind::List || !call.outputs.empty() ||
      !isConstantOne(call.operands[2]))
    return false;
  for (const Operand& member : counters.members) {
    const at::Tensor* const counter = tensorOf(member, frame);
    if (!counter || counter->scalar_type() != other->scalar_type()) return false;
  }
  const double by = numberOf(*other);
  for (const Operand& member : counters.members) count(*tensorOf(member, frame), by);
  return true;
}

}  // namespace

QuickCall quickCallOf(const Call& call) {
  if (!factsOf(call.node).schema) return nullptr;
  const std::string name =
      std::string(call.node->kind().toQualString()) + "." + overloadOf(call.node);
  const size_t outputs = call.outputs.size();
  const QuickCall arithmetic = llvm::StringSwitch<QuickCall>(name)
                                   .Case("aten::add.float", binary<add>)
                                   .Case("aten::sub.float", binary<sub>)
                                   .Case("aten::mul.float", binary<mul>)
                                   .Case("aten::div.float", binary<div>)
                                   .Case("aten::pow.float", binary<power>)
                                   .Case("aten::neg.float", negate)
                                   .Case("aten::_local_scalar_dense.", read)
                                   .Default(nullptr);
  if (arithmetic) return outputs == 1 ? arithmetic : nullptr;
  if (name == "aten::add_.Tensor") return countOne;
  return name == "aten::_foreach_add_.Tensor" ? countAll : nullptr;
}

}  // namespace gravure
