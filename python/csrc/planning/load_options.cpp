#include "python/csrc/planning/load_options.h"

#include "passes/pipeline/piece_alignment.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringRef.h>
#include <llvm/ADT/StringSwitch.h>

#include <optional>

namespace gravure {

namespace {

bool parseBool(const std::string& name, const std::string& value) {
  const auto parsed = llvm::StringSwitch<std::optional<bool>>(value)
                          .Cases("1", "true", "True", true)
                          .Cases("0", "false", "False", false)
                          .Default(std::nullopt);
  TORCH_CHECK(parsed, "option ", name, ": expected 0 or 1, found '", value, "'");
  return *parsed;
}

int64_t parseCount(const std::string& name, const std::string& value, int64_t least = 1) {
  int64_t parsed = 0;
  TORCH_CHECK(!llvm::StringRef(value).getAsInteger(10, parsed) && parsed >= least, "option ", name,
              ": expected a whole number of at least ", least, ", found '", value, "'");
  return parsed;
}

double parseShare(const std::string& name, const std::string& value) {
  double parsed = 0;
  TORCH_CHECK(!llvm::StringRef(value).getAsDouble(parsed) && parsed >= 0, "option ", name,
              ": expected a share of at least 0, found '", value, "'");
  return parsed;
}

PartitionOrder parseOrder(const std::string& value) {
  const auto parsed = llvm::StringSwitch<std::optional<PartitionOrder>>(value)
                          .Case("levels", PartitionOrder::Levels)
                          .Case("program", PartitionOrder::Program)
                          .Default(std::nullopt);
  TORCH_CHECK(parsed, "option order: expected levels or program, found '", value, "'");
  return *parsed;
}

/// With "accumulate" gradients are no results; what else there is, is the caller's own.
ResultPolicy parseResults(const std::string& value) {
  const auto parsed = llvm::StringSwitch<std::optional<ResultPolicy>>(value)
                          .Cases("owned", "accumulate", ResultPolicy::Owned)
                          .Case("copied", ResultPolicy::Copied)
                          .Case("static", ResultPolicy::Static)
                          .Default(std::nullopt);
  TORCH_CHECK(parsed, "option results: expected owned, copied, static or accumulate, found '",
              value, "'");
  return *parsed;
}

AgreeWhen parseAgree(const std::string& value) {
  const auto parsed = llvm::StringSwitch<std::optional<AgreeWhen>>(value)
                          .Case("capture", AgreeWhen::AtCapture)
                          .Case("step", AgreeWhen::EachStep)
                          .Default(std::nullopt);
  TORCH_CHECK(parsed, "option agree: expected capture or step, found '", value, "'");
  return *parsed;
}

std::vector<std::string> parseList(const std::string& value) {
  llvm::SmallVector<llvm::StringRef, 8> parts;
  llvm::StringRef(value).split(parts, ',', -1, false);
  std::vector<std::string> list;
  for (llvm::StringRef part : parts) list.push_back(part.trim().str());
  return list;
}

}  // namespace

LoadOptions parseLoadOptions(const c10::Dict<std::string, std::string>& options) {
  LoadOptions parsed;
  parsed.passes.pieceAlignment = pieceAlignmentOfBlas();
  for (const auto& item : options) {
    const std::string& name = item.key();
    const std::string& value = item.value();
    if (name == "host") {
      parsed.passes.hostRequests = parseList(value);
    } else if (name == "order") {
      parsed.passes.order = parseOrder(value);
    } else if (name == "min_partition_size") {
      parsed.passes.minPartitionSize = parseCount(name, value);
    } else if (name == "memory_growth") {
      parsed.passes.memoryGrowth = parseShare(name, value);
    } else if (name == "memory_slack") {
      parsed.passes.memorySlack = parseCount(name, value, 0);
    } else if (name == "uncaptured") {
      parsed.runtime.uncaptured = parseBool(name, value);
    } else if (name == "require_capture") {
      const bool partitions = value == "partitions";
      parsed.requireNodes = !partitions && parseBool(name, value);
      parsed.runtime.requireCapture = partitions || parsed.requireNodes;
    } else if (name == "results") {
      parsed.runtime.results = parseResults(value);
      parsed.passes.accumulateGradients = value == "accumulate";
    } else if (name == "write_numbers") {
      parsed.passes.writeNumbers = parseBool(name, value);
    } else if (name == "agree") {
      parsed.runtime.agree = parseAgree(value);
    } else if (name == "poison") {
      parsed.poison = parseBool(name, value);
    } else if (name == "times") {
      parsed.times = parseBool(name, value);
    } else if (name == "shadow") {
      parsed.shadow = parseCount(name, value, 0);
    } else {
      TORCH_CHECK(false, "there is no option '", name, "'; there are host, order, ",
                  "min_partition_size, memory_growth, memory_slack, uncaptured, require_capture, "
                  "results, agree, write_numbers, poison, shadow, times");
    }
  }
  return parsed;
}

std::unique_ptr<Device> makeDevice(const std::string& name, bool poison) {
  if (name == "host") return makeHostDevice(poison);
  llvm::StringRef rest = name;
  unsigned index = 0;
  const bool cuda = rest.consume_front("cuda") &&
                    (rest.empty() || (rest.consume_front(":") && !rest.getAsInteger(10, index)));
  TORCH_CHECK(cuda && index < 128, "device: expected host, cuda or cuda:N, found '", name, "'");
  return makeCudaDevice(static_cast<c10::DeviceIndex>(index));
}

FaultPoint parseFaultPoint(const std::string& name) {
  const auto parsed = llvm::StringSwitch<std::optional<FaultPoint>>(name)
                          .Case("capture-begin", FaultPoint::CaptureBegin)
                          .Case("capture-call", FaultPoint::CaptureCall)
                          .Case("capture-end", FaultPoint::CaptureEnd)
                          .Case("launch", FaultPoint::Launch)
                          .Case("allocation", FaultPoint::Allocation)
                          .Case("completion", FaultPoint::Completion)
                          .Default(std::nullopt);
  TORCH_CHECK(parsed, "there is no fault point '", name, "'; there are capture-begin, ",
              "capture-call, capture-end, launch, allocation, completion");
  return *parsed;
}

}  // namespace gravure
