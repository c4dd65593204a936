#include "ir/text/entry_reader.h"

#include "ir/core/attribute_constant.h"
#include "ir/core/call_attribute.h"
#include "ir/text/graph_capacity.h"

#include <llvm/ADT/ArrayRef.h>

#include <algorithm>

namespace gravure {
namespace {

bool isBlockName(const Token& token) {
  return token.kind == TokenKind::Name && token.text.size() > 5 &&
         token.text.substr(0, 5) == "block" &&
         token.text.find_first_not_of("0123456789", 5) == std::string_view::npos;
}

}  // namespace

size_t Vocabulary::takeExpectedNames(size_t begin) {
  if (begin < counted_) return 0;
  constexpr size_t kShortLine = 16;
  size_t lines = 0;
  size_t at = text_.find('\n', begin);
  for (; at != std::string_view::npos; at = text_.find('\n', at + 1)) {
    if (text_.compare(at + 1, 5, "graph") == 0) break;
    ++lines;
  }
  counted_ = std::min(at, text_.size());
  return std::min(lines, (counted_ - begin) / kShortLine);
}

c10::intrusive_ptr<ArgList> LastArgs::same(const CallTarget& target, CallArgs& call, int32_t rng) {
  auto& list = last_[&target];
  if (list && list->rng == rng &&
      llvm::ArrayRef<Arg>(list->args) == llvm::ArrayRef<Arg>(call.args)) {
    return list;
  }
  list = c10::make_intrusive<ArgList>();
  list->args.append(std::make_move_iterator(call.args.begin()),
                    std::make_move_iterator(call.args.end()));
  list->rng = rng;
  return list;
}

Entry EntryReader::read() {
  if (!lexer_.acceptName("graph")) lexer_.failExpected("'graph'");
  entry_.name = "step";
  if (lexer_.peek().kind == TokenKind::Name) {
    const Token name = lexer_.take();
    if (name.text.find_first_of(".:") != std::string_view::npos) {
      lexer_.fail(name.offset, "expected an entry's name of letters, digits and '_'");
    }
    entry_.name = std::string(name.text);
  }
  entry_.graph = std::make_shared<Graph>();
  reserveNodes(*entry_.graph, expectedNames_);
  lexer_.expect('(');
  while (!lexer_.at(')')) {
    if (!entry_.inputs.empty()) lexer_.expect(',', "',' or ')'");
    readInput();
  }
  lexer_.take();
  lexer_.expect(':');
  readStatements(entry_.graph->block(), 0);
  readReturn();
  values_.nameValues();
  values_.dropFoldedNodes();
  return std::move(entry_);
}

EntryReader::Output EntryReader::readTyped() {
  Output output;
  output.name = lexer_.expect(TokenKind::Value, "a value");
  lexer_.expect(':', "':' and the value's type");
  output.type = vocabulary_.types.read();
  return output;
}

std::string EntryReader::readOptionalString() {
  if (lexer_.peek().kind != TokenKind::String) return "";
  return lexer_.stringOf(lexer_.take());
}

void EntryReader::readInput() {
  Output input = readTyped();
  Value* value = entry_.graph->addInput();
  value->setType(std::move(input.type));
  values_.define(input.name, value);
  InputInfo info;
  if (lexer_.accept('{')) {
    const Token role = lexer_.peek();
    for (int i = 1; i <= static_cast<int>(InputRole::SymInt); ++i) {
      if (role.isName(roleName(static_cast<InputRole>(i)))) info.role = static_cast<InputRole>(i);
    }
    if (info.role == InputRole::Unspecified) {
      lexer_.failExpected("an input's role (parameter, buffer, constant, user_input, tangent, "
                          "saved, rng_state or symint)");
    }
    lexer_.take();
    info.name = readOptionalString();
    lexer_.expect('}');
  }
  entry_.inputs.push_back(std::move(info));
}

void EntryReader::readReturn() {
  if (!lexer_.acceptName("return")) lexer_.failExpected("a statement or 'return'");
  lexer_.expect('(');
  while (!lexer_.at(')')) {
    if (!entry_.outputs.empty()) lexer_.expect(',', "',' or ')'");
    const Token name = lexer_.expect(TokenKind::Value, "a value or ')'");
    entry_.graph->registerOutput(values_.findValue(name));
    entry_.outputs.push_back(lexer_.accept('{') ? readOutputRole() : OutputInfo{});
  }
  lexer_.take();
}

OutputInfo EntryReader::readOutputRole() {
  OutputInfo info;
  const Token role = lexer_.peek();
  for (int i = 1; i <= static_cast<int>(OutputRole::Alias); ++i) {
    if (role.isName(roleName(static_cast<OutputRole>(i)))) info.role = static_cast<OutputRole>(i);
  }
  if (info.role == OutputRole::Unspecified) {
    lexer_.failExpected("an output's role (loss, gradient, saved, output, mutation or alias)");
  }
  lexer_.take();
  if (info.role == OutputRole::Mutation || info.role == OutputRole::Alias) {
    const Token name = lexer_.expect(TokenKind::Value, "an input of the entry");
    const Value* input = values_.findValue(name);
    if (input->node() != entry_.graph->param_node()) {
      lexer_.fail(name.offset,
                  "expected an input of the entry, found '%" + excerpt(name.text) + "'");
    }
    info.input = static_cast<int64_t>(input->offset());
  } else {
    info.name = readOptionalString();
  }
  lexer_.expect('}');
  return info;
}

void EntryReader::readStatements(Block* block, int depth) {
  if (depth > kMaxNesting) lexer_.failExpected("blocks nested less deep");
  while (!lexer_.at('>') && !lexer_.peek().isName("return")) readStatement(block, depth);
}

void EntryReader::readStatement(Block* block, int depth) {
  Outputs outputs = readOutputs();
  const Token name = lexer_.peek();
  const CallTarget& target = readTarget();
  if (target.isList || target.isTuple) {
    foldList(target, name, outputs);
    return;
  }
  Node* node = entry_.graph->create(target.kind, 0);
  // Attributes are looked up one by one: the one that every pass asks for comes first.
  keepFacts(node, target.facts);
  if (lexer_.accept('[')) readAttributes(node);
  setArguments(node, target, arguments_.read(target, name));
  readLocation(node);
  block->appendNode(node);
  while (isBlockName(lexer_.peek())) readBlock(node, depth);
  if (target.kind == c10::prim::Constant) {
    if (outputs.size() != 1) {
      lexer_.fail(name.offset, "expected one value on the left of prim::Constant, found " +
                                   std::to_string(outputs.size()));
    }
    defineConstant(node, name, outputs[0]);
  } else {
    defineOutputs(node, outputs);
  }
}

/// `%a : type, %b : type =`, or nothing. TorchScript writes a lone `=` where there is no output.
EntryReader::Outputs EntryReader::readOutputs() {
  Outputs outputs;
  if (lexer_.peek().kind == TokenKind::Value) {
    do {
      outputs.push_back(readTyped());
    } while (lexer_.accept(','));
    lexer_.expect('=', "',' or '='");
  } else {
    lexer_.accept('=');
  }
  return outputs;
}

const CallTarget& EntryReader::readTarget() {
  const Token name = lexer_.peek();
  if (name.kind != TokenKind::Name) lexer_.failExpected("a statement or 'return'");
  lexer_.take();
  std::string why;
  const CallTarget* target = vocabulary_.targets.find(name.text, &why);
  if (!target) lexer_.fail(name.offset, why);
  return *target;
}

void EntryReader::readAttributes(Node* node) {
  // A node looks its attributes up one by one.
  constexpr size_t kMost = 64;
  do {
    if (node->numAttributes() == kMost) lexer_.failExpected("fewer attributes");
    const Token name = lexer_.expect(TokenKind::Name, "an attribute's name");
    const c10::Symbol symbol = attributeName(name);
    if (node->hasAttribute(symbol)) {
      lexer_.fail(name.offset,
                  "expected each attribute once, found '" + excerpt(name.text) + "' a second time");
    }
    lexer_.expect('=');
    setAttributeConstant(node, symbol, arguments_.readConstant());
  } while (lexer_.accept(','));
  lexer_.expect(']', "',' or ']'");
}

c10::Symbol EntryReader::attributeName(const Token& name) {
  if (name.text.find_first_of(".:") != std::string_view::npos) {
    lexer_.fail(name.offset, "expected an attribute's name of letters, digits and '_'");
  }
  const auto [at, isNew] = vocabulary_.attributes.try_emplace({name.text.data(), name.text.size()});
  if (isNew) at->second = c10::Symbol::attr(std::string(name.text));
  return at->second;
}

/// Reads `rng(%g)` too, which becomes the last input.
void EntryReader::setArguments(Node* node, const CallTarget& target, CallArgs call) {
  int32_t rng = -1;
  if (lexer_.peek().isName("rng")) {
    lexer_.take();
    lexer_.expect('(');
    const Token state = lexer_.expect(TokenKind::Value, "a random state");
    rng = static_cast<int32_t>(call.inputs.size());
    call.inputs.push_back(values_.findValue(state));
    lexer_.expect(')');
  }
  if (rng >= 0 || !call.isInputsAlone()) {
    setArgs(node, vocabulary_.lastArgs.same(target, call, rng));
  }
  for (Value* input : call.inputs) node->addInput(input);
}

/// `@"model.py:12" in "layer"`
void EntryReader::readLocation(Node* node) {
  if (lexer_.accept('@')) {
    std::string source = lexer_.stringOf(lexer_.expect(TokenKind::String, "a source line"));
    if (!source.empty()) vocabulary_.locations.setSource(node, source);
  }
  if (lexer_.acceptName("in")) {
    std::string module = lexer_.stringOf(lexer_.expect(TokenKind::String, "a module's path"));
    if (!module.empty()) vocabulary_.locations.setModule(node, module);
  }
}

void EntryReader::readBlock(Node* node, int depth) {
  const std::string name = "block" + std::to_string(node->blocks().size());
  if (!lexer_.acceptName(name)) lexer_.failExpected("'" + name + "'");
  Block* block = node->addBlock();
  const ValueTable::Scope scope = values_.enter(node->kind() != c10::prim::If);
  lexer_.expect('(');
  for (bool first = true; !lexer_.at(')'); first = false) {
    if (!first) lexer_.expect(',', "',' or ')'");
    Output parameter = readTyped();
    Value* value = block->addInput();
    value->setType(std::move(parameter.type));
    values_.define(parameter.name, value);
  }
  lexer_.take();
  lexer_.expect(':');
  readStatements(block, depth + 1);
  lexer_.expect('>', "a statement or '->'");
  lexer_.expect('(');
  for (bool first = true; !lexer_.at(')'); first = false) {
    if (!first) lexer_.expect(',', "',' or ')'");
    block->registerOutput(values_.findValue(lexer_.expect(TokenKind::Value, "a value")));
  }
  lexer_.take();
  values_.leave(scope);
}

/// prim::ListConstruct and prim::TupleConstruct leave no node.
void EntryReader::foldList(const CallTarget& target, const Token& name, const Outputs& outputs) {
  if (outputs.size() != 1) {
    lexer_.fail(name.offset, "expected one value on the left of " + std::string(name.text) +
                                 ", found " + std::to_string(outputs.size()));
  }
  CallArgs call = arguments_.read(target, name);
  FoldedConstant folded;
  std::vector<Arg> members(std::make_move_iterator(call.args.begin()),
                           std::make_move_iterator(call.args.end()));
  if (target.isList) {
    folded.arg = ListArg{std::move(members)};
  } else {
    folded.arg = TupleArg{std::move(members)};
  }
  folded.values.assign(call.inputs.begin(), call.inputs.end());
  values_.defineFolded(outputs[0].name, std::move(folded));
}

/// TorchScript writes None without a value, bools as 0 and 1, devices as strings.
void EntryReader::defineConstant(Node* node, const Token& name, const Output& output) {
  static const c10::Symbol value = c10::Symbol::attr("value");
  const c10::TypeKind kind = output.type->kind();
  const bool holdsNone = kind == c10::TypeKind::NoneType || kind == c10::TypeKind::OptionalType;
  if (!node->hasAttribute(value)) {
    if (!holdsNone) lexer_.fail(name.offset, "expected prim::Constant[value=…]");
    setAttributeConstant(node, value, NoneArg());
  }
  Arg constant = attributeConstant(node, value);
  if (kind == c10::TypeKind::BoolType && constant.is<int64_t>()) {
    constant = constant.as<int64_t>() != 0;
    setAttributeConstant(node, value, constant);
  } else if (kind == c10::TypeKind::DeviceObjType && constant.is<std::string>()) {
    const auto device = deviceFromText(constant.as<std::string>());
    if (!device) {
      lexer_.fail(name.offset,
                  "expected a device, found \"" + excerpt(constant.as<std::string>()) + "\"");
    }
    constant = *device;
    setAttributeConstant(node, value, constant);
  }
  if (!node->inputs().empty() || !node->blocks().empty()) {
    lexer_.fail(name.offset, "expected prim::Constant without arguments and blocks");
  }
  node->addOutput()->setType(output.type);
  FoldedConstant folded;
  folded.arg = std::move(constant);
  folded.node = node;
  values_.defineFolded(output.name, std::move(folded));
}

void EntryReader::defineOutputs(Node* node, Outputs& outputs) {
  for (Output& output : outputs) {
    Value* value = node->addOutput();
    value->setType(std::move(output.type));
    values_.define(output.name, value);
  }
}

}  // namespace gravure
