#include "runtime/step/number_patches.h"

#include "runtime/program/guards.h"

#include <llvm/ADT/STLExtras.h>

#include <cstring>

namespace gravure {
namespace {

bool sameBits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// True if there were other bytes.
template <size_t width>
bool put(uint8_t* at, const uint8_t* bytes) {
  const bool other = std::memcmp(at, bytes, width) != 0;
  std::memcpy(at, bytes, width);
  return other;
}

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
      kernels_.push_back({node, p, p, executable.work()[node].bytes, false, false});
    kernels_.back().endPlace = p + 1;
    auto& kernels = kernelsOf_[place.number];
    const auto kernel = static_cast<uint32_t>(kernels_.size() - 1);
    if (kernels.empty() || kernels.back() != kernel) kernels.push_back(kernel);
    auto& casts = castsOf_[place.number];
    if (!llvm::is_contained(casts, place.cast)) casts.push_back(place.cast);
  }
  for (size_t i = 0; i < numbers_.size(); ++i) numbers_[i].kinds |= bitOf(written_[i]);
  noteAlike();
}

/// Most parameters of a model have the same corrections, so what holds for one is not asked for the next.
void NumberPatches::noteAlike() {
  likeLast_.assign(numbers_.size(), false);
  for (size_t i = 1; i < numbers_.size(); ++i)
    likeLast_[i] = castsOf_[i] == castsOf_[i - 1] && numbers_[i].kinds == numbers_[i - 1].kinds;
}

bool NumberPatches::hold(const Frame& frame) const {
  double last = 0;
  bool known = false;  // `last` is of a kind that holds, for those alike
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const c10::IValue& given = frame[numbers_[i].slot];
    if (!given.isDouble()) return false;
    const double value = given.toDouble();
    known = known && likeLast_[i];
    if ((known && sameBits(value, last)) || sameBits(value, written_[i])) continue;
    if (!holds(i, value)) return false;
    last = value;
    known = true;
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
      return name + "with " + describeValue(value) +
             " its kernels are others: " + numbers_[i].whyRefused;
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

void NumberPatches::note(const std::vector<double>& values, const std::string& why) {
  for (size_t i = 0; i < numbers_.size(); ++i) {
    PatchedNumber& number = numbers_[i];
    if ((number.kinds & bitOf(values[i])) != 0) continue;
    (why.empty() ? number.kinds : number.refused) |= bitOf(values[i]);
    if (!why.empty()) number.whyRefused = why;
  }
  noteAlike();
}

/// The values of its numbers, in its bytes. What is equal and cast alike is cast once.
void NumberPatches::putNumbers(Kernel& kernel) {
  double last = 0;
  uint8_t bytes[8];
  size_t width = 0;
  const NumberPlace* before = nullptr;
  for (size_t p = kernel.firstPlace; p < kernel.endPlace; ++p) {
    const NumberPlace& place = places_[p];
    const double value = written_[place.number];
    if (!before || before->cast != place.cast || !sameBits(value, last)) {
      castNumber(place.cast, value, bytes);
      width = static_cast<size_t>(widthOf(place.cast));
      last = value;
      before = &place;
    }
    uint8_t* const at = kernel.bytes.data() + place.offset;
    const bool other = width == 4   ? put<4>(at, bytes)
                       : width == 8 ? put<8>(at, bytes)
                                    : put<2>(at, bytes);
    kernel.unwritten |= other;
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
    putNumbers(kernel);
    if (kernel.unwritten) executable.write(kernel.node, kernel.bytes.data());
    kernel.stale = kernel.unwritten = false;
  }
}

}  // namespace gravure
