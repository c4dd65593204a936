#include "ir/text/argument_reader.h"

#include "ir/core/counted.h"
#include "ir/text/program_text.h"
#include "ir/text/type_reader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>

namespace gravure {
namespace {

/// Copies `arg` of a folded constant into `call`.
Arg unfolded(const Arg& arg, const FoldedConstant& folded, CallArgs& call) {
  if (arg.is<InputArg>()) {
    call.inputs.push_back(folded.values[arg.as<InputArg>().index]);
    return InputArg{static_cast<uint32_t>(call.inputs.size() - 1)};
  }
  const auto* members = arg.elements();
  if (!members) return arg;
  std::vector<Arg> copies;
  copies.reserve(members->size());
  for (const Arg& member : *members) copies.push_back(unfolded(member, folded, call));
  if (arg.is<ListArg>()) return ListArg{std::move(copies)};
  return TupleArg{std::move(copies)};
}

void renumber(Arg& arg, const llvm::SmallVectorImpl<Value*>& from,
              llvm::SmallVectorImpl<Value*>& to) {
  if (auto* input = std::get_if<InputArg>(&arg.value)) {
    to.push_back(from[input->index]);
    input->index = static_cast<uint32_t>(to.size() - 1);
  } else if (auto* list = std::get_if<ListArg>(&arg.value)) {
    for (Arg& member : list->elements) renumber(member, from, to);
  } else if (auto* tuple = std::get_if<TupleArg>(&arg.value)) {
    for (Arg& member : tuple->elements) renumber(member, from, to);
  }
}

}  // namespace

bool CallArgs::isInputsAlone() const {
  if (args.size() != inputs.size()) return false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].is<InputArg>() || args[i].as<InputArg>().index != i) return false;
  }
  return true;
}

void orderInputs(CallArgs& call) {
  llvm::SmallVector<Value*, 8> ordered;
  for (Arg& arg : call.args) renumber(arg, call.inputs, ordered);
  call.inputs = std::move(ordered);
  call.inOrder = true;
}

CallArgs ArgumentReader::read(const CallTarget& target, const Token& name) {
  CallArgs call;
  bool named = false;
  lexer_.expect('(', "'(' and the arguments");
  for (bool first = true; !lexer_.at(')'); first = false) {
    if (!first) lexer_.expect(',', "',' or ')'");
    readOne(target, name, call, named);
  }
  lexer_.take();
  if (named || call.args.size() < target.required) checkRequired(target, name, call);
  if (!call.inOrder) orderInputs(call);
  return call;
}

void ArgumentReader::readOne(const CallTarget& target, const Token& name, CallArgs& call,
                             bool& named) {
  const Token first = lexer_.peek();
  if (first.kind == TokenKind::Name) {
    lexer_.take();
    if (lexer_.accept('=')) {
      named = true;
      bindKeyword(target, first, call);
      return;
    }
  }
  if (named) lexer_.fail(first.offset, "expected only named arguments after the first of them");
  if (!target.anyNumber && call.args.size() == target.parameters) {
    lexer_.fail(first.offset, "expected at most " + counted(target.parameters, "argument") +
                                  " of '" + excerpt(name.text) +
                                  "', found one more; its schema is " +
                                  schemaText(*target.schema()) + otherOverloads(target));
  }
  call.args.push_back(first.kind == TokenKind::Name ? readNamed(first) : readExpr(call, 0));
}

void ArgumentReader::bindKeyword(const CallTarget& target, const Token& keyword, CallArgs& call) {
  const c10::FunctionSchema* schema = target.schema();
  if (!schema) {
    lexer_.fail(keyword.offset, "expected arguments by position, found '" + excerpt(keyword.text) +
                                    "='; this operator's parameters have no names");
  }
  const auto& parameters = schema->arguments();
  size_t at = 0;
  while (at < parameters.size() && parameters[at].name() != keyword.text) ++at;
  if (at == parameters.size()) {
    lexer_.fail(keyword.offset, "expected the name of a parameter, found '" +
                                    excerpt(keyword.text) + "='; the schema is " +
                                    schemaText(*schema) + otherOverloads(target));
  }
  if (call.args.size() <= at) {
    call.args.resize(at + 1);
  } else if (!call.args[at].is<AbsentArg>()) {
    lexer_.fail(keyword.offset,
                "expected each argument once, found '" + excerpt(keyword.text) + "' a second time");
  } else {
    call.inOrder = false;
  }
  call.args[at] = readExpr(call, 0);
}

void ArgumentReader::checkRequired(const CallTarget& target, const Token& name,
                                   const CallArgs& call) const {
  for (size_t i = 0; i < target.required; ++i) {
    const c10::Argument& parameter = target.schema()->arguments()[i];
    const bool given = i < call.args.size() && !call.args[i].is<AbsentArg>();
    if (given || parameter.default_value()) continue;
    lexer_.fail(name.offset, "expected the argument '" + parameter.name() + "' of '" +
                                 excerpt(name.text) + "', found none; its schema is " +
                                 schemaText(*target.schema()) + otherOverloads(target));
  }
}

Arg ArgumentReader::readConstant() {
  CallArgs none;
  constantsOnly_ = true;
  Arg constant = readExpr(none, 0);
  constantsOnly_ = false;
  return constant;
}

Arg ArgumentReader::readExpr(CallArgs& call, int depth) {
  if (depth > kMaxNesting) lexer_.failExpected("an argument nested less deep");
  const Token token = lexer_.peek();
  switch (token.kind) {
    case TokenKind::Value: return readValue(call, depth);
    case TokenKind::Int: lexer_.take(); return lexer_.intOf(token);
    case TokenKind::Float: lexer_.take(); return lexer_.floatOf(token);
    case TokenKind::String: lexer_.take(); return lexer_.stringOf(token);
    case TokenKind::Name: lexer_.take(); return readNamed(token);
    case TokenKind::Punct:
      if (lexer_.accept('[')) return ListArg{readMembers(']', call, depth)};
      if (lexer_.accept('(')) return TupleArg{readMembers(')', call, depth)};
      break;
    case TokenKind::End: break;
  }
  lexer_.failExpected(constantsOnly_ ? "a constant" : "a value or a constant");
}

std::vector<Arg> ArgumentReader::readMembers(char close, CallArgs& call, int depth) {
  std::vector<Arg> members;
  for (bool first = true; !lexer_.at(close); first = false) {
    if (!first) lexer_.expect(',', close == ']' ? "',' or ']'" : "',' or ')'");
    members.push_back(readExpr(call, depth + 1));
  }
  lexer_.take();
  return members;
}

Arg ArgumentReader::readValue(CallArgs& call, int depth) {
  if (constantsOnly_) lexer_.failExpected("a constant");
  const Token name = lexer_.take();
  const ValueTable::Found found = values_.find(name);
  if (!found.folded) {
    call.inputs.push_back(found.value);
    return InputArg{static_cast<uint32_t>(call.inputs.size() - 1)};
  }
  FoldedConstant& folded = *found.folded;
  if (depth + folded.depth > kMaxNesting) {
    lexer_.fail(name.offset, "expected an argument nested less deep");
  }
  if (folded.weight > foldBudget_) {
    lexer_.fail(name.offset, "expected fewer uses of large constants: folded into their users they "
                             "outgrow the text; write them in place");
  }
  foldBudget_ -= folded.weight;
  folded.used = true;
  return unfolded(folded.arg, folded, call);
}

/// What may follow `nan`: `("7ff8000000000abc")`.
double ArgumentReader::readNan() {
  if (!lexer_.accept('(')) return std::numeric_limits<double>::quiet_NaN();
  const Token text = lexer_.expect(TokenKind::String, "the bits of a nan");
  const std::string bits = lexer_.stringOf(text);
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(bits.data(), bits.data() + bits.size(), number, 16);
  const auto value = std::bit_cast<double>(number);
  if (bits.size() != 16 || error != std::errc() || stop != bits.data() + 16 || value == value) {
    lexer_.fail(text.offset, "expected the bits of a nan as 16 hexadecimal digits");
  }
  lexer_.expect(')');
  return value;
}

c10::complex<double> ArgumentReader::readComplex() {
  lexer_.expect('(');
  const double real = readPart();
  lexer_.expect(',');
  const double imaginary = readPart();
  lexer_.expect(')');
  return {real, imaginary};
}

double ArgumentReader::readPart() {
  const Token token = lexer_.take();
  if (token.kind == TokenKind::Float) return lexer_.floatOf(token);
  if (token.kind == TokenKind::Int) return static_cast<double>(lexer_.intOf(token));
  if (token.isName("inf")) return std::numeric_limits<double>::infinity();
  if (token.isName("nan")) return readNan();
  lexer_.fail(token.offset, "expected a number, found '" + excerpt(token.text) + "'");
}

Arg ArgumentReader::readNamed(const Token& name) {
  if (name.text == "True") return true;
  if (name.text == "False") return false;
  if (name.text == "None") return NoneArg();
  if (name.text == "device") {
    lexer_.expect('(');
    const Token text = lexer_.expect(TokenKind::String, "the device's name as a string");
    const auto device = deviceFromText(lexer_.stringOf(text));
    if (!device) {
      lexer_.fail(text.offset, "expected a device, found " + excerpt(text.text));
    }
    lexer_.expect(')');
    return *device;
  }
  if (name.text == "complex") return readComplex();
  if (name.text == "inf") return std::numeric_limits<double>::infinity();
  if (name.text == "nan") return readNan();
  if (const auto number = namedInt(name.text)) return *number;
  lexer_.fail(name.offset, "expected a value or a constant, found '" + excerpt(name.text) + "'");
}

}  // namespace gravure
