#pragma once
// What the tests of the CUDA device share.

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/device/arena_session.h"
#include "runtime/program/instruction.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/cuda/CUDAFunctions.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

// Catch2 v2 cannot skip; so a machine without a GPU is told, case by case.
#define NEEDS_GPU()                                                                                \
  if (c10::cuda::device_count() == 0) {                                                            \
    WARN("skipped: there is no CUDA device");                                                      \
    SUCCEED();                                                                                     \
    return;                                                                                        \
  }

namespace gravure::test {

inline const c10::Device kGpu{c10::kCUDA, 0};

inline at::Generator& gpuGenerator() {
  static at::Generator generator = at::globalContext().defaultGenerator(kGpu);
  return generator;
}

inline void seed(uint64_t value) { gpuGenerator().set_current_seed(value); }

/// Values that differ from one `seed` to the next; drawn on the CPU, so no CUDA generator moves.
inline at::Tensor values(std::vector<int64_t> sizes, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::TensorOptions(at::kFloat)).to(kGpu);
}

inline bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto bytes = [](const at::Tensor& t) {
    return t.contiguous().reshape({-1}).view(at::kByte);
  };
  return at::equal(bytes(a), bytes(b));
}

/// What an eager dropout draws now.
inline at::Tensor eagerDraw() {
  return std::get<1>(at::native_dropout(at::ones({1000}, at::TensorOptions(kGpu)), 0.5, true));
}

/// A call that needs no program.
inline Call callOf(std::function<void(torch::jit::Stack&)> operation, bool draws = false) {
  Call call;
  call.position = 0;
  call.operation = std::move(operation);
  call.draws = draws;
  return call;
}

/// Where each allocation of one step goes: `bytes` after one another, aligned.
inline ServePlan planOf(const std::vector<int64_t>& bytes) {
  ServePlan plan(1);
  int64_t offset = 0;
  for (int64_t each : bytes) {
    plan[0].push_back({each, offset});
    offset += (each + 511) / 512 * 512;
  }
  return plan;
}

inline int64_t bytesOf(const ServePlan& plan) {
  const PlannedAllocation& last = plan[0].back();
  return last.offset + (last.bytes + 511) / 512 * 512;
}

/// An arena for the plan.
inline ArenaShape shapeOf(const ServePlan& plan) {
  ArenaShape shape;
  shape.bytes = bytesOf(plan);
  return shape;
}

inline int poolUses(CudaDevice& device) {
  return device.allocator().getPoolUseCount(0, device.captures().pool());
}

}  // namespace gravure::test
