#include "ir/memory/timeline.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_facts.h"
#include "ir/memory/storage_accesses.h"

#include <llvm/ADT/StringMap.h>

#include <algorithm>

namespace gravure {

/// Walks the program once, joins what may alias, then reads off the storages' lives.
class TimelineBuilder {
 public:
  TimelineBuilder(const Program& program, bool copiesStaged, Timeline& out)
      : program_(program), copiesStaged_(copiesStaged), out_(out) {}

  void build() {
    for (const Entry& entry : program_.entries) walkEntry(entry);
    for (size_t e = 0; e < program_.entries.size(); ++e) joinSaved(e);
    makeStorages();
    markResults();
    waitForCollectives();
  }

 private:
  /// What is known of one value; values are numbered over all entries: base of the entry + unique().
  struct ValueLife {
    Value* value = nullptr;
    int32_t parent = -1;  // union-find; -1 for values without storage
    int32_t begin = 0;
    int32_t lastUse = -1;
    bool external = false;
    bool allocated = false;
    bool passedOn = false;  // another name: of a partition's edge, or of backward's input
  };

  void walkEntry(const Entry& entry) {
    bases_.push_back(lives_.size());
    out_.storageOf_.push_back({entry.graph.get(), {}, {}, {}});
    const int64_t first = entryBegin_ = step();
    for (Value* input : entry.graph->inputs()) {
      if (ValueLife* life = define(input)) life->external = true;
    }
    for (Node* node : entry.graph->nodes()) walk(node);
    out_.ranges_.emplace_back(first, step());
  }

  int64_t step() const { return static_cast<int64_t>(out_.steps_.size()); }

  void walk(Node* node) {
    if (isPartition(node)) {
      Block* block = node->blocks().at(0);
      const auto tags =
          copiesStaged_ && node->kind() == cg::partition ? tagsOf(node) : std::vector<OperandTag>{};
      for (size_t i = 0; i < block->inputs().size(); ++i) {
        Value* parameter = block->inputs()[i];
        if (ValueLife* life = define(parameter)) life->passedOn = true;
        const bool staged = i < tags.size() && tags[i].kind == OperandKind::Staged;
        if (staged) copyAt(node->input(i), isInput(node->input(i)) ? entryBegin_ : step());
        join(parameter, staged ? copies_.try_emplace(node->input(i), parameter).first->second
                               : node->input(i));
      }
      for (Node* inner : block->nodes()) walk(inner);
      defineOutputs(node);
      return;
    }
    noteStep(node);
    useAndDefine(node);
    out_.steps_.push_back(node);
  }

  void noteStep(const Node* node) {
    if (node->outputs().empty()) {
      out_.stepOf_[node] = step();
      return;
    }
    std::vector<int32_t>& steps = out_.storageOf_.back().step;
    const size_t result = node->output(0)->unique();
    if (result >= steps.size()) steps.resize(result + 1, -1);
    steps[result] = static_cast<int32_t>(step());
  }

  /// A leaf, with all that its blocks do.
  void useAndDefine(Node* node) {
    for (const Value* input : node->inputs()) use(input);
    for (Block* block : node->blocks()) {
      for (Value* parameter : block->inputs()) define(parameter);
      for (Node* inner : block->nodes()) useAndDefine(inner);
      for (const Value* result : block->outputs()) use(result);
    }
    defineOutputs(node);
  }

  void defineOutputs(Node* node) {
    const OpFacts& facts = factsOf(node);
    if (facts.writes) {
      for (const Value* value : writtenInputs(node)) {
        const size_t at = number(value);
        if (at < lives_.size() && lives_[at].value) written_.push_back(static_cast<int32_t>(at));
      }
    }
    communicates_ |= facts.collective;
    const bool fresh = node->blocks().empty() && node->kind() != cg::own;
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      Value* output = node->output(o);
      ValueLife* life = define(output);
      if (!life) continue;
      if (node->kind() == cg::own) life->external = true;
      if (isPartition(node)) life->passedOn = true;
      for (const Block* block : node->blocks()) join(output, block->outputs().at(o));
      life->allocated = fresh;
      if (!facts.maybeAliases) continue;
      for (const Value* source : aliasedInputs(node, o)) {
        life->allocated = false;
        join(output, source);
      }
    }
  }

  size_t number(const Value* value) const { return bases_.back() + value->unique(); }

  /// nullptr for values without storage.
  ValueLife* define(Value* value) {
    if (!isTensorValue(value)) return nullptr;
    const size_t at = number(value);
    if (at >= lives_.size()) lives_.resize(at + 1);
    lives_[at] = {value, static_cast<int32_t>(at), static_cast<int32_t>(step()), -1, false, false,
                  false};
    defined_.push_back(static_cast<int32_t>(at));
    return &lives_[at];
  }

  void use(const Value* value) {
    const size_t at = number(value);
    if (at < lives_.size() && lives_[at].value) lives_[at].lastUse = static_cast<int32_t>(step());
  }

  /// Inputs are copied at the top of their entry, anything else right before its partition.
  void copyAt(const Value* value, int64_t step) {
    const size_t at = number(value);
    if (at >= lives_.size() || !lives_[at].value) return;
    lives_[at].lastUse = std::max(lives_[at].lastUse, static_cast<int32_t>(step));
  }

  static bool isInput(const Value* value) { return value->node()->kind() == c10::prim::Param; }

  int32_t find(int32_t at) {
    while (lives_[at].parent != at) at = lives_[at].parent = lives_[lives_[at].parent].parent;
    return at;
  }

  /// The smaller number is the root, which is the earlier value but for rare orders: the forest stays
  /// flat, because each view joins a root.
  void join(const Value* a, const Value* b) {
    const size_t x = number(a), y = number(b);
    if (x >= lives_.size() || y >= lives_.size() || !lives_[x].value || !lives_[y].value) return;
    joinNumbers(static_cast<int32_t>(x), static_cast<int32_t>(y));
  }

  void joinNumbers(int32_t x, int32_t y) {
    x = find(x);
    y = find(y);
    lives_[std::max(x, y)].parent = std::min(x, y);
  }

  /// Saved inputs of entry `e` are the outputs of that name of an earlier entry.
  void joinSaved(size_t e) {
    const Entry& entry = program_.entries[e];
    for (size_t i = 0; i < entry.inputs.size(); ++i) {
      if (entry.inputs[i].role != InputRole::Saved) continue;
      const auto from = saved_.find(entry.inputs[i].name);
      const size_t to = bases_[e] + entry.graph->inputs()[i]->unique();
      if (from == saved_.end() || to >= lives_.size() || !lives_[to].value) continue;
      lives_[to].external = false;
      lives_[to].passedOn = true;
      joinNumbers(from->second.life, static_cast<int32_t>(to));
      resultsKept_.push_back({from->second.entry, from->second.output});
    }
    for (size_t o = 0; o < entry.outputs.size(); ++o) {
      if (entry.outputs[o].role != OutputRole::Saved) continue;
      const size_t at = bases_[e] + entry.graph->outputs()[o]->unique();
      if (at >= lives_.size() || !lives_[at].value) continue;
      saved_.try_emplace(entry.outputs[o].name, SavedOutput{static_cast<int32_t>(at), e, o});
    }
  }

  void makeStorages() {
    std::vector<int32_t> idOf(lives_.size(), -1);
    size_t storages = 0;
    for (int32_t at : defined_) storages += lives_[at].parent == at;
    out_.storages_.reserve(storages);
    for (int32_t at : defined_) {
      int32_t& id = idOf[find(at)];
      const ValueLife& life = lives_[at];
      if (id < 0) {
        id = static_cast<int32_t>(out_.storages_.size());
        StorageLife storage;
        storage.begin = life.begin;
        storage.bytes = storageBytes(*life.value->type());
        storage.first = life.value;
        out_.storages_.push_back(storage);
      }
      StorageLife& storage = out_.storages_[id];
      if (!life.passedOn) storage.begin = std::min<int64_t>(storage.begin, life.begin);
      const int32_t last = life.passedOn ? life.lastUse : std::max(life.begin, life.lastUse);
      storage.end = std::max<int64_t>(storage.end, last + 1);
      if (life.external) storage.origin = StorageOrigin::External;
    }
    for (int32_t at : written_) out_.storages_[idOf[find(at)]].written = true;
    for (size_t e = 0; e < program_.entries.size(); ++e) {
      const size_t end = e + 1 < bases_.size() ? bases_[e + 1] : lives_.size();
      Timeline::EntryStorages& values = out_.storageOf_[e];
      values.storage.assign(end - bases_[e], -1);
      values.allocates.assign(end - bases_[e], false);
      for (size_t at = bases_[e]; at < end; ++at) {
        if (!lives_[at].value) continue;
        values.storage[at - bases_[e]] = idOf[find(static_cast<int32_t>(at))];
        values.allocates[at - bases_[e]] = lives_[at].allocated;
      }
    }
  }

  /// What an entry returns lives to its end; a saved output that no entry reads is a result too.
  void markResults() {
    std::sort(resultsKept_.begin(), resultsKept_.end());
    for (size_t e = 0; e < program_.entries.size(); ++e) {
      const Entry& entry = program_.entries[e];
      const int64_t end = out_.ranges_[e].second;
      for (size_t o = 0; o < entry.graph->outputs().size(); ++o) {
        const int64_t id = out_.storageOf(entry.graph->outputs()[o]);
        if (id < 0) continue;
        StorageLife& storage = out_.storages_[id];
        storage.end = std::max(storage.end, end);
        const bool kept =
            std::binary_search(resultsKept_.begin(), resultsKept_.end(), std::pair(e, o));
        if (!kept) storage.result = true;
      }
    }
  }

  /// What a collective has open lives to its last wait; without a wait, to the end of the program.
  void waitForCollectives() {
    if (!communicates_) return;
    const auto storageOf = [&](const Value* value) { return out_.storageOf(value); };
    SpanFinder finder(storageOf);
    const auto visit = [&](const auto& self, const Node* node, int64_t at) -> void {
      finder.next(node, at);
      for (const Block* block : node->blocks()) {
        for (const Node* inner : block->nodes()) self(self, inner, at);
      }
    };
    for (int64_t at = 0; at < step(); ++at) visit(visit, out_.steps_[at], at);
    finder.finish(step());
    for (const CollectiveSpan& span : finder.spans) {
      const auto extend = [&](int64_t id) {
        out_.storages_[id].end = std::max(out_.storages_[id].end, std::min(span.end + 1, step()));
      };
      for (int64_t id : span.reads) extend(id);
      for (int64_t id : span.writes) extend(id);
    }
  }

  struct SavedOutput {
    int32_t life;
    size_t entry, output;
  };

  const Program& program_;
  const bool copiesStaged_;
  Timeline& out_;
  std::vector<size_t> bases_;  // by entry
  int64_t entryBegin_ = 0;
  std::vector<ValueLife> lives_;
  std::vector<int32_t> defined_;  // in the order of the program
  std::vector<int32_t> written_;  // values that a node writes to
  bool communicates_ = false;     // starts a collective
  llvm::DenseMap<const Value*, const Value*>
      copies_;  // staged operand: the first parameter that sees it
  llvm::StringMap<SavedOutput> saved_;
  std::vector<std::pair<size_t, size_t>> resultsKept_;  // entry, output: saved and read by an entry
};

Timeline Timeline::build(const Program& program, bool copiesStaged) {
  Timeline timeline;
  TimelineBuilder(program, copiesStaged, timeline).build();
  return timeline;
}

const Timeline::EntryStorages* Timeline::storagesOf(const Value* value) const {
  const Graph* graph = value->owningGraph();
  for (const EntryStorages& values : storageOf_) {
    if (values.graph == graph && value->unique() < values.storage.size()) return &values;
  }
  return nullptr;
}

int64_t Timeline::storageOf(const Value* value) const {
  const EntryStorages* values = storagesOf(value);
  return values ? values->storage[value->unique()] : -1;
}

bool Timeline::allocates(const Value* value) const {
  const EntryStorages* values = storagesOf(value);
  return values && values->allocates[value->unique()];
}

int64_t Timeline::stepOf(const Node* node) const {
  if (node->outputs().empty()) {
    const auto at = stepOf_.find(node);
    return at == stepOf_.end() ? -1 : at->second;
  }
  const size_t result = node->output(0)->unique();
  for (const EntryStorages& values : storageOf_) {
    if (values.graph == node->owningGraph() && result < values.step.size())
      return values.step[result];
  }
  return -1;
}

}  // namespace gravure
