#pragma once
// The arguments of a node: constants stand in place, values are references to the node's inputs.
//
// A torch::jit node of ours has only real values among its inputs; an ArgList, kept in one of its
// attributes, says how they and the constants fill the parameters of the operator's schema:
//
//   %y : Tensor = aten::cat([%a, %b], 1)     inputs (%a, %b), args ([in0, in1], 1)
//
// So a graph has one node an operator call, and a clone of a node may share its ArgList.

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/complex.h>
#include <c10/util/intrusive_ptr.h>
#include <llvm/ADT/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace torch::jit {
struct Node;
struct Value;
}  // namespace torch::jit

namespace gravure {

struct Arg;

/// A parameter that takes its schema's default.
struct AbsentArg {
  bool operator==(const AbsentArg&) const = default;
};
/// Input `index` of the node.
struct InputArg {
  uint32_t index = 0;
  bool operator==(const InputArg&) const = default;
};
struct NoneArg {
  bool operator==(const NoneArg&) const = default;
};
struct ListArg {
  std::vector<Arg> elements;
  bool operator==(const ListArg&) const;
};
struct TupleArg {
  std::vector<Arg> elements;
  bool operator==(const TupleArg&) const;
};

/// One argument. Dtypes, layouts and memory formats are ints, as in boxed calls.
struct Arg {
  using Variant = std::variant<AbsentArg, InputArg, NoneArg, bool, int64_t, double, std::string,
                               c10::complex<double>, c10::Device, ListArg, TupleArg>;
  Variant value;

  Arg() = default;
  template <typename T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, Arg>)
  Arg(T&& v) : value(std::forward<T>(v)) {}

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(value);
  }
  template <typename T>
  const T& as() const {
    return std::get<T>(value);
  }
  /// The members of a list or tuple, nullptr for anything else.
  const std::vector<Arg>* elements() const;

  /// Equal in bits: nan equals the same nan, 0. differs from -0.
  bool operator==(const Arg& other) const;
};

/// The arguments of one node, in the order of its schema; trailing absent ones are left out.
/// Immutable once set on a node.
struct ArgList final : torch::CustomClassHolder {
  llvm::SmallVector<Arg, 4> args;
  int32_t rng = -1;  // input that holds the random state this node draws from, or -1

  bool operator==(const ArgList& other) const { return rng == other.rng && args == other.args; }
};

/// The arguments of `node`. A node on which none were set has its inputs in order.
const ArgList& argsOf(const torch::jit::Node* node);
void setArgs(torch::jit::Node* node, c10::intrusive_ptr<ArgList> args);
/// The int at position `at` of the arguments, `byDefault` if none is given there; nullopt for a value and
/// for a constant of another type.
std::optional<int64_t> constantInt(const torch::jit::Node* node, size_t at,
                                   std::optional<int64_t> byDefault = std::nullopt);
/// (in0, number), the arguments of a node with one input and an int behind it.
c10::intrusive_ptr<ArgList> inputAndInt(int64_t number);
/// True if setArgs was called on this node (or on the one it was cloned from).
bool hasArgs(const torch::jit::Node* node);

/// Appends `state` to the inputs of `node` and makes it the random state the node draws from.
/// Replaces the one it had.
void bindRngState(torch::jit::Node* node, torch::jit::Value* state);
/// The value bound by `rng(…)`, or nullptr.
torch::jit::Value* rngStateOf(const torch::jit::Node* node);

/// Calls `visit(InputArg)` for each input reference below `arg`, in order.
template <typename Visit>
void forEachInput(const Arg& arg, Visit&& visit) {
  if (arg.is<InputArg>()) {
    visit(arg.as<InputArg>());
  } else if (const auto* members = arg.elements()) {
    for (const Arg& member : *members) forEachInput(member, visit);
  }
}

}  // namespace gravure
