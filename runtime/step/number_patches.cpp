#include "runtime/step/number_patches.h"

#include "runtime/program/guards.h"

#include <llvm/ADT/STLExtras.h>

#include <cstring>

namespace gravure {
namespace {

bool sameBits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

uint32_t bitOf(double value) { return uint32_t{1} << kindOfValue(value); }

}  // namespace

std::vector<double> valuesOf(const std::vector<PatchedNumber>& numbers, const Frame& frame) {
  std::vector<double> values;
  values.reserve(numbers.size());
  for (const PatchedNumber& number : numbers) values.push_back(frame[number.slot].toDouble());
  return values;
}

NumberPatches::NumberPatches(std::vector<PatchedNumber> numbers, FoundPlaces found,
                             std::vector<double> values, const Executable& executable)
    : numbers_(std::move(numbers)), places_(std::move(found.places)),
      noise_(std::move(found.noise)), written_(std::move(values)), kernelsOf_(numbers_.size()),
      castsOf_(numbers_.size()) {
  for (size_t p = 0; p < places_.size(); ++p) {
    const NumberPlace& place = places_[p];
    const auto node = static_cast<size_t>(place.node);
    if (kernels_.empty() || kernels_.back().node != node)
      kernels_.push_back({node, p, p, executable.work()[node].bytes, false});
    kernels_.back().endPlace = p + 1;
    auto& kernels = kernelsOf_[place.number];
    const auto kernel = static_cast<uint32_t>(kernels_.size() - 1);
    if (kernels.empty() || kernels.back() != kernel) kernels.push_back(kernel);
    auto& casts = castsOf_[place.number];
    if (!llvm::is_contained(casts, place.cast)) casts.push_back(place.cast);
  }
  for (size_t i = 0; i < numbers_.size(); ++i) {
    numbers_[i].kinds |= bitOf(written_[i]);
    likeLast_.push_back(i > 0 && castsOf_[i] == castsOf_[i - 1]);
  }
}

bool NumberPatches::hold(const Frame& frame) const {
  // Most parameters have the same corrections: what holds for one holds for the next.
  double last = 0;
  bool known = false;
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const c10::IValue& given = frame[numbers_[i].slot];
    if (!given.isDouble()) return false;
    const double value = given.toDouble();
    const bool again = known && likeLast_[i] && sameBits(value, last) &&
                       numbers_[i].kinds == numbers_[i - 1].kinds;
    if (!again && !sameBits(value, written_[i])) {
      if (!holds(i, value)) return false;
      known = true;
    } else if (!again) {
      known = false;  // it is written, whatever its kind
    }
    last = value;
  }
  return true;
}

bool NumberPatches::fits(size_t number, double value) const {
  uint8_t bytes[8];
  return llvm::all_of(castsOf_[number],
                      [&](NumberCast cast) { return castNumber(cast, value, bytes); });
}

bool NumberPatches::holds(size_t number, double value) const {
  if (sameBits(value, written_[number])) return true;
  return (numbers_[number].kinds & bitOf(value)) != 0 && fits(number, value);
}

std::string NumberPatches::whyNot(const Frame& frame, const Node* launch) const {
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const c10::IValue& value = frame[numbers_[i].slot];
    const std::string name = "operand %" + launch->input(numbers_[i].operand)->debugName() + ": ";
    if (!value.isDouble()) return name + "expected a float, found " + describeValue(value);
    const double number = value.toDouble();
    if (holds(i, number)) continue;
    if (!fits(i, number)) return name + describeValue(value) + " does not fit into its kernels";
    if ((numbers_[i].refused & bitOf(number)) != 0)
      return name + "with " + describeValue(value) + " its kernels are others";
  }
  return "";
}

std::string NumberPatches::differs(const Executable& executable, const std::vector<double>& values,
                                   const std::vector<CapturedWork>& works) const {
  const CapturedWork& base = executable.work();
  for (const CapturedWork& work : works) {
    if (!sameStructure(base, work)) return "other kernels run";
  }
  auto noise = noise_;
  for (const CapturedWork& work : llvm::drop_begin(works)) addNoise(works.front(), work, noise);
  return differsFromPlaces(base, places_, noise, values, works.front());
}

void NumberPatches::note(const std::vector<double>& values, bool proven) {
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if ((numbers_[i].kinds & bitOf(values[i])) != 0) continue;
    (proven ? numbers_[i].kinds : numbers_[i].refused) |= bitOf(values[i]);
  }
}

void NumberPatches::write(const Frame& frame, Executable& executable) {
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const double value = frame[numbers_[i].slot].toDouble();
    if (sameBits(value, written_[i])) continue;
    written_[i] = value;
    for (const uint32_t kernel : kernelsOf_[i]) kernels_[kernel].stale = true;
  }
  for (Kernel& kernel : kernels_) {
    if (!kernel.stale) continue;
    for (size_t p = kernel.firstPlace; p < kernel.endPlace; ++p) {
      const NumberPlace& place = places_[p];
      castNumber(place.cast, written_[place.number], kernel.bytes.data() + place.offset);
    }
    executable.write(kernel.node, kernel.bytes.data());
    kernel.stale = false;
  }
}

}  // namespace gravure
