#pragma once
// Reader and printer of program text (docs/program-text.md).

#include "ir/core/program.h"

#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure {

/// A text that is not a program. what() reads `file:line:column: expected …, found …`.
struct TextError : c10::Error {
  TextError(std::string file, size_t line, size_t column, const std::string& message);
  std::string file;
  size_t line;    // from 1
  size_t column;  // from 1, in bytes
  std::string detail;
};

/// Reads one program. Linear in time and memory. `file` and `firstLine`, the number of the text's
/// first line in it, are only for messages.
/// Throws TextError; checks syntax, that each value is defined once and before its use, that each
/// operator is known and its arguments fit its schema's parameters in number and name.
/// verifyProgram (ir/check/verify.h) checks the rest.
Program readProgram(std::string_view text, const std::string& file = "<text>",
                    size_t firstLine = 1);
/// The same from a file; TORCH_CHECK if it cannot be read.
Program readProgramFile(const std::string& path);

/// One of several programs in a text.
struct InputPart {
  std::string_view text;
  size_t firstLine;
};
/// Cuts a text at its lines `# -----`, which belong to no part. Always at least one part.
std::vector<InputPart> splitInputs(std::string_view text);

struct PrintOptions {
  bool sources = true;  // print @"file:line" in "module"
};
void printProgram(const Program& program, llvm::raw_ostream& os, const PrintOptions& options = {});
std::string programText(const Program& program, const PrintOptions& options = {});
/// One statement, without its blocks; for messages and dumps.
std::string nodeText(const Node* node);

}  // namespace gravure
