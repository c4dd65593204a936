// PartitionPlan::verify: the definitions, checked one by one. It shares facts of operators with the
// planner, but neither its storages nor its dependences: ir/check/defined_memory.h stands for them.

#include "ir/check/defined_memory.h"
#include "ir/core/attributes.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/nested_nodes.h"
#include "ir/facts/op_facts.h"
#include "passes/analysis/random_source.h"
#include "passes/partition_graph/partition_plan.h"

#include <llvm/ADT/DenseMap.h>

#include <algorithm>
#include <unordered_map>

namespace gravure {
namespace {

/// What the checks ask of a node.
struct Known {
  const Node* node = nullptr;
  const OpFacts* facts = nullptr;
  int64_t fate = -1;
  bool host = false;  // carries a host reason
  int32_t section = -1;
  int32_t at = -1;  // position over all sections
};

class PlanVerifier {
 public:
  PlanVerifier(const PartitionPlan& plan, const Entry& entry) : plan_(plan), entry_(entry) {
    for (const Node* node : entry.graph->nodes()) {
      Known known{node, &factsOf(node)};
      known.host = findAttribute(node, attr::host);
      known.fate = fateOf(node).value_or(-1);
      nodes_.push_back(known);
    }
  }

  std::string verify() {
    for (auto check :
         {&PlanVerifier::checkSections, &PlanVerifier::checkColours, &PlanVerifier::checkFates,
          &PlanVerifier::checkData, &PlanVerifier::checkMemory, &PlanVerifier::checkChains,
          &PlanVerifier::checkBoundaries}) {
      std::string clash = (this->*check)();
      if (!clash.empty()) return clash;
    }
    return "";
  }

 private:
  static size_t indexOf(const Value* value) { return value->unique(); }

  std::string checkSections() {
    llvm::DenseMap<const Node*, int32_t> positions;
    positions.reserve(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) positions[nodes_[i].node] = static_cast<int32_t>(i);
    int32_t at = 0;
    int64_t index = 0;
    for (size_t r = 0; r < plan_.sections.size(); ++r) {
      const PlannedSection& section = plan_.sections[r];
      if (section.nodes.empty()) return "section " + std::to_string(r) + " holds no node";
      if (r > 0 && plan_.sections[r - 1].captured == section.captured) {
        return "sections " + std::to_string(r - 1) + " and " + std::to_string(r) + " could be one";
      }
      if (section.index != (section.captured ? index++ : -1)) {
        return "section " + std::to_string(r) + " has the index " + std::to_string(section.index);
      }
      for (const Node* node : section.nodes) {
        const auto found = positions.find(node);
        if (found == positions.end()) return "the plan holds a node that is not the entry's";
        Known& known = nodes_[found->second];
        if (known.at >= 0) return describe(node) + " stands twice in the plan";
        known.section = static_cast<int32_t>(r);
        known.at = at++;
      }
    }
    for (const Known& known : nodes_) {
      if (known.at < 0) return describe(known.node) + " is not in the plan";
    }
    return "";
  }

  std::string checkColours() {
    for (const Known& known : nodes_) {
      const PlannedSection& section = plan_.sections[known.section];
      if (section.captured && (known.host || known.facts->numbersOnly)) {
        return describe(known.node) + " must run on the host and stands in partition " +
               std::to_string(section.index);
      }
    }
    return "";
  }

  std::string checkFates() {
    std::unordered_map<int64_t, const Known*> first;
    for (const Known& known : nodes_) {
      if (known.fate < 0) continue;
      const Known& other = *first.try_emplace(known.fate, &known).first->second;
      const bool captured =
          plan_.sections[known.section].captured || plan_.sections[other.section].captured;
      if (captured && known.section != other.section) {
        return describe(other.node) + " and " + describe(known.node) + " share fate " +
               std::to_string(known.fate) + " and stand apart";
      }
    }
    return "";
  }

  std::string checkData() {
    std::vector<bool> defined;
    const auto define = [&](const Value* value) {
      if (indexOf(value) >= defined.size()) defined.resize(indexOf(value) + 1);
      defined[indexOf(value)] = true;
    };
    for (const Value* input : entry_.graph->inputs()) define(input);
    std::string clash;
    const auto walk = [&](const auto& self, const Node* node) -> void {
      const auto need = [&](const Value* value) {
        const bool there = indexOf(value) < defined.size() && defined[indexOf(value)];
        if (!there && clash.empty()) {
          clash = describe(node) + " stands before its operand %" + value->debugName();
        }
      };
      for (const Value* input : node->inputs()) need(input);
      for (const Block* block : node->blocks()) {
        for (const Value* parameter : block->inputs()) define(parameter);
        for (const Node* inner : block->nodes()) self(self, inner);
        for (const Value* result : block->outputs()) need(result);
      }
      for (const Value* output : node->outputs()) define(output);
    };
    for (const PlannedSection& planned : plan_.sections) {
      for (const Node* node : planned.nodes) walk(walk, node);
    }
    return clash;
  }

  /// In program order: a write stands after all that came before it, a read after all writes before it.
  /// A wait reads and writes what its collective does.
  std::string checkMemory() {
    struct Last {
      int32_t touch = -1, write = -1;  // latest position so far
    };
    const DefinedMemory memory(entry_);
    auto wait = memory.waitAccesses().begin();
    std::vector<Last> last(memory.storageCount());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node* top = nodes_[i].node;
      const int32_t at = nodes_[i].at;
      std::string clash;
      const auto touch = [&](int64_t storage, bool writes, const std::string& what) {
        Last& known = last[storage];
        if (at < (writes ? known.touch : known.write)) {
          clash = describe(top) + (writes ? " writes " : " reads ") + what +
                  " and stands before a node that must come first";
        }
        known.touch = std::max(known.touch, at);
        if (writes) known.write = std::max(known.write, at);
      };
      const auto each = [&](const Value* value, bool writes) {
        const int64_t storage = memory.storageOf(value);
        if (storage >= 0) touch(storage, writes, "%" + value->debugName());
      };
      forEachNode(top, [&](const Node* node) {
        for (const Value* input : node->inputs()) each(input, false);
        const OpFacts& facts = node == top ? *nodes_[i].facts : factsOf(node);
        if (!facts.writes) return;
        for (const Value* written : writtenInputs(node)) each(written, true);
      });
      for (; wait != memory.waitAccesses().end() && wait->position == static_cast<int64_t>(i);
           ++wait)
        touch(wait->storage, wait->writes, "what its collective works on");
      if (!clash.empty()) return clash;
    }
    return "";
  }

  std::string checkChains() {
    std::vector<std::pair<RandomSource, int32_t>> draws;
    int32_t collective = -1, effect = -1;
    std::string clash;
    for (const Known& known : nodes_) {
      const Node* top = known.node;
      const int32_t at = known.at;
      const auto after = [&](int32_t& last, const char* what) {
        if (at < last) clash = describe(top) + " changes the order of " + what;
        last = at;
      };
      forEachNode(top, [&](const Node* node) {
        const OpFacts& facts = node == top ? *known.facts : factsOf(node);
        if (facts.collective) after(collective, "collectives");
        if (facts.effects || facts.reason == HostReason::OpaqueCallable) after(effect, "effects");
        const auto source = facts.random ? randomSource(entry_, node) : std::nullopt;
        if (!source) return;
        auto drawn =
            std::find_if(draws.begin(), draws.end(), [&](auto& d) { return d.first == *source; });
        if (drawn == draws.end()) drawn = draws.insert(drawn, {*source, -1});
        after(drawn->second, "random draws");
      });
      if (!clash.empty()) return clash;
    }
    return "";
  }

  std::string checkBoundaries() {
    constexpr int32_t kNowhere = -1;
    std::vector<int32_t> definedIn;  // by value: its section
    const auto define = [&](const Value* value, int32_t section) {
      if (indexOf(value) >= definedIn.size()) definedIn.resize(indexOf(value) + 1, kNowhere);
      definedIn[indexOf(value)] = section;
    };
    for (const Value* input : entry_.graph->inputs()) define(input, kNowhere);
    for (const Known& known : nodes_) {
      forEachNode(known.node, [&](const Node* inner) {
        for (const Value* output : inner->outputs()) define(output, known.section);
        for (const Block* block : inner->blocks()) {
          for (const Value* parameter : block->inputs()) define(parameter, known.section);
        }
      });
    }
    std::vector<bool> leaves(definedIn.size());
    for (const Value* result : entry_.graph->outputs()) leaves[indexOf(result)] = true;
    std::vector<int32_t> seenBy(definedIn.size(), kNowhere);
    for (size_t r = 0; r < plan_.sections.size(); ++r) {
      if (!checkInputs(static_cast<int32_t>(r), definedIn, leaves, seenBy)) {
        return "the section of " + describe(plan_.sections[r].nodes.front()) +
               " does not list what it uses from outside";
      }
    }
    for (const PlannedSection& section : plan_.sections) {
      auto listed = section.outputs.begin();
      bool complete = true;
      for (Node* node : section.nodes) {
        for (Value* output : node->outputs()) {
          if (leaves[indexOf(output)])
            complete &= listed != section.outputs.end() && *listed++ == output;
        }
      }
      if (!complete || listed != section.outputs.end()) {
        return "the section of " + describe(section.nodes.front()) +
               " does not list what is used outside it";
      }
    }
    return "";
  }

  bool checkInputs(int32_t r, const std::vector<int32_t>& definedIn, std::vector<bool>& leaves,
                   std::vector<int32_t>& seenBy) const {
    const PlannedSection& section = plan_.sections[r];
    auto listed = section.inputs.begin();
    bool complete = true;
    const auto use = [&](const Value* value) {
      if (definedIn[indexOf(value)] == r || seenBy[indexOf(value)] == r) return;
      seenBy[indexOf(value)] = r;
      leaves[indexOf(value)] = true;
      complete &= listed != section.inputs.end() && *listed++ == value;
    };
    for (const Node* top : section.nodes) {
      forEachNode(top, [&](const Node* node) {
        for (const Value* input : node->inputs()) use(input);
        for (const Block* block : node->blocks()) {
          for (const Value* result : block->outputs()) use(result);
        }
      });
    }
    return complete && listed == section.inputs.end();
  }

  const PartitionPlan& plan_;
  const Entry& entry_;
  std::vector<Known> nodes_;  // in program order
};

}  // namespace

std::string PartitionPlan::verify(const Entry& entry) const {
  return PlanVerifier(*this, entry).verify();
}

}  // namespace gravure
