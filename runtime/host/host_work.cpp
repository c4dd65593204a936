#include "runtime/host/host_work.h"

#include "ir/core/location.h"
#include "ir/facts/op_facts.h"

#include <ATen/Functions.h>
#include <c10/core/Scalar.h>
#include <llvm/ADT/STLExtras.h>

#include <cstring>

namespace gravure {
namespace {

bool isWrapped(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         value.toTensor().unsafeGetTensorImpl()->is_wrapped_number() &&
         value.toTensor().scalar_type() == c10::kDouble;
}

/// Calls visit(double&) for each float of the operands, which may change it.
template <typename Visit>
void forEachNumber(torch::jit::Stack& operands, Visit&& visit) {
  for (c10::IValue& operand : operands) {
    if (operand.isDouble()) {
      double number = operand.toDouble();
      visit(number);
      operand = number;
    } else if (isWrapped(operand)) {
      double number = operand.toTensor().item<double>();
      visit(number);
      at::Tensor wrapped = at::scalar_tensor(number, at::kDouble);
      wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
      operand = wrapped;
    } else if (operand.isDoubleList() || (operand.isList() && !operand.isTensorList())) {
      c10::List<c10::IValue> members = operand.toList().copy();
      for (size_t i = 0; i < members.size(); ++i) {
        const c10::IValue member = members.get(i);
        if (!member.isDouble()) continue;
        double number = member.toDouble();
        visit(number);
        members.set(i, number);
      }
      operand = std::move(members);
    }
  }
}

bool named(const Call& call, std::initializer_list<std::string_view> names) {
  return llvm::is_contained(names, std::string_view(call.node->kind().toQualString()));
}

}  // namespace

WorkNode workOf(const Call& call, int32_t index, const torch::jit::Stack& operands, uint8_t paint) {
  const bool product = named(call, {"aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::mm"});
  const bool range = named(call, {"aten::uniform_"});
  const bool power = named(call, {"aten::pow", "aten::pow_", "aten::_foreach_pow_"});
  WorkNode node;
  node.call = index;
  node.name = describe(call.node);
  node.readable = !product;
  node.function = factsOf(call.node).schema;
  std::vector<double> numbers;
  torch::jit::Stack copy = operands;
  forEachNumber(copy, [&](double& number) { numbers.push_back(number); });
  if (range && numbers.size() == 2) numbers[1] -= numbers[0];
  for (const double number : numbers) {
    if ((product && number == 0) || (power && number == 2)) node.shape[0] = 1;
    if (product) continue;
    const size_t at = node.bytes.size();
    node.bytes.resize(at + 16, paint);
    std::memcpy(node.bytes.data() + at, &number, sizeof number);
    std::memset(node.bytes.data() + at + 12, 0, 4);
  }
  return node;
}

void writeNumbers(torch::jit::Stack& operands, const uint8_t* bytes) {
  forEachNumber(operands, [&](double& number) {
    std::memcpy(&number, bytes, sizeof number);
    bytes += 16;
  });
}

}  // namespace gravure
