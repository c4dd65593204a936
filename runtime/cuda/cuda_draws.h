#pragma once
// Random numbers in a captured graph.

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBase.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace gravure {

namespace torch_private {
class CaptureDraws;
}

/// What the kernels of one graph draw from. While a call is captured, kernels read seed and offset from
/// the graph's own memory, which each launch fills from what the generator is by then, before it moves
/// the generator on by what the graph draws. (PyTorch's graphs of 2.11 share the memory of a generator's
/// state, unordered between streams, and keep the state that the generator had when they were captured.)
///
/// Since torch 2.12 the capture has a part of the generator's state. In 2.11 a random state of the
/// graph's own stands in for that of the generator. Then other threads may draw from the default
/// generator, but for the microseconds in which a call that draws is being captured: operators know no
/// generator but the process' own, and PyTorch throws "Offset increment outside graph capture" in a
/// thread that meets the graph's state there.
class CudaDraws {
 public:
  CudaDraws();
  ~CudaDraws();
  CudaDraws(const CudaDraws&) = delete;
  CudaDraws& operator=(const CudaDraws&) = delete;

  /// Waits a moment, as for a short capture of another thread's. Throws c10::Error if one of them is
  /// being captured by somebody else still: it would be in two graphs.
  static void awaitFree(const std::vector<at::Generator>& generators);

  /// During the capture, which has CUDA's number `capture`: what a call that draws from `generator`, a
  /// CUDA one, draws from while it is captured. The memory is the current device's, made as the thread's
  /// allocations are.
  at::Generator standIn(const at::Generator& generator, unsigned long long capture);
  /// After the capture. Throws c10::Error if somebody else's capture has taken a stand-in for the
  /// generator.
  void end();

  bool any() const { return !drawn_.empty(); }
  /// Before a launch, on its stream: fills the memory and moves the generators on. Throws c10::Error,
  /// and none has moved, if they share a state otherwise than they did when they were captured.
  void begin();
  /// The launch failed: the generators are as before it, unless somebody has drawn from one meanwhile.
  void takeBack() noexcept;

 private:
  struct Source {
    at::Generator generator;
    std::unique_ptr<torch_private::CaptureDraws> captured;  // until the capture ends
    at::TensorBase seed, offset;                            // one int64 each
    uint64_t increment = 0;                                 // of a launch
    bool filled = false;
    uint64_t filledSeed = 0;
    bool moved = false;   // by the last launch
    uint64_t before = 0;  // the generator's offset before that
  };
  Source* sharing(const at::Generator& generator);

  std::vector<Source> sources_;
  std::vector<size_t> drawn_;  // of them, those that the graph draws from
};

}  // namespace gravure
