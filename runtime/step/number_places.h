#pragma once
// Where the numbers that a partition takes lie in the parameters of its captured work.
//
// The same calls are captured several times, with the same numbers and with others. Bytes that differ
// while no number does are noise: a struct's padding, the unset end of a table. Every other byte that
// differs must belong to a place: one number, cast as the operator casts it. Where that holds for all
// captures, the work of any values is the first capture's with the places written anew.
//
// Nothing here knows a device: see runtime/device/captured_work.h.

#include "runtime/device/captured_work.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// What an operator makes of a double before its kernel gets it.
enum class NumberCast : uint8_t {
  Double,
  NegatedDouble,
  InverseDouble,     // 1 / v
  ComplementDouble,  // 1 - v
  Float,
  NegatedFloat,
  InverseFloat,       // 1 / float(v)
  FloatOfInverse,     // float(1 / v)
  ComplementFloat,    // 1 - float(v)
  FloatOfComplement,  // float(1 - v)
  FloatOfBFloat16,    // float(bfloat16(v))
  FloatOfHalf,        // float(half(v))
  Int64,
  Int32,
  BFloat16,
  Half,
};

/// In bytes; a place lies at a multiple of it.
int32_t widthOf(NumberCast cast);
/// Writes widthOf(cast) bytes. False where the value does not fit, so that an operator would refuse it or
/// do something else: a finite one becomes infinite, or is no whole number.
bool castNumber(NumberCast cast, double value, uint8_t* to);

/// `number` stands in the bytes of `node`, from `offset` on.
struct NumberPlace {
  int32_t node = 0, offset = 0, number = 0;
  NumberCast cast = NumberCast::Double;

  bool operator==(const NumberPlace&) const = default;
};

/// Captures with the same values of all numbers.
struct NumberTrial {
  std::vector<double> values;       // by number
  std::vector<CapturedWork> works;  // at least one
};

/// What was found out about the numbers of a partition.
struct FoundPlaces {
  std::vector<NumberPlace> places;   // by node, then by offset
  std::vector<std::string> refused;  // by number: why it cannot be written; "" if it can
  /// One of the refused ones decides which work there is, so that captures cannot be compared while it
  /// varies: they must be made anew, with its value kept.
  bool structure = false;
  /// Bytes are left over that no number explains. More captures with the same values may show that they
  /// are noise.
  bool undecided = false;
  std::vector<std::vector<bool>> noise;  // by node and byte
};

/// `trials[0].works[0]` is what will be run. `numbersOf`: by call, the numbers that it takes.
FoundPlaces findPlaces(const std::vector<NumberTrial>& trials,
                       const std::vector<std::vector<int32_t>>& numbersOf);

/// Why `work`, captured with `values`, is not `base` with the places written; "" if it is.
/// `noise` as in FoundPlaces.
std::string differsFromPlaces(const CapturedWork& base, const std::vector<NumberPlace>& places,
                              const std::vector<std::vector<bool>>& noise,
                              const std::vector<double>& values, const CapturedWork& work);
/// True if they differ in bytes alone.
bool sameStructure(const CapturedWork& a, const CapturedWork& b);
/// Adds to `noise` what differs between two captures with the same values and the same structure.
void addNoise(const CapturedWork& one, const CapturedWork& other,
              std::vector<std::vector<bool>>& noise);

/// Values near `values` for a trial: each apart from all others, and such that no two casts of one give
/// the same bytes. Signs and sides of one stay. `seed`: another one gives others.
std::vector<double> trialValues(const std::vector<double>& values, uint64_t seed);

/// Kinds of values that operators treat apart, as they choose a kernel: 0, 1, 2, infinities, and what
/// lies between. A number from 0 to 31.
int kindOfValue(double value);

}  // namespace gravure
