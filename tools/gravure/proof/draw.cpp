#include "tools/gravure/proof/draw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/view_as_real.h>

namespace gravure::tool {
namespace {

at::Generator generator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

/// `values`, with the layout and dtype of `original`.
at::Tensor inLayoutOf(const at::Tensor& original, const at::Tensor& values) {
  at::Tensor result = at::empty_strided(original.sizes(), original.strides(), original.options());
  result.copy_(values.reshape(original.sizes()));
  return result;
}

at::Tensor drawFloats(const at::Tensor& original, uint64_t seed) {
  const at::Tensor old = original.to(at::kDouble);
  if (!at::isfinite(old).all().item<bool>()) return original;
  const double low = old.min().item<double>(), high = old.max().item<double>();
  at::Tensor noise = at::randn(old.sizes(), generator(seed), old.options());
  if (low == high) {
    return low == 0 ? noise : noise.clamp_(-1, 1).mul_(0.1).add_(1).mul_(low);
  }
  const double mean = old.mean().item<double>(), deviation = old.std().item<double>();
  return noise.mul_(deviation).add_(mean).clamp_(low, high);
}

bool strictlyIncreasing(const at::Tensor& values) {
  if (values.dim() == 0 || values.size(-1) < 2) return false;
  return values.diff(1, -1).gt(0).all().item<bool>();
}

at::Tensor drawInts(const at::Tensor& original, uint64_t seed) {
  const at::Tensor old = original.to(at::kLong);
  if (strictlyIncreasing(old)) return original;
  const int64_t low = old.min().item<int64_t>(), high = old.max().item<int64_t>();
  if (low == high) return original;
  return at::randint(low, high + 1, old.sizes(), generator(seed), old.options());
}

at::Tensor permute(const at::Tensor& original, uint64_t seed) {
  const at::Tensor order = at::randperm(original.numel(), generator(seed), at::kLong);
  return original.flatten().index_select(0, order);
}

}  // namespace

at::Tensor drawLike(const at::Tensor& original, uint64_t seed) {
  const bool overlaps = at::has_internal_overlap(original) != at::MemOverlap::No;
  if (original.numel() == 0 || overlaps) return original.clone();
  if (original.is_complex()) {
    const at::Tensor parts = drawFloats(at::view_as_real(original.resolve_conj()), seed);
    return inLayoutOf(original, at::complex(parts.select(-1, 0), parts.select(-1, 1)));
  }
  if (original.is_floating_point()) return inLayoutOf(original, drawFloats(original, seed));
  if (original.scalar_type() == at::kBool) return inLayoutOf(original, permute(original, seed));
  return inLayoutOf(original, drawInts(original, seed));
}

at::Tensor drawFresh(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                     uint64_t seed) {
  at::Tensor result = at::empty_strided(sizes, strides, at::TensorOptions(dtype));
  if (result.is_floating_point() || result.is_complex()) return drawLike(result.zero_(), seed);
  return result.copy_(at::randint(0, 2, sizes, generator(seed), at::TensorOptions(at::kLong)));
}

uint64_t mixSeed(uint64_t seed, int64_t step, const std::string& name) {
  // FNV-1a: the same on every machine and in every run.
  uint64_t hash = 1469598103934665603ULL ^ seed ^ (static_cast<uint64_t>(step) << 32);
  for (unsigned char c : name) hash = (hash ^ c) * 1099511628211ULL;
  return hash ^ (hash >> 29);
}

}  // namespace gravure::tool
