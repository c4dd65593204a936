#include "passes/analysis/piece_rows.h"

#include "ir/facts/value_types.h"

namespace gravure {

std::optional<std::vector<int64_t>> rowOf(const Value* value) {
  const auto* type = tensorTypeOf(value);
  if (!type || !type->dim() || *type->dim() < 2 || !type->scalarType() || !type->device()) {
    return std::nullopt;
  }
  std::vector<int64_t> row;
  int64_t stride = 1;
  for (size_t d = *type->dim(); d-- > 0;) {
    if (type->strides()[d] != stride) return std::nullopt;
    if (d == 0) break;
    const auto size = type->sizes()[d];
    if (!size) return std::nullopt;
    row.push_back(*size);
    stride *= *size;
  }
  row.push_back(stride * static_cast<int64_t>(c10::elementSize(*type->scalarType())));
  return row;
}

bool sameRow(const Value* a, const Value* b) {
  const auto *x = tensorTypeOf(a), *y = tensorTypeOf(b);
  return rowOf(a) == rowOf(b) && x->scalarType() == y->scalarType() && x->device() == y->device();
}

}  // namespace gravure
