#include "tools/gravure/proof/drawn_inputs.h"

#include "ir/facts/value_types.h"
#include "ir/text/program_text.h"
#include "ir/text/type_printer.h"
#include "tools/gravure/proof/draw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros.h>

namespace gravure::tool {

std::string inputLabel(const Entry& entry, size_t index) {
  const InputInfo& info = entry.inputs[index];
  const std::string& name =
      info.name.empty() ? entry.graph->inputs()[index]->debugName() : info.name;
  return std::string(roleName(info.role)) + " \"" + name + "\"";
}

DrawnInputs::DrawnInputs(const Program& program, uint64_t seed, const SavedInputs* saved)
    : seed_(seed), saved_(saved) {
  for (const Entry& entry : program.entries) {
    for (const Value* input : entry.graph->inputs()) {
      const auto* type = tensorTypeOf(input);
      const auto sizes = type ? type->sizes().concrete_sizes() : std::nullopt;
      if (sizes) sizes_.insert(sizes->begin(), sizes->end());
    }
  }
}

/// Numbers of at least 0 whose sum is a size of an input.
at::Tensor DrawnInputs::lengths(int64_t count, at::ScalarType dtype, uint64_t seed) const {
  auto size = sizes_.begin();
  std::advance(size, attempt_ / 2 % sizes_.size());
  at::Tensor result = at::zeros({count}, at::kLong);
  int64_t left = *size;
  for (int64_t i = 0; i + 1 < count; ++i) {
    const int64_t part = static_cast<int64_t>((seed >> (i % 32)) % static_cast<uint64_t>(left + 1));
    result[i].fill_(part);
    left -= part;
  }
  result[count - 1].fill_(left);
  return result.to(dtype);
}

uint64_t DrawnInputs::seedOf(int64_t step) const { return mixSeed(seed_, step, "generator"); }

int64_t DrawnInputs::openSize(const std::string& key) const {
  if (attempt_ == 0) return 4;
  static constexpr int64_t sizes[] = {4, 2, 3, 6, 8};
  const uint64_t agreed = mixSeed(seed_, static_cast<int64_t>(attempt_), "size") % 5;
  const uint64_t drawn = mixSeed(seed_, static_cast<int64_t>(attempt_), key);
  return sizes[drawn % 3 ? agreed : drawn / 3 % 5];
}

c10::IValue DrawnInputs::draw(const Entry& entry, size_t index, int64_t step) const {
  const InputInfo& info = entry.inputs[index];
  const Value* value = entry.graph->inputs()[index];
  const std::string label = inputLabel(entry, index);
  const uint64_t seed = mixSeed(seed_, step, label);
  const bool generator = value->type()->kind() == c10::TypeKind::GeneratorType;
  if (info.role == InputRole::RngState || generator) {
    if (info.name.find('#') == std::string::npos) return {};
    return at::detail::createCPUGenerator(seed);
  }
  if (saved_ && saved_->count(entry.name)) {
    const auto& values = saved_->at(entry.name);
    const auto found = values.find(info.name.empty() ? value->debugName() : info.name);
    if (found != values.end()) {
      if (!found->second.isTensor()) return found->second;
      const at::Tensor original = found->second.toTensor().cpu();
      const at::Tensor drawn = drawLike(original, seed);
      return drawn.is_same(original) ? original.clone() : drawn;
    }
  }
  switch (value->type()->kind()) {
    case c10::TypeKind::IntType: return openSize(label);
    case c10::TypeKind::FloatType: return static_cast<double>(seed % 64) / 16;
    case c10::TypeKind::BoolType: return seed % 2 == 0;
    default: break;
  }
  const auto type = value->type()->cast<c10::TensorType>();
  TORCH_CHECK(type && type->scalarType() && type->dim(), "input %", value->debugName(),
              " of entry '", entry.name, "' has no value in inputs.pt, and its type ",
              typeText(*value->type()), " does not say what to draw");
  std::vector<int64_t> sizes, strides(*type->dim());
  for (size_t i = 0; i < *type->dim(); ++i) {
    sizes.push_back(type->sizes()[i].value_or(openSize(label + std::to_string(i))));
  }
  int64_t dense = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = type->strides()[i].value_or(dense);
    dense = std::max<int64_t>(sizes[i], 1) * strides[i];
  }
  const bool ints = c10::isIntegralType(*type->scalarType(), /*includeBool=*/false);
  if (attempt_ % 2 == 1 && ints && sizes.size() == 1 && sizes[0] > 1 && !sizes_.empty())
    return lengths(sizes[0], *type->scalarType(), seed);
  return drawFresh(sizes, strides, *type->scalarType(), seed);
}

void InputSide::beginStep(int64_t step) {
  step_ = step;
  for (auto& [label, value] : given_) {
    if (value.isTensor()) old_.push_back(std::move(value));
  }
  given_.clear();
}

void InputSide::moveKept() {
  for (auto& [label, value] : kept_) old_.push_back(std::move(value));
  kept_.clear();
}

std::vector<c10::IValue> InputSide::inputsOf(const Entry& entry) {
  std::vector<c10::IValue> values;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const InputInfo& info = entry.inputs[i];
    if (info.role == InputRole::Saved) {
      values.emplace_back();
      continue;
    }
    const std::string label = inputLabel(entry, i);
    auto at = given_.find(label);
    if (at == given_.end()) {
      c10::IValue drawn = drawn_.draw(entry, i, step_);
      const bool kept = drawn.isTensor() && isKeptByCaller(info.role);
      if (kept && kept_.count(label)) {
        kept_[label].toTensor().copy_(drawn.toTensor());
        drawn = kept_[label];
      } else if (kept) {
        kept_[label] = drawn;
      }
      at = given_.emplace(label, std::move(drawn)).first;
    }
    values.push_back(at->second);
  }
  return values;
}

}  // namespace gravure::tool
