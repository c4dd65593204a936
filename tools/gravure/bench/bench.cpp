#include "tools/gravure/bench/bench.h"

#include "tools/gravure/bench/bench_measure.h"
#include "tools/gravure/bench/bench_runtime.h"
#include "tools/gravure/command/pass_flags.h"
#include "tools/gravure/command/table.h"

#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

namespace cl = llvm::cl;

/// One program, and the one of half its size. They take turns, each time in new processes: where a
/// process's memory lies in the caches is a matter of luck, and the machine may be slow for a while.
struct Doubling {
  Doubling(const BenchShape& shape, long nodes, long repetitions)
      : half(measurePasses(shape, nodes / 2, repetitions)),
        whole(measurePasses(shape, nodes, repetitions)) {
    constexpr int kTurns = 3;
    for (int turn = 1; turn < kTurns; ++turn) {
      half.keepLeast(measurePasses(shape, nodes / 2, repetitions));
      whole.keepLeast(measurePasses(shape, nodes, repetitions));
    }
  }

  BenchResult half, whole;

  double timeGrowth() const { return whole.passesMs() / half.passesMs(); }
  double memoryGrowth() const { return double(whole.peakBytes) / double(half.peakBytes); }
};

double microsecondsANode(double ms, const BenchResult& result) {
  return ms * 1000 / double(result.nodes);
}

class BenchCommand final : public Command {
 public:
  BenchCommand() : Command("bench", "measure: gravure bench passes, gravure bench runtime") {}

  int run() override;

 private:
  int benchPasses() const;
  int benchRuntime() const;
  std::vector<const BenchShape*> chosenShapes() const;
  void printText(const std::vector<Doubling>& all) const;
  void printJson(const std::vector<Doubling>& all) const;

  template <typename T>
  using Opt = cl::opt<T>;
  Opt<std::string> what_{cl::Positional, cl::desc("passes|runtime"), cl::sub(sub()),
                         cl::cat(category())};
  cl::list<long> nodes_{"nodes",
                        cl::value_desc("N,N"),
                        cl::CommaSeparated,
                        cl::desc("sizes; each is measured beside its half (default 11000,200000)"),
                        cl::sub(sub()),
                        cl::cat(category())};
  cl::list<std::string> shape_{
      "shape",
      cl::value_desc("name,name"),
      cl::CommaSeparated,
      cl::desc("chain, wide, views, nested, constants, host (default all)"),
      cl::sub(sub()),
      cl::cat(category())};
  Opt<long> repeat_{"repeat",
                    cl::value_desc("N"),
                    cl::init(3),
                    cl::desc("repetitions in each of three processes; the least time "
                             "counts (default 3)"),
                    cl::sub(sub()),
                    cl::cat(category())};
  Opt<bool> json_{"json", cl::desc("print the figures as JSON"), cl::sub(sub()),
                  cl::cat(category())};
  Opt<bool> markdown_{"markdown", cl::desc("print the tables in Markdown"), cl::sub(sub()),
                      cl::cat(category())};
};

std::vector<const BenchShape*> BenchCommand::chosenShapes() const {
  std::vector<std::string> known;
  for (const BenchShape& shape : benchShapes()) known.push_back(shape.name);
  for (const std::string& name : shape_) checkOneOf("--shape", name, known);
  std::vector<const BenchShape*> chosen;
  for (const BenchShape& shape : benchShapes()) {
    if (shape_.empty() || llvm::is_contained(shape_, shape.name)) chosen.push_back(&shape);
  }
  return chosen;
}

void BenchCommand::printText(const std::vector<Doubling>& all) const {
  Table totals({"shape", "nodes", "all passes ms", "us a node", "time on doubling",
                "with verifiers ms", "peak MiB", "memory on doubling", "read us a node",
                "print us a node", "verify us a node"});
  std::vector<std::string> head{"shape", "nodes"};
  for (const std::string& name : passNames()) head.push_back(name);
  Table passes(head);
  for (const auto& each : all) {
    const BenchResult& r = each.whole;
    totals.add({r.shape, r.nodes, r.passesMs(), microsecondsANode(r.passesMs(), r),
                each.timeGrowth(), r.verifiedMs, double(r.peakBytes) / (1 << 20),
                each.memoryGrowth(), microsecondsANode(r.readMs, r),
                microsecondsANode(r.printMs, r), microsecondsANode(r.verifyMs, r)});
    std::vector<Table::Cell> row{r.shape, r.nodes};
    for (double ms : r.passMs) row.emplace_back(ms);
    passes.add(std::move(row));
  }
  auto print = [&](const Table& table) {
    markdown_ ? table.printMarkdown(llvm::outs()) : table.print(llvm::outs());
  };
  print(totals);
  llvm::outs() << "\nms a pass\n" << (markdown_ ? "\n" : "");
  print(passes);
}

void BenchCommand::printJson(const std::vector<Doubling>& all) const {
  llvm::json::OStream json(llvm::outs(), 2);
  const std::vector<std::string> names = passNames();
  json.array([&] {
    for (const auto& each : all) {
      const BenchResult& r = each.whole;
      json.object([&] {
        json.attribute("shape", r.shape);
        json.attribute("nodes", r.nodes);
        json.attribute("passes_ms", r.passesMs());
        json.attribute("time_growth", each.timeGrowth());
        json.attribute("verified_ms", r.verifiedMs);
        json.attribute("peak_bytes", r.peakBytes);
        json.attribute("memory_growth", each.memoryGrowth());
        json.attribute("read_ms", r.readMs);
        json.attribute("print_ms", r.printMs);
        json.attribute("verify_ms", r.verifyMs);
        json.attributeObject("pass_ms", [&] {
          for (size_t i = 0; i < names.size(); ++i) json.attribute(names[i], r.passMs.at(i));
        });
      });
    }
  });
  llvm::outs() << '\n';
}

int BenchCommand::run() {
  if (what_.empty()) throw UsageError("bench: expected what to measure: passes or runtime");
  checkOneOf("bench", what_.getValue(), {"passes", "runtime"});
  checkWithin("--repeat", repeat_, 1);
  return what_ == "runtime" ? benchRuntime() : benchPasses();
}

int BenchCommand::benchRuntime() const {
  constexpr int64_t kCount = 1000, kSteps = 20;
  const RuntimeCosts costs = measureRuntime(kCount, kSteps * repeat_);
  if (json_) {
    llvm::json::OStream json(llvm::outs(), 2);
    json.object([&] {
      json.attribute("boxed_us", costs.boxedUs);
      json.attribute("host_node_us", costs.hostNodeUs);
      json.attribute("replayed_call_us", costs.replayedCallUs);
      json.attribute("boundary_us", costs.boundaryUs);
      json.attribute("launched_step_us", costs.launchedStepUs);
      json.attribute("launched_nodes_us", costs.launchedNodesUs);
      json.attribute("partition_us", costs.partitionUs);
      json.attribute("mark_us", costs.markUs);
    });
    llvm::outs() << '\n';
    return kOk;
  }
  Table table({"on the host device", "us"});
  table.add({"one operator, called boxed", costs.boxedUs});
  table.add({"a host node, over that", costs.hostNodeUs});
  table.add({"one call of a partition, computed anew", costs.replayedCallUs});
  table.add({"the boundary of a partition, over its calls", costs.boundaryUs});
  table.add({"a step over an empty launch of one call", costs.launchedStepUs});
  table.add({"a step over an empty launch of 1000 calls", costs.launchedNodesUs});
  table.add({"one empty launch more", costs.partitionUs});
  table.add({"a mark that nobody looks at", costs.markUs});
  markdown_ ? table.printMarkdown(llvm::outs()) : table.print(llvm::outs());
  return kOk;
}

int BenchCommand::benchPasses() const {
  std::vector<long> sizes(nodes_.begin(), nodes_.end());
  if (sizes.empty()) sizes = {11000, 200000};
  // A node takes about 1.5 KiB.
  constexpr int64_t kMostNodes = 5'000'000;
  for (long nodes : sizes) checkWithin("--nodes", nodes, 100, kMostNodes);
  std::vector<Doubling> all;
  for (const BenchShape* shape : chosenShapes()) {
    for (long nodes : sizes) all.emplace_back(*shape, nodes, repeat_);
  }
  json_ ? printJson(all) : printText(all);
  return kOk;
}

}  // namespace

std::unique_ptr<Command> makeBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace gravure::tool
