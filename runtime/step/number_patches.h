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
  size_t operand = 0;    // of the launch
  uint32_t kinds = 0;    // bit kindOfValue(v): such values were captured, and were what is written
  uint32_t refused = 0;  // … and were not
};

/// Their values in `frame`.
std::vector<double> valuesOf(const std::vector<PatchedNumber>& numbers, const Frame& frame);

class NumberPatches {
 public:
  /// `found` of captures of `executable`, the first of which had `values`. Nothing in it is refused.
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
  /// From now on the kinds of `values` that were not known hold, or are refused.
  void note(const std::vector<double>& values, bool proven);

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
    bool stale = false;      // a number of it is another one
    bool unwritten = false;  // the device may have other bytes
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
  std::vector<bool> likeLast_;  // by number: what holds for the one before holds for it
};

}  // namespace gravure
