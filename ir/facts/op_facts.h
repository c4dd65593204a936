#pragma once
// What is known of each operator: its schema, which outputs alias which inputs, what it writes, and
// how it behaves under capture. One table (op_table.cpp) over PyTorch's own schemas and tags.

#include "ir/core/program.h"
#include "ir/core/reason.h"
#include "ir/facts/transfer.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <llvm/ADT/SmallBitVector.h>
#include <llvm/ADT/SmallVector.h>

#include <memory>
#include <optional>
#include <string_view>

namespace torch::jit {
struct Operator;
}

namespace gravure {

/// Some of a schema's parameters: bit i for parameter i, as many bits as there are parameters.
using ParameterSet = llvm::SmallBitVector;

struct OpFacts {
  /// nullptr for structural nodes (prim::If, cudagraph::*), whose arguments are positional.
  const c10::FunctionSchema* schema = nullptr;
  /// The dispatcher's entry; none for operators that only TorchScript knows (aten::add.int), which have
  /// `jitOperator` instead.
  std::optional<c10::OperatorHandle> handle;
  std::shared_ptr<torch::jit::Operator> jitOperator;

  /// Host reason that holds wherever the operator is called, whatever its operands are. One that depends
  /// on them, as with an index by a boolean mask, is for passes/analysis/verdict.h to find.
  std::optional<HostReason> reason;
  bool random = false;       // draws from a generator
  bool collective = false;   // starts or performs communication among ranks
  bool wait = false;         // waits for a collective, or for a transfer
  bool blocking = false;     // a collective that blocks the host
  bool waitsInside = false;  // a collective, or several, with its waits: nobody waits behind it
  Transfer transfer = Transfer::None;
  bool effects = false;      // must keep its order among others with effects (prints, asserts, I/O)
  bool numbersOnly = false;  // a number node: works on numbers, or on a tensor's sizes and strides,
                             // alone; runs on the host at no cost
  bool writes = false;       // some parameter is written: see writtenArgs
  bool maybeAliases = false;  // an output may share an input's storage: see aliasedArgs
  ParameterSet writtenArgs;
  /// For return r: the parameters whose storage the output may share.
  llvm::SmallVector<ParameterSet, 1> aliasedArgs;

  /// What `schema` points to where there is a handle: it stays when the operator is taken away.
  std::shared_ptr<const c10::FunctionSchema> ownSchema;
};

/// Facts of an operator as it is registered now; nullptr if PyTorch does not know it. `overload` "" is the
/// default one. The result lives for the life of the process; after torch.library has taken the operator
/// away, its handle may not be called. Thread-safe.
const OpFacts* findOpFacts(c10::Symbol kind, std::string_view overload);
/// Facts of the operator that `node` calls; TORCH_CHECK naming the node if it is unknown. Cached in
/// an attribute of the node, so one graph must not be asked from two threads at once.
const OpFacts& factsOf(const Node* node);
/// From now on factsOf(node) gives `facts`, and overloadOf(node) the overload that they are of; null: both
/// are found anew by the node's kind and overload.
void keepFacts(Node* node, const OpFacts* facts);
/// To be called where `node` has its attributes from a node of another operator.
inline void forgetFacts(Node* node) { keepFacts(node, nullptr); }

/// True if the operator starts a collective, or a transfer, that is still under way when it returns.
bool leavesOpen(const OpFacts& facts);
/// True if the operator only makes views: every result shares an operand's storage, nothing is written,
/// and nothing is waited for.
bool isView(const OpFacts& facts);
/// True if `node` draws from a generator when it runs: its operator is random, and no constant
/// argument, given or by default (dropout_p=0., train=False), keeps it from drawing.
bool drawsRandom(const Node* node);
/// The number or bool that fills the parameter called `name` of `schema`, the node's; the parameter's
/// default if the node gives none; None for a value, for other constants, and if there is no such parameter.
c10::IValue constantArgument(const Node* node, const c10::FunctionSchema& schema, const char* name);

/// Inputs of `node` whose storage output `index` may share. Lists count member by member.
llvm::SmallVector<Value*, 2> aliasedInputs(const Node* node, size_t index);
/// Inputs of `node` that it writes.
llvm::SmallVector<Value*, 2> writtenInputs(const Node* node);
/// Tensors of the longest list that `node` writes: an operator on lists stands for so many calls
/// (aten::_foreach_add_, aten::_fused_adamw_). 0 where it writes none.
int64_t writtenListSize(const Node* node);

}  // namespace gravure
