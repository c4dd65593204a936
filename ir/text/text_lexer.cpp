#include "ir/text/text_lexer.h"

#include "ir/text/program_text.h"

#include <llvm/ADT/StringExtras.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace gravure {
namespace {

enum : uint8_t { kSpace = 1, kDigit = 2, kLetter = 4, kDot = 8, kPunct = 16 };

constexpr std::array<uint8_t, 256> charClasses() {
  std::array<uint8_t, 256> classes{};
  for (unsigned char c : std::string_view(" \t\r\n\v\f")) classes[c] = kSpace;
  for (int c = '0'; c <= '9'; ++c) classes[c] = kDigit;
  for (int c = 'a'; c <= 'z'; ++c) classes[c] = kLetter;
  for (int c = 'A'; c <= 'Z'; ++c) classes[c] = kLetter;
  classes['_'] = kLetter;
  classes['.'] = kDot;
  for (unsigned char c : std::string_view("()[]{},:=@?*")) classes[c] = kPunct;
  return classes;
}

constexpr std::array<uint8_t, 256> kClasses = charClasses();

bool is(char c, uint8_t classes) { return kClasses[static_cast<unsigned char>(c)] & classes; }

std::string hexEscape(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return {'\\', 'x', llvm::hexdigit(byte >> 4, true), llvm::hexdigit(byte & 15, true)};
}

void appendEscaped(std::string& out, char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20 && byte != 0x7f) {
    out += c;
  } else {
    out += hexEscape(c);
  }
}

std::string described(const Token& token) {
  switch (token.kind) {
    case TokenKind::End: return "the end of the text";
    case TokenKind::Value: return "'%" + excerpt(token.text) + "'";
    case TokenKind::String: return excerpt(token.text);
    default: return "'" + excerpt(token.text) + "'";
  }
}

}  // namespace

std::string excerpt(std::string_view text) {
  constexpr size_t kMost = 60;
  size_t end = std::min(kMost, text.size());
  // Cut between characters of UTF-8, not inside one.
  const auto continues = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  while (end > 0 && end < text.size() && continues(end)) --end;
  std::string shown;
  for (char c : text.substr(0, end)) appendEscaped(shown, c);
  return end < text.size() ? shown + "…" : shown;
}

TextError::TextError(std::string inFile, size_t atLine, size_t atColumn, const std::string& message)
    : c10::Error(inFile + ":" + std::to_string(atLine) + ":" + std::to_string(atColumn) + ": " +
                 message),
      file(std::move(inFile)), line(atLine), column(atColumn), detail(message) {}

TextLexer::TextLexer(std::string_view text, const std::string& file, size_t firstLine)
    : text_(text), file_(file), firstLine_(firstLine) {
  advance();
}

void TextLexer::fail(size_t offset, const std::string& message) const {
  const std::string_view before = text_.substr(0, offset);
  const size_t line = firstLine_ + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? offset + 1 : offset - newline;
  throw TextError(file_, line, column, message);
}

void TextLexer::failExpected(std::string_view what) const {
  fail(current_.offset, "expected " + std::string(what) + ", found " + described(current_));
}

void TextLexer::expect(char punct, const char* what) {
  if (accept(punct)) return;
  if (what) failExpected(what);
  failExpected(punct == '>' ? std::string("'->'") : std::string("'") + punct + "'");
}

Token TextLexer::expect(TokenKind kind, const char* what) {
  if (current_.kind != kind) failExpected(what);
  return take();
}

void TextLexer::jumpTo(size_t offset) {
  at_ = offset;
  current_ = Token{TokenKind::Punct, 0, offset, text_.substr(offset, 0)};
  advance();
}

void TextLexer::finish(TokenKind kind, size_t end) {
  current_.kind = kind;
  current_.text = text_.substr(current_.offset, end - current_.offset);
  at_ = end;
}

void TextLexer::skipSpace() {
  while (at_ < text_.size()) {
    if (is(text_[at_], kSpace)) {
      ++at_;
    } else if (text_[at_] == '#') {
      const size_t end = text_.find('\n', at_);
      at_ = end == std::string_view::npos ? text_.size() : end + 1;
    } else {
      return;
    }
  }
}

void TextLexer::advance() {
  lastEnd_ = at_;
  skipSpace();
  current_.offset = at_;
  current_.punct = 0;
  if (at_ >= text_.size()) {
    finish(TokenKind::End, at_);
    return;
  }
  const char c = text_[at_];
  const char next = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
  if (c == '%') {
    lexValue();
  } else if (is(c, kLetter)) {
    lexName();
  } else if (is(c, kPunct)) {
    current_.punct = c;
    finish(TokenKind::Punct, at_ + 1);
  } else if (is(c, kDigit) || (c == '-' && is(next, kDigit | kLetter))) {
    lexNumber();
  } else if (c == '-' && next == '>') {
    current_.punct = '>';
    finish(TokenKind::Punct, at_ + 2);
  } else if (c == '"') {
    lexString();
  } else {
    const bool ascii = static_cast<unsigned char>(c) < 0x80;
    const std::string shown = ascii ? excerpt(text_.substr(at_, 1)) : hexEscape(c);
    fail(at_, "expected a token, found the character '" + shown + "'");
  }
}

void TextLexer::lexValue() {
  size_t end = at_ + 1;
  while (end < text_.size() && is(text_[end], kLetter | kDigit | kDot)) ++end;
  if (end == at_ + 1) fail(at_, "expected a value's name after '%'");
  finish(TokenKind::Value, end);
  current_.text.remove_prefix(1);
}

/// A name may go on behind a dot or `::` if a letter or digit follows: `aten::add.Tensor`.
void TextLexer::lexName() {
  size_t end = at_;
  const auto word = [&](size_t from) {
    return from < text_.size() && is(text_[from], kLetter | kDigit);
  };
  for (;;) {
    while (word(end)) ++end;
    if (end < text_.size() && text_[end] == '.' && word(end + 1)) {
      ++end;
    } else if (text_.substr(end, 2) == "::" && word(end + 2)) {
      end += 2;
    } else {
      break;
    }
  }
  finish(TokenKind::Name, end);
}

void TextLexer::lexNumber() {
  size_t end = at_ + (text_[at_] == '-');
  if (is(text_[end], kLetter)) {
    const std::string_view name = text_.substr(end, 3);
    if (name != "inf" && name != "nan") fail(at_, "expected a number after '-'");
    finish(TokenKind::Float, end + 3);
    return;
  }
  bool whole = true;
  while (end < text_.size()) {
    const char c = text_[end];
    if (is(c, kDigit)) {
      ++end;
    } else if (c == '.' || c == 'e' || c == 'E') {
      whole = false;
      ++end;
      if (c != '.' && end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
    } else {
      break;
    }
  }
  if (end < text_.size() && is(text_[end], kLetter)) {
    fail(end, "expected the end of the number, found '" + excerpt(text_.substr(end, 1)) + "'");
  }
  finish(whole ? TokenKind::Int : TokenKind::Float, end);
}

void TextLexer::lexString() {
  size_t end = at_ + 1;
  for (;; ++end) {
    if (end >= text_.size() || text_[end] == '\n') {
      fail(at_, "expected '\"' at the end of the string, found the end of the line");
    }
    if (text_[end] == '"') break;
    if (text_[end] == '\\') ++end;
    if (end < text_.size() && text_[end] == '\n') --end;
  }
  finish(TokenKind::String, end + 1);
}

int64_t TextLexer::intOf(const Token& token) const {
  int64_t value = 0;
  const char* end = token.text.data() + token.text.size();
  const auto [stop, error] = std::from_chars(token.text.data(), end, value);
  if (error != std::errc() || stop != end) {
    fail(token.offset, "expected an int of 64 bits, found '" + excerpt(token.text) + "'");
  }
  return value;
}

double TextLexer::floatOf(const Token& token) const {
  const std::string_view text = token.text;
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "-nan") return -std::numeric_limits<double>::quiet_NaN();
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    fail(token.offset, "expected a number in a double's range, found '" + excerpt(text) + "'");
  }
  if (error != std::errc() || stop != end) {
    fail(token.offset, "expected a number, found '" + excerpt(text) + "'");
  }
  return value;
}

std::string TextLexer::stringOf(const Token& token) const {
  const std::string_view body = token.text.substr(1, token.text.size() - 2);
  if (body.find('\\') == std::string_view::npos) return std::string(body);
  std::string value;
  value.reserve(body.size());
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\') {
      value += body[i];
      continue;
    }
    const size_t escape = token.offset + 1 + i;
    switch (body[++i]) {
      case '"': value += '"'; break;
      case '\\': value += '\\'; break;
      case 'n': value += '\n'; break;
      case 't': value += '\t'; break;
      case 'r': value += '\r'; break;
      case 'x': {
        const std::string_view digits = body.substr(i + 1, 2);
        if (digits.size() < 2 || !llvm::isHexDigit(digits[0]) || !llvm::isHexDigit(digits[1])) {
          fail(escape, "expected two hexadecimal digits after '\\x'");
        }
        value += static_cast<char>(llvm::hexFromNibbles(digits[0], digits[1]));
        i += 2;
        break;
      }
      default:
        fail(escape, "expected one of the escapes \\\" \\\\ \\n \\t \\r \\xHH, found '\\" +
                         excerpt(body.substr(i, 1)) + "'");
    }
  }
  return value;
}

}  // namespace gravure
