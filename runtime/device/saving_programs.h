#pragma once
// How many programs of a device pass values from a forward to its backward. What they save lives together.

#include <c10/core/Device.h>

#include <cstdint>

namespace gravure {

/// One such program that has run, for as long as it may run again.
class SavingProgram {
 public:
  explicit SavingProgram(c10::Device device);
  ~SavingProgram();
  SavingProgram(const SavingProgram&) = delete;
  SavingProgram& operator=(const SavingProgram&) = delete;

  /// Whether there are at least three now. Their arenas have small pages: a large one, of which a little is
  /// held, would be lost to all others.
  static bool areMany(c10::Device device);

 private:
  const c10::Device device_;
};

}  // namespace gravure
