#include "runtime/step/number_places.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallVector.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <optional>

namespace gravure {
namespace {

constexpr std::array kCasts = {
    NumberCast::Double,          NumberCast::NegatedDouble,
    NumberCast::InverseDouble,   NumberCast::ComplementDouble,
    NumberCast::Float,           NumberCast::NegatedFloat,
    NumberCast::InverseFloat,    NumberCast::FloatOfInverse,
    NumberCast::ComplementFloat, NumberCast::FloatOfComplement,
    NumberCast::FloatOfBFloat16, NumberCast::FloatOfHalf,
    NumberCast::Int64,           NumberCast::Int32,
    NumberCast::BFloat16,        NumberCast::Half,
};

template <typename T>
void put(T value, uint8_t* to) {
  std::memcpy(to, &value, sizeof value);
}

bool becameInfinite(double from, float to) { return std::isfinite(from) && !std::isfinite(to); }

/// Rounded to 16 bits, and `asFloat` widened again. False as castNumber().
template <typename Small>
bool putSmall(double value, bool asFloat, uint8_t* to) {
  const Small small(static_cast<float>(value));
  const auto wide = static_cast<float>(small);
  asFloat ? put(wide, to) : put(small.x, to);
  return !becameInfinite(value, wide);
}

/// The bytes of a cast as one number; nullopt where the value does not fit.
std::optional<uint64_t> bitsOf(NumberCast cast, double value) {
  uint64_t bits = 0;
  if (!castNumber(cast, value, reinterpret_cast<uint8_t*>(&bits))) return std::nullopt;
  return bits;
}

uint64_t bitsAt(const std::vector<uint8_t>& bytes, int32_t offset, int32_t width) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + offset, width);
  return bits;
}

bool sameNode(const WorkNode& a, const WorkNode& b) {
  return a.call == b.call && a.function == b.function && a.shape == b.shape &&
         a.readable == b.readable && a.bytes.size() == b.bytes.size();
}

/// A cast of a number that stands at a place of all trials.
struct Candidate {
  int32_t number;
  NumberCast cast;
};

class PlaceFinder {
 public:
  PlaceFinder(const std::vector<NumberTrial>& trials,
              const std::vector<std::vector<int32_t>>& numbersOf)
      : trials_(trials), numbersOf_(numbersOf), base_(trials.front().works.front()) {
    found_.refused.resize(trials.front().values.size());
  }

  FoundPlaces find() {
    if (!compareStructure()) return std::move(found_);
    for (const WorkNode& node : base_) found_.noise.emplace_back(node.bytes.size(), false);
    for (const NumberTrial& trial : trials_) {
      for (const CapturedWork& work : llvm::drop_begin(trial.works))
        addNoise(trial.works.front(), work, found_.noise);
    }
    for (size_t n = 0; n < base_.size(); ++n) explain(static_cast<int32_t>(n));
    for (size_t c = 0; c < numbersOf_.size(); ++c) refuseUnseen(static_cast<int32_t>(c));
    llvm::erase_if(found_.places,
                   [&](const NumberPlace& place) { return !found_.refused[place.number].empty(); });
    return std::move(found_);
  }

 private:
  llvm::ArrayRef<int32_t> numbersOf(int32_t call) const {
    const bool known = call >= 0 && static_cast<size_t>(call) < numbersOf_.size();
    return known ? llvm::ArrayRef<int32_t>(numbersOf_[call]) : llvm::ArrayRef<int32_t>();
  }

  void refuse(llvm::ArrayRef<int32_t> numbers, const std::string& why) {
    for (const int32_t number : numbers) {
      if (found_.refused[number].empty()) found_.refused[number] = why;
    }
  }
  void refuseAll(const std::string& why) {
    for (std::string& each : found_.refused) {
      if (each.empty()) each = why;
    }
  }

  /// False where two captures are not of the same work.
  bool compareStructure() {
    for (const NumberTrial& trial : trials_) {
      const bool sameValues = &trial == &trials_.front();
      for (const CapturedWork& work : trial.works) {
        const size_t both = std::min(base_.size(), work.size());
        size_t n = 0;
        while (n < both && sameNode(base_[n], work[n])) ++n;
        if (n == base_.size() && n == work.size()) continue;
        if (sameValues) {
          refuseAll("its work differs from one capture to the next");
          return false;
        }
        refuseStructure(n, work);
        return false;
      }
    }
    return true;
  }

  /// The captures differ at `node`: by a number of the call that made it, as one may have made more nodes.
  void refuseStructure(size_t node, const CapturedWork& other) {
    int32_t call = -1;
    if (node < base_.size()) call = base_[node].call;
    if (node < other.size()) call = call < 0 ? other[node].call : std::min(call, other[node].call);
    const std::string what = node < base_.size() ? base_[node].name : other[node].name;
    const auto numbers = numbersOf(call);
    const std::string why = "it decides which kernel runs, or how (" + what + ")";
    found_.structure = true;
    if (numbers.empty()) {
      refuseAll(why);
    } else {
      refuse(numbers, why);
    }
  }

  /// Bytes that differ with the numbers.
  std::vector<bool> changedBytes(int32_t n) const {
    const std::vector<uint8_t>& bytes = base_[n].bytes;
    std::vector<bool> changed(bytes.size());
    for (const NumberTrial& trial : llvm::drop_begin(trials_)) {
      const std::vector<uint8_t>& others = trial.works.front()[n].bytes;
      for (size_t i = 0; i < bytes.size(); ++i)
        if (bytes[i] != others[i] && !found_.noise[n][i]) changed[i] = true;
    }
    return changed;
  }

  void explain(int32_t n) {
    const WorkNode& node = base_[n];
    const auto numbers = numbersOf(node.call);
    if (!node.readable) {
      refuse(numbers, "the parameters of " + node.name + " cannot be read");
      return;
    }
    std::vector<bool> left = changedBytes(n);
    if (llvm::none_of(left, [](bool each) { return each; })) return;
    const size_t first = found_.places.size();
    for (const int32_t width : {8, 4, 2}) coverWith(n, width, numbers, left);
    std::sort(found_.places.begin() + static_cast<ptrdiff_t>(first), found_.places.end(),
              [](const NumberPlace& a, const NumberPlace& b) { return a.offset < b.offset; });
    const auto at = llvm::find(left, true);
    if (at != left.end()) {
      found_.undecided = true;
      const std::string why = "byte " + std::to_string(at - left.begin()) +
                              " of the parameters of " + node.name + " is no cast of it";
      numbers.empty() ? refuseAll(why + ", and its call takes no number") : refuse(numbers, why);
    } else if (!node.writable && found_.places.size() > first) {
      refuse(numbers, "the parameters of " + node.name + " cannot be written");
    }
  }

  /// Finds places of one width over what is `left`.
  void coverWith(int32_t n, int32_t width, llvm::ArrayRef<int32_t> numbers,
                 std::vector<bool>& left) {
    const std::vector<uint8_t>& bytes = base_[n].bytes;
    llvm::DenseMap<uint64_t, llvm::SmallVector<Candidate, 1>> byBits;
    if (trials_.size() < 2) return;
    const NumberTrial& second = trials_[1];
    for (const NumberCast cast : kCasts) {
      if (widthOf(cast) != width) continue;
      for (const int32_t number : numbers) {
        // DenseMap keeps the two largest keys for itself; a NaN may be one.
        if (const auto bits = bitsOf(cast, second.values[number]); bits && *bits < ~uint64_t{1})
          byBits[*bits].push_back({number, cast});
      }
    }
    for (int32_t at = 0; at + width <= static_cast<int32_t>(bytes.size()); at += width) {
      const auto begin = left.begin() + at;
      if (std::find(begin, begin + width, true) == begin + width) continue;
      if (overlaps(n, at, width)) continue;
      const uint64_t bits = bitsAt(second.works.front()[n].bytes, at, width);
      const auto found = byBits.find(bits);
      if (found == byBits.end()) continue;
      llvm::SmallVector<Candidate, 1> proven;
      for (const Candidate& each : found->second)
        if (isProven(n, at, width, each)) proven.push_back(each);
      if (proven.size() != 1)
        continue;  // none, or it cannot be told which: the bytes are left over
      found_.places.push_back({n, at, proven[0].number, proven[0].cast});
      std::fill(begin, begin + width, false);
    }
  }

  bool overlaps(int32_t n, int32_t at, int32_t width) const {
    return llvm::any_of(llvm::reverse(found_.places), [&](const NumberPlace& place) {
      return place.node == n && at < place.offset + widthOf(place.cast) &&
             place.offset < at + width;
    });
  }

  bool isProven(int32_t n, int32_t at, int32_t width, const Candidate& candidate) const {
    return llvm::all_of(trials_, [&](const NumberTrial& trial) {
      const auto bits = bitsOf(candidate.cast, trial.values[candidate.number]);
      return bits && llvm::all_of(trial.works, [&](const CapturedWork& work) {
               return bitsAt(work[n].bytes, at, width) == *bits;
             });
    });
  }

  /// A number that reaches none of its call's kernels where it can be seen.
  void refuseUnseen(int32_t call) {
    for (const int32_t number : numbersOf_[call]) {
      const bool seen = llvm::any_of(found_.places, [&](const NumberPlace& place) {
        return place.number == number && base_[place.node].call == call;
      });
      if (!seen) refuse(number, "it shows in no parameter of the kernels of its call");
    }
  }

  const std::vector<NumberTrial>& trials_;
  const std::vector<std::vector<int32_t>>& numbersOf_;
  const CapturedWork& base_;
  FoundPlaces found_;
};

}  // namespace

int32_t widthOf(NumberCast cast) {
  switch (cast) {
    case NumberCast::Double:
    case NumberCast::NegatedDouble:
    case NumberCast::InverseDouble:
    case NumberCast::ComplementDouble:
    case NumberCast::Int64: return 8;
    case NumberCast::BFloat16:
    case NumberCast::Half: return 2;
    default: return 4;
  }
}

bool castNumber(NumberCast cast, double value, uint8_t* to) {
  const auto asFloat = static_cast<float>(value);
  const bool narrow = widthOf(cast) < 8;
  switch (cast) {
    case NumberCast::Double: put(value, to); break;
    case NumberCast::NegatedDouble: put(-value, to); break;
    case NumberCast::InverseDouble: put(1.0 / value, to); break;
    case NumberCast::ComplementDouble: put(1.0 - value, to); break;
    case NumberCast::Float: put(asFloat, to); break;
    case NumberCast::NegatedFloat: put(-asFloat, to); break;
    case NumberCast::InverseFloat: put(1.0f / asFloat, to); break;
    case NumberCast::FloatOfInverse: put(static_cast<float>(1.0 / value), to); break;
    case NumberCast::ComplementFloat: put(1.0f - asFloat, to); break;
    case NumberCast::FloatOfComplement: put(static_cast<float>(1.0 - value), to); break;
    case NumberCast::FloatOfBFloat16: return putSmall<c10::BFloat16>(value, /*asFloat=*/true, to);
    case NumberCast::BFloat16: return putSmall<c10::BFloat16>(value, /*asFloat=*/false, to);
    case NumberCast::FloatOfHalf: return putSmall<c10::Half>(value, /*asFloat=*/true, to);
    case NumberCast::Half: return putSmall<c10::Half>(value, /*asFloat=*/false, to);
    case NumberCast::Int64:
    case NumberCast::Int32: {
      const double most = cast == NumberCast::Int64 ? 0x1p53 : 0x1p31;
      if (!(std::fabs(value) < most) || std::trunc(value) != value) return false;
      cast == NumberCast::Int64 ? put(static_cast<int64_t>(value), to)
                                : put(static_cast<int32_t>(value), to);
      break;
    }
  }
  return !narrow || !becameInfinite(value, asFloat);
}

FoundPlaces findPlaces(const std::vector<NumberTrial>& trials,
                       const std::vector<std::vector<int32_t>>& numbersOf) {
  return PlaceFinder(trials, numbersOf).find();
}

bool sameStructure(const CapturedWork& a, const CapturedWork& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sameNode);
}

std::string differsFromPlaces(const CapturedWork& base, const std::vector<NumberPlace>& places,
                              const std::vector<std::vector<bool>>& noise,
                              const std::vector<double>& values, const CapturedWork& work) {
  if (!sameStructure(base, work)) return "other kernels run";
  auto place = places.begin();
  for (size_t n = 0; n < base.size(); ++n) {
    std::vector<uint8_t> expected = base[n].bytes;
    for (; place != places.end() && place->node == static_cast<int32_t>(n); ++place) {
      if (!castNumber(place->cast, values[place->number], expected.data() + place->offset))
        return "a number does not fit into the parameters of " + base[n].name;
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] != work[n].bytes[i] && !noise[n][i])
        return "byte " + std::to_string(i) + " of the parameters of " + base[n].name +
               " is another one than its places say";
    }
  }
  return "";
}

void addNoise(const CapturedWork& one, const CapturedWork& other,
              std::vector<std::vector<bool>>& noise) {
  TORCH_INTERNAL_ASSERT(one.size() == noise.size() && other.size() == noise.size());
  for (size_t n = 0; n < noise.size(); ++n) {
    const auto& a = one[n].bytes;
    const auto& b = other[n].bytes;
    TORCH_INTERNAL_ASSERT(a.size() == noise[n].size() && b.size() == noise[n].size());
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i] != b[i]) noise[n][i] = true;
  }
}

namespace {

/// SplitMix64: a fixed sequence on every machine.
uint64_t mixed(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// No two casts of one width have the same bytes.
bool tellsCastsApart(double value) {
  std::array<std::optional<uint64_t>, kCasts.size()> bits;
  for (size_t i = 0; i < kCasts.size(); ++i) bits[i] = bitsOf(kCasts[i], value);
  for (size_t a = 0; a < bits.size(); ++a) {
    for (size_t b = a + 1; b < bits.size(); ++b) {
      const bool comparable = bits[a] && bits[b] && widthOf(kCasts[a]) == widthOf(kCasts[b]);
      if (comparable && *bits[a] == *bits[b]) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<double> trialValues(const std::vector<double>& values, uint64_t seed) {
  constexpr int kTries = 64;  // 1 - v is 1 for a tiny one, whatever it is
  uint64_t state = seed;
  std::vector<double> made;
  made.reserve(values.size());
  for (const double value : values) {
    double near = 0;
    for (int tries = 0; tries < kTries; ++tries) {
      const double share = static_cast<double>(mixed(state) >> 11) * 0x1p-53;  // [0, 1)
      const double magnitude = std::fabs(value);
      // Within what checks of arguments take: a probability stays one, a factor above one too.
      if (!std::isfinite(value))
        near = 0.25 + 0.5 * share;
      else if (magnitude < DBL_MIN)
        near = 0.01 + 0.04 * share;
      else if (magnitude <= 1)
        near = value * (0.5 + 0.49 * share);
      else
        near = value * (1.01 + 0.9 * share);
      if (tellsCastsApart(near)) break;
    }
    made.push_back(near);
  }
  return made;
}

int kindOfValue(double value) {
  constexpr double kApart[] = {1, 2, 3, 0.5, 0.25, 4};
  if (std::isnan(value)) return 0;
  const int sign = std::signbit(value) ? 1 : 0;
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return 2 + sign;
  if (magnitude == 0) return 4 + sign;
  int kind = 6;
  for (const double each : kApart) {
    if (magnitude == each) return kind + sign;
    kind += 2;
  }
  if (magnitude < FLT_MIN) return kind + sign;
  if (magnitude > FLT_MAX) return kind + 2 + sign;
  return kind + (magnitude < 1 ? 4 : 6) + sign;
}

}  // namespace gravure
