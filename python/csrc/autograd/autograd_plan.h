#pragma once
// How a program's entries `forward` and `backward` hang together in autograd's graph.

#include "ir/core/program.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// How the gradient of an output comes to a backward: as it was traced, in its memory format; never; or with
/// these strides.
struct TangentForm {
  enum class Kind : uint8_t { AsTraced, Absent, Strided };
  Kind kind = Kind::AsTraced;
  std::vector<int64_t> strides;  // of Strided, one a dimension

  /// As Python has them (given_gradients.py): -2, -1, or the number of strides and then these.
  static std::vector<TangentForm> parse(const std::vector<int64_t>& numbers);
  void append(std::vector<int64_t>& numbers) const;
  /// Whether `tangent`, which may be undefined, comes so.
  bool fits(const at::Tensor& tangent) const;
};

/// Positions are those of an entry's inputs or outputs.
struct AutogradPlan {
  using Lists = c10::Dict<std::string, c10::List<int64_t>>;

  /// One list of numbers for each member of numbers here, by its name in snake_case
  /// (docs/torch-compile.md says what falls back where this cannot be said). TORCH_CHECK for a list that
  /// does not fit the entries.
  static AutogradPlan parse(const Lists& lists, const Entry& forward, const Entry& backward);

  std::vector<int64_t> outputs;         // of the forward: what the caller is given
  std::vector<int64_t> differentiable;  // one an output: 1 if it is
  std::vector<int64_t> saved;      // outputs of the forward that the backward must find unchanged
  std::vector<int64_t> savedTo;    // one a saved value: the backward's input that it is, or -1
  std::vector<bool> ofCaller;      // likewise: whether it is the caller's, as a parameter is
  std::vector<int64_t> tangentTo;  // one a differentiable output: the same for its gradient
  std::vector<int64_t> tangentFormats;  // the memory format that its gradient was traced with
  std::vector<TangentForm> forms;       // likewise: what the backward was made for
  std::vector<int64_t> through;         // one an output, or none at all: GradientWatch::watch
  std::vector<int64_t> edges;      // inputs of the forward that have a gradient, once a term of it
  std::vector<int64_t> frozen;     // inputs of the forward that required none when traced
  std::vector<int64_t> gradients;  // one an edge: the backward's output; -1: part of an earlier sum
  std::vector<int64_t> needs;      // likewise: a bit for each tangent that it depends on; -1: any
  bool wasNondeterministic = false;  // traced without deterministic algorithms
  bool savesDependent = false;       // what is saved depends on what requires a gradient
  bool inAutocast = false;           // the backward was traced under autocast
  bool sums = false;                 // the backward adds terms: an edge has -1
  std::vector<size_t> shared;        // the first edge of each input that has several
  int64_t number = 0;                // by which Python knows the program: LoadedProgram::apart()
  int64_t graph = 0;                 // by which Python knows its graph: GradientWatch
};

}  // namespace gravure
