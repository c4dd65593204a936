#include "ir/memory/storage_accesses.h"

#include "ir/core/cudagraph_ops.h"

#include <llvm/ADT/IntEqClasses.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/STLFunctionalExtras.h>

#include <algorithm>

namespace gravure {
namespace {

/// Finds the spans of nodes that come one by one, in program order.
class SpanFinder {
 public:
  using StorageOf = llvm::function_ref<int64_t(const Value*)>;

  /// `storageOf`: -1 for values without memory. What it refers to must outlive the finder.
  explicit SpanFinder(StorageOf storageOf) : storageOf_(storageOf) {}

  /// The next node, without what stands in its blocks: that comes next. Positions never fall.
  void next(const Node* node, int64_t position);
  /// Ends what is still open at `end`, one past the last position. Called once.
  void finish(int64_t end);

  std::vector<CollectiveSpan> spans;
  /// By position. One pair may come several times.
  std::vector<CollectiveClash> clashes;
  /// By position, after finish().
  std::vector<WaitAccess> waitAccesses;

 private:
  struct Writer {
    size_t span = 0;
    size_t write = 0;        // among CollectiveSpan::writes
    size_t resultsLeft = 0;  // in this storage
  };
  struct Reader {
    size_t span = 0;
  };
  /// What is open on one storage. Closed ones are dropped when next seen.
  template <typename Each>
  struct OpenList {
    llvm::SmallVector<Each, 1> all;
    size_t bound = 0;     // the first ones, which clashes have bound together
    size_t closings = 0;  // closings_ when closed ones were dropped last
  };
  struct Open {
    OpenList<Reader> readers;
    OpenList<Writer> writers;
  };
  void start(const Node* node, int64_t position);
  void wait(const Node* node, int64_t position);
  void noteClashes(const Node* node, const OpFacts& facts, int64_t position);
  void noteClash(int64_t position, size_t span);
  template <typename Each>
  void noteClashes(OpenList<Each>& list, int64_t position);
  template <typename Each, typename Predicate>
  static void drop(OpenList<Each>& list, Predicate&& predicate);
  template <typename Each>
  void dropClosed(OpenList<Each>& list) const;
  void followResults(const Node* node);
  /// How many results of `span` that adds to those waited for.
  size_t markWaited(const CollectiveSpan& span, const Value* waited, int64_t storage);
  Open* openOn(const Value* value);

  StorageOf storageOf_;
  std::vector<bool> isOpen_;                             // by span
  std::vector<size_t> resultsLeft_;                      // by span: not waited for yet
  llvm::DenseSet<const Value*> waited_;                  // results
  llvm::DenseMap<int64_t, Open> open_;                   // by storage
  llvm::DenseMap<const Value*, const Value*> resultOf_;  // of views and members: the result
  size_t openCount_ = 0;
  size_t closings_ = 0;
};

void SpanFinder::next(const Node* node, int64_t position) {
  const OpFacts& facts = factsOf(node);
  if (openCount_ > 0 && node->blocks().empty()) {
    if (facts.wait) {
      wait(node, position);
    } else {
      noteClashes(node, facts, position);
    }
    if (facts.maybeAliases) followResults(node);
  }
  if (leavesOpen(facts)) start(node, position);
}

void SpanFinder::start(const Node* node, int64_t position) {
  const size_t index = spans.size();
  CollectiveSpan& span = spans.emplace_back();
  span.start = node;
  span.begin = position;
  llvm::SmallDenseSet<int64_t, 8> seen;
  llvm::SmallDenseMap<int64_t, size_t, 8> resultsIn;  // by storage
  const auto add = [&](llvm::SmallVectorImpl<int64_t>& storages, const Value* value) {
    const int64_t storage = storageOf_(value);
    if (storage >= 0 && seen.insert(storage).second) storages.push_back(storage);
  };
  for (const Value* written : writtenInputs(node)) add(span.writes, written);
  for (const Value* result : node->outputs()) {
    if (storageOf_(result) < 0) continue;
    add(span.writes, result);
    ++resultsIn[storageOf_(result)];
    span.left.push_back(result);
    resultOf_[result] = result;
  }
  for (const Value* operand : node->inputs()) add(span.reads, operand);
  for (size_t w = 0; w < span.writes.size(); ++w) {
    open_[span.writes[w]].writers.all.push_back({index, w, resultsIn.lookup(span.writes[w])});
    span.writeEnds.push_back(-1);
  }
  for (int64_t storage : span.reads) open_[storage].readers.all.push_back({index});
  isOpen_.push_back(true);
  resultsLeft_.push_back(span.left.size());
  ++openCount_;
}

template <typename Each, typename Predicate>
void SpanFinder::drop(OpenList<Each>& list, Predicate&& predicate) {
  const auto bound = list.all.begin() + list.bound;
  list.bound -= std::count_if(list.all.begin(), bound, predicate);
  llvm::erase_if(list.all, predicate);
}

template <typename Each>
void SpanFinder::dropClosed(OpenList<Each>& list) const {
  if (list.closings == closings_) return;
  list.closings = closings_;
  drop(list, [&](const Each& each) { return !isOpen_[each.span]; });
}

SpanFinder::Open* SpanFinder::openOn(const Value* value) {
  const int64_t storage = storageOf_(value);
  const auto found = storage < 0 ? open_.end() : open_.find(storage);
  return found == open_.end() ? nullptr : &found->second;
}

void SpanFinder::wait(const Node* node, int64_t position) {
  for (const Value* waited : node->inputs()) {
    Open* open = openOn(waited);
    if (!open) continue;
    dropClosed(open->writers);
    if (open->writers.all.empty()) continue;
    const int64_t storage = storageOf_(waited);
    waitAccesses.push_back({position, storage, true});
    for (Writer& writer : open->writers.all) {
      CollectiveSpan& span = spans[writer.span];
      if (span.waits.empty() || span.waits.back() != position) span.waits.push_back(position);
      const size_t marked = markWaited(span, waited, storage);
      writer.resultsLeft -= marked;
      resultsLeft_[writer.span] -= marked;
      if (writer.resultsLeft == 0) span.writeEnds[writer.write] = position;
      if (resultsLeft_[writer.span] > 0 || !isOpen_[writer.span]) continue;
      span.end = position;
      isOpen_[writer.span] = false;
      --openCount_;
      ++closings_;
    }
    drop(open->writers, [](const Writer& writer) { return writer.resultsLeft == 0; });
  }
}

/// PyTorch keeps the work that is to be waited for by storage. Results that share one, as those of
/// all_reduce_coalesced_ may, are told apart by the value, where it is known which one it is of.
size_t SpanFinder::markWaited(const CollectiveSpan& span, const Value* waited, int64_t storage) {
  const Value* known = resultOf_.lookup(waited);
  if (known && known->node() == span.start) return waited_.insert(known).second;
  return llvm::count_if(span.left, [&](const Value* result) {
    return storageOf_(result) == storage && waited_.insert(result).second;
  });
}

void SpanFinder::noteClash(int64_t position, size_t span) {
  if (!clashes.empty() && clashes.back().position == position && clashes.back().span == span)
    return;
  clashes.push_back({position, span});
}

/// Of those that are bound together already, one stands for all.
template <typename Each>
void SpanFinder::noteClashes(OpenList<Each>& list, int64_t position) {
  dropClosed(list);
  if (list.bound > 0) noteClash(position, list.all.front().span);
  for (; list.bound < list.all.size(); ++list.bound) noteClash(position, list.all[list.bound].span);
}

void SpanFinder::noteClashes(const Node* node, const OpFacts& facts, int64_t position) {
  for (const Value* input : node->inputs()) {
    if (Open* open = openOn(input)) noteClashes(open->writers, position);
  }
  if (!facts.writes) return;
  for (const Value* written : writtenInputs(node)) {
    if (Open* open = openOn(written)) noteClashes(open->readers, position);
  }
}

void SpanFinder::followResults(const Node* node) {
  for (size_t o = 0; o < node->outputs().size(); ++o) {
    for (const Value* source : aliasedInputs(node, o)) {
      if (const Value* result = resultOf_.lookup(source)) resultOf_[node->output(o)] = result;
    }
  }
}

void SpanFinder::finish(int64_t end) {
  for (size_t index = 0; index < spans.size(); ++index) {
    CollectiveSpan& span = spans[index];
    if (isOpen_[index]) span.end = end;
    for (int64_t& writeEnd : span.writeEnds) {
      if (writeEnd < 0) writeEnd = span.end;
    }
    llvm::erase_if(span.left, [&](const Value* result) { return waited_.contains(result); });
    if (span.waits.empty()) continue;
    const auto addAll = [&](int64_t position) {
      for (int64_t storage : span.reads) waitAccesses.push_back({position, storage, false});
      for (int64_t storage : span.writes) waitAccesses.push_back({position, storage, true});
    };
    addAll(span.waits.front());
    if (span.waits.size() > 1) addAll(span.waits.back());
  }
  llvm::stable_sort(waitAccesses, [](const WaitAccess& a, const WaitAccess& b) {
    return a.position < b.position;
  });
}

}  // namespace

StorageAccesses::StorageAccesses(const Numbering& numbering, StagedOperands staged)
    : numbering_(numbering) {
  joinTensors(staged);
  noteUses();
  findSpans();
}

/// A class's leader is its first tensor, which compress() numbers in that order.
void StorageAccesses::joinTensors(StagedOperands staged) {
  llvm::IntEqClasses classes(numbering_.tensorCount());
  alias_.resize(numbering_.valueBound());
  const auto join = [&](const Value* a, const Value* b) {
    const int32_t x = numbering_.tensorOf(a), y = numbering_.tensorOf(b);
    if (x >= 0 && y >= 0) classes.join(x, y);
  };
  const auto joinResults = [&](const Node* node) {
    for (const Block* block : node->blocks()) {
      for (size_t o = 0; o < block->outputs().size(); ++o)
        join(block->outputs()[o], node->output(o));
    }
  };
  const auto joinOperands = [&](const Node* node) {
    const Block* block = node->blocks().at(0);
    for (size_t p = 0; p < block->inputs().size(); ++p) join(node->input(p), block->inputs()[p]);
  };
  const auto joinNode = [&](const Node* node) {
    if (factsOf(node).maybeAliases) {
      for (size_t o = 0; o < node->outputs().size(); ++o) {
        for (const Value* source : aliasedInputs(node, o)) {
          join(source, node->output(o));
          alias_[Numbering::indexOf(node->output(o))] = true;
        }
      }
    }
    if (isPartition(node)) joinOperands(node);
    joinResults(node);
  };
  for (int32_t i = 0; i < numbering_.size(); ++i) {
    if (numbering_.isNested(i)) {
      numbering_.forEachNested(i, joinNode);
    } else if (numbering_.facts(i).maybeAliases) {
      joinNode(numbering_.node(i));
    }
  }
  // By operand: the first parameter that sees its copy.
  llvm::DenseMap<const Value*, const Value*> copies;
  struct CopyMade {
    const Value* operand;
    const Value* parameter;
    int32_t position;
  };
  llvm::SmallVector<CopyMade, 0> made;
  for (const auto& [node, position] : numbering_.entered()) {
    joinResults(node);
    // Only before emit-runtime-calls is a copy still to be made.
    if (staged == StagedOperands::Aliased || node->kind() != cg::partition) {
      joinOperands(node);
      continue;
    }
    const std::vector<OperandTag> tags = tagsOf(node);
    for (size_t p = 0; p < node->inputs().size(); ++p) {
      const Value* operand = node->input(p);
      const Value* parameter = node->blocks().at(0)->inputs().at(p);
      if (p >= tags.size() || tags[p].kind != OperandKind::Staged) {
        join(operand, parameter);
        continue;
      }
      join(parameter, copies.try_emplace(operand, parameter).first->second);
      const bool isInput = operand->node()->kind() == c10::prim::Param;
      made.push_back({operand, parameter, isInput ? 0 : position});
    }
  }
  classes.compress();
  storage_.assign(numbering_.valueBound(), -1);
  first_.assign(classes.getNumClasses(), -1);
  maker_.assign(classes.getNumClasses(), -1);
  for (int32_t t = 0; t < numbering_.tensorCount(); ++t) {
    const int32_t index = numbering_.valueOfTensor(t);
    const auto storage = static_cast<int32_t>(classes[t]);
    storage_[index] = storage;
    if (first_[storage] >= 0) continue;
    first_[storage] = index;
    maker_[storage] = numbering_.definedBy(index);
  }
  for (const CopyMade& copy : made) {
    if (storageOf(copy.operand) < 0) continue;
    copied_.emplace_back(storageOf(copy.operand), copy.position);
    int32_t& maker = maker_[storageOf(copy.parameter)];
    if (maker < 0) maker = copy.position;
  }
}

void StorageAccesses::noteUses() {
  for (const Value* input : numbering_.graph().inputs())
    externals_ = std::max(externals_, storageOf(input) + 1);
  held_.resize(first_.size());
  for (const Value* result : numbering_.graph().outputs()) {
    if (storageOf(result) >= 0) held_[storageOf(result)] = true;
  }
  written_.resize(first_.size());
  for (int32_t i = 0; i < numbering_.size(); ++i) {
    numbering_.forEachWrittenValue(i, [&](const Value* value) {
      if (storageOf(value) >= 0) written_[storageOf(value)] = true;
    });
  }
}

void StorageAccesses::findSpans() {
  bool any = false;
  for (int32_t i = 0; i < numbering_.size() && !any; ++i) {
    if (!numbering_.isNested(i)) {
      any = leavesOpen(numbering_.facts(i));
    } else {
      numbering_.forEachNested(i, [&](const Node* node) { any |= leavesOpen(factsOf(node)); });
    }
  }
  if (!any) return;
  const auto storageOf = [&](const Value* value) -> int64_t { return this->storageOf(value); };
  SpanFinder finder(storageOf);
  for (int32_t i = 0; i < numbering_.size(); ++i) {
    numbering_.forEachNested(i, [&](const Node* node) { finder.next(node, i); });
  }
  finder.finish(numbering_.size());
  spans_ = std::move(finder.spans);
  clashes_ = std::move(finder.clashes);
  waitAccesses_ = std::move(finder.waitAccesses);
  waitBegin_.reserve(numbering_.size() + 1);
  size_t at = 0;
  for (int32_t i = 0; i <= numbering_.size(); ++i) {
    while (at < waitAccesses_.size() && waitAccesses_[at].position < i) ++at;
    waitBegin_.push_back(static_cast<int32_t>(at));
  }
  for (const CollectiveSpan& span : spans_) {
    for (size_t w = 0; w < span.writes.size(); ++w) {
      const auto storage = static_cast<int32_t>(span.writes[w]);
      int64_t& until = openUntil_.try_emplace(storage, -1).first->second;
      until = std::max(until, span.writeEnds[w]);
    }
    if (span.left.empty()) continue;
    for (int64_t storage : span.reads) leftOpen_.insert(static_cast<int32_t>(storage));
    for (int64_t storage : span.writes) leftOpen_.insert(static_cast<int32_t>(storage));
  }
}

bool StorageAccesses::isAsOf(const StorageAccesses& other) const {
  return storage_ == other.storage_ && alias_ == other.alias_ && first_ == other.first_ &&
         maker_ == other.maker_ && externals_ == other.externals_ && held_ == other.held_ &&
         written_ == other.written_ && copied_ == other.copied_ &&
         spans_.size() == other.spans_.size() && clashes_.size() == other.clashes_.size() &&
         waitAccesses_.size() == other.waitAccesses_.size();
}

bool StorageAccesses::isNeverWritten(const Value* value) const {
  const int32_t storage = storageOf(value);
  if (storage < 0 || isWrittenByNode(storage)) return false;
  const auto open = openUntil_.find(storage);
  return open == openUntil_.end() ||
         open->second <= numbering_.definedBy(Numbering::indexOf(value));
}

llvm::DenseSet<int32_t> resultStorages(const Entry& entry, const StorageAccesses& accesses) {
  llvm::DenseSet<int32_t> storages;
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    if (entry.outputs[o].role == OutputRole::Saved) continue;
    const int32_t storage = accesses.storageOf(entry.graph->outputs()[o]);
    if (storage >= 0) storages.insert(storage);
  }
  return storages;
}

}  // namespace gravure
