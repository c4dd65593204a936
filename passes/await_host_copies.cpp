#include "passes/await_host_copies.h"

#include "ir/core/args.h"
#include "ir/facts/value_types.h"
#include "ir/memory/entry_memory.h"
#include "passes/analysis/verdict.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallVector.h>

namespace gravure {
namespace {

constexpr const char* kPass = "await-host-copies";

bool onCpu(const Value* value) {
  const auto device = deviceOf(value);
  return device && device->is_cpu();
}

/// What a copy fills: what it writes, else its results, of which a list of unknown length tells its
/// device by what it is copied like.
llvm::SmallVector<Value*, 2> filled(const Node* node) {
  if (factsOf(node).writes) return writtenInputs(node);
  llvm::SmallVector<Value*, 2> values;
  for (const Value* output : node->outputs()) values.push_back(const_cast<Value*>(output));
  return values;
}

bool fillsCpu(const Node* node) {
  static const auto likeFirst = c10::Symbol::fromQualString("aten::_foreach_copy");
  bool any = llvm::any_of(filled(node), onCpu);
  if (node->kind() != likeFirst) return any;
  forEachInput(argsOf(node).args[0], [&](InputArg in) { any |= onCpu(node->input(in.index)); });
  return any;
}

/// Position of the argument non_blocking of a host copy that has it on; nullopt for all other nodes.
std::optional<size_t> nonBlockingArgument(const Node* node) {
  if (!isDeviceCopy(node)) return std::nullopt;
  const c10::FunctionSchema* schema = factsOf(node).schema;
  const auto at = schema ? schema->argumentIndexWithName("non_blocking") : std::nullopt;
  const auto& args = argsOf(node).args;
  if (!at || *at >= static_cast<int>(args.size()) || !(args[*at] == Arg(true))) return std::nullopt;
  const bool fromElsewhere = llvm::any_of(
      node->inputs(), [](const Value* input) { return deviceOf(input) && !onCpu(input); });
  return fromElsewhere && fillsCpu(node) ? std::optional(static_cast<size_t>(*at)) : std::nullopt;
}

bool isHostCopyWithoutWait(const Node* node) { return nonBlockingArgument(node).has_value(); }

/// Host copies without a wait whose data another node may read, in this entry or a later one.
std::vector<Node*> findUnawaited(const Entry& entry, const KeptAnalyses& analyses) {
  if (llvm::none_of(entry.graph->nodes(), isHostCopyWithoutWait)) return {};
  const auto memory = analyses.memoryOf(entry);
  const Numbering& numbering = *memory->numbering;
  const StorageAccesses& accesses = memory->accesses;
  std::vector<int32_t> copyOf(accesses.storageCount(), -1);  // by storage
  std::vector<bool> used(numbering.size(), false);
  const auto use = [&](int32_t storage) {
    if (storage >= 0 && copyOf[storage] >= 0) used[copyOf[storage]] = true;
  };
  for (int32_t i = 0; i < numbering.size(); ++i) {
    for (int32_t value : numbering.used(i)) use(accesses.storageOf(value));
    if (!isHostCopyWithoutWait(numbering.node(i))) continue;
    for (const Value* value : filled(numbering.node(i))) {
      if (const int32_t storage = accesses.storageOf(value); storage >= 0) copyOf[storage] = i;
    }
  }
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    if (entry.outputs[o].role == OutputRole::Saved) {
      use(accesses.storageOf(entry.graph->outputs()[o]));
    }
  }
  std::vector<Node*> found;
  for (int32_t i = 0; i < numbering.size(); ++i) {
    if (used[i]) found.push_back(numbering.node(i));
  }
  return found;
}

}  // namespace

void awaitHostCopies(Program& program, PassContext& context) {
  context.unchanged = true;
  for (Entry& entry : program.entries) {
    for (Node* copy : findUnawaited(entry, context.analyses)) {
      context.unchanged = false;
      auto args = c10::make_intrusive<ArgList>(argsOf(copy));
      args->args[*nonBlockingArgument(copy)] = Arg(false);
      setArgs(copy, std::move(args));
      context.remarks.add(RemarkKind::Passed, kPass, "copy-awaited", copy,
                          "the program uses this copy to the CPU, so it is waited for");
    }
  }
}

void checkAwaitedCopies(const Program& program, const PassContext& context) {
  for (const Entry& entry : program.entries) {
    for (const Node* copy : findUnawaited(entry, context.analyses)) {
      TORCH_CHECK(false, "entry '", entry.name, "' uses ", describe(copy),
                  ", a copy to the CPU that nothing waits for");
    }
  }
}

}  // namespace gravure
