#include "ir/core/args.h"

#include "ir/core/call_attribute.h"
#include "ir/core/program.h"

#include <torch/csrc/jit/ir/ir.h>

#include <array>
#include <bit>

namespace gravure {
namespace {

bool sameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

c10::intrusive_ptr<ArgList> inputsInOrder(size_t count) {
  auto list = c10::make_intrusive<ArgList>();
  for (size_t i = 0; i < count; ++i) list->args.push_back(InputArg{static_cast<uint32_t>(i)});
  return list;
}

/// ArgLists of nodes on which none were set, one a number of inputs.
const ArgList& defaultArgs(size_t count) {
  constexpr size_t kCommon = 16;
  static const auto common = [] {
    std::array<c10::intrusive_ptr<ArgList>, kCommon> lists;
    for (size_t i = 0; i < kCommon; ++i) lists[i] = inputsInOrder(i);
    return lists;
  }();
  if (count < kCommon) return *common[count];
  // Wide nodes (cudagraph::partition of a large model) are few; keep theirs for good.
  static thread_local std::vector<c10::intrusive_ptr<ArgList>> wide;
  if (wide.size() <= count) wide.resize(count + 1);
  if (!wide[count]) wide[count] = inputsInOrder(count);
  return *wide[count];
}

}  // namespace

bool ListArg::operator==(const ListArg& other) const { return elements == other.elements; }
bool TupleArg::operator==(const TupleArg& other) const { return elements == other.elements; }

const std::vector<Arg>* Arg::elements() const {
  if (const auto* list = std::get_if<ListArg>(&value)) return &list->elements;
  if (const auto* tuple = std::get_if<TupleArg>(&value)) return &tuple->elements;
  return nullptr;
}

bool Arg::operator==(const Arg& other) const {
  if (value.index() != other.value.index()) return false;
  if (is<double>()) return sameBits(as<double>(), other.as<double>());
  if (is<c10::complex<double>>()) {
    const auto &a = as<c10::complex<double>>(), &b = other.as<c10::complex<double>>();
    return sameBits(a.real(), b.real()) && sameBits(a.imag(), b.imag());
  }
  return value == other.value;
}

bool hasArgs(const Node* node) {
  const CallAttribute* call = findCall(node);
  return call && call->args;
}

const ArgList& argsOf(const Node* node) {
  const CallAttribute* call = findCall(node);
  return call && call->args ? *call->args : defaultArgs(node->inputs().size());
}

void setArgs(Node* node, c10::intrusive_ptr<ArgList> args) { callOf(node).args = std::move(args); }

std::optional<int64_t> constantInt(const Node* node, size_t at, std::optional<int64_t> byDefault) {
  const auto& args = argsOf(node).args;
  if (at >= args.size() || args[at].is<AbsentArg>()) return byDefault;
  return args[at].is<int64_t>() ? std::optional(args[at].as<int64_t>()) : std::nullopt;
}

c10::intrusive_ptr<ArgList> inputAndInt(int64_t number) {
  auto list = inputsInOrder(1);
  list->args.emplace_back(number);
  return list;
}

void bindRngState(Node* node, Value* state) {
  const ArgList& old = argsOf(node);
  if (old.rng >= 0) {
    node->replaceInput(old.rng, state);
    return;
  }
  auto args = c10::make_intrusive<ArgList>();
  args->args = old.args;
  args->rng = static_cast<int32_t>(node->inputs().size());
  node->addInput(state);
  setArgs(node, std::move(args));
}

Value* rngStateOf(const Node* node) {
  const CallAttribute* call = findCall(node);
  if (!call || !call->args) return nullptr;
  const int32_t rng = call->args->rng;
  return rng < 0 ? nullptr : const_cast<Value*>(node->input(rng));
}

}  // namespace gravure
