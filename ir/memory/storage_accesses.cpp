#include "ir/memory/storage_accesses.h"

#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {

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
  if (facts.collective && !facts.blocking) start(node, position);
}

void SpanFinder::start(const Node* node, int64_t position) {
  const size_t number = spans.size();
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
    open_[span.writes[w]].writers.push_back({number, w, resultsIn.lookup(span.writes[w])});
    span.writeEnds.push_back(-1);
  }
  for (int64_t storage : span.reads) open_[storage].readers.push_back(number);
  isOpen_.push_back(true);
  resultsLeft_.push_back(span.left.size());
  ++openCount_;
}

void SpanFinder::dropClosed(llvm::SmallVectorImpl<Writer>& writers) const {
  llvm::erase_if(writers, [&](const Writer& writer) { return !isOpen_[writer.span]; });
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
    if (open->writers.empty()) continue;
    const int64_t storage = storageOf_(waited);
    waitAccesses.push_back({position, storage, true});
    for (Writer& writer : open->writers) {
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
    }
    llvm::erase_if(open->writers, [](const Writer& writer) { return writer.resultsLeft == 0; });
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

void SpanFinder::noteClashes(const Node* node, const OpFacts& facts, int64_t position) {
  for (const Value* input : node->inputs()) {
    Open* open = openOn(input);
    if (!open) continue;
    dropClosed(open->writers);
    if (!open->writers.empty()) noteClash(position, open->writers.back().span);
  }
  if (!facts.writes) return;
  for (const Value* written : writtenInputs(node)) {
    Open* open = openOn(written);
    if (!open) continue;
    llvm::erase_if(open->readers, [&](size_t span) { return !isOpen_[span]; });
    for (size_t reader : open->readers) noteClash(position, reader);
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
  for (size_t number = 0; number < spans.size(); ++number) {
    CollectiveSpan& span = spans[number];
    if (isOpen_[number]) span.end = end;
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

StorageAccesses::StorageAccesses(const Numbering& numbering) : numbering_(numbering) {
  bool any = false;
  for (int32_t i = 0; i < numbering.size() && !any; ++i) {
    if (!numbering.isNested(i)) {
      any = numbering.facts(i).collective;
    } else {
      numbering.forEachNested(i, [&](const Node* node) { any |= factsOf(node).collective; });
    }
  }
  if (!any) return;
  const auto storageOf = [&](const Value* value) -> int64_t { return numbering.storageOf(value); };
  SpanFinder finder(storageOf);
  for (int32_t i = 0; i < numbering.size(); ++i) {
    numbering.forEachNested(i, [&](const Node* node) { finder.next(node, i); });
  }
  finder.finish(numbering.size());
  spans_ = std::move(finder.spans);
  clashes_ = std::move(finder.clashes);
  waitAccesses_ = std::move(finder.waitAccesses);
  waitBegin_.reserve(numbering.size() + 1);
  size_t at = 0;
  for (int32_t i = 0; i <= numbering.size(); ++i) {
    while (at < waitAccesses_.size() && waitAccesses_[at].position < i) ++at;
    waitBegin_.push_back(static_cast<int32_t>(at));
  }
  for (const CollectiveSpan& span : spans_) {
    for (size_t w = 0; w < span.writes.size(); ++w) {
      const auto storage = static_cast<int32_t>(span.writes[w]);
      int64_t& until = openUntil_.try_emplace(storage, -1).first->second;
      until = std::max(until, span.writeEnds[w]);
    }
  }
}

bool StorageAccesses::isNeverWritten(const Value* value) const {
  if (!numbering_.isNeverWritten(value)) return false;
  const auto open = openUntil_.find(numbering_.storageOf(value));
  return open == openUntil_.end() ||
         open->second <= numbering_.definedBy(Numbering::numberOf(value));
}

}  // namespace gravure
