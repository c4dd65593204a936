#include "runtime/step/attention_seeds.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <llvm/ADT/STLExtras.h>

#include <array>

namespace gravure {
namespace {

/// Positions among the parameters of the operator.
struct Backward {
  c10::OperatorHandle handle;
  std::array<size_t, 2> seeds;
  size_t probability;
};

size_t positionOf(const c10::FunctionSchema& schema, const char* name) {
  const auto position = schema.argumentIndexWithName(name);
  TORCH_CHECK(position, schema.name(), " of this PyTorch has no ", name);
  return static_cast<size_t>(*position);
}

Backward backwardOf(const char* name) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  const c10::FunctionSchema& schema = handle.schema();
  return {handle,
          {positionOf(schema, "philox_seed"), positionOf(schema, "philox_offset")},
          positionOf(schema, "dropout_p")};
}

/// nullptr for any other call. Asked ahead of each one that is not replayed.
const Backward* backwardIn(const Call& call) {
  static const std::array<Backward, 2> known = {
      backwardOf("aten::_scaled_dot_product_efficient_attention_backward"),
      backwardOf("aten::_efficient_attention_backward")};
  if (!call.handle) return nullptr;
  const auto* const found =
      llvm::find_if(known, [&](const Backward& each) { return each.handle == *call.handle; });
  return found == known.end() ? nullptr : found;
}

/// A constant: no number is drawn, and none is read.
bool isZero(const Operand& probability) {
  return probability.kind == Operand::Kind::Constant && probability.constant.isScalar() &&
         probability.constant.toScalar().toDouble() == 0;
}

}  // namespace

bool readsSeeds(const Call& call) {
  const Backward* const backward = backwardIn(call);
  return backward && !isZero(call.operands[backward->probability]);
}

void seedsToHost(const Call& call, torch::jit::Stack& stack) {
  for (const size_t seed : backwardIn(call)->seeds) {
    const at::Tensor& number = stack[seed].toTensor();
    if (number.defined() && !number.is_cpu()) stack[seed] = number.cpu();
  }
}

void checkSeeds(const Launch& launch, const Frame& frame, c10::Device device) {
  for (const Call& call : launch.calls) {
    if (!readsSeeds(call)) continue;
    for (const size_t seed : backwardIn(call)->seeds) {
      const Operand& operand = call.operands[seed];
      const c10::IValue value =
          operand.kind == Operand::Kind::FromSlot ? frame[operand.slot] : c10::IValue();
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      TORCH_CHECK(value.toTensor().device().type() == device.type(),
                  "the seed of attention's dropout is on ", value.toTensor().device(),
                  ", since its forward was not replayed in this step");
    }
  }
}

}  // namespace gravure
