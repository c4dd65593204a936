#include "ir/core/attribute_constant.h"
#include "ir/core/call_attribute.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/location.h"
#include "ir/facts/op_facts.h"
#include "ir/text/constant_text.h"
#include "ir/text/program_text.h"
#include "ir/text/type_printer.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure {
namespace {

/// Facts of the operator, nullptr if it is unknown: a dump shows broken programs too.
const OpFacts* factsOrNull(const Node* node) {
  const CallAttribute* call = findCall(node);
  return call && call->facts ? call->facts : findOpFacts(node->kind(), overloadOf(node));
}

class TextPrinter {
 public:
  TextPrinter(llvm::raw_ostream* os, const PrintOptions& options) : os_(os), options_(options) {}

  void printEntry(const Entry& entry);
  /// Without its blocks.
  void printNode(const Node* node);
  std::string take() { return std::move(out_); }
  void flush();

 private:
  /// What of an operator decides how its arguments are written.
  struct Signature {
    const c10::FunctionSchema* schema = nullptr;
    llvm::SmallVector<IntMeaning, 8> meanings;
  };

  void printStatements(const Block* block, size_t indent);
  void printBlock(const Block* block, size_t index, size_t indent);
  void printTyped(c10::ArrayRef<const Value*> values);
  void printValues(c10::ArrayRef<const Value*> values);
  void printInput(const Value* value, const InputInfo& info);
  void printReturn(const Entry& entry);
  void printOutput(const Value* value, const OutputInfo& info, const Entry& entry);
  void printAttributes(const Node* node);
  void printArguments(const Node* node);
  void printArg(const Node* node, const Arg& arg, IntMeaning meaning);
  void printMembers(const Node* node, const std::vector<Arg>& members, IntMeaning meaning);
  void printLocation(const Node* node);
  void printDefinition(const Value* value);
  void printName(const Value* value);
  void printType(const Value* value);
  const Signature& signatureOf(const OpFacts* facts);
  void separate(bool& first) {
    if (!first) out_ += ", ";
    first = false;
  }

  std::string out_;
  llvm::raw_ostream* os_;
  const PrintOptions options_;
  llvm::DenseMap<const Value*, size_t> anonymous_;
  llvm::DenseMap<const c10::Type*, std::string> types_;
  llvm::DenseMap<const OpFacts*, Signature> signatures_;
};

void TextPrinter::flush() {
  *os_ << out_;
  out_.clear();
}

void TextPrinter::printEntry(const Entry& entry) {
  anonymous_.clear();
  out_ += "graph " + entry.name + "(";
  const std::string margin(out_.size() - out_.rfind('\n') - 1, ' ');
  const auto inputs = static_cast<const Graph&>(*entry.graph).inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i) out_ += ",\n" + margin;
    printInput(inputs[i], i < entry.inputs.size() ? entry.inputs[i] : InputInfo());
  }
  out_ += "):\n";
  printStatements(entry.graph->block(), 2);
  printReturn(entry);
}

/// On one line if that is short, else one output a line.
void TextPrinter::printReturn(const Entry& entry) {
  constexpr size_t kLongLine = 100;
  const auto outputs = static_cast<const Graph&>(*entry.graph).outputs();
  const size_t begin = out_.size();
  for (const char* separator : {", ", ",\n          "}) {
    out_.resize(begin);
    out_ += "  return (";
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (i) out_ += separator;
      printOutput(outputs[i], i < entry.outputs.size() ? entry.outputs[i] : OutputInfo(), entry);
    }
    if (out_.size() - begin < kLongLine) break;
  }
  out_ += ")\n";
}

void TextPrinter::printInput(const Value* value, const InputInfo& info) {
  printDefinition(value);
  if (info.role == InputRole::Unspecified) return;
  out_.append(" {").append(roleName(info.role));
  if (!info.name.empty()) {
    out_ += ' ';
    appendString(out_, info.name);
  }
  out_ += '}';
}

void TextPrinter::printOutput(const Value* value, const OutputInfo& info, const Entry& entry) {
  printName(value);
  if (info.role == OutputRole::Unspecified) return;
  out_.append(" {").append(roleName(info.role));
  if (info.role == OutputRole::Mutation || info.role == OutputRole::Alias) {
    const auto inputs = static_cast<const Graph&>(*entry.graph).inputs();
    out_ += ' ';
    if (info.input >= 0 && info.input < static_cast<int64_t>(inputs.size())) {
      printName(inputs[info.input]);
    } else {
      out_ += "<no input " + std::to_string(info.input) + ">";
    }
  } else if (!info.name.empty()) {
    out_ += ' ';
    appendString(out_, info.name);
  }
  out_ += '}';
}

void TextPrinter::printStatements(const Block* block, size_t indent) {
  for (const Node* node : block->nodes()) {
    out_.append(indent, ' ');
    printNode(node);
    out_ += '\n';
    const auto blocks = node->blocks();
    for (size_t i = 0; i < blocks.size(); ++i) printBlock(blocks[i], i, indent + 2);
    if (os_ && out_.size() > (1 << 16)) flush();
  }
}

void TextPrinter::printBlock(const Block* block, size_t index, size_t indent) {
  out_.append(indent, ' ').append("block");
  appendInt(out_, static_cast<int64_t>(index));
  out_ += '(';
  printTyped(block->inputs());
  out_ += "):\n";
  printStatements(block, indent + 2);
  out_.append(indent + 2, ' ').append("-> (");
  printValues(block->outputs());
  out_ += ")\n";
}

void TextPrinter::printNode(const Node* node) {
  if (!node->outputs().empty()) {
    printTyped(node->outputs());
    out_ += " = ";
  }
  out_ += node->kind().toQualString();
  if (const std::string& overload = overloadOf(node); !overload.empty()) {
    out_.append(".").append(overload);
  }
  printAttributes(node);
  printArguments(node);
  if (options_.sources) printLocation(node);
}

void TextPrinter::printTyped(c10::ArrayRef<const Value*> values) {
  bool first = true;
  for (const Value* value : values) {
    separate(first);
    printDefinition(value);
  }
}

void TextPrinter::printValues(c10::ArrayRef<const Value*> values) {
  bool first = true;
  for (const Value* value : values) {
    separate(first);
    printName(value);
  }
}

void TextPrinter::printDefinition(const Value* value) {
  if (!value->hasDebugName()) anonymous_.try_emplace(value, anonymous_.size());
  printName(value);
  out_ += " : ";
  printType(value);
}

void TextPrinter::printName(const Value* value) {
  out_ += '%';
  if (value->hasDebugName()) {
    out_ += value->debugName();
    return;
  }
  const auto number = anonymous_.find(value);
  appendInt(out_,
            static_cast<int64_t>(number == anonymous_.end() ? value->unique() : number->second));
}

void TextPrinter::printType(const Value* value) {
  const auto [at, isNew] = types_.try_emplace(value->type().get());
  if (isNew) at->second = typeText(*value->type());
  out_ += at->second;
}

void TextPrinter::printAttributes(const Node* node) {
  bool any = false;
  for (c10::Symbol name : node->attributeNames()) {
    if (attr::isInternal(name)) continue;
    out_ += any ? ", " : "[";
    any = true;
    out_.append(name.toUnqualString()).append("=");
    appendConstant(out_, attributeConstant(node, name));
  }
  if (any) out_ += ']';
}

const TextPrinter::Signature& TextPrinter::signatureOf(const OpFacts* facts) {
  const auto [at, isNew] = signatures_.try_emplace(facts);
  if (isNew && facts && facts->schema) {
    at->second.schema = facts->schema;
    at->second.meanings = intMeanings(*facts->schema);
  }
  return at->second;
}

/// By position as far as no gap and no keyword-only parameter comes between, the rest by name.
void TextPrinter::printArguments(const Node* node) {
  const ArgList& list = argsOf(node);
  const Signature& signature = signatureOf(factsOrNull(node));
  const size_t parameters = signature.meanings.size();
  out_ += '(';
  bool first = true;
  bool byName = false;
  for (size_t i = 0; i < list.args.size(); ++i) {
    const bool hasParameter = i < parameters;
    if (list.args[i].is<AbsentArg>()) {
      byName = true;
      continue;
    }
    separate(first);
    if (hasParameter) {
      const c10::Argument& parameter = signature.schema->arguments()[i];
      byName |= parameter.kwarg_only();
      if (byName) out_.append(parameter.name()).append("=");
    }
    printArg(node, list.args[i], hasParameter ? signature.meanings[i] : IntMeaning::Number);
  }
  out_ += ')';
  if (list.rng >= 0 && list.rng < static_cast<int64_t>(node->inputs().size())) {
    out_ += " rng(";
    printName(node->input(list.rng));
    out_ += ')';
  }
}

void TextPrinter::printArg(const Node* node, const Arg& arg, IntMeaning meaning) {
  if (arg.is<InputArg>()) {
    const uint32_t index = arg.as<InputArg>().index;
    if (index < node->inputs().size()) {
      printName(node->input(index));
    } else {
      out_ += "<no input " + std::to_string(index) + ">";
    }
  } else if (arg.is<ListArg>()) {
    out_ += '[';
    printMembers(node, arg.as<ListArg>().elements, meaning);
    out_ += ']';
  } else if (arg.is<TupleArg>()) {
    out_ += '(';
    printMembers(node, arg.as<TupleArg>().elements, meaning);
    out_ += ')';
  } else {
    appendConstant(out_, arg, meaning);
  }
}

void TextPrinter::printMembers(const Node* node, const std::vector<Arg>& members,
                               IntMeaning meaning) {
  bool first = true;
  for (const Arg& member : members) {
    separate(first);
    printArg(node, member, meaning);
  }
}

void TextPrinter::printLocation(const Node* node) {
  if (const std::string& source = sourceOf(node); !source.empty()) {
    out_ += " @";
    appendString(out_, source);
  }
  if (const std::string_view module = moduleOf(node); !module.empty()) {
    out_ += " in ";
    appendString(out_, module);
  }
}

}  // namespace

void printProgram(const Program& program, llvm::raw_ostream& os, const PrintOptions& options) {
  os << "gravure 1\n";
  TextPrinter printer(&os, options);
  bool first = true;
  for (const Entry& entry : program.entries) {
    if (!first) os << '\n';
    first = false;
    printer.printEntry(entry);
    printer.flush();
  }
}

std::string programText(const Program& program, const PrintOptions& options) {
  std::string text;
  llvm::raw_string_ostream os(text);
  printProgram(program, os, options);
  return text;
}

std::string nodeText(const Node* node) {
  TextPrinter printer(nullptr, {});
  printer.printNode(node);
  return printer.take();
}

}  // namespace gravure
