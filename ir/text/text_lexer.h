#pragma once
// Tokens of program text. One token of look-ahead; line and column are counted only for an error.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gravure {

enum class TokenKind : uint8_t {
  End,
  Value,   // %name, text without the %
  Name,    // aten::add.Tensor, torch.float32, strides, True, inf
  Int,     // -12
  Float,   // 1., 1e-05, -inf, -nan
  String,  // text with its quotes, escapes untouched
  Punct,   // one character, or -> (punct '>')
};

struct Token {
  TokenKind kind = TokenKind::End;
  char punct = 0;
  size_t offset = 0;
  std::string_view text;

  bool is(char wanted) const { return kind == TokenKind::Punct && punct == wanted; }
  bool isName(std::string_view wanted) const { return kind == TokenKind::Name && text == wanted; }
};

class TextLexer {
 public:
  /// `file` and `firstLine` are for messages. `text` and `file` must outlive the lexer.
  TextLexer(std::string_view text, const std::string& file, size_t firstLine);

  const Token& peek() const { return current_; }
  Token take() {
    const Token token = current_;
    advance();
    return token;
  }
  bool at(char punct) const { return current_.is(punct); }
  bool accept(char punct) {
    if (!at(punct)) return false;
    advance();
    return true;
  }
  bool acceptName(std::string_view name) {
    if (!current_.isName(name)) return false;
    advance();
    return true;
  }
  /// `what` is the message's "expected …"; by default the character itself.
  void expect(char punct, const char* what = nullptr);
  Token expect(TokenKind kind, const char* what);

  int64_t intOf(const Token& token) const;
  double floatOf(const Token& token) const;
  std::string stringOf(const Token& token) const;

  std::string_view text() const { return text_; }
  /// End of the token before the current one.
  size_t lastEnd() const { return lastEnd_; }
  /// Reads on at `offset`, as if all before it had been taken.
  void jumpTo(size_t offset);

  /// Throws TextError at `offset`.
  [[noreturn]] void fail(size_t offset, const std::string& message) const;
  /// "expected `what`, found …" at the current token.
  [[noreturn]] void failExpected(std::string_view what) const;

 private:
  void advance();
  void skipSpace();
  void lexNumber();
  void lexName();
  void lexString();
  void lexValue();
  void finish(TokenKind kind, size_t end);

  std::string_view text_;
  const std::string& file_;
  size_t firstLine_;
  size_t at_ = 0;
  size_t lastEnd_ = 0;
  Token current_;
};

/// `text` for a message: at most 60 bytes, control characters escaped.
std::string excerpt(std::string_view text);

}  // namespace gravure
