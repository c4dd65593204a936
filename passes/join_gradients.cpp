#include "passes/join_gradients.h"

#include "ir/core/args.h"
#include "ir/core/fresh_name.h"
#include "ir/core/location.h"
#include "ir/facts/value_types.h"
#include "ir/memory/entry_memory.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {
namespace {

constexpr const char* kPass = "join-gradients";

const c10::Symbol kSelectBackward = c10::Symbol::fromQualString("aten::select_backward");
const c10::Symbol kSliceBackward = c10::Symbol::fromQualString("aten::slice_backward");
const c10::Symbol kAdd = c10::Symbol::fromQualString("aten::add");
const c10::Symbol kStack = c10::Symbol::fromQualString("aten::stack");
const c10::Symbol kCat = c10::Symbol::fromQualString("aten::cat");

/// One placed gradient: its elements of dimension `dim` from `begin` to `end`.
struct Part {
  Node* node = nullptr;
  int64_t dim = 0, begin = 0, end = 0;
};

/// Gradients that a value is the sum of.
struct Sum {
  std::vector<Part> parts;
  std::vector<Node*> adds;
};

/// True for a contiguous tensor of floats of known size.
bool isWhole(const Value* value) {
  const auto* type = tensorTypeOf(value);
  if (!type || !type->scalarType() || !c10::isFloatingType(*type->scalarType())) return false;
  const auto sizes = type->sizes().concrete_sizes(), strides = type->strides().concrete_sizes();
  return sizes && strides && *strides == c10::TensorType::contiguousStridesOf(*sizes);
}

/// The part that a placed gradient fills; nullopt for all other nodes.
std::optional<Part> partOf(Node* node) {
  const bool selects = node->kind() == kSelectBackward;
  if (!selects && node->kind() != kSliceBackward) return std::nullopt;
  if (node->inputs().size() != 1 || !isWhole(node->output())) return std::nullopt;
  const auto sizes = tensorTypeOf(node->output())->sizes().concrete_sizes();
  const auto dims = static_cast<int64_t>(sizes->size());
  auto dim = constantInt(node, 2), begin = constantInt(node, 3);
  if (!dim || !begin || *dim < -dims || *dim >= dims) return std::nullopt;
  if (*dim < 0) *dim += dims;
  const int64_t size = (*sizes)[*dim];
  if (*begin < 0) *begin += size;
  auto end = selects ? std::optional(*begin + 1) : constantInt(node, 4);
  if (!end || (!selects && constantInt(node, 5) != int64_t{1})) return std::nullopt;
  if (!selects && *end < 0) *end += size;
  end = std::min(*end, size);
  if (*begin < 0 || *begin >= *end) return std::nullopt;
  return Part{node, *dim, *begin, *end};
}

class SumFinder {
 public:
  explicit SumFinder(std::shared_ptr<const EntryMemory> memory)
      : memory_(std::move(memory)), numbering_(*memory_->numbering), accesses_(memory_->accesses) {}

  /// Sums of all parts of a tensor, in program order.
  std::vector<std::pair<Value*, Sum>> run() {
    std::vector<Value*> order;
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      Node* node = numbering_.node(i);
      if (auto part = partOf(node); part && accesses_.isNeverWritten(node->input(0))) {
        sums_[node->output()] = {{*part}, {}};
      } else if (isPlainAdd(node) && add(node)) {
        order.push_back(node->output());
      }
    }
    std::vector<std::pair<Value*, Sum>> found;
    for (Value* value : order) {
      const auto sum = sums_.find(value);
      if (sum != sums_.end() && isComplete(value, sum->second)) {
        found.emplace_back(value, std::move(sum->second));
      }
    }
    return found;
  }

 private:
  static bool isPlainAdd(const Node* node) {
    return node->kind() == kAdd && overloadOf(node) == "Tensor" && node->inputs().size() == 2 &&
           argsOf(node).args.size() == 2 && isWhole(node->output());
  }

  /// The sum takes its operands' over, if they may be joined.
  bool add(Node* node) {
    const auto a = sums_.find(node->input(0)), b = sums_.find(node->input(1));
    if (a == sums_.end() || b == sums_.end() || a == b) return false;
    const Part &mine = a->second.parts.front(), &other = b->second.parts.front();
    const bool alike = mine.node->kind() == other.node->kind() && mine.dim == other.dim &&
                       *node->input(0)->type() == *node->input(1)->type() &&
                       *node->input(0)->type() == *node->output()->type();
    const auto usedOnce = [&](Value* value) {
      return value->uses().size() == 1 && accesses_.isNeverWritten(value);
    };
    if (!alike || !usedOnce(node->input(0)) || !usedOnce(node->input(1))) return false;
    Sum sum = std::move(a->second);
    sum.parts.insert(sum.parts.end(), b->second.parts.begin(), b->second.parts.end());
    sum.adds.insert(sum.adds.end(), b->second.adds.begin(), b->second.adds.end());
    sum.adds.push_back(node);
    sums_.erase(node->input(0));
    sums_.erase(node->input(1));
    sums_[node->output()] = std::move(sum);
    return true;
  }

  /// Sorts the parts; true if they follow one another from the first element to the last.
  static bool isComplete(const Value* value, Sum& sum) {
    std::sort(sum.parts.begin(), sum.parts.end(),
              [](const Part& a, const Part& b) { return a.begin < b.begin; });
    int64_t end = 0;
    for (const Part& part : sum.parts) {
      if (part.begin != end) return false;
      end = part.end;
    }
    const auto sizes = tensorTypeOf(value)->sizes().concrete_sizes();
    return end == (*sizes)[sum.parts.front().dim];
  }

  const std::shared_ptr<const EntryMemory> memory_;
  const Numbering& numbering_;
  const StorageAccesses& accesses_;
  llvm::DenseMap<Value*, Sum> sums_;
};

void join(Graph& graph, Value* value, const Sum& sum) {
  Node* last = value->node();
  const bool selects = sum.parts.front().node->kind() == kSelectBackward;
  std::vector<Value*> gradients;
  ListArg list;
  for (const Part& part : sum.parts) {
    list.elements.emplace_back(InputArg{static_cast<uint32_t>(gradients.size())});
    gradients.push_back(part.node->input(0));
  }
  Node* joined = graph.create(selects ? kStack : kCat, gradients, 1);
  auto args = c10::make_intrusive<ArgList>();
  args->args.emplace_back(std::move(list));
  args->args.emplace_back(sum.parts.front().dim);
  setArgs(joined, std::move(args));
  copyLocation(joined, last);
  joined->insertBefore(last);
  joined->output()->setType(value->type());
  nameAfter(joined->output(), value, ".joined");

  Node* plusZero = graph.create(kAdd, {joined->output()}, 1);
  setOverload(plusZero, "Scalar");
  setArgs(plusZero, inputAndInt(0));
  copyLocation(plusZero, last);
  plusZero->insertBefore(last);
  plusZero->output()->setType(value->type());
  value->replaceAllUsesWith(plusZero->output());
  takeName(plusZero->output(), value);
  for (Node* add : llvm::reverse(sum.adds)) add->destroy();
  for (const Part& part : sum.parts) part.node->destroy();
}

bool hasPlacedGradients(const Entry& entry) {
  return llvm::any_of(entry.graph->nodes(), [](const Node* node) {
    return node->kind() == kSelectBackward || node->kind() == kSliceBackward;
  });
}

}  // namespace

void joinGradients(Program& program, PassContext& context) {
  context.unchanged = true;
  for (Entry& entry : program.entries) {
    if (!hasPlacedGradients(entry)) continue;
    for (const auto& [value, sum] : SumFinder(context.analyses.memoryOf(entry)).run()) {
      if (!context.rewrites.next(kPass, "sum", value->node())) return;
      context.remarks.add(RemarkKind::Passed, kPass, "gradients-joined", value->node(),
                          "the gradients of " + std::to_string(sum.parts.size()) +
                              " parts are put together at once");
      join(*entry.graph, value, sum);
      context.unchanged = false;
    }
  }
}

}  // namespace gravure
