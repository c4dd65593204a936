// Random programs survive the way through text; random damage is refused with its place or read as
// another program, which then survives too.
//
//   GRAVURE_SEED=N     starts from seed N; a failure prints the seed of its case
//   GRAVURE_CASES=N    runs N cases a test (500)
#include "ir/check/program_equality.h"
#include "ir/check/verify.h"
#include "ir/core/args.h"
#include "ir/core/attribute_constant.h"
#include "ir/text/constant_text.h"
#include "ir/text/program_text.h"
#include "tests/catch.h"
#include "tests/property/random_program.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

namespace gravure {
namespace {

using testing::Random;
using testing::RandomProgramOptions;
using testing::randomProgramText;

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Calls `check(seed)` for each case, with the seed in the message of a failure.
template <typename Check>
void forEachCase(uint64_t share, Check&& check) {
  const uint64_t first = number("GRAVURE_SEED", 1);
  const uint64_t cases = number("GRAVURE_CASES", 500) * share / 100;
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    INFO("GRAVURE_SEED=" << seed << " GRAVURE_CASES=1");
    check(seed);
  }
}

std::string survives(const Program& program) {
  const std::string printed = programText(program);
  std::string why;
  const Program again = readProgram(printed, "printed");
  if (!equalPrograms(program, again, &why)) return "not equal: " + why + "\n" + printed;
  if (!equalPrograms(again, program, &why)) return "not equal from the other side: " + why;
  const std::string twice = programText(again);
  return twice == printed ? "" : "no fixpoint:\n" + printed + "\nand\n" + twice;
}

/// Programs that hold what no random program above does: exotic types, attributes, blocks.
class ExoticText {
 public:
  explicit ExoticText(uint64_t seed) : random_(seed) {}

  std::string text() {
    std::string result = random_.chance(50) ? "gravure 1\n" : "";
    const std::vector<std::string> names{"", "forward", "backward"};
    for (size_t i = 1 + random_.below(3); i-- > 0;) result += entry(names[i]);
    return result;
  }

 private:
  std::string name() {
    static const std::vector<std::string> stems{"",     "",  "x",    "in", "return",
                                                "a.0.", "_", "None", "9_"};
    return random_.of(stems) + std::to_string(next_++);
  }

  std::string bytes() {
    std::string raw;
    for (size_t i = random_.below(8); i-- > 0;) raw += static_cast<char>(random_.next());
    return raw;
  }

  std::string quoted() {
    std::string out;
    appendString(out, bytes());
    return out;
  }

  std::string dim() { return random_.chance(20) ? "*" : std::to_string(random_.below(1000)); }

  std::string type(int depth = 0) {
    static const std::vector<std::string> plain{"Tensor",   "int",     "float",  "bool",
                                                "str",      "complex", "Device", "Generator",
                                                "NoneType", "Scalar",  "Any",    "FloatTensor"};
    if (random_.chance(30)) return random_.of(plain);
    if (depth < 3 && random_.chance(30)) {
      switch (random_.below(3)) {
        case 0: return type(depth + 1) + "[]";
        case 1: return "(" + type(depth + 1) + ", " + type(depth + 1) + ")";
        default: return "Tensor?[]";
      }
    }
    static const std::vector<std::string> dtypes{"Float", "Half", "BFloat16",
                                                 "Long",  "Bool", "ComplexDouble"};
    std::string result = random_.of(dtypes) + "(";
    std::string sizes, strides;
    for (size_t rank = random_.below(5), i = 0; i < rank; ++i) {
      sizes += (i ? ", " : "") + dim();
      strides += (i ? ", " : "") + dim();
    }
    std::vector<std::string> parts;
    if (!sizes.empty()) parts.push_back(sizes);
    if (!sizes.empty() && random_.chance(70)) parts.push_back("strides=[" + strides + "]");
    if (random_.chance(20))
      parts.push_back(random_.chance(50) ? "requires_grad=1" : "requires_grad=0");
    if (random_.chance(70)) parts.push_back(random_.chance(50) ? "device=cpu" : "device=cuda:1");
    for (size_t i = 0; i < parts.size(); ++i) result += (i ? ", " : "") + parts[i];
    return result + ")";
  }

  std::string constant(int depth = 0) {
    std::string out;
    switch (random_.below(depth < 3 ? 10 : 8)) {
      case 0: return "None";
      case 1: return random_.chance(50) ? "True" : "False";
      case 2: return std::to_string(static_cast<int64_t>(random_.next()));
      case 3: return std::to_string(random_.below(10));
      case 4: appendFloat(out, std::bit_cast<double>(random_.next())); return out;
      case 5: appendFloat(out, static_cast<double>(random_.below(1000)) / 8); return out;
      case 6: return random_.chance(50) ? "device(\"cuda:3\")" : "torch.float32";
      case 7: return random_.chance(50) ? quoted() : "complex(-nan, -0.)";
      default: {
        const bool list = random_.chance(70);
        out = list ? "[" : "(";
        for (size_t i = random_.below(4); i-- > 0;) out += constant(depth + 1) + (i ? ", " : "");
        return out + (list ? "]" : ")");
      }
    }
  }

  std::string value() { return "%" + random_.of(values_); }
  std::string arg() { return values_.empty() || random_.chance(50) ? constant() : value(); }

  std::string attributes() {
    if (random_.chance(60)) return "";
    static const std::vector<std::string> names{"host",  "fate",  "index", "tags",
                                                "arena", "value", "note"};
    std::string result = "[";
    const size_t first = random_.below(names.size()), count = 1 + random_.below(3);
    for (size_t i = 0; i < count; ++i) {
      result += (i ? ", " : "") + names[(first + i) % names.size()] + "=" + constant();
    }
    return result + "]";
  }

  std::string place() {
    return (random_.chance(40) ? " @" + quoted() : "") +
           (random_.chance(40) ? " in " + quoted() : "");
  }

  std::string statement(int depth) {
    std::vector<std::string> outputs;
    std::string result;
    for (size_t i = random_.below(3); i-- > 0;) {
      outputs.push_back(name());
      result += "%" + outputs.back() + " : " + type() + (i ? ", " : " = ");
    }
    if (depth < 2 && random_.chance(10)) {
      const std::string condition = arg();
      result += "prim::If" + attributes() + "(" + condition + ")" + place() + "\n";
      for (int i = 0; i < 2; ++i) result += block("block" + std::to_string(i) + "()", depth);
    } else if (depth < 2 && random_.chance(10)) {
      result +=
          "cudagraph::partition" + attributes() + "(" + arg() + ", " + arg() + ")" + place() + "\n";
      const std::vector<std::string> outer = std::exchange(values_, {});
      const std::string parameter = name();
      values_.push_back(parameter);
      result += block("block0(%" + parameter + " : " + type() + ")", depth);
      values_ = outer;
    } else {
      static const std::vector<std::pair<std::string, int>> calls{
          {"aten::neg", 1},
          {"aten::add.Tensor", 2},
          {"aten::cat", 1},
          {"cudagraph::own", 3},
          {"aten::native_dropout", 3},
          {"aten::index.Tensor", 2},
          {"aten::_foreach_add_.Scalar", 2}};
      const auto& [op, count] = random_.of(calls);
      result += op + attributes() + "(";
      for (int i = 0; i < count; ++i) result += (i ? ", " : "") + arg();
      if (op == "aten::add.Tensor" && random_.chance(50)) result += ", alpha=" + arg();
      result += ")";
      if (!values_.empty() && random_.chance(20)) result += " rng(" + value() + ")";
      result += place() + "\n";
    }
    for (std::string& output : outputs) values_.push_back(std::move(output));
    return result;
  }

  std::string block(const std::string& head, int depth) {
    const size_t outer = values_.size();
    std::string result = head + ":\n";
    for (size_t i = random_.below(4); i-- > 0;) result += statement(depth + 1);
    result += "-> (" + (values_.empty() ? "" : value()) + ")\n";
    values_.resize(outer);
    return result;
  }

  std::string entry(const std::string& called) {
    values_.clear();
    std::string result = "graph " + called + "(";
    for (size_t i = random_.below(4); i-- > 0;) {
      values_.push_back(name());
      result += "%" + values_.back() + " : " + type();
      if (random_.chance(50)) result += " {constant " + quoted() + "}";
      if (i) result += ", ";
    }
    const size_t inputs = values_.size();
    result += "):\n";
    for (size_t i = random_.below(12); i-- > 0;) result += statement(0);
    result += "return (";
    if (!values_.empty()) result += value() + " {output " + quoted() + "}";
    if (inputs > 0)
      result += ", " + value() + " {mutation %" + values_[random_.below(inputs)] + "}";
    return result + ")\n";
  }

  Random random_;
  std::vector<std::string> values_;
  size_t next_ = 0;
};

std::string damaged(const std::string& text, Random& random) {
  static const std::vector<std::string> tokens{"%",
                                               "(",
                                               ")",
                                               "[",
                                               "]",
                                               "{",
                                               "}",
                                               ":",
                                               "=",
                                               ",",
                                               "->",
                                               "\"",
                                               "\\",
                                               "-",
                                               ".",
                                               "nan",
                                               "inf",
                                               "-inf",
                                               "graph",
                                               "return",
                                               "block0",
                                               "block1",
                                               "None",
                                               "rng",
                                               "@",
                                               "in",
                                               "#",
                                               "*",
                                               "?",
                                               "99999999999999999999",
                                               "aten::neg",
                                               "prim::Constant",
                                               "prim::ListConstruct",
                                               "prim::If",
                                               "strides=",
                                               "device=",
                                               "\n"};
  std::string result = text;
  for (size_t times = 1 + random.below(3); times-- > 0;) {
    const size_t at = random.below(result.size() + 1);
    const size_t length = random.below(std::min<size_t>(24, result.size() - at) + 1);
    switch (random.below(6)) {
      case 0: result.erase(at, length); break;
      case 1: result.insert(at, random.of(tokens)); break;
      case 2: result.replace(at, length, random.of(tokens)); break;
      case 3: result.insert(at, result.substr(at, length)); break;
      case 4: result.insert(random.below(result.size() + 1), result.substr(at, length)); break;
      default:
        if (random.chance(10)) {
          result.resize(at);
        } else if (at < result.size()) {
          result[at] = static_cast<char>(random.next());
        }
    }
  }
  return result;
}

/// "" if `text` is refused with a place inside it, or read as a program that survives.
std::string standsDamage(const std::string& text) {
  Program program;
  try {
    program = readProgram(text, "damaged");
  } catch (const TextError& error) {
    const size_t lines = 1 + static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    if (error.line < 1 || error.line > lines)
      return "line " + std::to_string(error.line) + " of the error";
    if (error.column < 1 || error.column > text.size() + 1) return "the column of the error";
    return error.detail.find("expected") != std::string::npos
               ? ""
               : "no word of what was expected: " + error.detail;
  }
  try {
    verifyProgram(program);
  } catch (const c10::Error&) {
    // A damaged program may break any rule; that it is looked at is what counts here.
  }
  return survives(program);
}

}  // namespace

TEST_CASE("random programs are well-formed and survive the way through text") {
  forEachCase(100, [](uint64_t seed) {
    RandomProgramOptions options;
    options.nodes = 1 + seed % 60;
    options.anonymous = seed % 3 == 0;
    const std::string text = randomProgramText(seed, options);
    INFO(text);
    const Program program = readProgram(text);
    REQUIRE_NOTHROW(verifyProgram(program));
    REQUIRE(survives(program) == "");
    // Without numbers for names the printer has nothing to change.
    if (!options.anonymous) REQUIRE(programText(program) == text);
    REQUIRE(equalPrograms(program, program.clone()));
  });
}

TEST_CASE("everything that program text can hold survives") {
  forEachCase(200, [](uint64_t seed) {
    const std::string text = ExoticText(seed).text();
    INFO(text);
    REQUIRE(survives(readProgram(text)) == "");
  });
}

TEST_CASE("damaged programs are refused with their place, or read as others that survive") {
  size_t refused = 0, read = 0;
  forEachCase(400, [&](uint64_t seed) {
    Random random(seed);
    RandomProgramOptions options;
    options.nodes = 8;
    const std::string text =
        damaged(seed % 2 ? randomProgramText(seed, options) : ExoticText(seed).text(), random);
    INFO(text);
    REQUIRE(standsDamage(text) == "");
    try {
      readProgram(text);
      ++read;
    } catch (const TextError&) {
      ++refused;
    }
  });
  // Both happen, or the test shows nothing.
  if (number("GRAVURE_CASES", 500) >= 100) {
    CHECK(refused > 0);
    CHECK(read > 0);
  }
}

TEST_CASE("doubles survive in bits") {
  Random random(number("GRAVURE_SEED", 1));
  constexpr uint64_t sign = uint64_t{1} << 63, infinity = uint64_t{0x7ff} << 52;
  std::vector<uint64_t> all{0,
                            sign,
                            infinity,
                            infinity | sign,
                            infinity + 1,
                            ~uint64_t{0},
                            infinity - 1,
                            1,
                            sign | 1,
                            uint64_t{1} << 52,
                            infinity | uint64_t{1} << 51,
                            std::bit_cast<uint64_t>(1e16),
                            std::bit_cast<uint64_t>(1e15),
                            std::bit_cast<uint64_t>(1e-4),
                            std::bit_cast<uint64_t>(9.9999e-5),
                            std::bit_cast<uint64_t>(0x1p53)};
  while (all.size() < 20000)
    all.push_back(random.next() & ~(random.chance(30) ? random.next() : 0));
  for (uint64_t bits : all) {
    std::string text;
    appendFloat(text, std::bit_cast<double>(bits));
    INFO(text);
    const Program program =
        readProgram("graph(): %x : float = prim::Constant[value=" + text + "]() return (%x)");
    const Node* node = *program.entries[0].graph->nodes().begin();
    const Arg constant = attributeConstant(node, c10::Symbol::attr("value"));
    REQUIRE(constant.is<double>());
    REQUIRE(std::bit_cast<uint64_t>(constant.as<double>()) == bits);
  }
}

}  // namespace gravure
