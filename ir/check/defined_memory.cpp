#include "ir/check/defined_memory.h"

#include "ir/core/nested_nodes.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {
namespace {

bool isStart(const Node* node) { return leavesOpen(factsOf(node)); }

}  // namespace

DefinedMemory::DefinedMemory(const Entry& entry) {
  unsigned bound = 0;
  bool communicates = false;
  const auto see = [&](const Value* value) {
    bound = std::max(bound, static_cast<unsigned>(value->unique()) + 1);
  };
  for (const Value* input : entry.graph->inputs()) see(input);
  forEachNode(entry.graph->block(), [&](const Node* node) {
    for (const Value* output : node->outputs()) see(output);
    for (const Block* block : node->blocks()) {
      for (const Value* parameter : block->inputs()) see(parameter);
    }
    communicates |= isStart(node);
  });
  classes_.grow(bound);
  forEachNode(entry.graph->block(), [&](const Node* node) { joinAliases(node); });
  classes_.compress();
  if (!communicates) return;
  int64_t position = 0;
  for (const Node* top : entry.graph->nodes()) {
    forEachNode(top, [&](const Node* node) { steps_.push_back({node, position}); });
    ++position;
  }
  for (size_t step = 0; step < steps_.size(); ++step) {
    const Node* node = steps_[step].node;
    const OpFacts& facts = factsOf(node);
    if (facts.wait) {
      for (const Value* operand : node->inputs()) {
        if (storageOf(operand) >= 0) waitsOn_[storageOf(operand)].push_back({step, operand});
      }
    }
    for (size_t o = 0; facts.maybeAliases && o < node->outputs().size(); ++o) {
      for (const Value* source : aliasedInputs(node, o)) {
        if (const Value* result = resultBehind(source)) resultOf_[node->output(o)] = result;
      }
    }
  }
  for (size_t step = 0; step < steps_.size(); ++step) {
    if (isStart(steps_[step].node)) findWaits(step);
  }
  llvm::stable_sort(accesses_, [](const DefinedWaitAccess& a, const DefinedWaitAccess& b) {
    return a.position < b.position;
  });
  findBound();
}

void DefinedMemory::joinAliases(const Node* node) {
  const auto join = [&](const Value* a, const Value* b) {
    if (!isTensorValue(a) || !isTensorValue(b)) return;
    classes_.join(static_cast<unsigned>(a->unique()), static_cast<unsigned>(b->unique()));
  };
  if (factsOf(node).maybeAliases) {
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      for (const Value* source : aliasedInputs(node, o)) join(node->output(o), source);
    }
  }
  for (const Block* block : node->blocks()) {
    for (size_t o = 0; o < block->outputs().size(); ++o) join(node->output(o), block->outputs()[o]);
    for (size_t p = 0; p < block->inputs().size(); ++p) join(node->input(p), block->inputs()[p]);
  }
}

int64_t DefinedMemory::storageOf(const Value* value) const {
  if (!isTensorValue(value)) return -1;
  return classes_[static_cast<unsigned>(value->unique())];
}

/// The result of a collective that `value` is, or is made a view or member of; nullptr for others.
const Value* DefinedMemory::resultBehind(const Value* value) const {
  if (value->node()->kind() != c10::prim::Param && isStart(value->node())) return value;
  return resultOf_.lookup(value);
}

/// Each result is over with the first wait on it, by whatever name; a wait on another name of its
/// storage, which is no view of a result of this collective, is one on all that lie in it.
void DefinedMemory::findWaits(size_t step) {
  const size_t index = collectives_.size();
  DefinedCollective& work = collectives_.emplace_back();
  work.start = steps_[step].node;
  work.position = steps_[step].position;
  const auto addTo = [&](llvm::SmallVectorImpl<int64_t>& storages, const Value* value) {
    const int64_t storage = storageOf(value);
    const bool known =
        llvm::is_contained(work.writes, storage) || llvm::is_contained(work.reads, storage);
    if (storage >= 0 && !known) storages.push_back(storage);
  };
  for (const Value* written : writtenInputs(work.start)) addTo(work.writes, written);
  for (const Value* result : work.start->outputs()) {
    addTo(work.writes, result);
    if (storageOf(result) >= 0) work.left.push_back(result);
  }
  for (const Value* operand : work.start->inputs()) addTo(work.reads, operand);

  llvm::SmallVector<llvm::ArrayRef<Wait>, 2> waits;  // behind it, by storage that it writes
  for (int64_t storage : work.writes) {
    const auto on = waitsOn_.find(storage);
    if (on == waitsOn_.end()) continue;
    const auto behind =
        llvm::partition_point(on->second, [&](const Wait& wait) { return wait.step <= step; });
    waits.emplace_back(&*on->second.begin() + (behind - on->second.begin()),
                       on->second.end() - behind);
  }
  llvm::DenseMap<int64_t, size_t> writeEnd;  // by storage: the wait with which its results are over
  size_t end = steps_.size();
  while (!work.left.empty()) {
    llvm::erase_if(waits, [](llvm::ArrayRef<Wait> each) { return each.empty(); });
    if (waits.empty()) break;
    auto& first = *std::min_element(waits.begin(), waits.end(), [](const auto& a, const auto& b) {
      return a.front().step < b.front().step;
    });
    const Wait wait = first.front();
    first = first.drop_front();
    const int64_t storage = storageOf(wait.operand);
    if (writeEnd.count(storage)) continue;
    const Value* known = resultBehind(wait.operand);
    const bool isOwn = known && known->node() == work.start;
    llvm::erase_if(work.left, [&](const Value* result) {
      return isOwn ? result == known : storageOf(result) == storage;
    });
    const auto inStorage = [&](const Value* result) { return storageOf(result) == storage; };
    if (llvm::none_of(work.left, inStorage)) writeEnd[storage] = wait.step;
    const int64_t position = steps_[wait.step].position;
    if (work.waits.empty() || work.waits.back() != position) work.waits.push_back(position);
    accesses_.push_back({position, storage, true});
    if (work.left.empty()) end = wait.step;
  }
  for (int64_t storage : work.writes) {
    const auto at = writeEnd.find(storage);
    opened_[step].push_back({storage, {index, at == writeEnd.end() ? end : at->second}});
  }
  for (int64_t storage : work.reads) openedForReading_[step].push_back({storage, {index, end}});
  if (work.waits.empty()) return;
  for (int64_t position : {work.waits.front(), work.waits.back()}) {
    for (int64_t storage : work.reads) accesses_.push_back({position, storage, false});
    for (int64_t storage : work.writes) accesses_.push_back({position, storage, true});
  }
}

void DefinedMemory::OpenOn::add(const Open& open) {
  nextEnd = each.empty() ? open.end : std::min(nextEnd, open.end);
  each.push_back(open);
}

void DefinedMemory::OpenOn::dropEnded(size_t step) {
  if (nextEnd > step) return;
  std::vector<Open> left;
  size_t leftMet = 0;
  for (size_t i = 0; i < each.size(); ++i) {
    if (each[i].end <= step) continue;
    leftMet += i < met;
    nextEnd = left.empty() ? each[i].end : std::min(nextEnd, each[i].end);
    left.push_back(each[i]);
  }
  each = std::move(left);
  met = leftMet;
}

/// A clash is a node but a wait that writes what the collective reads, or touches what it writes,
/// before it is over. Who was bound to one node is bound together: a pair with the first of them tells
/// the next node.
void DefinedMemory::findBound() {
  for (const DefinedCollective& work : collectives_) {
    for (int64_t wait : work.waits) bound_.emplace_back(work.position, wait);
  }
  llvm::DenseMap<int64_t, OpenOn> writing, reading;  // by storage
  for (size_t step = 0; step < steps_.size(); ++step) {
    const Node* node = steps_[step].node;
    const OpFacts& facts = factsOf(node);
    const auto bind = [&](llvm::DenseMap<int64_t, OpenOn>& open, const Value* value) {
      const auto at = open.find(storageOf(value));
      if (at == open.end()) return;
      OpenOn& on = at->second;
      on.dropEnded(step);
      const auto pair = [&](const Open& other) {
        bound_.emplace_back(collectives_[other.collective].position, steps_[step].position);
      };
      if (on.met > 0) pair(on.each.front());
      for (; on.met < on.each.size(); ++on.met) pair(on.each[on.met]);
    };
    if (!facts.wait && node->blocks().empty()) {
      for (const Value* input : node->inputs()) bind(writing, input);
      for (const Value* written : writtenInputs(node)) bind(reading, written);
    }
    if (!isStart(node)) continue;
    for (const auto& [storage, open] : opened_[step]) writing[storage].add(open);
    for (const auto& [storage, open] : openedForReading_[step]) reading[storage].add(open);
  }
}

}  // namespace gravure
