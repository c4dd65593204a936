#pragma once
// Names of one entry while its text is read: what they stand for, and where they can be seen.

#include "ir/core/args.h"
#include "ir/core/program.h"
#include "ir/text/text_lexer.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/StringRef.h>

#include <vector>

namespace gravure {

/// A constant or list that a statement of its own defines, as TorchScript writes them. It stands in
/// place of its name wherever that is an argument.
struct FoldedConstant {
  Arg arg;  // InputArg: index into `values`
  std::vector<Value*> values;
  Node* node = nullptr;  // prim::Constant; none for lists and tuples
  size_t weight = 0;     // memory of one copy, in about 32 bytes; set by the table
  int depth = 0;
  bool used = false;
};

class ValueTable {
 public:
  /// Room for `expected` names is made at once.
  ValueTable(const TextLexer& lexer, size_t expected) : lexer_(lexer) {
    names_.reserve(expected);
    index_.reserve(expected);
  }

  /// TextError if the name is taken.
  void define(const Token& name, Value* value);
  void defineFolded(const Token& name, FoldedConstant folded);

  struct Found {
    Value* value = nullptr;
    FoldedConstant* folded = nullptr;
  };
  /// TextError if the name is unknown or cannot be seen from here.
  Found find(const Token& name);
  /// The value itself; TextError if the name stands for a list.
  Value* findValue(const Token& name);

  struct Scope {
    uint32_t id;
    uint32_t outerBarrier;
  };
  /// From an isolated block nothing outside is seen.
  Scope enter(bool isolated);
  void leave(const Scope& scope);

  /// Gives the values their names in the graph. A name of digits only stays out of it.
  void nameValues() const;
  /// Destroys the constant nodes that only arguments used.
  void dropFoldedNodes();

 private:
  struct Named {
    std::string_view name;
    Value* value = nullptr;
    uint32_t scope = 0;
    int32_t folded = -1;
  };
  Named& add(const Token& name);

  const TextLexer& lexer_;
  std::vector<Named> names_;                         // in the order of their definition
  llvm::DenseMap<llvm::StringRef, uint32_t> index_;  // in `names_`; the text holds the keys
  std::vector<FoldedConstant> folded_;
  std::vector<bool> open_{true};  // by scope: its block has not ended
  std::vector<uint32_t> outer_;   // the scopes around the current one
  uint32_t scope_ = 0;            // the current one
  uint32_t barrier_ = 0;          // names of scopes before this one are not seen
};

}  // namespace gravure
