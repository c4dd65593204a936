#include "passes/analysis/random_source.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"

namespace gravure {

c10::Device generatorDevice(c10::Device device) {
  if (device.is_cpu()) return c10::Device(device.type());
  return c10::Device(device.type(), device.has_index() ? device.index() : 0);
}

namespace {

/// `%g : Generator {rng_state "cuda:0"}` is the default generator of that device; "cuda:0#1" is not.
std::optional<c10::Device> defaultGeneratorDevice(const Entry& entry, const Value* state) {
  if (state->node() != entry.graph->param_node()) return std::nullopt;
  const size_t at = state->offset();
  if (at >= entry.inputs.size() || entry.inputs[at].role != InputRole::RngState)
    return std::nullopt;
  const std::string& name = entry.inputs[at].name;
  if (name.empty() || name.find('#') != std::string::npos) return std::nullopt;
  return generatorDevice(c10::Device(name));
}

c10::Device drawingDevice(const Node* node) {
  for (const Value* output : node->outputs()) {
    if (const auto device = deviceOf(output)) return generatorDevice(*device);
  }
  for (const Value* input : node->inputs()) {
    if (const auto device = deviceOf(input)) return generatorDevice(*device);
  }
  return c10::Device(c10::kCPU);
}

}  // namespace

std::optional<RandomSource> randomSource(const Entry& entry, const Node* node) {
  if (!drawsRandom(node)) return std::nullopt;
  if (node->kind() == cg::saveRngState) {
    const ArgList& list = argsOf(node);
    const bool named = !list.args.empty() && list.args[0].is<std::string>();
    return RandomSource{nullptr, named
                                     ? generatorDevice(c10::Device(list.args[0].as<std::string>()))
                                     : drawingDevice(node)};
  }
  const Value* state = rngStateOf(node);
  if (!state) return RandomSource{nullptr, drawingDevice(node)};
  if (isTensorValue(state)) return std::nullopt;
  if (const auto device = defaultGeneratorDevice(entry, state))
    return RandomSource{nullptr, *device};
  return RandomSource{state};
}

}  // namespace gravure
