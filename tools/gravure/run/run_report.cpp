#include "tools/gravure/run/run_report.h"

#include "tools/gravure/command/units.h"

#include <llvm/Support/Format.h>
#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>

namespace gravure::tool {
namespace {

const char* stateName(PartitionState state) {
  switch (state) {
    case PartitionState::Cold: return "cold";
    case PartitionState::WarmedUp: return "warmed up";
    case PartitionState::Captured: return "captured";
    case PartitionState::Quarantined: return "quarantined";
  }
  return "";
}

int64_t total(const std::map<std::string, int64_t>& counts) {
  int64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

std::string listed(const std::map<std::string, int64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + name;
  }
  return text.empty() ? "none" : text;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

void fillReport(RunReport& report, Runtime& runtime, const Remarks& remarks) {
  report.stats = runtime.stats();
  for (const Entry& entry : runtime.program().entries) {
    for (PartitionState state : runtime.partitionStates(entry.name)) {
      ++report.partitions[stateName(state)];
    }
  }
  for (const Remark& remark : remarks.all()) {
    if (remark.kind == RemarkKind::Missed) ++report.missed[remark.name];
  }
}

void printReport(const RunReport& report, llvm::raw_ostream& os) {
  const RuntimeStats& stats = report.stats;
  os << "partitions   " << listed(report.partitions) << '\n';
  os << "entries run  " << stats.steps << ", " << stats.uncapturedSteps << " of them uncaptured\n";
  os << "calls        " << stats.captures << " captures, " << stats.replays << " replays, "
     << stats.hostCalls << " host calls\n";
  os << "copies       " << bytesText(stats.stagedBytes) << " staged and "
     << bytesText(stats.copiedResultBytes) << " of results in the last step\n";
  os << "arena        " << bytesText(stats.arenaBytes) << ", live at once "
     << bytesText(stats.arenaLoad);
  if (stats.arenaLoad > 0) {
    os << llvm::format(" (ratio %.3f)", double(stats.arenaBytes) / double(stats.arenaLoad));
  }
  os << "\nmissed       " << listed(report.missed) << '\n';
  if (!report.milliseconds.empty()) {
    const auto& ms = report.milliseconds;
    os << llvm::format("time a step  %.3f ms median, %.3f ms least, %.3f ms first\n", median(ms),
                       *std::min_element(ms.begin(), ms.end()), ms.front());
  }
  if (!report.verified) return;
  if (report.difference.empty()) {
    os << "verified     " << report.steps
       << " steps: every bit agrees with the uncaptured program\n";
  } else {
    os << "DIFFERS      " << report.difference << '\n';
  }
}

void printReportJson(const RunReport& report, llvm::raw_ostream& os) {
  llvm::json::OStream json(os, 2);
  auto counts = [&](llvm::StringRef name, const std::map<std::string, int64_t>& values) {
    json.attributeObject(name, [&] {
      for (const auto& [key, count] : values) json.attribute(key, count);
    });
  };
  json.object([&] {
    const RuntimeStats& stats = report.stats;
    json.attribute("steps", stats.steps);
    json.attribute("uncaptured_steps", stats.uncapturedSteps);
    json.attribute("captures", stats.captures);
    json.attribute("replays", stats.replays);
    json.attribute("host_calls", stats.hostCalls);
    json.attribute("staged_bytes", stats.stagedBytes);
    json.attribute("copied_result_bytes", stats.copiedResultBytes);
    json.attribute("arena_bytes", stats.arenaBytes);
    json.attribute("arena_load", stats.arenaLoad);
    json.attribute("partition_count", total(report.partitions));
    counts("partitions", report.partitions);
    counts("missed", report.missed);
    json.attributeArray("step_ms", [&] {
      for (double ms : report.milliseconds) json.value(ms);
    });
    if (report.verified) {
      json.attribute("verified", report.difference.empty());
      json.attribute("difference", report.difference);
    }
  });
  os << '\n';
}

}  // namespace gravure::tool
