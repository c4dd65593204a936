#include "passes/merge_host_reads.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/location.h"
#include "ir/facts/value_types.h"
#include "ir/memory/entry_memory.h"

#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {
namespace {

constexpr const char* kPass = "merge-host-reads";

const c10::Symbol kSelect = c10::Symbol::fromQualString("aten::select");
const c10::Symbol kUnbind = c10::Symbol::fromQualString("aten::unbind");
const c10::Symbol kItem = c10::Symbol::fromQualString("aten::item");
const c10::Symbol kLocalScalar = c10::Symbol::fromQualString("aten::_local_scalar_dense");

bool isHostRead(const Node* node) {
  return (node->kind() == kItem || node->kind() == kLocalScalar) && node->inputs().size() == 1 &&
         node->outputs().size() == 1;
}

/// Elements of a tensor that read_host can read; nullopt for all others.
std::optional<int64_t> readableElements(const Value* tensor) {
  const auto* type = tensorTypeOf(tensor);
  if (!type || !type->dim() || *type->dim() > 1) return std::nullopt;
  const auto count = type->numel();
  if (!count || *count < 1 || *count > size_t(kMaxMergedElements)) return std::nullopt;
  return static_cast<int64_t>(*count);
}

/// The element `index` of `tensor`, which has one dimension or none.
struct Element {
  Value* tensor = nullptr;
  int64_t index = 0;
};

std::optional<Element> elementOf(Value* read) {
  Node* from = read->node();
  const bool alone = readableElements(read) == 1;
  Element element{nullptr, 0};
  if (from->kind() == kSelect && overloadOf(from) == "int") {
    const auto dim = constantInt(from, 1, 0), index = constantInt(from, 2, 0);
    if (dim && index && (*dim == 0 || *dim == -1)) element = {from->input(0), *index};
  } else if (from->kind() == kUnbind && from->outputs().size() > 1) {
    const auto dim = constantInt(from, 1, 0);
    if (dim && (*dim == 0 || *dim == -1)) {
      element = {from->input(0), static_cast<int64_t>(read->offset())};
    }
  }
  const auto count = element.tensor ? readableElements(element.tensor) : std::nullopt;
  if (count && element.index < 0) element.index += *count;
  if (count && element.index >= 0 && element.index < *count) return element;
  return alone ? std::optional(Element{read, 0}) : std::nullopt;
}

struct Merge {
  Value* tensor = nullptr;
  std::vector<std::pair<Node*, int64_t>> reads;  // the read, and its element
};

/// True if some tensor is read twice: only then are writes between the reads of interest.
bool readsOneTwice(const Entry& entry) {
  llvm::DenseSet<const Value*> tensors;
  for (const Node* node : entry.graph->nodes()) {
    if (!isHostRead(node)) continue;
    const auto element = elementOf(const_cast<Value*>(node->input(0)));
    if (element && !tensors.insert(element->tensor).second) return true;
  }
  return false;
}

/// Sets of two or more reads of one tensor with no write to it in between, in program order.
std::vector<Merge> findMerges(const Entry& entry, const KeptAnalyses& analyses) {
  if (!readsOneTwice(entry)) return {};
  const auto memory = analyses.memoryOf(entry);
  const Numbering& numbering = *memory->numbering;
  const StorageAccesses& accesses = memory->accesses;
  std::vector<Merge> merges;
  std::vector<int32_t> lastWrite(accesses.storageCount(), -1);  // by storage
  struct Open {
    int32_t merge = -1;
    int32_t lastWrite = -1;
  };
  std::vector<Open> openOn(numbering.valueBound());  // by tensor
  for (int32_t i = 0; i < numbering.size(); ++i) {
    Node* node = numbering.node(i);
    accesses.forEachWritten(i, [&](int32_t storage) { lastWrite[storage] = i; });
    if (!isHostRead(node)) continue;
    const auto element = elementOf(node->input(0));
    if (!element) continue;
    const int32_t written = lastWrite[accesses.storageOf(element->tensor)];
    Open& open = openOn[Numbering::indexOf(element->tensor)];
    if (open.merge < 0 || open.lastWrite != written) {
      open = {static_cast<int32_t>(merges.size()), written};
      merges.push_back({element->tensor, {}});
    }
    merges[open.merge].reads.emplace_back(node, element->index);
  }
  merges.erase(std::remove_if(merges.begin(), merges.end(),
                              [](const Merge& merge) { return merge.reads.size() < 2; }),
               merges.end());
  return merges;
}

/// Destroys the reads, and what only they used, last first.
void destroyReads(const Merge& merge) {
  for (auto at = merge.reads.rbegin(); at != merge.reads.rend(); ++at) {
    Node* source = at->first->input(0)->node();
    at->first->destroy();
    const bool selects = source->kind() == kSelect || source->kind() == kUnbind;
    if (selects && !source->hasUses()) source->destroy();
  }
}

void apply(Graph& graph, const Merge& merge) {
  Node* first = merge.reads.front().first;
  Node* all = graph.create(cg::readHost, {merge.tensor}, *readableElements(merge.tensor));
  all->insertBefore(first);
  setHostReason(all, HostReason::HostSync);
  if (const auto fate = fateOf(first)) setFate(all, *fate);
  copyLocation(all, first);
  std::vector<std::string> names(all->outputs().size());
  for (Value* output : all->outputs()) output->setType(first->output()->type());
  for (const auto& [read, element] : merge.reads) {
    Value* number = read->output();
    if (names[element].empty() && number->hasDebugName()) names[element] = number->debugName();
    number->replaceAllUsesWith(all->output(element));
  }
  destroyReads(merge);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) all->output(i)->setDebugName(names[i]);
  }
}

}  // namespace

void mergeHostReads(Program& program, PassContext& context) {
  context.unchanged = true;
  for (Entry& entry : program.entries) {
    for (const Merge& merge : findMerges(entry, context.analyses)) {
      if (!context.rewrites.next(kPass, "reads from", merge.reads.front().first)) return;
      const size_t count = merge.reads.size();
      context.remarks.add(RemarkKind::Passed, kPass, "host-reads-merged", merge.reads.front().first,
                          std::to_string(count) + " reads of %" + merge.tensor->debugName() +
                              " became one copy and one wait");
      apply(*entry.graph, merge);
      context.unchanged = false;
    }
  }
}

void verifyMergeHostReads(const Program& program, const PassContext&) {
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      if (node->kind() != cg::readHost) continue;
      const auto elements =
          node->inputs().size() == 1 ? readableElements(node->input(0)) : std::nullopt;
      TORCH_CHECK(elements && *elements == static_cast<int64_t>(node->outputs().size()), "entry '",
                  entry.name, "': ", describe(node),
                  " must read one small tensor of known size, with one output an element");
    }
  }
}

}  // namespace gravure
