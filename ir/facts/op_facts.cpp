#include "ir/facts/op_facts.h"

#include "ir/core/args.h"
#include "ir/core/call_attribute.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_table.h"
#include "ir/facts/unpacked_list.h"
#include "ir/facts/value_types.h"

#include <llvm/ADT/STLExtras.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace gravure {
namespace {

using c10::AliasInfo;
using c10::FunctionSchema;

/// True for types that stand for any other: a TorchScript type variable, Any, and lists of them.
bool isOpenType(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::VarType || type.kind() == c10::TypeKind::AnyType) return true;
  return llvm::any_of(type.containedTypes(),
                      [](const c10::TypePtr& contained) { return isOpenType(*contained); });
}

bool mayHoldTensors(const c10::Type& type) { return holdsTensors(type) || isOpenType(type); }

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

bool isWildcard(const AliasInfo* info) {
  if (!info) return false;
  return info->isWildcardBefore() ||
         llvm::any_of(info->containedTypes(),
                      [](const AliasInfo& member) { return isWildcard(&member); });
}

/// The parameters that may hold tensors.
ParameterSet tensorParameters(const FunctionSchema& schema) {
  ParameterSet tensors(schema.arguments().size());
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (mayHoldTensors(*schema.arguments()[i].type())) tensors.set(i);
  }
  return tensors;
}

/// The parameters whose storage `result` may share, by its schema. TorchScript's operators on lists
/// and dictionaries mark a member that they hand out with a wildcard or, aten::list.t, not at all.
ParameterSet aliasedBy(const c10::Argument& result, const FunctionSchema& schema) {
  if (isWildcard(result.alias_info()) || isOpenType(*result.type()))
    return tensorParameters(schema);
  ParameterSet sources(schema.arguments().size());
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (shareSet(result.alias_info(), schema.arguments()[i].alias_info())) sources.set(i);
  }
  return sources;
}

void readSchema(const FunctionSchema& schema, OpFacts& facts) {
  const auto& parameters = schema.arguments();
  const auto holds = [](const c10::Argument& argument) { return holdsTensors(*argument.type()); };
  facts.numbersOnly = llvm::none_of(parameters, holds) && llvm::none_of(schema.returns(), holds);
  facts.writtenArgs.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (writesThrough(parameters[i].alias_info())) facts.writtenArgs.set(i);
  }
  for (const auto& result : schema.returns())
    facts.aliasedArgs.push_back(aliasedBy(result, schema));
}

bool holdsObjects(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::ClassType:
    case c10::TypeKind::InterfaceType:
    case c10::TypeKind::PyObjectType:
    case c10::TypeKind::CapsuleType: return true;
    default:
      return llvm::any_of(type.containedTypes(),
                          [](const c10::TypePtr& inner) { return holdsObjects(*inner); });
  }
}

/// True if an object of a TorchScript or custom class stands among parameters or returns, or if they
/// are open: nothing is known of what such a call does.
bool isOpaque(const FunctionSchema& schema) {
  const auto isObject = [](const c10::Argument& argument) {
    return holdsObjects(*argument.type());
  };
  return schema.is_vararg() || schema.is_varret() || llvm::any_of(schema.arguments(), isObject) ||
         llvm::any_of(schema.returns(), isObject);
}

/// True if some parameter names a process group: the operator communicates, whatever its namespace.
bool takesProcessGroup(const FunctionSchema& schema) {
  return llvm::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return argument.name() == "group_name" || argument.name() == "process_group";
  });
}

/// What operators do that no row speaks of, as far as their schemas let it be guessed; on the safe
/// side where they do not.
void readUnsaid(const FunctionSchema& schema, const OpRow& row, OpFacts& facts) {
  const auto host = [&](HostReason reason) {
    if (!facts.reason) facts.reason = reason;
    facts.numbersOnly = false;
  };
  if (isOpaque(schema)) {
    facts.effects = true;
    host(HostReason::OpaqueCallable);
  }
  // An operator that waits for its own communication returns a result that needs no wait_tensor.
  if (!facts.collective && !facts.wait && takesProcessGroup(schema)) {
    facts.collective = facts.blocking = true;
    host(HostReason::BlockingCollective);
  }
  const auto& returns = schema.returns();
  const bool known = facts.reason || row.effects || row.readsMetadata;
  // Called for its effect alone, and its schema shows none: a replay would leave it out.
  if (!known && returns.empty() && facts.writtenArgs.none()) {
    facts.effects = true;
    host(HostReason::OpaqueCallable);
  }
  // A number can come of a tensor only by way of the host.
  const auto holds = [](const c10::Argument& argument) { return holdsTensors(*argument.type()); };
  const auto mayHold = [](const c10::Argument& argument) {
    return mayHoldTensors(*argument.type());
  };
  if (!known && !returns.empty() && llvm::any_of(schema.arguments(), holds) &&
      llvm::none_of(returns, mayHold) && facts.writtenArgs.none()) {
    host(HostReason::HostSync);
  }
  // TorchScript's own operators on tensors have no kernels that the dispatcher knows, and no tags.
  if (!facts.handle && !facts.numbersOnly) host(HostReason::OpaqueCallable);
}

/// Whether the parameters are those of PyTorch's operator (2.12; later ones have more behind them), and it is
/// not another library's of that name.
bool isPyTorchsTransfer(const FunctionSchema& schema, Transfer transfer) {
  const auto& parameters = schema.arguments();
  const auto has = [&](size_t at, const char* name) {
    return at < parameters.size() && parameters[at].name() == name;
  };
  switch (transfer) {
    case Transfer::ToHost: return has(0, "tensor") && parameters.size() == 1;
    case Transfer::ToDevice: return has(0, "tensor") && has(1, "device");
    case Transfer::Wait: return has(0, "tensor") && has(1, "keepalive");
    case Transfer::None: break;
  }
  return false;
}

/// What the schema leaves unsaid: tables by name, and PyTorch's tags.
void readTagsAndTables(const FunctionSchema& schema, OpFacts& facts) {
  const OpRow row = opRow(schema.name(), schema.overload_name());
  const auto hasTag = [&](at::Tag tag) { return facts.handle && facts.handle->hasTag(tag); };
  const auto takesGenerator = [](const c10::Argument& argument) {
    const c10::Type& type = *argument.type();
    return type.kind() == c10::TypeKind::GeneratorType ||
           (type.kind() == c10::TypeKind::OptionalType &&
            type.containedType(0)->kind() == c10::TypeKind::GeneratorType);
  };

  facts.random = row.random || (hasTag(at::Tag::nondeterministic_seeded) && !row.repeats) ||
                 llvm::any_of(schema.arguments(), takesGenerator);
  facts.collective = row.collective;
  if (isPyTorchsTransfer(schema, row.transfer)) facts.transfer = row.transfer;
  facts.wait = row.wait || facts.transfer == Transfer::Wait;
  facts.blocking = row.blocking;
  facts.waitsInside = row.waitsInside;
  facts.effects = row.effects;
  facts.numbersOnly = facts.numbersOnly || row.readsMetadata;
  facts.reason = row.reason;
  if (facts.reason) facts.numbersOnly = false;
  const ParameterSet tensors = tensorParameters(schema);
  if (row.writesAll) facts.writtenArgs |= tensors;
  for (const char* name : row.writes) {
    if (const auto at = schema.argumentIndexWithName(name)) facts.writtenArgs.set(*at);
  }
  for (ParameterSet& sources : facts.aliasedArgs) {
    if (row.aliasesAll || hasTag(at::Tag::maybe_aliasing_or_mutating)) sources |= tensors;
    if (row.aliasesFirst && tensors.any()) sources.set(tensors.find_first());
  }

  readUnsaid(schema, row, facts);
  if (!facts.reason && hasTag(at::Tag::data_dependent_output)) facts.reason = HostReason::HostSync;
  if (!facts.reason && hasTag(at::Tag::dynamic_output_shape) && !row.shapeDependsOnOperands) {
    facts.reason = HostReason::DataDependentShape;
  }
  if (!facts.reason && hasTag(at::Tag::cudagraph_unsafe)) facts.reason = HostReason::UnsafeTag;
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
    facts->random = true;  // must keep its order among draws
  }
  if (kind == c10::prim::If) facts->reason = HostReason::ControlFlow;
  facts->numbersOnly = kind == c10::prim::Constant;
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
    facts->ownSchema = std::make_shared<const FunctionSchema>(handle->schema());
    facts->schema = facts->ownSchema.get();
  } else if (auto op = torch::jit::findOperatorFor(name)) {
    facts->jitOperator = op;
    facts->schema = &op->schema();
  } else {
    return nullptr;
  }
  readSchema(*facts->schema, *facts);
  readTagsAndTables(*facts->schema, *facts);
  facts->writes = facts->writtenArgs.any();
  facts->maybeAliases =
      llvm::any_of(facts->aliasedArgs, [](const ParameterSet& sources) { return sources.any(); });
  return facts;
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

/// The facts that were asked for. Never destroyed: operators are taken away until the process ends.
struct FactsCache {
  std::shared_mutex mutex;
  std::unordered_map<Key, std::unique_ptr<OpFacts>, KeyHash> known;
  std::unordered_map<c10::OperatorName, Key> keys;  // in `known`, of the dispatcher's operators
  std::vector<std::unique_ptr<OpFacts>> gone;       // programs may still have them
  std::optional<c10::RegistrationHandleRAII> listener;
};

/// Forgets the facts of an operator that is taken away: what is registered under its name afterwards, by a
/// cell of a notebook that runs once more, is another one. PyTorch takes all of them away when the process
/// ends, without its table of symbols: so names are looked for, and no symbol is made.
class FactsForgetter final : public c10::OpRegistrationListener {
 public:
  explicit FactsForgetter(FactsCache& cache) : cache_(cache) {}

  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    std::unique_lock lock(cache_.mutex);
    const auto key = cache_.keys.find(op.operator_name());
    if (key == cache_.keys.end()) return;
    const auto at = cache_.known.find(key->second);
    cache_.gone.push_back(std::move(at->second));
    cache_.known.erase(at);
    cache_.keys.erase(key);
  }

 private:
  FactsCache& cache_;
};

FactsCache& factsCache() {
  static FactsCache& cache = []() -> FactsCache& {
    auto& made = *new FactsCache;
    made.listener = c10::Dispatcher::singleton().addRegistrationListener(
        std::make_unique<FactsForgetter>(made));
    return made;
  }();
  return cache;
}

/// Calls `visit` for each input of `node` that fills one of the schema parameters in `parameters`.
template <typename Visit>
void forEachInputOf(const Node* node, const ParameterSet& parameters, Visit&& visit) {
  const auto& args = argsOf(node).args;
  for (const unsigned i : parameters.set_bits()) {
    if (i >= args.size()) return;  // the rest are absent
    forEachInput(args[i], [&](InputArg in) { visit(const_cast<Value*>(node->input(in.index))); });
  }
}

}  // namespace

const OpFacts* findOpFacts(c10::Symbol kind, std::string_view overload) {
  FactsCache& cache = factsCache();
  Key key{kind, std::string(overload)};
  {
    std::shared_lock lock(cache.mutex);
    if (auto at = cache.known.find(key); at != cache.known.end()) return at->second.get();
  }
  auto facts = makeFacts(kind, key.overload);
  // An unknown operator may be registered later, by a library not loaded yet.
  if (!facts) return nullptr;
  std::unique_lock lock(cache.mutex);
  if (facts->handle) cache.keys.try_emplace(facts->handle->operator_name(), key);
  return cache.known.try_emplace(std::move(key), std::move(facts)).first->second.get();
}

const OpFacts& factsOf(const Node* node) {
  if (const CallAttribute* call = findCall(node); call && call->facts) return *call->facts;
  const OpFacts* facts = findOpFacts(node->kind(), overloadOf(node));
  TORCH_CHECK(facts, describe(node), ": PyTorch knows no such operator; load the library that ",
              "registers it, or check the overload's name");
  keepFacts(const_cast<Node*>(node), facts);
  return *facts;
}

void keepFacts(Node* node, const OpFacts* facts) {
  if (!facts && !findCall(node)) return;
  CallAttribute& call = callOf(node);
  call.facts = facts;
  call.schema = facts ? facts->schema : nullptr;
}

bool leavesOpen(const OpFacts& facts) {
  if (facts.transfer != Transfer::None) return facts.transfer != Transfer::Wait;
  return facts.collective && !facts.blocking && !facts.waitsInside;
}

bool isView(const OpFacts& facts) {
  if (facts.writes || facts.wait || facts.aliasedArgs.empty()) return false;
  return llvm::all_of(facts.aliasedArgs, [](const ParameterSet& sources) { return sources.any(); });
}

bool drawsRandom(const Node* node) {
  const OpFacts& facts = factsOf(node);
  if (!facts.random || !facts.schema) return facts.random;
  for (const char* name : {"dropout_p", "dropout"}) {
    const c10::IValue rate = constantArgument(node, *facts.schema, name);
    if (rate.isDouble() && rate.toDouble() == 0.0) return false;
  }
  const c10::IValue train = constantArgument(node, *facts.schema, "train");
  return !(train.isBool() && !train.toBool());
}

c10::IValue constantArgument(const Node* node, const FunctionSchema& schema, const char* name) {
  const auto at = schema.argumentIndexWithName(name);
  if (!at) return {};
  const ArgList& list = argsOf(node);
  const bool given = *at < static_cast<int>(list.args.size()) && !list.args[*at].is<AbsentArg>();
  if (!given) return schema.arguments()[*at].default_value().value_or(c10::IValue());
  const Arg& arg = list.args[*at];
  if (arg.is<bool>()) return arg.as<bool>();
  if (arg.is<int64_t>()) return arg.as<int64_t>();
  if (arg.is<double>()) return arg.as<double>();
  return {};
}

llvm::SmallVector<Value*, 2> aliasedInputs(const Node* node, size_t index) {
  llvm::SmallVector<Value*, 2> sources;
  const OpFacts& facts = factsOf(node);
  if (!facts.maybeAliases) return sources;
  const size_t result = returnOf(index, unpackedList(node, *facts.schema));
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

int64_t writtenListSize(const Node* node) {
  const OpFacts& facts = factsOf(node);
  if (!facts.writes || !facts.schema) return 0;
  const ArgList& list = argsOf(node);
  int64_t longest = 0;
  for (const unsigned i : facts.writtenArgs.set_bits()) {
    if (i >= list.args.size()) break;  // the rest are absent
    if (facts.schema->arguments()[i].type()->kind() != c10::TypeKind::ListType) continue;
    int64_t size = 0;
    forEachInput(list.args[i], [&](InputArg) { ++size; });
    longest = std::max(longest, size);
  }
  return longest;
}

}  // namespace gravure
