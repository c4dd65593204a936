#include "passes/partition_graph/partition_plan.h"

#include "ir/core/attributes.h"
#include "ir/core/counted.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/facts/compiled_op.h"
#include "ir/facts/recurrent_operators.h"
#include "ir/memory/storage_lives.h"
#include "passes/analysis/partition_sections.h"

#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <unordered_map>

namespace gravure {
namespace {

/// Rounds of the minimum size before levels are given up: each round makes host nodes, and each that
/// it makes can leave another partition short.
constexpr int kSizeRounds = 64;

/// An order with the nodes that it keeps on the host.
struct Candidate {
  SectionOrder order;
  std::vector<HostReason> kept;  // by node, where isKept
  std::vector<bool> isKept;
  int64_t peak = 0;
  int32_t parts = 1;
  std::string refused;  // why there is none
};

/// The operator calls that `node` counts as, for the minimum size.
int64_t callsOf(const Node* node, const OpFacts& facts) {
  if (const int64_t compiled = compiledCalls(node)) return compiled;
  if (const int64_t recurrent = recurrentCalls(node)) return recurrent;
  return isView(facts) ? 0 : std::max<int64_t>(writtenListSize(node), 1);
}

class Planner {
 public:
  Planner(const Entry& entry, const PassOptions& options, const KeptAnalyses& analyses)
      : entry_(entry), options_(options), kept_(analyses.dependencesOf(entry)),
        dependences_(*kept_), live_(dependences_.accesses()) {
    const Numbering& numbering = dependences_.numbering();
    base_.dependences = &dependences_;
    // A text that somebody wrote may number them as it likes.
    std::unordered_map<int64_t, int32_t> fates;
    for (int32_t i = 0; i < numbering.size(); ++i) {
      const Node* node = numbering.node(i);
      TORCH_CHECK(!isPartition(node), "partition-graph: entry '", entry.name, "': ", describe(node),
                  " is a partition already; give the pass a program without them");
      const bool host = findAttribute(node, attr::host);
      const bool numbers = numbering.facts(i).numbersOnly;
      base_.captured.push_back(!host && !numbers);
      isNumberNode_.push_back(!host && numbers);
      calls_.push_back(callsOf(node, numbering.facts(i)));
      const auto fate = fateOf(node);
      const auto next = static_cast<int32_t>(fates.size());
      base_.fate.push_back(fate ? fates.try_emplace(*fate, next).first->second : -1);
    }
    base_.fates = static_cast<int32_t>(fates.size());
    openBrokenFates();
  }

  PartitionPlan plan() {
    Candidate program = inProgramOrder();
    PartitionPlan plan;
    plan.programOrderPartitions = program.order.capturedSections();
    plan.programOrderSections = program.order.sections();
    plan.programOrderPeak = program.peak;
    Candidate levels = byLevels(mostBytes(program.peak));
    plan.levelPartitions = levels.order.capturedSections();
    plan.levelSections = levels.order.sections();
    plan.levelPeak = levels.peak;
    plan.levelParts = levels.parts;
    const bool wished = options_.order == PartitionOrder::Levels;
    if (wished) plan.levelsRefused = levels.refused;
    plan.order =
        wished && levels.refused.empty() ? PartitionOrder::Levels : PartitionOrder::Program;
    fill(plan, plan.order == PartitionOrder::Levels ? levels : program);
    return plan;
  }

 private:
  /// The highest peak that levels may have, where program order has `peak`.
  int64_t mostBytes(int64_t peak) const {
    const auto bytes = static_cast<double>(peak);
    const double most =
        bytes + std::max(bytes * options_.memoryGrowth, static_cast<double>(options_.memorySlack));
    constexpr double kEveryAddress = 0x1p62;
    return static_cast<int64_t>(std::min(most, kEveryAddress));
  }

  Candidate start() const {
    Candidate candidate;
    candidate.isKept = broken_;
    candidate.kept.assign(dependences_.size(), HostReason::OpenCollective);
    return candidate;
  }

  /// Keeps on the host what shares a fate with a host node. After group-collectives there is none.
  void openBrokenFates() {
    std::vector<bool> hostFate(base_.fates);
    broken_.resize(base_.fate.size());
    for (size_t i = 0; i < base_.fate.size(); ++i) {
      if (base_.fate[i] >= 0 && !base_.captured[i]) hostFate[base_.fate[i]] = true;
    }
    for (size_t i = 0; i < base_.fate.size(); ++i) {
      if (base_.fate[i] < 0 || !base_.captured[i] || !hostFate[base_.fate[i]]) continue;
      broken_[i] = true;
      base_.captured[i] = false;
    }
  }

  static void keep(Candidate& candidate, Colouring& colouring, int32_t i, HostReason reason) {
    candidate.isKept[i] = true;
    candidate.kept[i] = reason;
    colouring.captured[i] = false;
  }

  /// Makes host nodes of captured sections that are too small. True if there were any.
  bool dropSmallSections(Candidate& candidate, Colouring& colouring) const {
    bool any = false;
    const SectionOrder& order = candidate.order;
    for (int32_t section = 0; section < order.sections(); ++section) {
      if (!order.captured[section]) continue;
      int64_t calls = 0;
      for (int32_t at = order.beginOf(section); at < order.ends[section]; ++at)
        calls += calls_[order.nodes[at]];
      // A section of views alone launches nothing, whatever the minimum is.
      if (calls >= std::max<int64_t>(options_.minPartitionSize, 1)) continue;
      any = true;
      for (int32_t at = order.beginOf(section); at < order.ends[section]; ++at) {
        keep(candidate, colouring, order.nodes[at], HostReason::TooSmall);
      }
    }
    return any;
  }

  /// Makes host nodes of fates that lie in more than one section. True if there were any.
  static bool dropSplitFates(Candidate& candidate, Colouring& colouring) {
    std::vector<int32_t> sectionOf(colouring.fates, -1);
    std::vector<bool> split(colouring.fates);
    bool any = false;
    const SectionOrder& order = candidate.order;
    for (int32_t section = 0; section < order.sections(); ++section) {
      for (int32_t at = order.beginOf(section); at < order.ends[section]; ++at) {
        const int32_t fate = colouring.bindingFate(order.nodes[at]);
        if (fate < 0) continue;
        if (sectionOf[fate] >= 0 && sectionOf[fate] != section) any = split[fate] = true;
        sectionOf[fate] = section;
      }
    }
    for (size_t i = 0; any && i < colouring.fate.size(); ++i) {
      const int32_t fate = colouring.bindingFate(static_cast<int32_t>(i));
      if (fate >= 0 && split[fate]) {
        keep(candidate, colouring, static_cast<int32_t>(i), HostReason::OpenCollective);
      }
    }
    return any;
  }

  Candidate inProgramOrder() const {
    Candidate candidate = start();
    Colouring colouring = base_;
    do {
      candidate.order = sectionsInProgramOrder(colouring, isNumberNode_);
    } while (dropSplitFates(candidate, colouring));
    // Host sections stand on both sides of a captured one, so no other section changes.
    if (dropSmallSections(candidate, colouring))
      candidate.order = sectionsInProgramOrder(colouring, isNumberNode_);
    candidate.peak = live_.peak(candidate.order.nodes);
    return candidate;
  }

  /// The order with the fewest sections whose peak is at most `most`; the one with the fewest of all,
  /// refused, if there is none.
  Candidate byLevels(int64_t most) const {
    constexpr int32_t kMostParts = 64;
    Candidate whole = byLevelsOf(1, most);
    if (whole.peak <= most || !whole.refused.empty()) return whole;
    for (int32_t parts = 2; parts <= kMostParts; parts *= 2) {
      Candidate candidate = byLevelsOf(parts, most);
      if (candidate.refused.empty() && candidate.peak <= most) return candidate;
    }
    whole.refused = "planned peak would be " + std::to_string(whole.peak) + " bytes, above " +
                    std::to_string(most);
    return whole;
  }

  Candidate byLevelsOf(int32_t parts, int64_t most) const {
    Candidate candidate = start();
    candidate.parts = parts;
    Colouring colouring = base_;
    for (int round = 0; round < kSizeRounds; ++round) {
      const auto levels = parts == 1 ? fewestLevels(colouring) : levelsByParts(colouring, parts);
      if (!levels) {
        candidate.refused = "a collective cannot be kept together";
        return candidate;
      }
      if (parts == 1) {
        const Levels latest = latestLevels(colouring, *levels);
        candidate.order = sectionsByLevel(colouring, nearProgramLevels(colouring, *levels, latest));
        if (dropSmallSections(candidate, colouring)) continue;
        choosePlacement(candidate, colouring, *levels, latest, most);
      } else {
        candidate.order = sectionsByLevel(colouring, *levels);
        if (dropSmallSections(candidate, colouring)) continue;
        candidate.peak = live_.peak(candidate.order.nodes);
      }
      return candidate;
    }
    candidate.refused = "too many partitions are below the minimum size";
    return candidate;
  }

  /// Leaves the placement near the program if its peak will do, else takes the one with the least.
  void choosePlacement(Candidate& candidate, const Colouring& colouring, const Levels& earliest,
                       const Levels& latest, int64_t most) const {
    candidate.peak = live_.peak(candidate.order.nodes);
    for (const Levels* levels : {&earliest, &latest}) {
      if (candidate.peak <= most) return;
      SectionOrder order = sectionsByLevel(colouring, *levels);
      const int64_t peak = live_.peak(order.nodes);
      if (peak < candidate.peak && !hasSmallSection(order)) {
        candidate.order = std::move(order);
        candidate.peak = peak;
      }
    }
  }

  bool hasSmallSection(const SectionOrder& order) const {
    Candidate probe = start();
    probe.order = order;
    Colouring colouring = base_;
    return dropSmallSections(probe, colouring);
  }

  void fill(PartitionPlan& plan, const Candidate& candidate) const;

  const Entry& entry_;
  const PassOptions& options_;
  const std::shared_ptr<const Dependences> kept_;
  const Dependences& dependences_;
  const LiveBytes live_;
  Colouring base_;
  std::vector<bool> isNumberNode_;  // by node
  std::vector<int64_t> calls_;      // by node: operator calls, for the minimum size
  std::vector<bool> broken_;        // by node: shares a fate with a host node
};

/// Inputs and outputs of each section.
class BoundaryFinder {
 public:
  BoundaryFinder(const Entry& entry, const Numbering& numbering, const SectionOrder& order)
      : entry_(entry), numbering_(numbering), order_(order), sectionOf_(numbering.size()),
        usedOutside_(numbering.valueBound()), seenBy_(numbering.valueBound(), -1) {
    for (int32_t section = 0; section < order.sections(); ++section) {
      for (int32_t at = order.beginOf(section); at < order.ends[section]; ++at)
        sectionOf_[order.nodes[at]] = section;
    }
  }

  void find(std::vector<PlannedSection>& sections) {
    for (int32_t section = 0; section < order_.sections(); ++section)
      findInputs(section, sections[section]);
    for (const Value* result : entry_.graph->outputs())
      usedOutside_[Numbering::indexOf(result)] = true;
    for (int32_t section = 0; section < order_.sections(); ++section) {
      for (int32_t at = order_.beginOf(section); at < order_.ends[section]; ++at) {
        for (int32_t result : numbering_.results(order_.nodes[at])) {
          if (usedOutside_[result]) sections[section].outputs.push_back(numbering_.value(result));
        }
      }
    }
  }

 private:
  void findInputs(int32_t section, PlannedSection& planned) {
    for (int32_t at = order_.beginOf(section); at < order_.ends[section]; ++at) {
      for (int32_t value : numbering_.used(order_.nodes[at])) {
        const int32_t definer = numbering_.definedBy(value);
        if (definer >= 0 && sectionOf_[definer] == section) continue;
        if (seenBy_[value] == section) continue;
        seenBy_[value] = section;
        usedOutside_[value] = true;
        planned.inputs.push_back(numbering_.value(value));
      }
    }
  }

  const Entry& entry_;
  const Numbering& numbering_;
  const SectionOrder& order_;
  std::vector<int32_t> sectionOf_;  // by node
  std::vector<bool> usedOutside_;   // by value
  std::vector<int32_t> seenBy_;     // by value: the last section that took it as an input
};

void Planner::fill(PartitionPlan& plan, const Candidate& candidate) const {
  const Numbering& numbering = dependences_.numbering();
  const SectionOrder& order = candidate.order;
  int64_t partitions = 0;
  plan.sections.resize(order.sections());
  for (int32_t section = 0; section < order.sections(); ++section) {
    PlannedSection& planned = plan.sections[section];
    planned.captured = order.captured[section];
    if (planned.captured) planned.index = partitions++;
    planned.nodes.reserve(order.ends[section] - order.beginOf(section));
    for (int32_t at = order.beginOf(section); at < order.ends[section]; ++at) {
      planned.nodes.push_back(numbering.node(order.nodes[at]));
    }
  }
  BoundaryFinder(entry_, numbering, order).find(plan.sections);
  for (int32_t i = 0; i < numbering.size(); ++i) {
    if (candidate.isKept[i]) plan.keptOnHost.push_back({numbering.node(i), candidate.kept[i]});
  }
}

std::string mebibytes(int64_t bytes) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << llvm::format("%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return os.str();
}

void printFigures(llvm::raw_ostream& os, int64_t partitions, int64_t sections, int64_t peak) {
  os << counted(partitions, "partition") << " in " << counted(sections, "section") << ", peak "
     << mebibytes(peak);
}

void printValues(llvm::raw_ostream& os, const char* title, const std::vector<Value*>& values) {
  constexpr size_t kShown = 8;
  os << "  " << title << " (" << values.size() << "):";
  for (size_t i = 0; i < values.size() && i < kShown; ++i) os << " %" << values[i]->debugName();
  os << (values.size() > kShown ? " …\n" : "\n");
}

}  // namespace

int64_t PartitionPlan::partitionCount() const {
  return std::count_if(sections.begin(), sections.end(),
                       [](const PlannedSection& section) { return section.captured; });
}

void PartitionPlan::print(llvm::raw_ostream& os) const {
  os << "order: " << (order == PartitionOrder::Levels ? "levels" : "program") << '\n';
  os << "levels: ";
  printFigures(os, levelPartitions, levelSections, levelPeak);
  if (levelParts > 1) os << ", in " << levelParts << " parts of the program";
  os << "\nprogram order: ";
  printFigures(os, programOrderPartitions, programOrderSections, programOrderPeak);
  os << '\n';
  if (!levelsRefused.empty()) os << "levels refused: " << levelsRefused << '\n';
  for (const PlannedHost& kept : keptOnHost) {
    os << "kept on the host: " << describe(kept.node) << " (" << reasonName(kept.reason) << ")\n";
  }
  for (const PlannedSection& section : sections) {
    if (section.captured) {
      os << "partition " << section.index;
    } else {
      os << "host";
    }
    os << ": " << counted(static_cast<int64_t>(section.nodes.size()), "node") << ", "
       << describe(section.nodes.front());
    if (section.nodes.size() > 1) os << " to " << describe(section.nodes.back());
    os << '\n';
    printValues(os, "in", section.inputs);
    printValues(os, "out", section.outputs);
  }
}

PartitionPlan planPartitions(const Entry& entry, const PassOptions& options,
                             const KeptAnalyses& analyses) {
  return Planner(entry, options, analyses).plan();
}

}  // namespace gravure
