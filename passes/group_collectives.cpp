#include "passes/group_collectives.h"

#include "ir/check/defined_memory.h"
#include "ir/core/cudagraph_ops.h"
#include "passes/analysis/partition_levels.h"

#include <llvm/ADT/IntEqClasses.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <map>

namespace gravure {
namespace {

constexpr const char* kPass = "group-collectives";

/// Finds the fates of one entry.
class FateFinder {
 public:
  explicit FateFinder(const Dependences& dependences)
      : numbering_(dependences.numbering()), accesses_(dependences.accesses()),
        together_(numbering_.size()), isMember_(numbering_.size()) {}

  /// By node: its fate, dense in the order of first members; -1 for none.
  std::vector<int32_t> find(int32_t& fates) {
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      isMember_[i] = leavesOpen(numbering_.facts(i));
    }
    const auto& spans = accesses_.spans();
    for (const CollectiveSpan& span : spans) {
      for (int64_t wait : span.waits) unite(span.begin, wait);
    }
    for (const CollectiveClash& clash : accesses_.clashes()) {
      unite(spans[clash.span].begin, clash.position);
    }
    return denseFates(fates);
  }

 private:
  /// A node whose blocks hold the whole span needs no fate.
  void unite(int64_t start, int64_t other) {
    if (start == other) return;
    together_.join(static_cast<unsigned>(start), static_cast<unsigned>(other));
    isMember_[start] = isMember_[other] = true;
  }

  std::vector<int32_t> denseFates(int32_t& fates) {
    together_.compress();
    std::vector<int32_t> ofClass(together_.getNumClasses(), -1), fate(numbering_.size(), -1);
    fates = 0;
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      if (!isMember_[i]) continue;
      int32_t& known = ofClass[together_[i]];
      if (known < 0) known = fates++;
      fate[i] = known;
    }
    return fate;
  }

  const Numbering& numbering_;
  const StorageAccesses& accesses_;
  llvm::IntEqClasses together_;  // nodes
  std::vector<bool> isMember_;   // by node
};

bool leavesAnyOpen(const Entry& entry) {
  return llvm::any_of(entry.graph->nodes(),
                      [](const Node* node) { return leavesOpen(factsOf(node)); });
}

/// What pulls a fate out of capture, and how the nodes are coloured after it.
struct Fates {
  Colouring colouring;
  std::vector<int32_t>
      cause;  // by fate: a host member; -1 if all are capturable, -2 if pulled apart
  std::vector<bool> communicates;  // by fate: a collective is among its members
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
  colouring.fate = FateFinder(dependences).find(colouring.fates);
  fates.cause.assign(colouring.fates, -1);
  fates.communicates.assign(colouring.fates, false);
  for (int32_t i = 0; i < numbering.size(); ++i) {
    const Node* node = numbering.node(i);
    const bool host = hostReasonOf(node).has_value();
    colouring.captured.push_back(!host && !numbering.facts(i).numbersOnly);
    const int32_t fate = colouring.fate[i];
    if (fate < 0) continue;
    if (numbering.facts(i).collective) fates.communicates[fate] = true;
    if (host && fates.cause[fate] == -1) fates.cause[fate] = i;
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
  const std::string kind = fates.communicates[fate] ? "collective" : "transfer";
  if (fates.cause[fate] == -2) {
    return "a host node depends on a part of its " + kind + ", and another part on that host node";
  }
  const Node* host = numbering.node(fates.cause[fate]);
  return "its " + kind + " is not captured, because " + describe(host) + " runs on the host (" +
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

/// The definition of fates, line by line, from where collectives start, end and clash.
class FateVerifier {
 public:
  FateVerifier(const Entry& entry, const Dependences& dependences)
      : entry_(entry), dependences_(dependences), numbering_(dependences.numbering()) {
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      fate_.push_back(fateOf(numbering_.node(i)).value_or(-1));
      if (fate_.back() >= 0) members_[fate_.back()].push_back(i);
    }
  }

  /// "" if all holds.
  std::string verify() const {
    for (auto check : {&FateVerifier::checkDense, &FateVerifier::checkMembers,
                       &FateVerifier::checkColours, &FateVerifier::checkWhole}) {
      std::string why = (this->*check)();
      if (!why.empty()) return why;
    }
    return "";
  }

 private:
  using Members = std::vector<int32_t>;  // ascending

  std::string describeFate(int32_t i) const {
    return describe(numbering_.node(i)) + " has fate " + std::to_string(fate_[i]);
  }

  std::string checkDense() const {
    int64_t next = 0;
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      if (fate_[i] > next) return describeFate(i) + ", expected " + std::to_string(next);
      if (fate_[i] == next) ++next;
    }
    return "";
  }

  std::string checkMembers() const {
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      if (leavesOpen(numbering_.facts(i)) && fate_[i] < 0) {
        return describe(numbering_.node(i)) + " starts what goes on behind it, and has no fate";
      }
    }
    const DefinedMemory memory(entry_);
    for (const auto& [start, other] : memory.bound()) {
      if (start == other || (fate_[start] >= 0 && fate_[start] == fate_[other])) continue;
      return describeFate(static_cast<int32_t>(other)) + ", expected " +
             std::to_string(fate_[start]) + ", that of " +
             describe(numbering_.node(static_cast<int32_t>(start)));
    }
    return "";
  }

  bool isHost(int32_t i) const { return hostReasonOf(numbering_.node(i)).has_value(); }

  std::string checkColours() const {
    for (const auto& [fate, members] : members_) {
      const auto host = llvm::find_if(members, [&](int32_t i) { return isHost(i); });
      if (host == members.end()) continue;
      for (int32_t i : members) {
        if (isHost(i)) continue;
        return describe(numbering_.node(i)) + " must run on the host: its fate is that of " +
               describe(numbering_.node(*host)) + ", which does";
      }
    }
    return "";
  }

  std::string checkWhole() const {
    for (const auto& [fate, members] : members_) {
      if (isHost(members.front())) continue;
      const int32_t host = between(members);
      if (host >= 0) {
        return describe(numbering_.node(members.front())) +
               " must run on the host: " + describe(numbering_.node(host)) +
               " depends on a part of its fate, and another part on it";
      }
    }
    return "";
  }

  /// A node outside of partitions that depends on a member and that another member depends on; -1 if there
  /// is none.
  int32_t between(const Members& members) const {
    const int32_t first = members.front(), last = members.back();
    // By node of the span: the host node that it depends on behind a member, -1 without one;
    // kNone if it depends on no member.
    constexpr int32_t kNone = -2;
    std::vector<int32_t> over(last - first + 1, kNone);
    for (int32_t i = first; i <= last; ++i) {
      int32_t& own = over[i - first];
      for (int32_t before : dependences_.before(i)) {
        if (before >= first) own = std::max(own, over[before - first]);
      }
      const bool member = fate_[i] == fate_[first];
      if (member && own >= 0) return own;
      if (member) own = -1;
      const bool outside = isHost(i) || numbering_.facts(i).numbersOnly;
      if (outside && own == -1) own = i;
    }
    return -1;
  }

  const Entry& entry_;
  const Dependences& dependences_;
  const Numbering& numbering_;
  std::vector<int64_t> fate_;           // by node, -1 for none
  std::map<int64_t, Members> members_;  // by fate
};

}  // namespace

void groupCollectives(Program& program, PassContext& context) {
  for (Entry& entry : program.entries) {
    for (Node* node : entry.graph->nodes()) clearFate(node);
    if (!leavesAnyOpen(entry)) continue;
    const auto dependences = context.analyses.dependencesOf(entry);
    annotate(decide(*dependences), dependences->numbering(), context.remarks);
  }
}

void verifyGroupCollectives(const Program& program, const PassContext& context) {
  for (const Entry& entry : program.entries) {
    if (!leavesAnyOpen(entry)) continue;
    const auto dependences = context.analyses.dependencesOf(entry);
    const std::string why = FateVerifier(entry, *dependences).verify();
    TORCH_CHECK(why.empty(), "entry '", entry.name, "': ", why);
  }
}

}  // namespace gravure
