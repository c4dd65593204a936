#include "runtime/step/flat_program.h"

#include "ir/core/nested_nodes.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "runtime/layout/result_ownership.h"
#include "runtime/program/flatten.h"

#include <map>
#include <set>
#include <utility>

namespace gravure {
namespace {

/// Facts are kept with their node by who asks first: behind this nobody writes to a node any more.
Program withFacts(Program program) {
  TORCH_CHECK(!program.entries.empty(), "a program without entries cannot run");
  for (const Entry& entry : program.entries)
    forEachNode(entry.graph->block(), [](const Node* node) { (void)factsOf(node); });
  return program;
}

std::vector<EntryCode> flattenAll(const Program& program, const Timeline& timeline,
                                  const DeviceMap& devices, ResultPolicy results) {
  std::vector<EntryCode> codes;
  for (const Entry& entry : program.entries) codes.push_back(flatten(entry, timeline, devices));
  chooseOwnership(program, timeline, results, codes);
  return codes;
}

std::vector<std::vector<InputCheck>> checksOf(const Program& program, const DeviceMap& devices) {
  std::vector<std::vector<InputCheck>> checks;
  for (const Entry& entry : program.entries) {
    auto& each = checks.emplace_back();
    for (size_t i = 0; i < entry.graph->inputs().size(); ++i) each.emplace_back(entry, i, devices);
  }
  return checks;
}

std::vector<CallPlanning> planningOf(const Timeline& timeline, const DeviceMap& devices) {
  std::vector<CallPlanning> planning;
  for (const Node* node : timeline.nodes()) planning.push_back(callPlanning(node, devices));
  return planning;
}

std::vector<std::vector<size_t>> producersOf(const Program& program) {
  std::map<std::string, size_t> savedBy;
  for (size_t e = 0; e < program.entries.size(); ++e) {
    for (const OutputInfo& output : program.entries[e].outputs) {
      if (output.role == OutputRole::Saved) savedBy.try_emplace(output.name, e);
    }
  }
  std::vector<std::vector<size_t>> producers;
  for (const Entry& entry : program.entries) {
    std::set<size_t> found;
    for (const InputInfo& input : entry.inputs) {
      const auto from = savedBy.find(input.name);
      if (input.role == InputRole::Saved && from != savedBy.end()) found.insert(from->second);
    }
    producers.emplace_back(found.begin(), found.end());
  }
  return producers;
}

std::string operatorsOf(const std::vector<EntryCode>& codes) {
  std::string found;
  for (const EntryCode& code : codes) {
    found += code.entry->name + ':' + std::to_string(code.outputs.size()) + '\n';
    code.forEachCall([&](const Call& call) {
      found += call.node->kind().toQualString();
      found += ' ' + std::to_string(call.position) + '\n';
    });
    for (const Launch& launch : code.launches) found += std::to_string(launch.calls.size()) + '\n';
    found += std::to_string(code.stages.size()) + '\n';
  }
  return found;
}

}  // namespace

FlatProgram::FlatProgram(Program given, c10::Device device, ResultPolicy results)
    : program(withFacts(std::move(given))), devices{computeDevice(program), device},
      timeline(Timeline::build(program)), codes(flattenAll(program, timeline, devices, results)),
      checks(checksOf(program, devices)), planning(planningOf(timeline, devices)),
      producers(producersOf(program)),
      operators(std::make_shared<const std::string>(operatorsOf(codes))), results(results) {}

}  // namespace gravure
