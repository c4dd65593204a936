#include "passes/analysis/dependences.h"

#include "passes/analysis/random_source.h"

namespace gravure {

/// Makes the links of one node after the other, in program order.
class DependenceBuilder {
 public:
  DependenceBuilder(const Entry& entry, Dependences& result)
      : entry_(entry), result_(result), numbering_(result.numbering()),
        accesses_(result.accesses()) {
    linkedBy_.assign(numbering_.size(), -1);
    lastWriter_.assign(accesses_.storageCount(), -1);
    readersSince_.assign(accesses_.storageCount(), -1);
  }

  void build() {
    result_.begin_.reserve(numbering_.size() + 1);
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      result_.begin_.push_back(static_cast<int32_t>(result_.links_.size()));
      addData(i);
      addWrites(i);
      if (!numbering_.isNested(i)) {
        addChains(i, numbering_.node(i), numbering_.facts(i));
      } else {
        numbering_.forEachNested(i, [&](const Node* node) { addChains(i, node, factsOf(node)); });
      }
    }
    result_.begin_.push_back(static_cast<int32_t>(result_.links_.size()));
  }

 private:
  /// A list of readers, linked through one pool.
  struct Reader {
    int32_t node;
    int32_t next;
  };

  void link(int32_t i, int32_t before) {
    if (before < 0 || before == i || linkedBy_[before] == i) return;
    linkedBy_[before] = i;
    result_.links_.push_back(before);
  }

  void addData(int32_t i) {
    for (int32_t value : numbering_.used(i)) {
      link(i, numbering_.definedBy(value));
      if (const int32_t storage = accesses_.storageOf(value); storage >= 0) read(i, storage);
    }
    accesses_.forEachReadByWait(i, [&](int32_t storage) { read(i, storage); });
  }

  void read(int32_t i, int32_t storage) {
    if (!accesses_.isWritten(storage)) return;
    link(i, lastWriter_[storage]);
    int32_t& head = readersSince_[storage];
    if (head >= 0 && readers_[head].node == i) return;
    readers_.push_back({i, head});
    head = static_cast<int32_t>(readers_.size()) - 1;
  }

  void addWrites(int32_t i) {
    accesses_.forEachWritten(i, [&](int32_t storage) {
      for (int32_t at = readersSince_[storage]; at >= 0; at = readers_[at].next) {
        link(i, readers_[at].node);
      }
      readersSince_[storage] = -1;
      link(i, lastWriter_[storage]);
      lastWriter_[storage] = i;
    });
  }

  void addChains(int32_t i, const Node* node, const OpFacts& facts) {
    if (facts.random) {
      if (const auto source = randomSource(entry_, node)) follow(i, lastDraw(*source));
    }
    if (facts.collective) follow(i, lastCollective_);
    if (facts.effects || facts.reason == HostReason::OpaqueCallable) follow(i, lastEffect_);
  }

  void follow(int32_t i, int32_t& last) {
    link(i, last);
    last = i;
  }

  int32_t& lastDraw(const RandomSource& source) {
    for (auto& [known, last] : draws_) {
      if (known == source) return last;
    }
    draws_.push_back({source, -1});
    return draws_.back().second;
  }

  const Entry& entry_;
  Dependences& result_;
  const Numbering& numbering_;
  const StorageAccesses& accesses_;
  std::vector<int32_t> linkedBy_;      // by node: the last node linked to it
  std::vector<int32_t> lastWriter_;    // by storage
  std::vector<int32_t> readersSince_;  // by storage: head in readers_, the last write's readers
  std::vector<Reader> readers_;
  std::vector<std::pair<RandomSource, int32_t>> draws_;  // a program has a handful of generators
  int32_t lastCollective_ = -1;
  int32_t lastEffect_ = -1;
};

Dependences::Dependences(const Entry& entry)
    : Dependences(entry, std::make_shared<const EntryMemory>(entry)) {}

Dependences::Dependences(const Entry& entry, std::shared_ptr<const EntryMemory> memory)
    : memory_(std::move(memory)) {
  DependenceBuilder(entry, *this).build();
}

}  // namespace gravure
