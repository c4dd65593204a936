#pragma once
// One entry of program text: `graph name(…): … return (…)`.

#include "ir/core/location.h"
#include "ir/core/program.h"
#include "ir/text/argument_reader.h"
#include "ir/text/call_target.h"
#include "ir/text/text_lexer.h"
#include "ir/text/type_reader.h"
#include "ir/text/value_table.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringMap.h>

#include <string>
#include <utility>

namespace gravure {

/// The last list of arguments of each operator: the layers of a model call it with the same constants,
/// and nodes may share a list.
class LastArgs {
 public:
  /// The last list if it is that of `call`, else one of its arguments, which are moved from.
  c10::intrusive_ptr<ArgList> same(const CallTarget& target, CallArgs& call, int32_t rng);

 private:
  llvm::DenseMap<const CallTarget*, c10::intrusive_ptr<ArgList>> last_;
};

/// What outlives an entry: types and operators, each looked up once.
class Vocabulary {
 public:
  explicit Vocabulary(TextLexer& lexer)
      : types(lexer), foldBudget(8 * lexer.text().size() + 65536), text_(lexer.text()) {}

  /// About one name a line of the entry that begins at `begin`. No line is counted twice: there may be
  /// many entries on one.
  size_t takeExpectedNames(size_t begin);

  TypeReader types;
  CallTargets targets;
  llvm::StringMap<c10::Symbol> attributes;
  LastArgs lastArgs;
  Locations locations;
  /// How much more folded constants may be copied: keeps reading linear in the text.
  size_t foldBudget;

 private:
  std::string_view text_;
  size_t counted_ = 0;  // where the last entry whose lines were counted ends
};

class EntryReader {
 public:
  EntryReader(TextLexer& lexer, Vocabulary& vocabulary)
      : lexer_(lexer), vocabulary_(vocabulary),
        expectedNames_(vocabulary.takeExpectedNames(lexer.peek().offset)),
        values_(lexer, expectedNames_), arguments_(lexer, values_, vocabulary.foldBudget) {}

  /// From `graph` to the `)` of its `return`.
  Entry read();

 private:
  struct Output {
    Token name;
    c10::TypePtr type;
  };
  using Outputs = llvm::SmallVector<Output, 2>;

  void readInput();
  void readReturn();
  OutputInfo readOutputRole();
  std::string readOptionalString();
  Output readTyped();
  void readStatements(Block* block, int depth);
  void readStatement(Block* block, int depth);
  Outputs readOutputs();
  const CallTarget& readTarget();
  void readAttributes(Node* node);
  c10::Symbol attributeName(const Token& name);
  void setArguments(Node* node, const CallTarget& target, CallArgs call);
  void readLocation(Node* node);
  void readBlock(Node* node, int depth);
  void foldList(const CallTarget& target, const Token& name, const Outputs& outputs);
  void defineConstant(Node* node, const Token& name, const Output& output);
  void defineOutputs(Node* node, Outputs& outputs);

  TextLexer& lexer_;
  Vocabulary& vocabulary_;
  size_t expectedNames_;
  ValueTable values_;
  ArgumentReader arguments_;
  Entry entry_;
};

}  // namespace gravure
