#pragma once
// Proves by running that a program does what it did before a pass: bits, sharing, what the caller may
// do in between.

#include "tools/gravure/proof/drawn_inputs.h"
#include "tools/gravure/proof/node_run.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace gravure::tool {

struct ProofOptions {
  uint64_t seed = 0;
  int attempts = 64;  // to draw inputs with which the given program runs
  bool lateCopies =
      true;           // copies to the CPU with non_blocking=True arrive late: await-host-copies
                      // must have run before anything is moved
  int64_t steps = 2;  // node by node
  int64_t runtimeSteps = 10;  // with the runtime, where the program has its calls: captured in the
                              // first half, elsewhere and captured anew in the second
};

/// What the caller sees of one entry in one step. Values by label: "output \"y\"", "input parameter
/// \"w\"".
struct ObservedEntry {
  std::map<std::string, c10::IValue> outputs, inputs;  // copies, inputs as they are afterwards
  std::map<std::string, OutputInfo> roles;
  std::set<std::pair<std::string, std::string>> shared;  // pairs of labels whose memory is one
};

struct ObservedStep {
  std::vector<ObservedEntry> entries;
  std::vector<at::Tensor> generators;  // states afterwards: the default one, then those given
  std::vector<std::string> effects, collectiveCalls, violations;
  std::map<std::string, std::string> mistyped;
};

/// One program as it was given, with the inputs that are drawn for it.
///
/// Compared are: each output, each input afterwards, the states of the generators, the order of effects
/// and of collectives, in bits. Beside that
/// - two of inputs and outputs share memory only if they did in the given program (two saved values may),
///   and what is said to be the caller's own tensor is;
/// - between two entries the caller writes into each output and user input that shares no memory with a
///   saved value of the given program, and the entries behind give the same;
/// - collectives read their operands at their start, and at their wait; NodeRun lists what may not be.
class Proof {
 public:
  /// Runs `given`. Throws c10::Error if no inputs can be drawn for it, if it throws with all that were,
  /// or if it breaks a rule of NodeRun itself.
  Proof(const Program& given, const ProofOptions& options, const SavedInputs* saved = nullptr);
  ~Proof();

  /// "" if `program`, which passes made of the given one, does the same: node by node, and with the
  /// runtime on the host device, with poison, if emit-runtime-calls has run. Else how it first differs.
  std::string differenceOf(const Program& program);

 private:
  ObservedStep observe(NodeRun& run, InputSide& side, int64_t step, CollectiveReads reads,
                       const std::vector<ObservedEntry>* reference);
  const ObservedStep& reference(int64_t step, CollectiveReads reads);
  void runGiven();
  std::string differenceByNodes(const Program& program, CollectiveReads reads);
  std::string differenceByRuntime(const Program& program, CollectiveReads reads);

  const ProofOptions options_;
  DrawnInputs drawn_;
  Program given_;
  std::unique_ptr<AsyncCollectives> collectives_;  // null where the program has none
  bool lateCopies_ = true;
  struct References;
  std::unique_ptr<References> references_;
};

}  // namespace gravure::tool
