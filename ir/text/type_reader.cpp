#include "ir/text/type_reader.h"

#include "ir/text/program_text.h"
#include "ir/text/text_lexer.h"

#include <llvm/ADT/SmallVector.h>
#include <torch/custom_class_detail.h>

namespace gravure {
namespace {

/// As many dimensions as the kernels of PyTorch take.
constexpr size_t kMaxDims = 64;

const llvm::StringMap<at::ScalarType>& scalarTypes() {
  static const auto types = [] {
    llvm::StringMap<at::ScalarType> map;
    for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
      const auto type = static_cast<at::ScalarType>(i);
      if (type != at::ScalarType::Undefined) map[c10::toString(type)] = type;
    }
    return map;
  }();
  return types;
}

const llvm::StringMap<c10::TypePtr>& plainTypes() {
  static const llvm::StringMap<c10::TypePtr> types{
      {"Tensor", c10::TensorType::get()},     {"int", c10::IntType::get()},
      {"float", c10::FloatType::get()},       {"bool", c10::BoolType::get()},
      {"str", c10::StringType::get()},        {"complex", c10::ComplexType::get()},
      {"Device", c10::DeviceObjType::get()},  {"Generator", c10::GeneratorType::get()},
      {"NoneType", c10::NoneType::get()},     {"Scalar", c10::NumberType::get()},
      {"number", c10::NumberType::get()},     {"SymInt", c10::SymIntType::get()},
      {"SymFloat", c10::SymFloatType::get()}, {"SymBool", c10::SymBoolType::get()},
      {"Any", c10::AnyType::get()},           {"Stream", c10::StreamObjType::get()},
      {"Storage", c10::StorageType::get()},   {"ScalarType", c10::ScalarTypeType::get()},
      {"Layout", c10::LayoutType::get()},     {"MemoryFormat", c10::MemoryFormatType::get()},
      {"QScheme", c10::QSchemeType::get()},   {"Quantizer", c10::QuantizerType::get()},
      {"Capsule", c10::CapsuleType::get()},
  };
  return types;
}

/// Where the type that begins at `begin` ends, by its brackets alone; npos if that cannot be told.
size_t typeEnd(std::string_view text, size_t begin) {
  int depth = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    switch (text[i]) {
      case '(':
      case '[': ++depth; break;
      case ')':
      case ']':
        if (depth-- == 0) return i;
        break;
      case '#':
      case '"': return depth == 0 ? i : std::string_view::npos;
      case ' ':
      case '\t':
      case '\r':
      case '\n':
      case ',':
      case '=':
      case '{':
        if (depth == 0) return i;
        break;
      default: break;
    }
  }
  return depth == 0 ? text.size() : std::string_view::npos;
}

/// True if the last byte that any element of these dimensions reaches has an address of 63 bits.
bool isAddressable(const Dims& sizes, const Dims& strides) {
  __int128 reach = 1;
  __int128 count = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t size = sizes[i].value_or(1);
    if (size > 0) count *= size;
    if (size > 0 && i < strides.size()) reach += __int128{size - 1} * strides[i].value_or(0);
    // 16 bytes is the widest dtype.
    if (reach > INT64_MAX / 16 || count > INT64_MAX / 16) return false;
  }
  return true;
}

}  // namespace

struct TypeReader::TensorParts {
  std::optional<at::ScalarType> dtype;
  bool ranked = true;
  Dims sizes;
  std::optional<Dims> strides;
  std::optional<bool> requiresGrad;
  std::optional<c10::Device> device;
};

c10::TypePtr TypeReader::read() {
  const size_t begin = lexer_.peek().offset;
  const std::string_view text = lexer_.text();
  const size_t end = typeEnd(text, begin);
  if (end != std::string_view::npos && end > begin) {
    const auto found = known_.find({text.data() + begin, end - begin});
    if (found != known_.end()) {
      lexer_.jumpTo(end);
      // `Tensor []`: the type goes on behind a space.
      if (!lexer_.at('[') && !lexer_.at('?') && !lexer_.at('(')) return found->second;
      lexer_.jumpTo(begin);
    }
  }
  c10::TypePtr type;
  try {
    type = parse(0);
  } catch (const TextError&) {
    throw;
  } catch (const c10::Error& error) {
    lexer_.fail(begin, std::string("expected a type, found one that PyTorch refuses: ") +
                           excerpt(error.what_without_backtrace()));
  }
  known_.try_emplace({text.data() + begin, lexer_.lastEnd() - begin}, type);
  return type;
}

c10::TypePtr TypeReader::parse(int depth) {
  if (depth > kMaxNesting) lexer_.failExpected("a type nested less deep");
  c10::TypePtr type = parseBase(depth);
  for (int suffixes = depth;; ++suffixes) {
    if (suffixes > kMaxNesting) lexer_.failExpected("a type nested less deep");
    if (lexer_.accept('[')) {
      lexer_.expect(']');
      type = c10::ListType::create(type);
    } else if (lexer_.at('?')) {
      const bool twice = type->kind() == c10::TypeKind::OptionalType;
      if (twice || type->kind() == c10::TypeKind::NoneType) {
        lexer_.failExpected("no '?' behind a type that holds None already");
      }
      lexer_.take();
      type = c10::OptionalType::create(type);
    } else {
      return type;
    }
  }
}

c10::TypePtr TypeReader::parseBase(int depth) {
  if (lexer_.at('(')) return parseTuple(depth);
  const Token token = lexer_.peek();
  if (token.kind != TokenKind::Name) lexer_.failExpected("a type");
  const llvm::StringRef name(token.text.data(), token.text.size());
  if (const auto plain = plainTypes().find(name); plain != plainTypes().end()) {
    lexer_.take();
    if (name == "Tensor" && lexer_.at('(')) return parseTensor(std::nullopt, false);
    return plain->second;
  }
  if (const auto scalar = scalarTypes().find(name); scalar != scalarTypes().end()) {
    lexer_.take();
    if (!lexer_.at('(')) lexer_.failExpected("'(' behind '" + name.str() + "'");
    return parseTensor(scalar->second, true);
  }
  if (name.ends_with("Tensor")) {
    const auto scalar = scalarTypes().find(name.drop_back(6));
    if (scalar != scalarTypes().end()) {
      lexer_.take();
      return parseTensor(scalar->second, false);
    }
  }
  if (name == "Dict" || name == "Future") return parseContained(depth);
  return parseNamed();
}

c10::TypePtr TypeReader::parseTuple(int depth) {
  lexer_.expect('(');
  std::vector<c10::TypePtr> members;
  while (!lexer_.at(')')) {
    if (!members.empty()) lexer_.expect(',', "',' or ')'");
    members.push_back(parse(depth + 1));
  }
  lexer_.expect(')');
  return c10::TupleType::create(std::move(members));
}

c10::TypePtr TypeReader::parseContained(int depth) {
  const Token outer = lexer_.take();
  lexer_.expect('(');
  c10::TypePtr first = parse(depth + 1);
  c10::TypePtr type;
  if (outer.text == "Dict") {
    lexer_.expect(',');
    type = c10::DictType::create(first, parse(depth + 1));
  } else {
    type = c10::FutureType::create(first);
  }
  lexer_.expect(')');
  return type;
}

/// A class that a library registered: __torch__.torch.classes.c10d.ProcessGroup
c10::TypePtr TypeReader::parseNamed() {
  const Token token = lexer_.peek();
  if (token.text.substr(0, 10) == "__torch__.") {
    if (c10::TypePtr type = torch::getCustomClass(std::string(token.text))) {
      lexer_.take();
      return type;
    }
    lexer_.failExpected("a class that a loaded library registers");
  }
  lexer_.failExpected("a type");
}

/// `ranked`: Float(…) has dimensions, if only none; Tensor(…) and FloatTensor(…) have them only
/// if they are written.
c10::TypePtr TypeReader::parseTensor(std::optional<at::ScalarType> dtype, bool ranked) {
  const size_t offset = lexer_.peek().offset;
  TensorParts parts;
  parts.dtype = dtype;
  parts.ranked = ranked;
  if (lexer_.accept('(')) {
    for (bool first = true; !lexer_.at(')'); first = false) {
      if (!first) lexer_.expect(',', "',' or ')'");
      parseTensorPart(parts);
    }
    lexer_.expect(')');
  }
  return makeTensor(parts, offset);
}

void TypeReader::parseTensorPart(TensorParts& parts) {
  const Token& token = lexer_.peek();
  if (token.kind == TokenKind::Name && token.text != "SS") {
    parseOption(parts);
    return;
  }
  if (parts.strides || parts.requiresGrad || parts.device) {
    lexer_.failExpected("'strides=', 'requires_grad=' or 'device='");
  }
  if (parts.sizes.size() == kMaxDims) lexer_.failExpected("at most 64 dimensions");
  parts.sizes.push_back(parseDim());
  parts.ranked = true;
}

void TypeReader::parseOption(TensorParts& parts) {
  const Token name = lexer_.peek();
  const auto once = [&](bool given) {
    if (given) lexer_.failExpected("'" + std::string(name.text) + "' only once");
    lexer_.take();
    lexer_.expect('=');
  };
  if (name.text == "strides") {
    once(parts.strides.has_value());
    parts.strides = parseStrides();
  } else if (name.text == "requires_grad") {
    once(parts.requiresGrad.has_value());
    const Token flag = lexer_.peek();
    if (flag.text != "0" && flag.text != "1") lexer_.failExpected("0 or 1");
    lexer_.take();
    parts.requiresGrad = flag.text == "1";
  } else if (name.text == "device") {
    once(parts.device.has_value());
    parts.device = readDevice(lexer_);
  } else if (name.text == "rank" && !parts.ranked) {
    once(false);
    if (lexer_.peek().text != "0") lexer_.failExpected("0");
    lexer_.take();
    parts.ranked = true;
  } else {
    lexer_.failExpected("a size, 'strides=', 'requires_grad=' or 'device='");
  }
}

std::optional<int64_t> TypeReader::parseDim() {
  if (lexer_.accept('*')) return std::nullopt;
  // TorchScript's symbolic size, SS(-1): its number means nothing outside its process.
  if (lexer_.acceptName("SS")) {
    lexer_.expect('(');
    lexer_.expect(TokenKind::Int, "an int");
    lexer_.expect(')');
    return std::nullopt;
  }
  const Token token = lexer_.peek();
  if (token.kind != TokenKind::Int) lexer_.failExpected("an int or '*'");
  const int64_t size = lexer_.intOf(token);
  if (size < 0) lexer_.failExpected("an int that is not negative");
  lexer_.take();
  return size;
}

Dims TypeReader::parseStrides() {
  lexer_.expect('[');
  Dims strides;
  while (!lexer_.at(']')) {
    if (!strides.empty()) lexer_.expect(',', "',' or ']'");
    if (strides.size() == kMaxDims) lexer_.failExpected("at most 64 strides");
    strides.push_back(parseDim());
  }
  lexer_.expect(']');
  return strides;
}

c10::TypePtr TypeReader::makeTensor(const TensorParts& parts, size_t offset) {
  const Dims& sizes = parts.sizes;
  const size_t rank = sizes.size();
  const Dims strides = parts.strides.value_or(Dims(rank));
  if (strides.size() != rank) {
    lexer_.fail(offset, "expected one stride a dimension, found " + std::to_string(strides.size()) +
                            " strides for " + std::to_string(rank) + " dimensions");
  }
  if (!isAddressable(sizes, strides)) {
    lexer_.fail(offset,
                "expected a tensor whose bytes can be counted in 63 bits, found a larger one");
  }
  if (!parts.ranked) {
    if (!parts.dtype && !parts.device && !parts.requiresGrad) return c10::TensorType::get();
    return c10::TensorType::create(parts.dtype, parts.device, c10::SymbolicShape(),
                                   c10::VaryingShape<c10::Stride>(), parts.requiresGrad);
  }
  return makeTensorType(parts.dtype, parts.device, sizes, strides, parts.requiresGrad);
}

std::optional<c10::Device> deviceFromText(std::string_view text) {
  // The longest is "privateuseone:127"; an index beyond wraps around in c10::Device.
  if (text.empty() || text.size() > 24) return std::nullopt;
  try {
    const c10::Device device{std::string(text)};
    if (device.str() == text) return device;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

c10::Device readDevice(TextLexer& lexer) {
  const Token name = lexer.expect(TokenKind::Name, "a device");
  std::string text(name.text);
  if (lexer.accept(':')) {
    text += ":" + std::string(lexer.expect(TokenKind::Int, "the device's index").text);
  }
  const auto device = deviceFromText(text);
  if (!device) lexer.fail(name.offset, "expected a device, found '" + excerpt(text) + "'");
  return *device;
}

}  // namespace gravure
