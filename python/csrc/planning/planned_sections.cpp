#include "python/csrc/planning/planned_sections.h"

#include "ir/check/verify.h"
#include "ir/facts/op_facts.h"
#include "ir/text/program_text.h"
#include "passes/pipeline/program_plan.h"
#include "python/csrc/planning/load_options.h"

#include <algorithm>
#include <unordered_map>

namespace gravure {

namespace {

using Positions = std::unordered_map<const Node*, int64_t>;

Positions positionsIn(const Entry& entry) {
  Positions positions;
  for (const Node* node : entry.graph->nodes())
    positions.emplace(node, static_cast<int64_t>(positions.size()));
  return positions;
}

std::vector<int64_t> asList(const PlannedSection& section, const Positions& positions) {
  const bool numbers =
      !section.captured && std::all_of(section.nodes.begin(), section.nodes.end(),
                                       [](const Node* node) { return factsOf(node).numbersOnly; });
  std::vector<int64_t> list{section.captured ? section.index
                            : numbers        ? kNumberSection
                                             : kHostSection};
  for (const Node* node : section.nodes) list.push_back(positions.at(node));
  return list;
}

std::vector<int64_t> draws(const Entry& entry, const Positions& positions) {
  std::vector<int64_t> list{kDraws};
  for (const Node* node : entry.graph->nodes()) {
    if (drawsRandom(node)) list.push_back(positions.at(node));
  }
  return list;
}

}  // namespace

PlannedSections plannedSections(const std::string& text,
                                const c10::Dict<std::string, std::string>& options) {
  Program program = readProgram(text);
  verifyProgram(program);
  PassContext context;
  context.options = parseLoadOptions(options).passes;
  const auto& plans = planProgram(program, context, PlannedCalls::AsGiven);
  PlannedSections planned;
  for (size_t e = 0; e < plans.size(); ++e) {
    const Entry& entry = program.entries[e];
    const Positions positions = positionsIn(entry);
    std::vector<std::vector<int64_t>> sections;
    for (const PlannedSection& section : plans[e].sections)
      sections.push_back(asList(section, positions));
    sections.push_back(draws(entry, positions));
    planned.insert(entry.name, std::move(sections));
  }
  return planned;
}

}  // namespace gravure
