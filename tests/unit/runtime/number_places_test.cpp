// Where numbers lie in made-up parameter blocks, and what is refused.
#include "runtime/step/number_places.h"

#include <c10/util/BFloat16.h>
#include <llvm/ADT/STLExtras.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

using namespace gravure;

namespace {

/// Writes the parameters of a kernel for these numbers; `capture` counts captures.
using Fill = std::function<void(std::vector<uint8_t>&, const std::vector<double>&, int capture)>;

template <typename T>
void put(std::vector<uint8_t>& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// One call with one kernel of 32 bytes that takes all numbers.
struct Block {
  std::vector<double> numbers;
  Fill fill;
  std::function<void(WorkNode&, const std::vector<double>&)> shape = [](auto&, const auto&) {};
  int captures = 0;

  CapturedWork capture(const std::vector<double>& values) {
    WorkNode node;
    node.call = 0;
    node.name = "kernel";
    node.bytes.resize(32);
    fill(node.bytes, values, captures++);
    shape(node, values);
    return {node};
  }

  std::vector<std::vector<int32_t>> numbersOf() const {
    std::vector<int32_t> all;
    for (size_t i = 0; i < numbers.size(); ++i) all.push_back(static_cast<int32_t>(i));
    return {all};
  }

  std::vector<NumberTrial> trials() {
    std::vector<NumberTrial> made{{numbers, {}}};
    for (uint64_t seed = 1; seed <= 3; ++seed) made.push_back({trialValues(numbers, seed), {}});
    for (NumberTrial& trial : made) {
      for (int twice = 0; twice < 2; ++twice) trial.works.push_back(capture(trial.values));
    }
    return made;
  }

  FoundPlaces find() { return findPlaces(trials(), numbersOf()); }

  /// What is captured with `values`, and what the places say of it.
  std::string predict(const std::vector<double>& values) {
    const auto all = trials();
    const FoundPlaces found = findPlaces(all, numbersOf());
    return differsFromPlaces(all[0].works[0], found.places, found.noise, values, capture(values));
  }
};

bool anyRefused(const FoundPlaces& found) {
  return llvm::any_of(found.refused, [](const std::string& why) { return !why.empty(); });
}

}  // namespace

TEST_CASE("law 3: a number is found as the cast that its operator makes", "[law3]") {
  const std::pair<NumberCast, std::function<void(std::vector<uint8_t>&, double)>> casts[] = {
      {NumberCast::Double, [](auto& b, double v) { put(b, 8, v); }},
      {NumberCast::NegatedDouble, [](auto& b, double v) { put(b, 8, -v); }},
      {NumberCast::InverseDouble, [](auto& b, double v) { put(b, 8, 1 / v); }},
      {NumberCast::ComplementDouble, [](auto& b, double v) { put(b, 8, 1 - v); }},
      {NumberCast::Float, [](auto& b, double v) { put(b, 8, static_cast<float>(v)); }},
      {NumberCast::NegatedFloat, [](auto& b, double v) { put(b, 8, -static_cast<float>(v)); }},
      {NumberCast::InverseFloat,
       [](auto& b, double v) { put(b, 8, 1.0f / static_cast<float>(v)); }},
      {NumberCast::FloatOfInverse, [](auto& b, double v) { put(b, 8, static_cast<float>(1 / v)); }},
      {NumberCast::ComplementFloat,
       [](auto& b, double v) { put(b, 8, 1 - static_cast<float>(v)); }},
      {NumberCast::FloatOfComplement,
       [](auto& b, double v) { put(b, 8, static_cast<float>(1 - v)); }},
      {NumberCast::FloatOfBFloat16,
       [](auto& b, double v) { put(b, 8, static_cast<float>(c10::BFloat16(v))); }},
      {NumberCast::BFloat16,
       [](auto& b, double v) {
         put(b, 8, uint16_t{0x1234});  // a neighbour: no float stands here
         put(b, 10, c10::BFloat16(v).x);
       }},
  };
  for (const auto& [cast, write] : casts) {
    for (const double value : {0.37, 1.91, 1e-3, 7.0, 0.9}) {
      CAPTURE(static_cast<int>(cast), value);
      // Of a small number, 1 - float(v) and float(1 - v) are next to never two values.
      const bool complement =
          cast == NumberCast::ComplementFloat || cast == NumberCast::FloatOfComplement;
      if (complement && value < 0.1) continue;
      Block block{{value}, [&](auto& bytes, const auto& values, int) { write(bytes, values[0]); }};
      const FoundPlaces found = block.find();
      CHECK_FALSE(anyRefused(found));
      REQUIRE(found.places.size() == 1);
      CHECK(found.places[0].cast == cast);
      for (const double other : {0.683, 2.5, 1e-8, 0.0, -3.0}) {
        CAPTURE(other);
        CHECK(block.predict({other}) == "");
      }
    }
  }
}

TEST_CASE("law 3: equal numbers are told apart", "[law3]") {
  Block block{{0.5, 0.5, 0.5}, [](auto& bytes, const auto& values, int) {
                for (size_t i = 0; i < 3; ++i) put(bytes, 4 * i, static_cast<float>(values[2 - i]));
              }};
  const FoundPlaces found = block.find();
  REQUIRE(found.places.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(found.places[i].number == 2 - i);
}

TEST_CASE("law 3: what was never set is no place, and no obstacle", "[law3]") {
  Block block{{0.5}, [](auto& bytes, const auto& values, int capture) {
                put(bytes, 0, static_cast<float>(values[0]));
                put(bytes, 4, capture * 0x01020304);
                put(bytes, 16, std::sin(capture));
              }};
  const FoundPlaces found = block.find();
  CHECK_FALSE(anyRefused(found));
  CHECK(found.places.size() == 1);
  CHECK(found.noise[0][4]);
  CHECK_FALSE(found.noise[0][0]);
}

TEST_CASE("law 3: a number that is computed before the kernel gets it is refused", "[law3]") {
  const std::function<double(double)> functions[] = {
      [](double v) { return v * v; },
      [](double v) { return std::sqrt(v); },
      [](double v) { return v + 2; },
      [](double v) { return std::nextafter(v, 10.0); },
      [](double v) { return std::nextafter(static_cast<float>(v), 10.0f); },
  };
  for (const auto& function : functions) {
    Block block{{0.37}, [&](auto& bytes, const auto& values, int) {
                  put(bytes, 0, static_cast<float>(values[0]));  // it shows elsewhere, too
                  put(bytes, 8, function(values[0]));
                }};
    const FoundPlaces found = block.find();
    CHECK(found.places.empty());
    CHECK_THAT(found.refused[0], Catch::Contains("is no cast of it"));
    CHECK(found.undecided);
  }
}

TEST_CASE("law 3: what hides behind noise of its neighbour is refused", "[law3]") {
  // Four bytes of padding vary; the float in front of them is computed of the number.
  Block block{{0.37}, [](auto& bytes, const auto& values, int capture) {
                put(bytes, 16, static_cast<float>(values[0]));
                put(bytes, 0, static_cast<float>(values[0] * 3));
                put(bytes, 4, capture * 0x01020304);
              }};
  CHECK(anyRefused(block.find()));
}

TEST_CASE("law 3: a number that shows nowhere is refused", "[law3]") {
  Block block{{0.37, 0.9}, [](auto& bytes, const auto& values, int) {
                put(bytes, 0, static_cast<float>(values[0]));
              }};
  const FoundPlaces found = block.find();
  CHECK(found.refused[0] == "");
  CHECK_THAT(found.refused[1], Catch::Contains("shows in no parameter"));
  REQUIRE(found.places.size() == 1);
  CHECK(found.places[0].number == 0);
}

TEST_CASE("law 3: a kernel whose parameters cannot be read refuses its numbers", "[law3]") {
  Block block{{0.37}, [](auto&, const auto&, int) {}};
  block.shape = [](WorkNode& node, const auto&) {
    node.readable = false;
    node.bytes.clear();
  };
  CHECK_THAT(block.find().refused[0], Catch::Contains("cannot be read"));
}

TEST_CASE("law 3: a number that stands where nothing can be written is refused", "[law3]") {
  Block block{{0.37}, [](auto& bytes, const auto& values, int) { put(bytes, 0, values[0]); }};
  block.shape = [](WorkNode& node, const auto&) { node.writable = false; };
  CHECK_THAT(block.find().refused[0], Catch::Contains("cannot be written"));
}

TEST_CASE("law 3: a number that chooses the kernel, or its grid, is structure", "[law3]") {
  static const int one = 0, other = 0;
  for (const bool function : {true, false}) {
    Block block{{2.0}, [](auto& bytes, const auto& values, int) { put(bytes, 0, values[0]); }};
    block.shape = [&](WorkNode& node, const auto& values) {
      if (function)
        node.function = values[0] == 2 ? &one : &other;
      else
        node.shape[0] = values[0] == 2 ? 1 : 7;
    };
    const FoundPlaces found = block.find();
    CHECK(found.structure);
    CHECK_THAT(found.refused[0], Catch::Contains("decides which kernel runs"));
  }
}

TEST_CASE("law 3: another number of kernels is structure of the call that made them", "[law3]") {
  const auto work = [](double value, int first) {
    CapturedWork all;
    for (int i = 0; i < first; ++i) all.push_back({0, nullptr, {}, "first", {}, true, true});
    WorkNode second{1, nullptr, {}, "second", std::vector<uint8_t>(8), true, true};
    std::memcpy(second.bytes.data(), &value, 8);
    all.push_back(second);
    return all;
  };
  const std::vector<NumberTrial> trials = {{{0.0, 0.3}, {work(0.3, 1), work(0.3, 1)}},
                                           {{0.1, 0.4}, {work(0.4, 2)}}};
  const FoundPlaces found = findPlaces(trials, {{0}, {1}});
  CHECK(found.structure);
  CHECK(found.refused[0] != "");
  CHECK(found.refused[1] == "");
}

TEST_CASE("law 3: work that reads no number and differs with one refuses all of them", "[law3]") {
  const auto work = [](double value) {
    CapturedWork all;
    for (const int call : {0, 1}) {
      WorkNode node{call, nullptr, {}, "kernel", std::vector<uint8_t>(8), true, true};
      std::memcpy(node.bytes.data(), &value, 8);
      all.push_back(node);
    }
    return all;
  };
  const std::vector<NumberTrial> trials = {{{0.3}, {work(0.3), work(0.3)}}, {{0.2}, {work(0.2)}}};
  CHECK(anyRefused(findPlaces(trials, {{0}, {}})));
}

TEST_CASE("law 3: captures of one set of numbers that differ in structure refuse all", "[law3]") {
  int captures = 0;
  Block block{{0.3}, [](auto& bytes, const auto& values, int) { put(bytes, 0, values[0]); }};
  block.shape = [&](WorkNode& node, const auto&) { node.shape[0] = captures++; };
  const FoundPlaces found = block.find();
  CHECK(anyRefused(found));
  CHECK_FALSE(found.structure);
}

TEST_CASE("law 3: damaged places are told from the work that they claim to say", "[law3]") {
  Block block{{0.37, 0.6}, [](auto& bytes, const auto& values, int capture) {
                put(bytes, 0, static_cast<float>(values[0]));
                put(bytes, 4, capture);
                put(bytes, 8, values[1]);
              }};
  const auto trials = block.trials();
  const FoundPlaces found = findPlaces(trials, block.numbersOf());
  REQUIRE(found.places.size() == 2);
  const std::vector<double> values = {0.71, 0.2};
  const CapturedWork work = block.capture(values), &base = trials[0].works[0];
  const auto differs = [&](std::vector<NumberPlace> places) {
    return !differsFromPlaces(base, places, found.noise, values, work).empty();
  };
  CHECK_FALSE(differs(found.places));
  CHECK(differs({}));
  CHECK(differs({found.places[0]}));
  for (size_t p = 0; p < 2; ++p) {
    std::vector<NumberPlace> damaged = found.places;
    damaged[p].number = 1 - damaged[p].number;
    CHECK(differs(damaged));
    damaged = found.places;
    damaged[p].offset += 8;
    CHECK(differs(damaged));
    damaged = found.places;
    damaged[p].cast = NumberCast::NegatedFloat;
    CHECK(differs(damaged));
  }
  CapturedWork other = work;
  other[0].bytes[31] ^= 1;  // no noise
  CHECK_FALSE(differsFromPlaces(base, found.places, found.noise, values, other).empty());
  other.pop_back();
  CHECK_FALSE(differsFromPlaces(base, found.places, found.noise, values, other).empty());
}

TEST_CASE("law 3: a value that no kernel of its kind would take does not fit", "[law3]") {
  uint8_t bytes[8];
  const double infinite = std::numeric_limits<double>::infinity();
  CHECK(castNumber(NumberCast::Double, 1e300, bytes));
  CHECK_FALSE(castNumber(NumberCast::Float, 1e300, bytes));
  CHECK(castNumber(NumberCast::Float, infinite, bytes));
  CHECK_FALSE(castNumber(NumberCast::Half, 1e5, bytes));
  CHECK(castNumber(NumberCast::BFloat16, 1e5, bytes));
  CHECK_FALSE(castNumber(NumberCast::Int64, 0.5, bytes));
  CHECK(castNumber(NumberCast::Int32, -7, bytes));
  CHECK_FALSE(castNumber(NumberCast::Int32, 3e9, bytes));
}

TEST_CASE("law 3: values that operators treat apart are of kinds of their own", "[law3]") {
  const double infinite = std::numeric_limits<double>::infinity();
  const double apart[] = {0.0,  -0.0,  1,    -1,       2,         -2,
                          3,    0.5,   -0.5, infinite, -infinite, std::nan(""),
                          0.37, -0.37, 7.5,  -7.5,     1e-40,     1e300};
  for (const double& a : apart) {
    for (const double& b : apart) {
      if (&a != &b) CHECK(kindOfValue(a) != kindOfValue(b));
    }
    CHECK(kindOfValue(a) < 32);
  }
  CHECK(kindOfValue(0.01) == kindOfValue(0.97));
  for (const double value : {0.37, -0.2, 1e-8, 12.0, -3.5}) {
    for (uint64_t seed = 1; seed < 20; ++seed)
      CHECK(kindOfValue(trialValues({value}, seed)[0]) == kindOfValue(value));
  }
}
