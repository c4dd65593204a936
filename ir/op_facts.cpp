#include "ir/op_facts.h"

#include "ir/args.h"
#include "ir/call_attribute.h"
#include "ir/cudagraph_ops.h"
#include "ir/op_table.h"

#include <llvm/ADT/STLExtras.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace gravure {
namespace {

using c10::AliasInfo;
using c10::FunctionSchema;

bool holdsTensors(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType: return true;
    case c10::TypeKind::ListType:
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::TupleType:
      for (const auto& contained : type.containedTypes()) {
        if (holdsTensors(*contained)) return true;
      }
      return false;
    default: return false;
  }
}

/// The alias sets of an annotation and of its members: `Tensor(a)[]` carries (a) on the member.
void collectSets(const AliasInfo* info, llvm::SmallVectorImpl<c10::Symbol>& sets) {
  if (!info) return;
  sets.append(info->beforeSets().begin(), info->beforeSets().end());
  for (const AliasInfo& member : info->containedTypes()) collectSets(&member, sets);
}

bool writesThrough(const AliasInfo* info) {
  if (!info) return false;
  if (info->isWrite()) return true;
  for (const AliasInfo& member : info->containedTypes()) {
    if (writesThrough(&member)) return true;
  }
  return false;
}

bool shareSet(const AliasInfo* a, const AliasInfo* b) {
  llvm::SmallVector<c10::Symbol, 2> as, bs;
  collectSets(a, as);
  collectSets(b, bs);
  return llvm::any_of(as, [&](c10::Symbol s) { return llvm::is_contained(bs, s); });
}

void readSchema(const FunctionSchema& schema, OpFacts& facts) {
  const auto& parameters = schema.arguments();
  TORCH_INTERNAL_ASSERT(parameters.size() <= 64, schema.name(), " has more than 64 parameters");
  bool anyTensor = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    anyTensor |= holdsTensors(*parameters[i].type());
    if (writesThrough(parameters[i].alias_info())) facts.writtenArgs |= uint64_t{1} << i;
  }
  for (const auto& result : schema.returns()) {
    anyTensor |= holdsTensors(*result.type());
    uint64_t sources = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (shareSet(result.alias_info(), parameters[i].alias_info())) sources |= uint64_t{1} << i;
    }
    facts.aliasedArgs.push_back(sources);
  }
  facts.scalarOnly = !anyTensor;
}

/// True if an object of a TorchScript or custom class stands among parameters or returns, or if they
/// are open: nothing is known of what such a call does.
bool isOpaque(const FunctionSchema& schema) {
  const auto isObject = [](const c10::Argument& argument) {
    const c10::TypeKind kind = argument.type()->kind();
    return kind == c10::TypeKind::ClassType || kind == c10::TypeKind::InterfaceType ||
           kind == c10::TypeKind::PyObjectType || kind == c10::TypeKind::CapsuleType;
  };
  return schema.is_vararg() || schema.is_varret() || llvm::any_of(schema.arguments(), isObject) ||
         llvm::any_of(schema.returns(), isObject);
}

/// What the schema leaves unsaid: tables by name, and PyTorch's tags.
void readTagsAndTables(const FunctionSchema& schema, OpFacts& facts) {
  const OpRow row = opRow(schema.name());
  const auto hasTag = [&](at::Tag tag) { return facts.handle && facts.handle->hasTag(tag); };

  facts.random = hasTag(at::Tag::nondeterministic_seeded);
  facts.collective = row.collective;
  facts.wait = row.wait;
  facts.blocking = row.blocking;
  facts.effects = row.effects;
  facts.scalarOnly = facts.scalarOnly || row.readsMetadata;
  facts.reason = row.reason;
  if (!facts.reason && isOpaque(schema)) {
    facts.reason = HostReason::OpaqueCallable;
    facts.scalarOnly = false;
    facts.effects = true;
  }
  if (!facts.reason && hasTag(at::Tag::data_dependent_output)) facts.reason = HostReason::HostSync;
  if (!facts.reason && hasTag(at::Tag::dynamic_output_shape) && !row.shapeDependsOnOperands) {
    facts.reason = HostReason::DataDependentShape;
  }
  if (!facts.reason && hasTag(at::Tag::cudagraph_unsafe)) facts.reason = HostReason::UnsafeTag;

  facts.writtenArgs |= row.writtenArgs;
  const bool anyAlias = row.aliasesAll || hasTag(at::Tag::maybe_aliasing_or_mutating);
  if (!anyAlias && !row.aliasesFirst) return;
  uint64_t tensors = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (holdsTensors(*schema.arguments()[i].type())) tensors |= uint64_t{1} << i;
  }
  for (uint64_t& sources : facts.aliasedArgs) sources |= anyAlias ? tensors : uint64_t{1};
}

std::unique_ptr<OpFacts> structuralFacts(c10::Symbol kind) {
  const bool known = kind == cg::partition || kind == cg::launch || kind == cg::stage ||
                     kind == cg::own || kind == cg::saveRngState || kind == cg::readHost ||
                     kind == c10::prim::If || kind == c10::prim::Constant;
  if (!known) return nullptr;
  auto facts = std::make_unique<OpFacts>();
  if (kind == cg::readHost) facts->reason = HostReason::HostSync;
  if (kind == cg::saveRngState) {
    facts->reason = HostReason::UncapturableRng;
    facts->random = true;  // must keep its place among draws
  }
  if (kind == c10::prim::If) facts->reason = HostReason::ControlFlow;
  facts->scalarOnly = kind == c10::prim::Constant;
  return facts;
}

std::unique_ptr<OpFacts> makeFacts(c10::Symbol kind, const std::string& overload) {
  if (overload.empty()) {
    if (auto facts = structuralFacts(kind)) return facts;
  }
  const c10::OperatorName name(kind.toQualString(), overload);
  auto facts = std::make_unique<OpFacts>();
  if (auto handle = c10::Dispatcher::singleton().findSchema(name)) {
    facts->handle = handle;
    facts->schema = &handle->schema();
  } else if (auto op = torch::jit::findOperatorFor(name)) {
    facts->jitOperator = op;
    facts->schema = &op->schema();
  } else {
    return nullptr;
  }
  readSchema(*facts->schema, *facts);
  readTagsAndTables(*facts->schema, *facts);
  facts->writes = facts->writtenArgs != 0;
  facts->maybeAliases =
      llvm::any_of(facts->aliasedArgs, [](uint64_t sources) { return sources != 0; });
  return facts;
}

/// True if all sizes and strides are known. Allocates nothing, unlike TensorType::sizes().
bool isStatic(const c10::TensorType& type) {
  const auto& strides = type.stride_properties().sizes();
  const auto rank = type.symbolic_sizes().rank();
  return rank && strides && strides->size() == *rank && type.symbolic_sizes().isComplete() &&
         llvm::all_of(*strides, [](const std::optional<c10::Stride>& stride) {
           return stride && stride->stride_index_ && stride->stride_;
         });
}

struct Key {
  c10::Symbol kind;
  std::string overload;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    return std::hash<std::string>()(key.overload) * 31 + static_cast<uint32_t>(key.kind);
  }
};

/// Calls `visit` for each input of `node` that fills one of the schema parameters in `parameters`.
template <typename Visit>
void forEachInputOf(const Node* node, uint64_t parameters, Visit&& visit) {
  const ArgList& list = argsOf(node);
  for (size_t i = 0; i < list.args.size() && i < 64; ++i) {
    if (!(parameters >> i & 1)) continue;
    forEachInput(list.args[i],
                 [&](InputArg in) { visit(const_cast<Value*>(node->input(in.index))); });
  }
}

/// The constant that fills the parameter called `name`, nullptr if a value or nothing does.
const Arg* constantArg(const Node* node, const FunctionSchema& schema, std::string_view name) {
  const ArgList& list = argsOf(node);
  for (size_t i = 0; i < list.args.size() && i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == name) return &list.args[i];
  }
  return nullptr;
}

}  // namespace

const OpFacts* findOpFacts(c10::Symbol kind, std::string_view overload) {
  static std::shared_mutex mutex;
  static std::unordered_map<Key, std::unique_ptr<OpFacts>, KeyHash> known;
  Key key{kind, std::string(overload)};
  {
    std::shared_lock lock(mutex);
    if (auto at = known.find(key); at != known.end()) return at->second.get();
  }
  auto facts = makeFacts(kind, key.overload);
  // An unknown operator may be registered later, by a library not loaded yet.
  if (!facts) return nullptr;
  std::unique_lock lock(mutex);
  return known.try_emplace(std::move(key), std::move(facts)).first->second.get();
}

const OpFacts& factsOf(const Node* node) {
  if (const CallAttribute* call = findCall(node); call && call->facts) return *call->facts;
  const OpFacts* facts = findOpFacts(node->kind(), overloadOf(node));
  TORCH_CHECK(facts, describe(node), ": PyTorch knows no such operator; load the library that ",
              "registers it, or check the overload's name");
  callOf(const_cast<Node*>(node)).facts = facts;
  return *facts;
}

void forgetFacts(Node* node) {
  if (CallAttribute* call = findCall(node)) call->facts = nullptr;
}

bool drawsRandom(const Node* node) {
  const OpFacts& facts = factsOf(node);
  if (!facts.random || !facts.schema) return facts.random;
  for (const char* name : {"dropout_p", "dropout"}) {
    const Arg* rate = constantArg(node, *facts.schema, name);
    if (rate && rate->is<double>() && rate->as<double>() == 0.0) return false;
    // Attention's own default is no dropout.
    if (rate && rate->is<AbsentArg>()) return false;
  }
  const Arg* train = constantArg(node, *facts.schema, "train");
  return !(train && train->is<bool>() && !train->as<bool>());
}

llvm::SmallVector<Value*, 2> aliasedInputs(const Node* node, size_t index) {
  llvm::SmallVector<Value*, 2> sources;
  const OpFacts& facts = factsOf(node);
  if (!facts.maybeAliases) return sources;
  // An unpacked list has one return and many outputs.
  const size_t result = facts.aliasedArgs.size() == 1 ? 0 : index;
  if (result >= facts.aliasedArgs.size()) return sources;
  forEachInputOf(node, facts.aliasedArgs[result], [&](Value* v) {
    if (isTensorValue(v)) sources.push_back(v);
  });
  return sources;
}

llvm::SmallVector<Value*, 2> writtenInputs(const Node* node) {
  llvm::SmallVector<Value*, 2> written;
  const OpFacts& facts = factsOf(node);
  if (facts.writes)
    forEachInputOf(node, facts.writtenArgs, [&](Value* v) { written.push_back(v); });
  return written;
}

bool isTensorValue(const Value* value) { return holdsTensors(*value->type()); }

std::optional<int64_t> storageBytes(const c10::Type& type) {
  const auto* tensor = type.castRaw<c10::TensorType>();
  if (!tensor || !tensor->scalarType() || !isStatic(*tensor)) return std::nullopt;
  const c10::SymbolicShape& shape = tensor->symbolic_sizes();
  int64_t elements = 1;
  for (const auto& stride : *tensor->stride_properties().sizes()) {
    const int64_t size = shape[*stride->stride_index_].static_size();
    if (size == 0) return 0;
    elements += (size - 1) * static_cast<int64_t>(*stride->stride_);
  }
  return elements * static_cast<int64_t>(c10::elementSize(*tensor->scalarType()));
}

std::optional<c10::Device> deviceOf(const Value* value) {
  const auto* tensor = value->type()->castRaw<c10::TensorType>();
  return tensor ? tensor->device() : std::nullopt;
}

bool hasStaticShape(const Value* value) {
  const auto* tensor = value->type()->castRaw<c10::TensorType>();
  return tensor && isStatic(*tensor);
}

c10::Device computeDevice(const Program& program) {
  std::unordered_map<c10::Device, size_t> parameters;
  std::optional<c10::Device> accelerator;
  for (const Entry& entry : program.entries) {
    for (size_t i = 0; i < entry.graph->inputs().size(); ++i) {
      const auto device = deviceOf(entry.graph->inputs()[i]);
      if (!device) continue;
      const bool counted = i < entry.inputs.size() && entry.inputs[i].role == InputRole::Parameter;
      if (counted) ++parameters[*device];
      if (!device->is_cpu() && !accelerator) accelerator = device;
    }
  }
  if (!parameters.empty()) {
    auto most = parameters.begin();
    for (auto at = parameters.begin(); at != parameters.end(); ++at) {
      const bool tie = at->second == most->second;
      if (at->second > most->second || (tie && at->first.str() < most->first.str())) most = at;
    }
    return most->first;
  }
  if (accelerator) return *accelerator;
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      for (const Value* output : node->outputs()) {
        const auto device = deviceOf(output);
        if (device && !device->is_cpu()) return *device;
      }
    }
  }
  return c10::Device(c10::kCPU);
}

}  // namespace gravure
