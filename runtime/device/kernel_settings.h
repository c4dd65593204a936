#pragma once
// Settings of the process by which PyTorch's operators choose their kernels.

#include <array>
#include <cstdint>
#include <string>

namespace gravure {

/// Those of at::Context that change the bits of results: attention backends, precision of products, cuDNN,
/// determinism. A capture has the kernels that they chose, and a traced graph the operators.
class KernelSettings {
 public:
  /// Those of now. Some 0.1 us.
  static KernelSettings now();

  bool operator==(const KernelSettings& other) const { return values_ == other.values_; }
  bool operator!=(const KernelSettings& other) const { return values_ != other.values_; }

  /// What differs, as PyTorch's Python has it: "torch.backends.cudnn.benchmark, …"; "" if nothing does.
  std::string difference(const KernelSettings& other) const;

  /// A number for them, which equal ones share for as long as the process lives. Thread-safe.
  int64_t number() const;
  /// TORCH_CHECK: number() gave it.
  static KernelSettings ofNumber(int64_t number);

 private:
  static constexpr size_t kMost = 40;
  std::array<int32_t, kMost> values_{};
};

}  // namespace gravure
