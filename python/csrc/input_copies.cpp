#include "python/csrc/input_copies.h"

#include "runtime/device/rng.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace gravure {

namespace {

constexpr int64_t kRemainder = 512;  // of addresses: as PyTorch's allocators align

/// The part of one storage that the inputs cover, and its copy.
struct Piece {
  int64_t begin, end;  // bytes from the storage's start
  at::Tensor copy;     // bytes; undefined until it is asked for
  int64_t shift = 0;   // where `begin` lies in it
};

bool isPlain(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.layout() == at::kStrided && tensor.has_storage() && tensor.numel() > 0;
}

int64_t begins(const at::Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
}

int64_t ends(const at::Tensor& tensor) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset()));
}

at::Tensor bytesOf(const at::Tensor& of, const c10::Storage& storage, int64_t from, int64_t count) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions(of.device()).dtype(at::kByte));
  return bytes.set_(storage, from, {count}, {1});
}

void fill(Piece& piece, const at::Tensor& of) {
  const int64_t count = piece.end - piece.begin;
  const at::Tensor from = bytesOf(of, of.storage(), piece.begin, count);
  piece.copy = at::empty({count + kRemainder}, from.options());
  const auto remainder = [](const at::Tensor& each) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(each.const_data_ptr()) % kRemainder);
  };
  piece.shift = (remainder(from) - remainder(piece.copy) + kRemainder) % kRemainder;
  piece.copy.narrow(0, piece.shift, count).copy_(from);
}

at::Generator copyOf(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

}  // namespace

std::vector<size_t> drawnInputs(const Entry& entry) {
  std::vector<size_t> drawn;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    if (entry.inputs[i].role == InputRole::RngState) drawn.push_back(i);
  }
  return drawn;
}

std::vector<c10::IValue> copiesOf(const std::vector<c10::IValue>& values,
                                  const std::vector<size_t>& drawn, c10::Device device) {
  std::map<const void*, Piece> pieces;
  for (const c10::IValue& value : values) {
    if (!isPlain(value)) continue;
    const at::Tensor& tensor = value.toTensor();
    const auto [at, fresh] =
        pieces.try_emplace(tensor.storage().data(), Piece{begins(tensor), ends(tensor), {}});
    if (fresh) continue;
    at->second.begin = std::min(at->second.begin, begins(tensor));
    at->second.end = std::max(at->second.end, ends(tensor));
  }
  std::vector<c10::IValue> copies = values;
  for (c10::IValue& value : copies) {
    if (value.isGenerator()) {
      value = copyOf(value.toGenerator());
    } else if (isPlain(value)) {
      const at::Tensor tensor = value.toTensor();
      Piece& piece = pieces.at(tensor.storage().data());
      if (!piece.copy.defined()) fill(piece, tensor);
      const int64_t offset = piece.shift + begins(tensor) - piece.begin;
      const auto itemsize = static_cast<int64_t>(tensor.itemsize());
      if (offset % itemsize != 0) {  // no address that the dtype may have: a copy by itself
        value = tensor.detach().clone();
        continue;
      }
      at::Tensor copy = at::empty({0}, tensor.options());
      copy.set_(piece.copy.storage(), offset / itemsize, tensor.sizes(), tensor.strides());
      copy._set_conj(tensor.is_conj());
      copy._set_neg(tensor.is_neg());
      value = copy;
    } else if (value.isTensor() && value.toTensor().defined()) {
      value = value.toTensor().detach().clone();
    }
  }
  for (size_t i : drawn) {
    if (copies[i].isNone()) copies[i] = copyOf(defaultGenerator(device));
  }
  return copies;
}

void refill(const std::vector<c10::IValue>& to, const std::vector<c10::IValue>& from) {
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].isGenerator()) {
      setState(to[i].toGenerator(), stateOf(from[i].toGenerator()));
    } else if (isPlain(to[i])) {
      const at::Tensor &left = to[i].toTensor(), &right = from[i].toTensor();
      const int64_t count = ends(left) - begins(left);
      bytesOf(left, left.storage(), begins(left), count)
          .copy_(bytesOf(right, right.storage(), begins(right), count));
    }
  }
}

void turn(const std::vector<c10::IValue>& values) {
  for (const c10::IValue& value : values) {
    if (!isPlain(value) || !value.toTensor().is_floating_point()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.is_non_overlapping_and_dense()) continue;
    std::vector<int64_t> dims(tensor.dim());
    for (int64_t d = 0; d < tensor.dim(); ++d) dims[d] = d;
    tensor.copy_(tensor.flip(dims).clone());
  }
}

}  // namespace gravure
