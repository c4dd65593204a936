#include "passes/classify_capturability.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/location.h"
#include "ir/facts/value_types.h"
#include "ir/memory/storage_accesses.h"
#include "passes/analysis/verdict.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringSet.h>

namespace gravure {
namespace {

constexpr const char* kPass = "classify-capturability";

bool isTensorOfCpuWithoutDims(const Value* value) {
  const auto* tensor = tensorTypeOf(value);
  return tensor && tensor->device() && tensor->device()->is_cpu() && tensor->dim() == size_t{0};
}

bool hasNoBlocks(const Node* node) { return node->blocks().empty(); }

/// Goes through one entry in program order and learns of each value as it is defined.
class EntryClassifier {
 public:
  /// `savedNumbers`: names of saved outputs that hold runtime numbers; null if no entry saved any.
  EntryClassifier(const Entry& entry, c10::Device device, const llvm::StringSet<>* savedNumbers,
                  bool writeNumbers)
      : entry_(entry), device_(device), savedNumbers_(savedNumbers) {
    values_.writeNumbers = writeNumbers;
    for (size_t i = 0; i < entry.graph->inputs().size(); ++i) learnInput(i);
  }

  std::optional<Verdict> next(const Node* node) {
    for (const Value* output : node->outputs()) learnShape(output);
    auto verdict = verdictOf(node, device_, values_);
    learnOutputs(node, verdict);
    return verdict;
  }

  /// Names of the entry's saved outputs whose number, or size, comes from device data.
  void collectSavedNumbers(llvm::StringSet<>& names) const {
    for (size_t i = 0; i < entry_.outputs.size(); ++i) {
      if (entry_.outputs[i].role != OutputRole::Saved) continue;
      if (ValueFacts::has(values_.runtimeNumber, entry_.graph->outputs()[i])) {
        names.insert(entry_.outputs[i].name);
      }
    }
  }

 private:
  void learnShape(const Value* value) {
    if (hasStaticShape(value)) values_.set(values_.staticShape, value);
  }

  void learnInput(size_t i) {
    const Value* input = entry_.graph->inputs()[i];
    learnShape(input);
    const InputInfo& info = entry_.inputs[i];
    if (info.role == InputRole::Saved) {
      // What nobody saved may be anything.
      const bool known = savedNumbers_ != nullptr;
      if (known ? savedNumbers_->contains(info.name) : isNumber(input)) {
        values_.set(values_.runtimeNumber, input);
      }
    }
    if (info.role == InputRole::Constant && isTensorOfCpuWithoutDims(input) && !isWritten(input)) {
      values_.set(values_.hostConstant, input);
    }
  }

  void learnOutputs(const Node* node, const std::optional<Verdict>& verdict) {
    const bool reads = verdict && readsDeviceData(verdict->reason);
    const bool derived = reads || llvm::any_of(node->inputs(), [&](const Value* input) {
                           return ValueFacts::has(values_.runtimeNumber, input);
                         });
    if (derived) {
      for (const Value* output : node->outputs()) {
        const bool unknown = isTensorValue(output) && !ValueFacts::has(values_.staticShape, output);
        if (unknown || isNumber(output)) values_.set(values_.runtimeNumber, output);
      }
    }
    if (!node->outputs().empty() && isHostConstant(node)) {
      for (const Value* output : node->outputs()) values_.set(values_.hostConstant, output);
    }
  }

  static bool readsDeviceData(HostReason reason) {
    return reason == HostReason::HostSync || reason == HostReason::DataDependentShape ||
           reason == HostReason::OpaqueCallable || reason == HostReason::ControlFlow;
  }

  /// True if the results are CPU tensors without dimensions, computed from constants alone and never
  /// written, so that their numbers are the same each step.
  bool isHostConstant(const Node* node) {
    if (device_.is_cpu() || !hasNoBlocks(node)) return false;
    // Nearly every node ends here.
    if (!llvm::all_of(node->outputs(), isTensorOfCpuWithoutDims)) return false;
    const OpFacts& facts = factsOf(node);
    if (facts.random || facts.writes || facts.reason || facts.collective) return false;
    return llvm::all_of(
               node->inputs(),
               [&](const Value* in) { return ValueFacts::has(values_.hostConstant, in); }) &&
           llvm::none_of(node->outputs(), [&](const Value* out) { return isWritten(out); });
  }

  bool isWritten(const Value* value) {
    // Few programs have such tensors; only they pay for the numbering.
    if (!numbering_) accesses_.emplace(numbering_.emplace(entry_));
    const int32_t storage = accesses_->storageOf(value);
    return storage >= 0 && accesses_->isWritten(storage);
  }

  const Entry& entry_;
  const c10::Device device_;
  const llvm::StringSet<>* savedNumbers_;
  ValueFacts values_;
  std::optional<Numbering> numbering_;
  std::optional<StorageAccesses> accesses_;
};

/// Calls `visit(node, verdict)` for each node of the program, in order.
template <typename Visit>
void forEachVerdict(const Program& program, bool writeNumbers, Visit&& visit) {
  const c10::Device device = computeDevice(program);
  llvm::StringSet<> saved;
  for (size_t e = 0; e < program.entries.size(); ++e) {
    const Entry& entry = program.entries[e];
    EntryClassifier classifier(entry, device, e == 0 ? nullptr : &saved, writeNumbers);
    for (Node* node : entry.graph->nodes()) visit(node, classifier.next(node));
    classifier.collectSavedNumbers(saved);
  }
}

bool isPathPrefix(std::string_view path, std::string_view prefix) {
  return path.substr(0, prefix.size()) == prefix &&
         (path.size() == prefix.size() || path[prefix.size()] == '.');
}

/// The user's requests, and which of them named something.
class Requests {
 public:
  explicit Requests(const std::vector<std::string>& texts) : texts_(texts), used_(texts.size()) {}

  /// The first request that names `node`, nullptr if none does.
  const std::string* match(const Node* node) {
    const std::string* first = nullptr;
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (!isRequested(node, texts_[i])) continue;
      used_[i] = true;
      if (!first) first = &texts_[i];
    }
    return first;
  }

  void remarkUnused(Remarks& remarks) const {
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (used_[i]) continue;
      remarks.add(RemarkKind::Analysis, kPass, "request-unmatched",
                  "the host request '" + texts_[i] +
                      "' names no operator or module of the program");
    }
  }

 private:
  const std::vector<std::string>& texts_;
  std::vector<bool> used_;
};

/// What a node alone shows: why it must run on the host, "" if nothing does.
std::string whyHost(const Node* node, c10::Device device) {
  const OpFacts& facts = factsOf(node);
  if (facts.reason) return std::string("its operator is: ") + reasonName(*facts.reason);
  std::string why;
  const auto mayBeOnHost = [](const Value* value, bool mayBeNumber) {
    return (mayBeNumber && isTensorOfCpuWithoutDims(value)) || isOnHostForTransfers(value);
  };
  const auto look = [&](const Value* value, bool mayBeNumber, bool matters) {
    const auto at = deviceOf(value);
    if (at && at->type() != device.type() && !mayBeOnHost(value, mayBeNumber)) {
      why = "%" + value->debugName() + " is on " + at->str();
    } else if (matters && isTensorValue(value) && !hasStaticShape(value)) {
      why = "the size of %" + value->debugName() + " is known only at run time";
    }
  };
  for (const Value* input : node->inputs()) look(input, /*mayBeNumber=*/true, /*matters=*/true);
  for (const Value* output : node->outputs())
    look(output, /*mayBeNumber=*/false, output->hasUses());
  return why;
}

}  // namespace

bool isRequested(const Node* node, std::string_view request) {
  const bool isOperator = request.find("::") != std::string_view::npos;
  if (!isOperator) return isPathPrefix(moduleOf(node), request);
  const std::string_view kind = node->kind().toQualString();
  if (request.substr(0, kind.size()) != kind) return false;
  const std::string_view overload = request.substr(kind.size());
  return overload.empty() || (overload[0] == '.' && overload.substr(1) == overloadOf(node));
}

void classifyCapturability(Program& program, PassContext& context) {
  Requests requests(context.options.hostRequests);
  forEachVerdict(
      program, context.options.writeNumbers, [&](Node* node, std::optional<Verdict> verdict) {
        clearHostReason(node);
        const std::string* request = requests.match(node);
        if (!verdict && request && !factsOf(node).numbersOnly) {
          verdict =
              Verdict{HostReason::UserRequest, "the host request '" + *request + "' names it"};
        }
        if (!verdict) return;
        setHostReason(node, verdict->reason);
        context.remarks.add(RemarkKind::Missed, kPass, reasonName(verdict->reason), node,
                            std::move(verdict->message));
      });
  requests.remarkUnused(context.remarks);
}

void verifyClassifyCapturability(const Program& program, const PassContext&) {
  const c10::Device device = computeDevice(program);
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      const bool isNumberNode = factsOf(node).numbersOnly;
      if (hostReasonOf(node)) {
        TORCH_CHECK(!isNumberNode, "entry '", entry.name, "': ", describe(node),
                    " is a number node and needs no host reason");
        continue;
      }
      const std::string why = isNumberNode ? "" : whyHost(node, device);
      TORCH_CHECK(why.empty(), "entry '", entry.name, "': ", describe(node),
                  " must run on the host: ", why);
    }
  }
}

}  // namespace gravure
