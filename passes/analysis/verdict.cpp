#include "passes/analysis/verdict.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/same_device.h"
#include "ir/facts/value_types.h"

#include <llvm/ADT/STLExtras.h>

namespace gravure {
namespace {

std::string valueName(const Value* value) { return "%" + value->debugName(); }

/// The first tensor among the inputs, for messages.
const Value* firstTensor(const Node* node) {
  for (const Value* input : node->inputs()) {
    if (isTensorValue(input)) return input;
  }
  return nullptr;
}

std::string subject(const Node* node) {
  const Value* tensor = firstTensor(node);
  return tensor ? valueName(tensor) : "its operands";
}

/// What a reason of the table of op facts means for this node.
std::string reasonMessage(HostReason reason, const Node* node) {
  switch (reason) {
    case HostReason::HostSync:
      return "reads " + subject(node) + " on the host, which waits for the device";
    case HostReason::DataDependentShape:
      return "the size of its result depends on the data of " + subject(node);
    case HostReason::OpaqueCallable: return "calls code that Gravure cannot see into";
    case HostReason::UncapturableRng:
      return "saves or sets the state of a generator, which a replay would not repeat";
    case HostReason::BlockingCollective: return "waits for the other ranks on the host";
    case HostReason::UnsafeTag: return "its operator carries PyTorch's tag cudagraph_unsafe";
    case HostReason::UnsafeOperator:
      return "the operator is known to fail or to go wrong under capture";
    case HostReason::ControlFlow:
      return "which of its blocks runs is decided on the host, by " +
             (node->inputs().empty() ? "its operands" : valueName(node->input(0)));
    default: return "the table of op facts says so";
  }
}

/// PyTorch's kernels take a CPU tensor without dimensions as a number, and a capture bakes it in. That
/// is right for a constant and stale for all else, so only constants are let through.
bool isBakedConstant(const Node* node, const Value* operand, const ValueFacts& values) {
  return ValueFacts::has(values.hostConstant, operand) &&
         !llvm::is_contained(writtenInputs(node), operand);
}

bool isMask(const Value* value) {
  const auto* tensor = tensorTypeOf(value);
  if (!tensor) return false;
  const auto dtype = tensor->scalarType();
  // A tensor of unknown dtype may be a mask.
  return !dtype || *dtype == c10::ScalarType::Bool || *dtype == c10::ScalarType::Byte;
}

/// Members of a list argument, or the argument alone.
template <typename Visit>
void forEachTensorOf(const Node* node, size_t parameter, Visit&& visit) {
  const ArgList& list = argsOf(node);
  if (parameter >= list.args.size()) return;
  forEachInput(list.args[parameter], [&](InputArg in) { visit(node->input(in.index)); });
}

bool isOneCpuNumber(const Value* value) {
  const auto* tensor = tensorTypeOf(value);
  if (!tensor || !tensor->device() || !tensor->device()->is_cpu()) return false;
  return tensor->numel() == size_t{1};
}

/// PyTorch's canDispatchToMaskedFill: one mask on self's device, one CPU number, no accumulation.
bool isMaskedFill(const Node* node) {
  const ArgList& list = argsOf(node);
  if (list.args.size() > 3 && !(list.args[3].is<AbsentArg>() || list.args[3] == Arg(false)))
    return false;
  size_t masks = 0, others = 0;
  forEachTensorOf(node, 1, [&](const Value* index) { ++(isMask(index) ? masks : others); });
  bool oneNumber = false;
  forEachTensorOf(node, 2, [&](const Value* value) { oneNumber = isOneCpuNumber(value); });
  return masks == 1 && others == 0 && oneNumber;
}

bool isIndexPut(std::string_view name) {
  return name == "aten::index_put" || name == "aten::index_put_" ||
         name == "aten::_unsafe_index_put" || name == "aten::_index_put_impl" ||
         name == "aten::_index_put_impl_";
}

/// Copies between devices, and operators that copy a CPU operand to their own, numbers too, where others
/// read a number on the host (aten/src/ATen/native/TensorCompare.cpp, TensorAdvancedIndexing.cpp).
bool copiesBetweenDevices(const Node* node) {
  if (isDeviceCopy(node)) return true;
  const std::string_view name = node->kind().toQualString();
  if (isIndexPut(name)) return !isMaskedFill(node);
  return name == "aten::where" || name == "aten::index" || name == "aten::_unsafe_index";
}

Verdict foreignDevice(const Node* node, const Value* value, c10::Device foreign,
                      c10::Device device) {
  const std::string found = valueName(value) + " is on " + foreign.str();
  if (copiesBetweenDevices(node)) {
    if (foreign.is_cpu()) {
      return {HostReason::PageableCopy, found + ", the program on " + device.str() +
                                            ": a copy between them goes through pageable memory"};
    }
    return {HostReason::UnsupportedDevice,
            found + ": a copy between it and " + device.str() + " cannot be captured"};
  }
  if (foreign.is_cpu()) {
    return {HostReason::CpuTensor, found + "; a kernel's replay would not see its new data"};
  }
  return {HostReason::UnsupportedDevice, found + ", the program on " + device.str()};
}

std::optional<Verdict> devicesVerdict(const Node* node, c10::Device device,
                                      const ValueFacts& values) {
  if (!device.is_cpu() && !device.is_cuda()) {
    return Verdict{HostReason::UnsupportedDevice, device.str() + " cannot capture"};
  }
  const auto check = [&](const Value* value, bool isOperand) -> std::optional<Verdict> {
    const auto at = deviceOf(value);
    if (!at || sameDevice(*at, device)) return std::nullopt;
    if (at->is_cpu() && isOnHostForTransfers(value)) return std::nullopt;
    if (isOperand && at->is_cpu() && !copiesBetweenDevices(node) &&
        isBakedConstant(node, value, values)) {
      return std::nullopt;
    }
    return foreignDevice(node, value, *at, device);
  };
  for (const Value* input : node->inputs()) {
    if (auto verdict = check(input, true)) return verdict;
  }
  for (const Value* output : node->outputs()) {
    if (auto verdict = check(output, false)) return verdict;
  }
  return std::nullopt;
}

/// True for a result of which nothing is known and that nothing uses: attention operators give such
/// undefined tensors for what they do not compute.
bool isAbsentResult(const Value* output) {
  const auto* tensor = tensorTypeOf(output);
  return tensor && !tensor->scalarType() && !tensor->dim() && !output->hasUses();
}

std::optional<Verdict> shapesVerdict(const Node* node, const ValueFacts& values) {
  const auto isUnknown = [&](const Value* value) {
    return isTensorValue(value) && !ValueFacts::has(values.staticShape, value);
  };
  for (const Value* input : node->inputs()) {
    if (isUnknown(input)) {
      return Verdict{HostReason::DynamicShape,
                     "reads " + valueName(input) + ", whose size is known only at run time"};
    }
  }
  for (const Value* output : node->outputs()) {
    if (isUnknown(output) && !isAbsentResult(output)) {
      return Verdict{HostReason::DynamicShape, "the size of its result is known only at run time"};
    }
  }
  return std::nullopt;
}

/// The first operand that is a runtime number, nullptr if there is none.
const Value* runtimeNumberOf(const Node* node, const ValueFacts& values) {
  for (const Value* input : node->inputs()) {
    if (isNumber(input) && ValueFacts::has(values.runtimeNumber, input)) return input;
  }
  return nullptr;
}

bool takesFloat(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::TensorType: return true;  // as a tensor it is a wrapped number
    case c10::TypeKind::OptionalType:
      return takesFloat(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType:
      return takesFloat(*type.castRaw<c10::ListType>()->getElementType());
    default: return false;
  }
}

/// Whether all runtime numbers of the node are floats that its operator takes as such, and no sizes: what
/// the runtime can write into a kernel.
bool takesWritableNumbers(const Node* node, const c10::FunctionSchema* schema,
                          const ValueFacts& values) {
  if (!schema || drawsRandom(node)) return false;
  const ArgList& list = argsOf(node);
  bool all = true;
  for (size_t p = 0; p < list.args.size() && p < schema->arguments().size(); ++p) {
    forEachInput(list.args[p], [&](InputArg in) {
      const Value* input = node->input(in.index);
      if (!isNumber(input) || !ValueFacts::has(values.runtimeNumber, input)) return;
      all &= input->type()->kind() == c10::TypeKind::FloatType &&
             takesFloat(*schema->arguments()[p].type());
    });
  }
  return all;
}

bool isRepeatInterleaveWithoutSize(const Node* node, const c10::FunctionSchema& schema) {
  if (schema.name() != "aten::repeat_interleave" || schema.overload_name() == "self_int")
    return false;
  const ArgList& list = argsOf(node);
  const auto at = schema.argumentIndexWithName("output_size");
  if (!at || *at >= static_cast<int>(list.args.size())) return true;
  return list.args[*at].is<AbsentArg>() || list.args[*at].is<NoneArg>();
}

/// True if the products of the groups are kernels of their own, whose sizes the host reads from the
/// offsets: all but bfloat16's on a GPU (_grouped_mm_fallback in aten/src/ATen/native/GroupedMMUtils.h).
/// A GPU without a grouped kernel for bfloat16 is not seen here; a capture on it fails, and says so.
bool multipliesGroupByGroup(const Node* node, const c10::FunctionSchema& schema) {
  const auto offsets = schema.argumentIndexWithName("offs");
  if (schema.name() != "aten::_grouped_mm" || !offsets) return false;
  bool given = false, fused = true;
  forEachTensorOf(node, *offsets, [&](const Value*) { given = true; });
  for (size_t parameter : {0, 1}) {
    forEachTensorOf(node, parameter, [&](const Value* value) {
      const auto* tensor = tensorTypeOf(value);
      const auto at = deviceOf(value);
      fused &= tensor && tensor->scalarType() == c10::ScalarType::BFloat16 && at && at->is_cuda();
    });
  }
  return given && !fused;
}

/// Why the node waits for the device with these arguments, though its operator need not; "" if it
/// does not.
std::string readsOnHost(const Node* node, const c10::FunctionSchema* schema,
                        const ValueFacts& values) {
  if (!schema) return "";
  if (multipliesGroupByGroup(node, *schema)) {
    return "reads the sizes of its groups on the host; of bfloat16 on a GPU it does not";
  }
  const std::string& name = schema->name();
  // A fill with a tensor is a fill with its number (masked_fill__cuda, index_fill_).
  const bool fills = name == "aten::masked_fill" || name == "aten::masked_fill_" ||
                     name == "aten::index_fill" || name == "aten::index_fill_";
  std::string reason;
  const auto at = fills ? schema->argumentIndexWithName("value") : std::nullopt;
  if (at) {
    forEachTensorOf(node, *at, [&](const Value* value) {
      if (isTensorValue(value) && !ValueFacts::has(values.hostConstant, value))
        reason = "reads " + valueName(value) + ", the value to fill with, on the host";
    });
  }
  // Without a range, or with an empty one, the range is that of the data.
  if (name == "aten::histc") {
    const c10::IValue min = constantArgument(node, *schema, "min"),
                      max = constantArgument(node, *schema, "max");
    const bool given =
        min.isScalar() && max.isScalar() && min.toScalar().toDouble() != max.toScalar().toDouble();
    if (!given) reason = "reads its range from the data, on the host";
  }
  const c10::IValue checks = constantArgument(node, *schema, "check_errors");
  if (checks.isBool() && checks.toBool()) reason = "checks on the host whether it succeeded";
  return reason;
}

/// True if the node reads a tensor's data to decide the shape of its result: an index by a mask (Bool
/// or Byte), or a repeat_interleave whose output_size is not given. A mask in index_put that fills with
/// one CPU number does not: PyTorch turns it into masked_fill.
bool hasDataDependentOperands(const Node* node, const c10::FunctionSchema* schema) {
  if (!schema) return false;
  const std::string& name = schema->name();
  if (name == "aten::one_hot")
    return constantArgument(node, *schema, "num_classes") == c10::IValue(-1);
  const bool put = isIndexPut(name);
  if (!put && name != "aten::index" && name != "aten::_unsafe_index") {
    return isRepeatInterleaveWithoutSize(node, *schema);
  }
  if (schema->overload_name().find("hacked") != std::string::npos) return false;
  bool masked = false;
  forEachTensorOf(node, 1, [&](const Value* index) { masked |= isMask(index); });
  return masked && !(put && isMaskedFill(node));
}

}  // namespace

bool isDeviceCopy(const Node* node) {
  const c10::Symbol kind = node->kind();
  static const c10::Symbol copies[] = {c10::Symbol::fromQualString("aten::_to_copy"),
                                       c10::Symbol::fromQualString("aten::to"),
                                       c10::Symbol::fromQualString("aten::copy_"),
                                       c10::Symbol::fromQualString("aten::copy"),
                                       c10::Symbol::fromQualString("aten::_copy_from"),
                                       c10::Symbol::fromQualString("prims::device_put"),
                                       c10::Symbol::fromQualString("aten::_foreach_copy_"),
                                       c10::Symbol::fromQualString("aten::_foreach_copy")};
  return llvm::is_contained(copies, kind);
}

std::optional<Verdict> verdictOf(const Node* node, c10::Device device, const ValueFacts& values) {
  const OpFacts& facts = factsOf(node);
  if (facts.numbersOnly) return std::nullopt;
  const Value* state = rngStateOf(node);
  if (state && isTensorValue(state)) {
    return Verdict{HostReason::UncapturableRng,
                   "draws from the saved state " + valueName(state) + ", which is set on the host"};
  }
  if (facts.reason) return Verdict{*facts.reason, reasonMessage(*facts.reason, node)};
  if (auto verdict = devicesVerdict(node, device, values)) return verdict;
  if (hasDataDependentOperands(node, facts.schema)) {
    return Verdict{HostReason::DataDependentShape,
                   "counts the set elements of a mask, or the repeats, on the host"};
  }
  if (auto why = readsOnHost(node, facts.schema, values); !why.empty()) {
    return Verdict{HostReason::HostSync, std::move(why)};
  }
  const Value* number = runtimeNumberOf(node, values);
  if (number && facts.collective) {
    return Verdict{HostReason::BlockingCollective,
                   "takes " + valueName(number) + ", a split that the host reads first"};
  }
  if (auto verdict = shapesVerdict(node, values)) return verdict;
  if (!number) return std::nullopt;
  if (values.writeNumbers && takesWritableNumbers(node, facts.schema, values)) return std::nullopt;
  return Verdict{HostReason::HostNumber,
                 "takes " + valueName(number) + ", a number read from device data in this step"};
}

}  // namespace gravure
