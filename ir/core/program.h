#pragma once
// The program: what passes rewrite and the runtime executes. docs/program-text.md is its grammar.

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gravure {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

enum class InputRole : uint8_t {
  Unspecified,
  Parameter,
  Buffer,
  Constant,
  UserInput,
  Tangent,
  Saved,
  RngState,
  SymInt,
};

enum class OutputRole : uint8_t {
  Unspecified,
  Loss,
  Gradient,
  Saved,
  Output,
  Mutation,
  Alias,
};

/// What the caller means by one input of an entry.
struct InputInfo {
  InputRole role = InputRole::Unspecified;
  std::string name;  // qualified name; "" where the text gives none

  bool operator==(const InputInfo&) const = default;
};

/// What one output of an entry is to the caller.
struct OutputInfo {
  OutputRole role = OutputRole::Unspecified;
  std::string name;    // Gradient: the parameter; Saved and Output: their own name
  int64_t input = -1;  // Mutation and Alias: position of that input in the entry

  bool operator==(const OutputInfo&) const = default;
};

/// One callable of a program. Invariant: `inputs` and `outputs` describe the graph's inputs and
/// outputs one by one, in order.
struct Entry {
  std::string name;
  std::shared_ptr<Graph> graph;
  std::vector<InputInfo> inputs;
  std::vector<OutputInfo> outputs;
};

/// Either the one entry `step`, or `forward` and `backward`, or anything a test wants.
/// Copying a Program shares its graphs; `clone()` does not.
struct Program {
  std::vector<Entry> entries;

  /// The entry of that name, or nullptr.
  const Entry* find(std::string_view name) const;
  Entry* find(std::string_view name);

  Program clone() const;
};

/// The word of docs/program-text.md for a role ("parameter"); "" for Unspecified.
const char* roleName(InputRole role);
const char* roleName(OutputRole role);

/// True if the caller keeps such an input at one address from step to step.
bool isKeptByCaller(InputRole role);

/// "%mm_3 = aten::mm" for messages: the node's first output and its operator with its overload.
std::string describe(const Node* node);

/// The overload's name, "" for the default one.
const std::string& overloadOf(const Node* node);
void setOverload(Node* node, std::string overload);

}  // namespace gravure
