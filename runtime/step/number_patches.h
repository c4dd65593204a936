#pragma once
// The numbers of a captured partition: before a replay, the values of the step are written into the
// parameters of its work.

#include "runtime/device/device.h"
#include "runtime/program/instruction.h"
#include "runtime/step/number_places.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// One number that a partition takes, and that is written before its replays.
struct PatchedNumber {
  Slot slot = kNoSlot;
  size_t operand = 0;  // of the launch
  // Bit kindOfValue(v): captures with such a value had the bytes that are written for it, or had others.
  uint32_t kinds = 0, refused = 0;
  std::string whyRefused = {};  // what the last of these showed
};

/// Their values in `frame`.
std::vector<double> valuesOf(const std::vector<PatchedNumber>& numbers, const Frame& frame);

class NumberPatches {
 public:
  /// `found`: of captures, the first of which is `executable`, with `values`. No number is refused.
  NumberPatches(std::vector<PatchedNumber> numbers, FoundPlaces found, std::vector<double> values,
                const Executable& executable);

  /// True if replays with the values in `frame` are known to be right.
  bool hold(const Frame& frame) const;
  /// Why not, as "operand %x: …", and which; "" where some value is merely of a kind that was not
  /// captured yet.
  std::string whyNot(const Frame& frame, const Node* launch) const;
  /// Why `works`, each captured anew with `values`, are not what is written for these; "" if they are.
  std::string differs(const Executable& executable, const std::vector<double>& values,
                      const std::vector<CapturedWork>& works) const;
  /// From now on the kinds of `values` that were not known hold, or are refused: `why`, if not empty.
  void note(const std::vector<double>& values, const std::string& why);

  /// Writes the values in `frame`, where they are not written yet. Throws c10::Error where the device
  /// refuses; nothing is replayed then, and the next call writes all of it anew.
  void write(const Frame& frame, Executable& executable);

  const std::vector<PatchedNumber>& numbers() const { return numbers_; }
  /// Kernels that have a number in them.
  int64_t kernels() const { return static_cast<int64_t>(kernels_.size()); }

 private:
  struct Kernel {
    size_t node = 0;
    size_t firstPlace = 0, endPlace = 0;  // in places_
    std::vector<uint8_t> bytes;
    bool stale = false;      // `bytes` have an earlier value of some number
    bool unwritten = false;  // the device may have other bytes than `bytes`
  };

  bool holds(size_t number, double value) const;
  bool fits(size_t number, double value) const;
  void putNumbers(Kernel& kernel);
  void noteAlike();

  std::vector<PatchedNumber> numbers_;
  std::vector<NumberPlace> places_;
  std::vector<std::vector<bool>> noise_;
  std::vector<double> written_;  // by number
  std::vector<Kernel> kernels_;
  std::vector<std::vector<uint32_t>> kernelsOf_;  // by number, of kernels_
  std::vector<std::vector<NumberCast>> castsOf_;  // by number, each once
  /// By number: a value that holds for the number before it holds for it.
  std::vector<bool> likeLast_;
};

}  // namespace gravure
