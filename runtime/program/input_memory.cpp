#include "runtime/program/input_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallVector.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace gravure {
namespace {

/// The bytes that a tensor lies in, of one input.
struct InputExtent {
  size_t index = 0;
  bool written = false;
  const void* space = nullptr;  // addresses of two are not compared
  int64_t begin = 0, end = 0;
  const c10::TensorImpl* tensor = nullptr;  // none: all between them
};

/// From the first byte of such a tensor to its last; 0 where it has no elements.
int64_t bytesOf(at::IntArrayRef sizes, at::IntArrayRef strides, size_t itemsize) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, strides, itemsize));
}

std::optional<InputExtent> extentOf(const c10::IValue& value) {
  if (!value.isTensor()) return std::nullopt;
  const c10::TensorImpl* const tensor = value.unsafeToTensorImpl();
  if (!tensor->has_storage()) return std::nullopt;  // an undefined one, too
  const c10::Storage& storage = tensor->unsafe_storage();
  if (!storage) return std::nullopt;
  InputExtent extent;
  const bool standIn = storage.device_type() == c10::DeviceType::Meta;
  if (standIn) extent.space = storage.unsafeGetStorageImpl();
  if (tensor->has_symbolic_sizes_strides()) {
    extent.end = std::numeric_limits<int64_t>::max();
    return standIn ? std::optional(extent) : std::nullopt;
  }
  if (tensor->numel() == 0) return std::nullopt;
  const auto itemsize = static_cast<int64_t>(tensor->itemsize());
  if (!standIn) {
    if (storage.data() == nullptr) return std::nullopt;
    extent.begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(storage.data()));
  }
  extent.begin += tensor->storage_offset() * itemsize;
  extent.end = extent.begin + bytesOf(tensor->sizes(), tensor->strides(), tensor->itemsize());
  extent.tensor = tensor;
  return extent;
}

/// Sums of multiples: of each stride between a least and a most one.
class Sums {
 public:
  void add(const c10::TensorImpl& tensor, bool negative) {
    const auto itemsize = static_cast<int64_t>(tensor.itemsize());
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      const int64_t most = tensor.size(d) - 1, stride = tensor.stride(d) * itemsize;
      if (most <= 0 || stride == 0) continue;
      const auto found = llvm::find_if(terms_, [&](const Term& t) { return t.stride == stride; });
      Term& term = found == terms_.end() ? terms_.emplace_back(Term{stride, 0, 0}) : *found;
      (negative ? term.low : term.high) += negative ? -most : most;
    }
  }

  /// Whether `base` and one of them are between `from` and `to`.
  bool reach(int64_t base, int64_t from, int64_t to) {
    llvm::sort(terms_, [](const Term& a, const Term& b) { return a.stride > b.stride; });
    left_ = kMost;
    return reachFrom(0, base, from, to);
  }

 private:
  struct Term {
    int64_t stride = 0, low = 0, high = 0;
  };

  bool reachFrom(size_t first, int64_t sum, int64_t from, int64_t to) {
    if (first == terms_.size()) return from <= sum && sum <= to;
    int64_t low = sum, high = sum;  // of what the smaller strides bring
    for (size_t i = first + 1; i < terms_.size(); ++i) {
      low += terms_[i].stride * terms_[i].low;
      high += terms_[i].stride * terms_[i].high;
    }
    const Term& term = terms_[first];
    const int64_t least = std::max(term.low, ceiling(from - high, term.stride));
    const int64_t most = std::min(term.high, -ceiling(low - to, term.stride));
    for (int64_t x = least; x <= most; ++x) {
      if (--left_ < 0) return true;  // unknown
      if (reachFrom(first + 1, sum + x * term.stride, from, to)) return true;
    }
    return false;
  }
  static int64_t ceiling(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

  static constexpr int kMost = 1 << 14;  // tries: strides that nest take a few
  llvm::SmallVector<Term, 8> terms_;
  int left_ = 0;
};

/// Of two whose bytes are between each other's.
bool share(const InputExtent& a, const InputExtent& b) {
  if (a.tensor == nullptr || b.tensor == nullptr) return true;
  Sums sums;
  sums.add(*a.tensor, /*negative=*/true);
  sums.add(*b.tensor, /*negative=*/false);
  return sums.reach(b.begin - a.begin, 1 - static_cast<int64_t>(b.tensor->itemsize()),
                    static_cast<int64_t>(a.tensor->itemsize()) - 1);
}

}  // namespace

std::optional<SharedInputs> findShared(llvm::ArrayRef<c10::IValue> values,
                                       llvm::ArrayRef<size_t> written) {
  if (written.empty()) return std::nullopt;
  std::vector<InputExtent> extents;
  extents.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    std::optional<InputExtent> extent = extentOf(values[i]);
    if (!extent) continue;
    extent->index = i;
    extent->written = std::binary_search(written.begin(), written.end(), i);
    extents.push_back(*extent);
  }
  llvm::sort(extents, [](const InputExtent& a, const InputExtent& b) {
    return std::tie(a.space, a.begin, a.index) < std::tie(b.space, b.begin, b.index);
  });
  std::vector<const InputExtent*> open;  // those that end behind where the next one begins
  for (const InputExtent& extent : extents) {
    std::erase_if(open, [&](const InputExtent* each) {
      return each->space != extent.space || each->end <= extent.begin;
    });
    for (const InputExtent* each : open) {
      if ((!each->written && !extent.written) || !share(*each, extent)) continue;
      const bool first = each->written && (!extent.written || each->index < extent.index);
      const InputExtent& one = first ? *each : extent;
      return SharedInputs{one.index, first ? extent.index : each->index};
    }
    open.push_back(&extent);
  }
  return std::nullopt;
}

void LooseInputs::addFixed(size_t index, const OperandGuard::Layout& layout) {
  const int64_t bytes = bytesOf(layout.sizes, layout.strides, c10::elementSize(layout.dtype));
  if (bytes == 0) return;
  Span span;
  span.begin = reinterpret_cast<uintptr_t>(layout.address);
  span.end = span.begin + static_cast<uintptr_t>(bytes);
  fixed_.push_back(span);
  if (std::binary_search(written_.begin(), written_.end(), index)) fixedWritten_.push_back(span);
}

void LooseInputs::addLoose(size_t index) {
  Loose loose;
  loose.index = index;
  loose.written = std::binary_search(written_.begin(), written_.end(), index);
  anyWritten_ |= loose.written;
  loose_.push_back(loose);
}

void LooseInputs::close() {
  if (written_.empty()) loose_.clear();
  for (std::vector<Span>* const spans : {&fixed_, &fixedWritten_}) {
    llvm::sort(*spans, [](const Span& a, const Span& b) { return a.begin < b.begin; });
    std::vector<Span> joined;
    for (const Span& span : *spans) {
      if (joined.empty() || joined.back().end < span.begin) {
        joined.push_back(span);
      } else {
        joined.back().end = std::max(joined.back().end, span.end);
      }
    }
    *spans = std::move(joined);
  }
}

bool LooseInputs::looksApart(const std::vector<c10::IValue>& values) const {
  llvm::SmallVector<Loose*, 4> moved;
  for (Loose& loose : loose_) {
    Span span;
    if (const auto extent = extentOf(values[loose.index])) {
      span.begin = static_cast<uintptr_t>(extent->begin);
      span.end = static_cast<uintptr_t>(extent->end);
    }
    if (span == loose.last) continue;
    loose.last = span;
    moved.push_back(&loose);
  }
  const auto meetsFixed = [&](const Loose* loose) {
    return meets(loose->written ? fixed_ : fixedWritten_, loose->last);
  };
  const bool apart = moved.empty() || (llvm::none_of(moved, meetsFixed) && !anyMeet());
  if (!apart) {
    for (Loose* const loose : moved) loose->last = {};  // looked at again
  }
  return apart;
}

bool LooseInputs::anyMeet() const {
  if (!anyWritten_) return false;
  llvm::SmallVector<const Loose*, 16> sorted;
  for (const Loose& loose : loose_) {
    if (loose.last.begin < loose.last.end) sorted.push_back(&loose);
  }
  llvm::sort(sorted, [](const Loose* a, const Loose* b) { return a->last.begin < b->last.begin; });
  uintptr_t end = 0, writtenEnd = 0;  // of those before
  for (const Loose* const loose : sorted) {
    if (loose->last.begin < (loose->written ? end : writtenEnd)) return true;
    end = std::max(end, loose->last.end);
    if (loose->written) writtenEnd = std::max(writtenEnd, loose->last.end);
  }
  return false;
}

bool LooseInputs::meets(const std::vector<Span>& spans, const Span& span) {
  if (span.begin == span.end) return false;
  const auto behind = std::partition_point(
      spans.begin(), spans.end(), [&](const Span& each) { return each.end <= span.begin; });
  return behind != spans.end() && behind->begin < span.end;
}

}  // namespace gravure
