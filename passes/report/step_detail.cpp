#include "passes/report/step_detail.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/core/location.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "ir/memory/timeline.h"
#include "passes/plan_memory.h"

#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

#include <set>

namespace gravure {
namespace {

std::string shortType(const Value* value) {
  const auto tensor = value->type()->cast<c10::TensorType>();
  const auto sizes = tensor ? tensor->sizes().concrete_sizes() : std::nullopt;
  if (!sizes) return "";
  std::string text = tensor->scalarType() ? c10::toString(*tensor->scalarType()) : "";
  text += '[';
  for (size_t d = 0; d < sizes->size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string((*sizes)[d]);
  }
  return text + "]";
}

CallRow callRow(const Node* node, size_t entry) {
  CallRow row;
  row.entry = entry;
  const Node* around = node->owningBlock()->owningNode();
  const bool captured = around && isPartition(around);
  if (captured) row.partition = partitionIndex(around);
  row.op = node->kind().toQualString();
  if (!node->outputs().empty()) {
    row.result = "%" + node->output(0)->debugName();
    row.type = shortType(node->output(0));
  }
  row.source = sourceOf(node);
  row.module = moduleOf(node);
  const auto reason = hostReasonOf(node);
  if (!captured && reason) row.reason = reasonName(*reason);
  return row;
}

void printMemory(const MemoryPlan& plan, llvm::json::OStream& json) {
  json.object([&] {
    json.attribute("bytes", plan.bytes);
    json.attribute("live_bytes", plan.load);
    json.attribute("alignment", plan.alignment);
    json.attributeArray("buffers", [&] {
      for (const Buffer& buffer : plan.buffers) {
        if (buffer.offset < 0) continue;
        json.array([&] {
          json.value(buffer.begin);
          json.value(buffer.end);
          json.value(buffer.bytes);
          json.value(buffer.offset);
          json.value(llvm::json::fixUTF8(buffer.label));
        });
      }
    });
  });
}

void printCalls(const std::vector<CallRow>& rows, llvm::json::OStream& json) {
  for (const CallRow& row : rows) {
    json.array([&] {
      json.value(static_cast<int64_t>(row.entry));
      json.value(row.partition);
      for (const std::string* text :
           {&row.op, &row.result, &row.type, &row.source, &row.module, &row.reason}) {
        json.value(llvm::json::fixUTF8(*text));
      }
    });
  }
}

}  // namespace

std::vector<CallRow> callRows(const Program& program) {
  const Timeline timeline = Timeline::build(program);
  std::vector<CallRow> rows;
  rows.reserve(timeline.nodes().size());
  for (size_t e = 0; e < program.entries.size(); ++e) {
    const auto [begin, end] = timeline.entryRange(e);
    for (int64_t position = begin; position < end; ++position) {
      rows.push_back(callRow(timeline.nodes()[static_cast<size_t>(position)], e));
    }
  }
  return rows;
}

int64_t stagedBytes(const Entry& entry) {
  int64_t bytes = 0;
  for (const Node* node : entry.graph->nodes()) {
    if (node->kind() != cg::stage) continue;
    for (const Value* value : node->outputs()) bytes += storageBytes(*value->type()).value_or(0);
  }
  return bytes;
}

void printStepDetail(const Program& program, const PassOptions& options, const MemoryPlan* measured,
                     llvm::raw_ostream& os) {
  const std::vector<CallRow> rows = callRows(program);
  std::set<std::string> reasons;
  for (const CallRow& row : rows) {
    if (!row.reason.empty()) reasons.insert(row.reason);
  }
  llvm::json::OStream json(os);
  json.object([&] {
    json.attributeArray("entries", [&] {
      for (const Entry& entry : program.entries) json.value(entry.name);
    });
    json.attributeArray("staged", [&] {
      for (const Entry& entry : program.entries) json.value(stagedBytes(entry));
    });
    json.attributeArray("calls", [&] { printCalls(rows, json); });
    json.attributeBegin("planned");
    printMemory(writtenPlan(program, options), json);
    json.attributeEnd();
    json.attributeBegin("measured");
    if (measured && !measured->buffers.empty()) {
      printMemory(*measured, json);
    } else {
      json.value(nullptr);
    }
    json.attributeEnd();
    json.attributeObject("cures", [&] {
      for (const std::string& name : reasons)
        json.attribute(name, reasonCure(*reasonFromName(name)));
    });
  });
}

}  // namespace gravure
