#pragma once
// A program that Python has loaded: read, cut by the passes, and ready to run on one device.

#include "passes/pass.h"
#include "runtime/runtime.h"

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace gravure {

/// `torch.classes.gravure.Program`. Not thread-safe, like the Runtime in it.
class LoadedProgram final : public torch::CustomClassHolder {
 public:
  using Options = c10::Dict<std::string, std::string>;
  using Values = c10::List<c10::IValue>;

  /// `path`: a program text. `device`: "host", "cuda" or "cuda:N". `options`, all optional:
  ///   host                operators and module paths to keep out of graphs, separated by commas
  ///   order               "levels" or "program"
  ///   min_partition_size, memory_growth
  ///   uncaptured          "1": the reference, node by node
  ///   require_capture     "1": a partition that fails to capture is an error
  ///   poison              "0": the host device does not overwrite dead memory
  LoadedProgram(const std::string& path, const std::string& device, const Options& options);

  std::vector<std::string> entries() const;
  /// Role and name of each input (output) of an entry, in order.
  std::vector<std::tuple<std::string, std::string>> inputs(const std::string& entry) const;
  std::vector<std::tuple<std::string, std::string>> outputs(const std::string& entry) const;

  /// Keeps the values at `positions` for every run to come, so that run() takes only the rest:
  /// a call from Python costs with the number of values it passes.
  void bind(const std::string& entry, const std::vector<int64_t>& positions, const Values& values);
  /// `values`: the inputs that are not bound, in order. Returns one value an output.
  Values run(const std::string& entry, const Values& values);

  std::string remarksText() const;
  std::string remarksJson() const;
  /// The partition plan of each entry; after warm-up the memory plan with its map too.
  std::string plan() const;
  /// The program as the passes left it.
  std::string text() const;
  c10::Dict<std::string, int64_t> stats() const;
  /// "cold", "warmed-up", "captured" or "quarantined" for each partition of an entry.
  std::vector<std::string> partitionStates(const std::string& entry) const;

  /// Fails the `countdown`-th next pass through "capture-begin", "capture-call", "capture-end",
  /// "launch" or "allocation": for tests.
  void injectFault(const std::string& point, int64_t countdown);
  void synchronize();
  void shutdown();

 private:
  struct Bound {
    std::vector<c10::IValue> values;  // one an input; what is not bound is empty
    std::vector<int64_t> open;        // positions that run() fills
  };
  const Entry& entry(const std::string& name) const;
  Bound& bound(const std::string& name);
  Remarks allRemarks() const;

  PassContext passes_;
  std::string partitionPlan_;
  std::unique_ptr<Runtime> runtime_;
  std::map<std::string, Bound> bound_;
};

}  // namespace gravure
