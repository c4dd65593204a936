#pragma once
// Programs of several sizes, whose arenas share the pages of the host device.
#include "tests/unit/law_fixture.h"

namespace gravure {

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// kForwardBackward on `rows` rows: 16 bytes of each saved value a row.
inline std::string forwardBackward(int64_t rows) {
  const std::string r = std::to_string(rows);
  std::string text = replaced(kForwardBackward, "(8, 4,", "(" + r + ", 4,");
  text = replaced(text, "[8, 4]", "[" + r + ", 4]");
  return replaced(text, "(4, 8,", "(4, " + r + ",");
}

/// kTrainingStep on `rows` rows.
inline std::string trainingStep(int64_t rows) {
  const std::string r = std::to_string(rows);
  std::string text = replaced(kTrainingStep, "(16, ", "(" + r + ", ");
  return replaced(text, "(8, 16,", "(8, " + r + ",");
}

/// A forward and its backward on `rows` rows, of which what was saved is dropped as training drops it.
struct SavingPair : ForwardBackward {
  explicit SavingPair(int64_t rows, RuntimeOptions options = {})
      : ForwardBackward(forwardBackward(rows), rows, std::move(options)) {}

  using Saved = Values;
  /// The gradient.
  at::Tensor backward(Saved saved) {
    CHECK(sameBits(saved.got, saved.expected));
    const at::Tensor expected =
        reference->run("backward", backwardInputs(saved.expected))[0].toTensor();
    auto inputs = backwardInputs(saved.got);
    saved.got.clear();
    const at::Tensor got = runtime->run("backward", std::move(inputs))[0].toTensor();
    CHECK(sameBits(got, expected));
    return got;
  }
};

}  // namespace gravure
