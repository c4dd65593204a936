#pragma once
// Arguments of one call in program text: constants, values, lists, bound to the operator's schema.

#include "ir/text/call_target.h"
#include "ir/text/text_lexer.h"
#include "ir/text/value_table.h"

#include <llvm/ADT/SmallVector.h>

namespace gravure {

/// Arguments in the order of the schema, and the inputs they refer to.
struct CallArgs {
  llvm::SmallVector<Arg, 8> args;
  llvm::SmallVector<Value*, 8> inputs;
  bool inOrder = true;  // the inputs are referred to as 0, 1, 2, …

  /// True if the arguments are the inputs, one by one: such a node needs no ArgList.
  bool isInputsAlone() const;
};

class ArgumentReader {
 public:
  /// Each copy of a folded constant takes its weight from `foldBudget`; TextError if it runs out.
  ArgumentReader(TextLexer& lexer, ValueTable& values, size_t& foldBudget)
      : lexer_(lexer), values_(values), foldBudget_(foldBudget) {}

  /// Reads `(…)` and binds it to the parameters of `target`; `name` is the operator's token.
  CallArgs read(const CallTarget& target, const Token& name);
  /// Reads a constant without values in it.
  Arg readConstant();

 private:
  void readOne(const CallTarget& target, const Token& name, CallArgs& call, bool& named);
  void bindKeyword(const CallTarget& target, const Token& keyword, CallArgs& call);
  void checkRequired(const CallTarget& target, const Token& name, const CallArgs& call) const;
  Arg readExpr(CallArgs& call, int depth);
  Arg readNamed(const Token& name);
  Arg readValue(CallArgs& call, int depth);
  std::vector<Arg> readMembers(char close, CallArgs& call, int depth);
  double readNan();
  c10::complex<double> readComplex();
  double readPart();

  TextLexer& lexer_;
  ValueTable& values_;
  bool constantsOnly_ = false;
  size_t& foldBudget_;
};

/// Renumbers the inputs of `call` by first use in its arguments.
void orderInputs(CallArgs& call);

}  // namespace gravure
