#pragma once
// The operator that a statement of program text calls: looked up once for each distinct name.

#include "ir/facts/op_facts.h"
#include "ir/text/constant_text.h"

#include <llvm/ADT/StringMap.h>

#include <string>
#include <string_view>

namespace gravure {

struct CallTarget {
  c10::Symbol kind;
  std::string overload;
  const OpFacts* facts = nullptr;
  /// Parameters of the schema; none for structural nodes, whose arguments are positional.
  size_t parameters = 0;
  /// One past the last parameter without a default.
  size_t required = 0;
  bool anyNumber = false;  // takes more arguments than it has parameters
  /// prim::ListConstruct and prim::TupleConstruct, which are folded into their users.
  bool isList = false;
  bool isTuple = false;

  const c10::FunctionSchema* schema() const { return facts ? facts->schema : nullptr; }
};

class CallTargets {
 public:
  /// The target called `name` ("aten::add.Tensor"); nullptr and a sentence in `*why` if there is
  /// none. The pointer lives as long as this.
  const CallTarget* find(std::string_view name, std::string* why);

 private:
  llvm::StringMap<CallTarget> known_;
};

/// "; there is also aten::add.Tensor, …" if the operator has other overloads than the default one,
/// which `target` is; else "".
std::string otherOverloads(const CallTarget& target);

/// "aten::add.Tensor(Tensor self, …) -> Tensor"
std::string schemaText(const c10::FunctionSchema& schema);

}  // namespace gravure
