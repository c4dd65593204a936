#include "runtime/results/bits.h"

#include "runtime/results/tensor_copies.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/Support/raw_ostream.h>

#include <bit>
#include <sstream>

namespace gravure {
namespace {

std::string list(at::IntArrayRef numbers) {
  std::string text = "[";
  for (int64_t number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  return text + "]";
}

/// One row of bytes an element.
at::Tensor bytesOf(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.resolve_conj().resolve_neg().contiguous().flatten();
  return plain.unsqueeze(-1).view(at::kByte);
}

std::string element(const at::Tensor& tensor, const at::Tensor& bytes, int64_t at) {
  std::ostringstream text;
  text.precision(9);
  const at::Tensor value = tensor.resolve_conj().flatten()[at].cpu();
  if (tensor.is_complex()) {
    const auto number = value.to(at::kComplexDouble).item<c10::complex<double>>();
    text << number.real() << (number.imag() < 0 ? "" : "+") << number.imag() << "i";
  } else if (tensor.is_floating_point()) {
    text << value.to(at::kDouble).item<double>();
  } else {
    text << value.to(at::kLong).item<int64_t>();
  }
  text << " (0x";
  const at::Tensor row = bytes[at].cpu();
  for (int64_t i = row.numel(); i-- > 0;) {
    text << llvm::toHex({row.data_ptr<uint8_t>()[i]}, true);
  }
  text << ")";
  return text.str();
}

std::string differentTensors(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) {
    return a.defined() == b.defined() ? "" : "one is undefined, the other is not";
  }
  if (a.scalar_type() != b.scalar_type()) {
    return std::string("dtype ") + c10::toString(a.scalar_type()) + " and " +
           c10::toString(b.scalar_type());
  }
  if (a.sizes() != b.sizes()) return "shape " + list(a.sizes()) + " and " + list(b.sizes());
  if (a.device() != b.device()) return "device " + a.device().str() + " and " + b.device().str();
  if (a.numel() == 0) return "";
  if (!isLaid(a, b.sizes(), b.strides()))
    return "strides " + list(a.strides()) + " and " + list(b.strides());
  const at::Tensor left = bytesOf(a), right = bytesOf(b);
  if (at::equal(left, right)) return "";
  const at::Tensor differs = left.ne(right).any(-1);
  int64_t at = differs.nonzero()[0].item<int64_t>();
  const std::string values = element(a, left, at) + " and " + element(b, right, at);
  std::vector<int64_t> indices(a.dim());
  for (int64_t dim = a.dim(), rest = at; dim-- > 0; rest /= a.size(dim)) {
    indices[dim] = rest % a.size(dim);
  }
  return "at " + list(indices) + ": " + values + "; " +
         std::to_string(differs.sum().item<int64_t>()) + " of " + std::to_string(a.numel()) +
         " elements differ";
}

template <typename List>
std::string differentLists(const List& a, const List& b) {
  if (a.size() != b.size()) {
    return std::to_string(a.size()) + " and " + std::to_string(b.size()) + " members";
  }
  for (size_t i = 0; i < a.size(); ++i) {
    const std::string why = firstDifference(a[i], b[i]);
    if (!why.empty()) return "member " + std::to_string(i) + " " + why;
  }
  return "";
}

}  // namespace

std::string firstDifference(const c10::IValue& a, const c10::IValue& b) {
  // An undefined tensor and None are the same to a caller.
  const bool noneA = a.isNone() || (a.isTensor() && !a.toTensor().defined());
  const bool noneB = b.isNone() || (b.isTensor() && !b.toTensor().defined());
  if (noneA || noneB) return noneA == noneB ? "" : "one is None, the other is not";
  if (a.tagKind() != b.tagKind()) return "a " + a.tagKind() + " and a " + b.tagKind();
  if (a.isTensor()) return differentTensors(a.toTensor(), b.toTensor());
  if (a.isList()) return differentLists(a.toListRef().vec(), b.toListRef().vec());
  if (a.isTuple()) {
    return differentLists(a.toTupleRef().elements().vec(), b.toTupleRef().elements().vec());
  }
  if (a.isDouble() &&
      std::bit_cast<uint64_t>(a.toDouble()) == std::bit_cast<uint64_t>(b.toDouble())) {
    return "";
  }
  if (a.isGenerator() || a == b) return "";
  std::ostringstream text;
  text << a << " and " << b;
  return text.str();
}

}  // namespace gravure
