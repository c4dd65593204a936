#pragma once
// Types and devices, read from program text.

#include "ir/core/tensor_type.h"

#include <ATen/core/jit_type.h>
#include <llvm/ADT/StringMap.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gravure {

class TextLexer;

/// Lists, options and blocks may nest so deep.
constexpr int kMaxNesting = 200;

/// Reads each distinct text of a type once.
class TypeReader {
 public:
  explicit TypeReader(TextLexer& lexer) : lexer_(lexer) {}

  /// Reads the type at the lexer's current token; TextError if there is none.
  c10::TypePtr read();

 private:
  struct TensorParts;

  c10::TypePtr parse(int depth);
  c10::TypePtr parseBase(int depth);
  c10::TypePtr parseTuple(int depth);
  c10::TypePtr parseContained(int depth);
  c10::TypePtr parseNamed();
  c10::TypePtr parseTensor(std::optional<at::ScalarType> dtype, bool ranked);
  void parseTensorPart(TensorParts& parts);
  void parseOption(TensorParts& parts);
  std::optional<int64_t> parseDim();
  std::vector<std::optional<int64_t>> parseStrides();
  c10::TypePtr makeTensor(const TensorParts& parts, size_t offset);

  TextLexer& lexer_;
  llvm::StringMap<c10::TypePtr> known_;
};

/// Reads `cuda:0`, or `cpu`, at the lexer's current token.
c10::Device readDevice(TextLexer& lexer);
/// The device that `text` names and that prints the same, nullopt if none does.
std::optional<c10::Device> deviceFromText(std::string_view text);

}  // namespace gravure
