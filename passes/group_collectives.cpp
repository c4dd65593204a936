#include "passes/group_collectives.h"

#include "ir/cudagraph_ops.h"
#include "passes/partition_levels.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallVector.h>

#include <algorithm>

namespace gravure {
namespace {

constexpr const char* kPass = "group-collectives";

/// Finds the fates of one entry.
class FateFinder {
 public:
  explicit FateFinder(const Numbering& numbering)
      : numbering_(numbering), memberOf_(numbering.size(), -1), openOn_(numbering.valueBound(), -1),
        waitsLeft_(numbering.valueBound()), waitedOn_(numbering.valueBound(), -1),
        operandOf_(numbering.valueBound()) {}

  /// By node: its fate, dense in the order of first members; -1 for none.
  std::vector<int32_t> find(int32_t& fates) {
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      const OpFacts& facts = numbering_.facts(i);
      if (openCount_ > 0) touch(i);
      if (facts.wait) wait(i);
      if (facts.collective) start(i);
    }
    return renumber(fates);
  }

 private:
  struct Collective {
    int32_t fate = -1;                       // its own number, united with others in fateRoot_
    int32_t openStorages = 0;                // not waited for yet
    llvm::SmallVector<int32_t, 2> operands;  // storages it reads
  };

  int32_t root(int32_t fate) {
    while (fateRoot_[fate] != fate) fate = fateRoot_[fate] = fateRoot_[fateRoot_[fate]];
    return fate;
  }

  void join(int32_t node, int32_t fate) {
    int32_t& own = memberOf_[node];
    if (own < 0) {
      own = fate;
      return;
    }
    const int32_t a = root(own), b = root(fate);
    fateRoot_[std::max(a, b)] = std::min(a, b);
  }

  /// Joins the fates whose buffers node `i` touches while they are open.
  void touch(int32_t i) {
    const auto reads = [&](int32_t storage) {
      if (storage >= 0 && openOn_[storage] >= 0) join(i, collectives_[openOn_[storage]].fate);
    };
    for (int32_t value : numbering_.used(i)) reads(numbering_.storageOf(value));
    numbering_.forEachWritten(i, [&](int32_t storage) {
      for (int32_t c : operandOf_[storage]) join(i, collectives_[c].fate);
    });
  }

  void start(int32_t i) {
    const int32_t c = static_cast<int32_t>(collectives_.size());
    collectives_.emplace_back().fate = static_cast<int32_t>(fateRoot_.size());
    fateRoot_.push_back(collectives_[c].fate);
    join(i, collectives_[c].fate);
    const auto opens = [&](int32_t storage) {
      if (storage < 0 || openOn_[storage] == c) return;
      if (openOn_[storage] >= 0) close(openOn_[storage], storage);
      openOn_[storage] = c;
      waitsLeft_[storage] = 0;
      ++collectives_[c].openStorages;
    };
    numbering_.forEachWritten(i, opens);
    for (int32_t result : numbering_.results(i)) {
      const int32_t storage = numbering_.storageOf(result);
      opens(storage);
      if (storage >= 0) ++waitsLeft_[storage];
    }
    for (int32_t value : numbering_.used(i)) {
      const int32_t storage = numbering_.storageOf(value);
      if (storage < 0 || openOn_[storage] == c) continue;
      if (!llvm::is_contained(operandOf_[storage], c)) {
        operandOf_[storage].push_back(c);
        collectives_[c].operands.push_back(storage);
      }
    }
    if (collectives_[c].openStorages > 0) {
      ++openCount_;
    } else {
      endOperands(c);
    }
  }

  void wait(int32_t i) {
    for (int32_t value : numbering_.used(i)) {
      const int32_t storage = numbering_.storageOf(value);
      const int32_t c = storage < 0 ? -1 : openOn_[storage];
      if (c < 0 || waitedOn_[value] == c) continue;
      waitedOn_[value] = c;
      if (--waitsLeft_[storage] <= 0) close(c, storage);
    }
  }

  void close(int32_t c, int32_t storage) {
    openOn_[storage] = -1;
    if (--collectives_[c].openStorages > 0) return;
    --openCount_;
    endOperands(c);
  }

  void endOperands(int32_t c) {
    for (int32_t storage : collectives_[c].operands) {
      auto& open = operandOf_[storage];
      open.erase(std::remove(open.begin(), open.end(), c), open.end());
    }
  }

  std::vector<int32_t> renumber(int32_t& fates) {
    std::vector<int32_t> dense(fateRoot_.size(), -1);
    fates = 0;
    for (int32_t& fate : memberOf_) {
      if (fate < 0) continue;
      int32_t& number = dense[root(fate)];
      if (number < 0) number = fates++;
      fate = number;
    }
    return std::move(memberOf_);
  }

  const Numbering& numbering_;
  std::vector<int32_t> memberOf_;  // by node
  std::vector<int32_t> openOn_;    // by storage: collective that fills it
  // By storage: results in it that are to be waited for. In-place coalesced forms may have several.
  std::vector<int32_t> waitsLeft_;
  std::vector<int32_t> waitedOn_;  // by value: collective that it was last waited for
  std::vector<llvm::SmallVector<int32_t, 1>>
      operandOf_;  // by storage: open collectives that read it
  std::vector<Collective> collectives_;
  std::vector<int32_t> fateRoot_;
  int32_t openCount_ = 0;
};

bool hasCollectives(const Entry& entry) {
  return llvm::any_of(entry.graph->nodes(),
                      [](const Node* node) { return factsOf(node).collective; });
}

/// What pulls a fate out of capture, and how the nodes are coloured after it.
struct Fates {
  Colouring colouring;
  std::vector<int32_t>
      cause;  // by fate: a host member; -1 if all are capturable, -2 if pulled apart
};

/// Colours the members of fates that have a cause as host nodes.
void recolour(Fates& fates) {
  for (size_t i = 0; i < fates.colouring.fate.size(); ++i) {
    const int32_t fate = fates.colouring.fate[i];
    if (fate >= 0 && fates.cause[fate] != -1) fates.colouring.captured[i] = false;
  }
}

/// Host nodes that this pass makes may pull further fates apart, so it goes round until none is.
Fates decide(const Dependences& dependences) {
  Fates fates;
  Colouring& colouring = fates.colouring;
  const Numbering& numbering = dependences.numbering();
  colouring.dependences = &dependences;
  colouring.fate = FateFinder(numbering).find(colouring.fates);
  fates.cause.assign(colouring.fates, -1);
  for (int32_t i = 0; i < numbering.size(); ++i) {
    const Node* node = numbering.node(i);
    const bool host = hostReasonOf(node).has_value();
    colouring.captured.push_back(!host && !numbering.facts(i).scalarOnly);
    if (host && colouring.fate[i] >= 0 && fates.cause[colouring.fate[i]] == -1) {
      fates.cause[colouring.fate[i]] = i;
    }
  }
  recolour(fates);
  for (auto apart = fatesPulledApart(colouring); !apart.empty();
       apart = fatesPulledApart(colouring)) {
    for (int32_t fate : apart) fates.cause[fate] = -2;
    recolour(fates);
  }
  return fates;
}

std::string causeText(const Fates& fates, int32_t fate, const Numbering& numbering) {
  if (fates.cause[fate] == -2) {
    return "a host node depends on a part of its collective, and another part on that host node";
  }
  const Node* host = numbering.node(fates.cause[fate]);
  return "its collective is not captured, because " + describe(host) + " runs on the host (" +
         reasonName(*hostReasonOf(host)) + ")";
}

void annotate(const Fates& fates, const Numbering& numbering, Remarks& remarks) {
  std::vector<bool> said(fates.colouring.fates);
  for (int32_t i = 0; i < numbering.size(); ++i) {
    const int32_t fate = fates.colouring.fate[i];
    if (fate < 0) continue;
    Node* node = numbering.node(i);
    setFate(node, fate);
    if (fates.cause[fate] == -1) {
      if (!said[fate]) {
        remarks.add(RemarkKind::Passed, kPass, "collective-whole", node,
                    "captured together with its waits and what touches its buffers");
      }
      said[fate] = true;
    } else if (!hostReasonOf(node)) {
      setHostReason(node, HostReason::OpenCollective);
      remarks.add(RemarkKind::Missed, kPass, reasonName(HostReason::OpenCollective), node,
                  causeText(fates, fate, numbering));
    }
  }
}

}  // namespace

void groupCollectives(Program& program, PassContext& context) {
  for (Entry& entry : program.entries) {
    bool collectives = false;
    for (Node* node : entry.graph->nodes()) {
      clearFate(node);
      collectives |= factsOf(node).collective;
    }
    if (!collectives) continue;
    const Dependences dependences(entry);
    annotate(decide(dependences), dependences.numbering(), context.remarks);
  }
}

void verifyGroupCollectives(const Program& program, const PassContext&) {
  for (const Entry& entry : program.entries) {
    if (!hasCollectives(entry)) continue;
    const Dependences dependences(entry);
    const Numbering& numbering = dependences.numbering();
    const Fates fates = decide(dependences);
    for (int32_t i = 0; i < numbering.size(); ++i) {
      const Node* node = numbering.node(i);
      const int64_t fate = fateOf(node).value_or(-1);
      TORCH_CHECK(fate == fates.colouring.fate[i], "entry '", entry.name, "': ", describe(node),
                  " has fate ", fate, ", expected ", fates.colouring.fate[i]);
      TORCH_CHECK(fate < 0 || fates.cause[fate] == -1 || hostReasonOf(node), "entry '", entry.name,
                  "': ", describe(node),
                  " must run on the host: ", causeText(fates, fate, numbering));
    }
  }
}

}  // namespace gravure
