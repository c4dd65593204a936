#include "ir/text/entry_reader.h"
#include "ir/text/program_text.h"

#include <llvm/ADT/StringSet.h>
#include <llvm/Support/MemoryBuffer.h>

namespace gravure {
namespace {

constexpr int64_t kVersion = 1;

Program readEntries(TextLexer& lexer) {
  Program program;
  Vocabulary vocabulary(lexer);
  llvm::StringSet<> names;
  if (lexer.acceptName("gravure")) {
    const Token version = lexer.expect(TokenKind::Int, "the format's version");
    if (lexer.intOf(version) != kVersion) {
      lexer.fail(version.offset, "expected version " + std::to_string(kVersion) +
                                     " of program text, found " + excerpt(version.text));
    }
  }
  do {
    const size_t offset = lexer.peek().offset;
    Entry entry = EntryReader(lexer, vocabulary).read();
    if (!names.insert(entry.name).second) {
      lexer.fail(offset,
                 "expected entries of different names, found '" + entry.name + "' a second time");
    }
    program.entries.push_back(std::move(entry));
  } while (lexer.peek().isName("graph"));
  if (lexer.peek().kind != TokenKind::End) {
    lexer.failExpected("'graph' or the end of the text");
  }
  return program;
}

}  // namespace

Program readProgram(std::string_view text, const std::string& file, size_t firstLine) {
  TextLexer lexer(text, file, firstLine);
  try {
    return readEntries(lexer);
  } catch (const TextError&) {
    throw;
  } catch (const c10::Error& error) {
    lexer.fail(lexer.peek().offset, "expected a program that PyTorch accepts: " +
                                        excerpt(error.what_without_backtrace()));
  }
}

Program readProgramFile(const std::string& path) {
  auto buffer = llvm::MemoryBuffer::getFile(path);
  TORCH_CHECK(buffer, "the program '", path, "' cannot be read: ", buffer.getError().message());
  const llvm::StringRef text = (*buffer)->getBuffer();
  return readProgram({text.data(), text.size()}, path);
}

std::vector<InputPart> splitInputs(std::string_view text) {
  std::vector<InputPart> parts;
  size_t begin = 0, line = 1, firstLine = 1;
  for (size_t at = 0; at < text.size(); ++line) {
    const size_t newline = text.find('\n', at);
    const size_t end = newline == std::string_view::npos ? text.size() : newline;
    const size_t next = newline == std::string_view::npos ? end : end + 1;
    std::string_view content = text.substr(at, end - at);
    content = content.substr(0, content.find_last_not_of(" \t\r") + 1);
    if (content == "# -----") {
      parts.push_back({text.substr(begin, at - begin), firstLine});
      begin = next;
      firstLine = line + 1;
    }
    at = next;
  }
  parts.push_back({text.substr(begin), firstLine});
  return parts;
}

}  // namespace gravure
