#pragma once
// Random entries for the tests of partitioning, and a symbolic run that tells two of them apart.

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/program.h"
#include "ir/facts/op_facts.h"
#include "passes/analysis/dependences.h"
#include "tests/catch.h"

#include <functional>
#include <map>
#include <random>
#include <unordered_map>

namespace gravure::test {

/// Builds one entry statement by statement.
class EntryBuilder {
 public:
  EntryBuilder() { program.entries.push_back({"step", std::make_shared<Graph>(), {}, {}}); }
  Entry& entry() { return program.entries.front(); }
  Graph& graph() { return *entry().graph; }

  static c10::TypePtr tensorType(c10::ScalarType dtype = c10::kFloat) {
    return c10::TensorType::createContiguous(dtype, c10::Device(c10::kCUDA, 0), {4});
  }
  Value* input(InputRole role, const std::string& name) {
    Value* value = graph().addInput();
    value->setType(tensorType());
    value->setDebugName(name);
    entry().inputs.push_back({role, name});
    return value;
  }
  /// One statement with its operands in order; numbers among `args` stand for themselves.
  Node* add(const std::string& op, const std::string& overload, std::vector<Arg> args,
            const std::vector<Value*>& inputs, const std::vector<c10::TypePtr>& types) {
    Node* node = graph().create(c10::Symbol::fromQualString(op), inputs, types.size());
    auto list = c10::make_intrusive<ArgList>();
    for (Arg& arg : args) list->args.push_back(std::move(arg));
    setArgs(node, std::move(list));
    setOverload(node, overload);
    for (size_t i = 0; i < types.size(); ++i) {
      node->output(i)->setType(types[i]);
      node->output(i)->setDebugName("v" + std::to_string(count_++));
    }
    graph().insertNode(node);
    return node;
  }
  void output(Value* value) {
    graph().registerOutput(value);
    entry().outputs.push_back({OutputRole::Output, "", -1});
  }

  Program program;

 private:
  int count_ = 0;
};

struct RandomShape {
  int nodes = 8;
  bool mutation = true;  // in-place writes, to inputs too
  bool writeInputs = true;
  bool random = true;
  bool collectives = true;
  double host = 0.25;  // share of nodes on the host
  int inputs = 3;
};

inline Arg in(uint32_t index) { return InputArg{index}; }

/// A random entry; every statement is one that PyTorch knows.
inline Program randomProgram(std::mt19937& rng, const RandomShape& shape) {
  EntryBuilder b;
  std::vector<Value*> tensors, writable, numbers;
  for (int i = 0; i < shape.inputs; ++i) {
    tensors.push_back(
        b.input(i == 0 ? InputRole::UserInput : InputRole::Buffer, "in" + std::to_string(i)));
    if (shape.writeInputs && i > 0) writable.push_back(tensors.back());
  }
  const auto pick = [&](const std::vector<Value*>& from) {
    // Mostly recent values, as in a real program.
    const size_t reach = std::min<size_t>(from.size(), rng() % 4 == 0 ? from.size() : 5);
    return from[from.size() - 1 - rng() % reach];
  };
  const auto chance = [&](double p) { return std::uniform_real_distribution<>(0, 1)(rng) < p; };
  const auto tensor = EntryBuilder::tensorType();
  const auto number = c10::FloatType::get();
  const auto scalar =
      c10::TensorType::createContiguous(c10::kFloat, c10::Device(c10::kCUDA, 0), {});
  /// A number read from `from`: of its sum, or of one of its elements.
  const auto readNumber = [&](Value* from) {
    Node* one = chance(0.3)
                    ? b.add("aten::sum", "", {in(0)}, {from}, {scalar})
                    : b.add("aten::select", "int",
                            {in(0), int64_t{0}, static_cast<int64_t>(rng() % 4)}, {from}, {scalar});
    numbers.push_back(
        b.add("aten::_local_scalar_dense", "", {in(0)}, {one->output(0)}, {number})->output(0));
  };
  const auto fresh = [&](Node* node) {
    tensors.push_back(node->output(0));
    writable.push_back(node->output(0));
  };
  for (int n = 0; n < shape.nodes; ++n) {
    if (chance(shape.host)) {
      if (!numbers.empty() && chance(0.4)) {
        fresh(
            b.add("aten::mul", "Scalar", {in(0), in(1)}, {pick(tensors), pick(numbers)}, {tensor}));
      } else if (!numbers.empty() && chance(0.3)) {
        numbers.push_back(b.add("aten::mul", "float", {in(0), in(1)},
                                {pick(numbers), pick(numbers)}, {c10::FloatType::get()})
                              ->output(0));
      } else {
        readNumber(pick(tensors));
      }
    } else if (shape.mutation && !writable.empty() && chance(0.2)) {
      tensors.push_back(
          b.add("aten::add_", "Tensor", {in(0), in(1)}, {pick(writable), pick(tensors)}, {tensor})
              ->output(0));
    } else if (shape.mutation && chance(0.2)) {
      const bool isWritable = !writable.empty() && chance(0.5);
      tensors.push_back(
          b.add("aten::alias", "", {in(0)}, {pick(isWritable ? writable : tensors)}, {tensor})
              ->output(0));
      if (isWritable) writable.push_back(tensors.back());
    } else if (shape.random && chance(0.15)) {
      fresh(b.add("aten::bernoulli", "p", {in(0), 0.5}, {pick(tensors)}, {tensor}));
    } else if (shape.collectives && chance(0.1)) {
      const bool writes = shape.mutation && !writable.empty() && chance(0.3);
      const char* reduce =
          writes ? "_c10d_functional::all_reduce_" : "_c10d_functional::all_reduce";
      Value* started = b.add(reduce, "", {in(0), std::string("sum"), std::string("0")},
                             {pick(writes ? writable : tensors)}, {tensor})
                           ->output(0);
      const uint64_t kind = rng() % 8;
      if (kind == 0) {  // a member is a host node
        readNumber(started);
      } else if (kind == 1) {  // a host node stands between two members
        Value* early = b.add("aten::relu", "", {in(0)}, {started}, {tensor})->output(0);
        readNumber(early);
        Value* late =
            b.add("aten::mul", "Scalar", {in(0), in(1)}, {pick(tensors), numbers.back()}, {tensor})
                ->output(0);
        b.add("aten::add_", "Tensor", {in(0), in(1)}, {started, late}, {tensor});
      }
      // Something in between, so that the wait need not come next.
      if (chance(0.7)) fresh(b.add("aten::relu", "", {in(0)}, {pick(tensors)}, {tensor}));
      if (chance(0.3)) {
        readNumber(pick(tensors));
      }
      tensors.push_back(
          b.add("_c10d_functional::wait_tensor", "", {in(0)}, {started}, {tensor})->output(0));
    } else {
      fresh(b.add("aten::add", "Tensor", {in(0), in(1)}, {pick(tensors), pick(tensors)}, {tensor}));
    }
  }
  const int results = 1 + static_cast<int>(rng() % 3);
  for (int i = 0; i < results; ++i) b.output(pick(tensors));
  return std::move(b.program);
}

/// Runs an entry on symbols: the data of a storage is the term of what was last written to it, a
/// generator, the collectives and the effects are terms that each user extends. A collective reads its
/// operand and writes its result twice, when it is started and at its wait: what happens to either in
/// between shows. Two orders of one program give the same terms exactly if each node sees the same data
/// in both.
class SymbolicRun {
 public:
  explicit SymbolicRun(const Entry& entry) : entry_(entry) {
    for (size_t i = 0; i < entry.graph->inputs().size(); ++i) {
      bind(entry.graph->inputs()[i], mix(1000 + i));
    }
    for (const Node* node : entry.graph->nodes()) run(node);
  }
  /// Terms of the results, of the final data of the inputs, and of the chains.
  std::vector<uint64_t> outcome() const {
    std::vector<uint64_t> terms;
    for (const Value* result : entry_.graph->outputs()) terms.push_back(dataOf(result));
    for (const Value* input : entry_.graph->inputs()) terms.push_back(dataOf(input));
    for (const auto& [key, chain] : chains_)
      terms.push_back(mix(std::hash<std::string>()(key), chain));
    return terms;
  }

 private:
  static uint64_t mix(uint64_t a, uint64_t b = 0x9e3779b97f4a7c15ull) {
    a ^= b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2);
    a ^= a >> 33;
    a *= 0xff51afd7ed558ccdull;
    return a ^ (a >> 29);
  }
  void bind(const Value* value, uint64_t data) {
    cell_[value] = data_.size();
    data_.push_back(data);
  }
  uint64_t dataOf(const Value* value) const {
    REQUIRE(cell_.count(value) == 1);
    return data_[cell_.at(value)];
  }

  void run(const Node* node) {
    if (isPartition(node)) {
      const Block* block = node->blocks().front();
      for (size_t i = 0; i < node->inputs().size(); ++i)
        cell_[block->inputs()[i]] = cell_.at(node->input(i));
      for (const Node* inner : block->nodes()) run(inner);
      for (size_t o = 0; o < node->outputs().size(); ++o) {
        cell_[node->output(o)] = cell_.at(block->outputs()[o]);
        element_[node->output(o)] = element_[block->outputs()[o]];
      }
      return;
    }
    uint64_t term =
        mix(std::hash<std::string>()(std::string(node->kind().toQualString()) + overloadOf(node)));
    for (const Value* input : node->inputs()) term = mix(term, dataOf(input));
    if (node->kind() == c10::Symbol::fromQualString("aten::select")) {
      element_[node->output(0)] = static_cast<size_t>(argsOf(node).args[2].as<int64_t>());
    }
    if (node->kind() == c10::Symbol::fromQualString("aten::_local_scalar_dense")) {
      bind(node->output(0), elementTerm(node->input(0), element_[node->input(0)]));
      return;
    }
    const OpFacts& facts = factsOf(node);
    if (facts.random) term = extend("random", term);
    if (facts.collective) term = extend("collective", term);
    if (facts.effects) term = extend("effect", term);
    for (const Value* written : writtenInputs(node)) data_[cell_.at(written)] = term;
    if (facts.wait) finish(cell_.at(node->input(0)));
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      const auto sources = aliasedInputs(node, o);
      if (sources.empty()) {
        bind(node->output(o), mix(term, o));
      } else {
        cell_[node->output(o)] = cell_.at(sources.front());
      }
    }
    if (facts.collective) started_.push_back({cell_.at(node->input(0)), cell_.at(node->output(0))});
  }
  /// Ends the collectives that write `result`, in the order of their starts.
  void finish(size_t result) {
    for (Started& each : started_) {
      if (each.over || each.result != result) continue;
      data_[result] = mix(data_[result], data_[each.operand]);
      each.over = true;
    }
  }
  uint64_t elementTerm(const Value* tensor, size_t element) const {
    return mix(dataOf(tensor), 77 + element);
  }
  void readElements(const Node* node) {
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      bind(node->output(o), elementTerm(node->input(0), o));
    }
  }
  uint64_t extend(const char* chain, uint64_t term) {
    return chains_[chain] = mix(chains_[chain], term);
  }

  struct Started {
    size_t operand, result;  // cells
    bool over = false;
  };

  const Entry& entry_;
  std::unordered_map<const Value*, size_t> cell_;
  std::unordered_map<const Value*, size_t> element_;  // of values that are one element of a tensor
  std::vector<uint64_t> data_;
  std::map<std::string, uint64_t> chains_;
  std::vector<Started> started_;
};

}  // namespace gravure::test
