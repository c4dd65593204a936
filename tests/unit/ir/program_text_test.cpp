// Program text in both directions, and what is said of a text that is no program.
#include "ir/core/attribute_constant.h"
#include "ir/text/program_text.h"

#include "ir/check/program_equality.h"
#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/location.h"
#include "ir/text/constant_text.h"
#include "ir/text/type_printer.h"
#include "tests/catch.h"

#include <algorithm>
#include <limits>

namespace gravure {
namespace {

const std::string kInputs = "%a : Float(2, 3, strides=[3, 1], device=cpu), %b : Tensor, %n : int, "
                            "%c : bool, %g : Generator, %l : Tensor[]";

std::string entry(const std::string& statements, const std::string& result = "") {
  return "gravure 1\ngraph step(" + kInputs + "):\n" + statements + "\n  return (" + result + ")\n";
}

/// The statements of `text` as printed, without the lines around them.
std::string statementsOf(const std::string& text) {
  const std::string printed = programText(readProgram(text));
  const size_t begin = printed.find("):\n") + 3;
  const size_t end = printed.rfind("  return");
  return printed.substr(begin, end - begin);
}

std::string errorOf(const std::string& text) {
  try {
    readProgram(text, "x.gv");
  } catch (const TextError& error) {
    CHECK(std::string(error.what()) == "x.gv:" + std::to_string(error.line) + ":" +
                                           std::to_string(error.column) + ": " + error.detail);
    return error.what();
  }
  return "no error";
}

const Node* firstNode(const Program& program) { return *program.entries[0].graph->nodes().begin(); }

void checkRoundTrip(const std::string& text) {
  INFO(text);
  const Program program = readProgram(text);
  const std::string printed = programText(program);
  CHECK(printed == text);
  std::string why;
  CHECK(equalPrograms(program, readProgram(printed), &why));
  CHECK(why.empty());
}

}  // namespace

TEST_CASE("a program is printed as it was read") {
  checkRoundTrip(R"(gravure 1
graph forward(%w : Float(8, 4, strides=[4, 1], device=cuda:0) {parameter "layer.weight"},
              %x : Float(2, 4, strides=[4, 1], device=cuda:0) {user_input "x"},
              %g : Generator {rng_state "cuda:0#1"},
              %s0 : int {symint}):
  %wt : Float(4, 8, strides=[1, 4], device=cuda:0) = aten::t(%w) @"model.py:12" in "layer"
  %0 : Float(2, 8, strides=[8, 1], device=cuda:0) = aten::mm(%x, %wt) in "layer"
  %d : Float(2, 8, strides=[8, 1], device=cuda:0), %m : Bool(2, 8, strides=[8, 1], device=cuda:0) = aten::native_dropout(%0, 0.1, True) rng(%g)
  %loss : Float(device=cuda:0) = aten::sum(%d, dtype=torch.float32)
  return (%loss {loss}, %m {saved "mask"}, %x {mutation %x}, %wt {alias %w}, %d {output}, %0)

graph backward(%m : Bool(2, 8, strides=[8, 1], device=cuda:0) {saved "mask"},
               %t : Float(device=cuda:0) {tangent "t"},
               %k : Float(3, strides=[1], device=cpu) {constant "k"},
               %r : Float(3, strides=[1], device=cpu) {buffer "r"}):
  return (%t {gradient "layer.weight"})
)");
}

TEST_CASE("every construct of a statement survives") {
  const std::string statement = GENERATE(
      as<std::string>(),  //
      "aten::_foreach_add_.Scalar([%a, %b], 1)", "%x : Tensor = aten::index.Tensor(%a, [None, %b])",
      "%x : Tensor = aten::view(%a, [%n, 512])", "%x : Tensor = aten::add.Tensor(%a, 0.5, alpha=2)",
      "%x : Tensor = aten::clamp(%a, None, inf)", "%x : Tensor = aten::clamp(%a, max=-inf)",
      "%x : Tensor = aten::add.Scalar(%a, nan)", "%x : Tensor = aten::add.Scalar(%a, -nan)",
      "%x : Tensor = aten::add.Scalar(%a, nan(\"7ff8000000000abc\"))",
      "%x : Tensor = aten::add.Scalar(%a, -0.)",
      "%x : Tensor = aten::add.Scalar(%a, complex(1., -nan))",
      "%x : Tensor = aten::full([2, %n], 1e-05, dtype=torch.float64, layout=torch.strided, "
      "device=device(\"cuda:1\"), pin_memory=False)",
      "%x : Tensor = aten::clone(%a, memory_format=torch.channels_last)",
      "%x : Tensor = aten::view.dtype(%a, torch.bfloat16)",
      "%x : Tensor = aten::convolution_backward.out([], (1, [2.]), \"\", -1)",
      "%x : Tensor[] = aten::split.Tensor(%a, 1)",
      "%x : Tensor, %y : Tensor = aten::split.Tensor(%a, 1)", "%x : Tensor = aten::cat(%l, 1)",
      "%x : Tensor = _c10d_functional::all_reduce(%a, \"sum\", \"0\")",
      "%x : int = aten::add.int(%n, 3)",
      "%x : Tensor = aten::neg(%a) @\"a \\\"b\\\" \\\\ \\x01\\x7f\\n\\t\\r é.py:1\" in \"é\"",
      "%x : Tensor = aten::neg[host=\"host-sync\", fate=3, arena=[0]](%a)",
      "%x : Tensor = aten::neg[v=[], w=[1, 2.], x=(None, True), y=[\"s\"], z=device(\"cpu\")](%a)",
      "%x : Tensor = aten::neg[v=None, w=False, x=complex(0., 1.), y=[1.], z=[[1], []]](%a)",
      "%x : Tensor, %y : Tensor = aten::native_dropout(%a, 0.5, True) rng(%g)",
      "%st : Byte(5056, strides=[1], device=cpu) = cudagraph::save_rng_state(\"cpu\")",
      "%x : int, %y : int = cudagraph::read_host(%a)");
  // One of them is refused, to show that the others are looked at.
  if (statement.find("convolution_backward.out") != std::string::npos) {
    CHECK_THROWS_AS(readProgram(entry("  " + statement)), TextError);
    return;
  }
  CHECK(statementsOf(entry("  " + statement)) == "  " + statement + "\n");
  const Program program = readProgram(entry("  " + statement));
  std::string why;
  CHECK(equalPrograms(program, readProgram(programText(program)), &why));
  CHECK(why.empty());
}

TEST_CASE("every type survives") {
  const std::string type = GENERATE(
      as<std::string>(),  //
      "Float(2, 3, strides=[3, 1], device=cuda:0)", "Float(device=cpu)", "Float()", "FloatTensor",
      "BFloat16Tensor(device=cuda:1)", "Float(*, 512, strides=[512, 1], device=cpu)",
      "Float(2, *, strides=[*, 1], device=cpu)", "Half(2, 3)", "Long(0, 4, strides=[4, 1])",
      "Float(2, strides=[0], requires_grad=1, device=meta)", "Double(3, requires_grad=0)", "Tensor",
      "Tensor(2, *)", "Tensor(rank=0)", "Tensor(device=cpu)", "Bool(1, 2, 3, strides=[9, 0, 1])",
      "ComplexFloat(2, strides=[1], device=cpu)", "Float8_e4m3fn(2, strides=[1], device=cuda:0)",
      "Float(4, 4, strides=[1, 4], device=cpu)", "int", "float", "bool", "str", "complex", "Device",
      "Generator", "NoneType", "Scalar", "SymInt", "SymFloat", "SymBool", "Stream", "Storage",
      "QScheme", "Layout", "MemoryFormat", "ScalarType", "Capsule", "Quantizer", "Any", "Tensor[]",
      "Tensor?", "Tensor?[]", "int[]", "int[]?", "(Tensor, int[])", "(int)", "()",
      "Dict(str, Tensor[])", "Future(Tensor)", "Float(2, strides=[1], device=cpu)[]");
  const std::string text = "gravure 1\ngraph step(%x : " + type + "):\n  return ()\n";
  CHECK(programText(readProgram(text)) == text);
  CHECK(typeText(*readProgram(text).entries[0].graph->inputs()[0]->type()) == type);
}

TEST_CASE("floats take Python's digits") {
  const auto text = [](double value) {
    std::string out;
    appendFloat(out, value);
    return out;
  };
  CHECK(text(1) == "1.");
  CHECK(text(0) == "0.");
  CHECK(text(-0.0) == "-0.");
  CHECK(text(0.1) == "0.1");
  CHECK(text(1e-5) == "1e-05");
  CHECK(text(0.0001) == "0.0001");
  CHECK(text(123456789.25) == "123456789.25");
  CHECK(text(1e15) == "1000000000000000.");
  CHECK(text(1e16) == "1e+16");
  CHECK(text(1.5e300) == "1.5e+300");
  CHECK(text(5e-324) == "5e-324");
  CHECK(text(std::numeric_limits<double>::max()) == "1.7976931348623157e+308");
}

TEST_CASE("blocks nest and keep their values") {
  checkRoundTrip(R"(gravure 1
graph step(%a : Float(2, strides=[1], device=cpu),
           %c : bool):
  %y : Float(2, strides=[1], device=cpu) = cudagraph::partition[index=0, tags=["static: parameter"]](%a)
    block0(%a.p0 : Float(2, strides=[1], device=cpu)):
      %y.i : Float(2, strides=[1], device=cpu) = aten::neg(%a.p0)
      -> (%y.i)
  %z : Tensor = prim::If(%c)
    block0():
      %0 : Tensor = prim::If(%c)
        block0():
          -> (%y)
        block1():
          -> (%a)
      -> (%0)
    block1():
      aten::_foreach_neg_([%y])
      -> (%y)
  return (%z)
)");
}

TEST_CASE("many results stand one a line") {
  checkRoundTrip(R"(gravure 1
graph step(%a : Tensor):
  return (%a {output "a result with a long name"},
          %a {output "another result with a long name"},
          %a {alias %a})
)");
}

TEST_CASE("anonymous values are numbered in order") {
  CHECK(statementsOf(entry("%7 : Tensor = aten::neg(%a) %03 : Tensor = aten::neg(%7)")) ==
        "  %0 : Tensor = aten::neg(%a)\n  %1 : Tensor = aten::neg(%0)\n");
}

TEST_CASE("arguments lie in the order of the schema, values apart from constants") {
  const Program program =
      readProgram(entry("%x : Tensor = aten::add.Tensor(alpha=2, other=%b, self=%a)"));
  const Node* node = firstNode(program);
  REQUIRE(node->inputs().size() == 2);
  CHECK(node->input(0)->debugName() == "a");
  CHECK(overloadOf(node) == "Tensor");
  const auto& args = argsOf(node).args;
  REQUIRE(args.size() == 3);
  CHECK(args[1] == Arg(InputArg{1}));
  CHECK(args[2] == Arg(int64_t{2}));
  CHECK(statementsOf(programText(program)) ==
        "  %x : Tensor = aten::add.Tensor(%a, %b, alpha=2)\n");
}

TEST_CASE("a parameter may have a constant's name") {
  CHECK(statementsOf(entry("%x : Tensor = aten::nan_to_num(nan=nan, self=%a, neginf=-inf)")) ==
        "  %x : Tensor = aten::nan_to_num(%a, nan, neginf=-inf)\n");
}

TEST_CASE("a node whose arguments are its inputs needs no list of them") {
  CHECK_FALSE(hasArgs(firstNode(readProgram(entry("%x : Tensor = aten::mm(%a, %b)")))));
  CHECK(hasArgs(firstNode(readProgram(entry("%x : Tensor = aten::add.Scalar(%a, 1)")))));
}

TEST_CASE("attributes are kept as TorchScript's kinds where it has one") {
  const Program program =
      readProgram(entry("%x : Tensor = aten::neg[host=\"h\", fate=1, arena=[0, -1], n=None](%a)"));
  const Node* node = firstNode(program);
  CHECK(node->s(attr::host) == "h");
  CHECK(node->i(attr::fate) == 1);
  CHECK(node->is(attr::arena) == std::vector<int64_t>{0, -1});
  CHECK(attributeConstant(node, c10::Symbol::attr("n")).is<NoneArg>());
}

TEST_CASE("what a node keeps for itself takes no attribute's name") {
  const std::string own =
      "  %x : Tensor = aten::neg[info=1, call=2, overload=\"o\", source=3](%a)\n";
  CHECK(statementsOf(entry(own)) == own);
}

TEST_CASE("nodes of one line and one module share their place, and a copy keeps it") {
  const std::string statements =
      "  %x : Tensor = aten::neg(%a) @\"model.py:3\" in \"blocks.0::a\"\n"
      "  %y : Tensor = aten::neg(%x) @\"model.py:3\" in \"blocks.0::a\"\n"
      "  %z : Tensor = aten::neg(%y) @\"model.py:3\"\n"
      "  %w : Tensor = aten::neg(%z) in \"a \\\"quoted\\\" one\"\n";
  const Program program = readProgram(entry(statements));
  Node* node = const_cast<Node*>(firstNode(program));
  CHECK(sourceOf(node) == "model.py:3");
  CHECK(moduleOf(node) == "blocks.0::a");
  CHECK(node->sourceRange().source() == node->next()->sourceRange().source());
  CHECK(node->scope() == node->next()->scope());
  CHECK(moduleOf(node->next()->next()) == "");
  CHECK(statementsOf(programText(program.clone())) == statements);
}

TEST_CASE("TorchScript's constants and lists are folded into their users") {
  CHECK(statementsOf(entry(R"(%1 : int = prim::Constant[value=1]() # model.py:3:0
    %t : bool = prim::Constant[value=1]()
    %none : NoneType = prim::Constant()
    %d : Device = prim::Constant[value="cpu"]()
    %s : int[] = prim::ListConstruct(%1, %n)
    %x : Tensor = aten::sum.dim_IntList(%a, %s, %t, dtype=%none)
    %y : Tensor = aten::view(%x, %s)
    %z : Tensor = aten::ones([%1], device=%d)
    %nested : int[][] = prim::ListConstruct(%s, %s)
    = aten::_foreach_neg_([%z])
    )")) == R"(  %x : Tensor = aten::sum.dim_IntList(%a, [1, %n], True, dtype=None)
  %y : Tensor = aten::view(%x, [1, %n])
  %z : Tensor = aten::ones([1], device=device("cpu"))
  aten::_foreach_neg_([%z])
)");
}

TEST_CASE("a constant that is returned stays a node") {
  const std::string kept = "  %k : NoneType = prim::Constant[value=None]()\n";
  CHECK(statementsOf(entry(kept, "%k")) == kept);
  // Used by an argument too: folded there, kept for the result.
  const std::string used = kept + "  %x : Tensor = aten::clamp(%a, None, 1)\n";
  CHECK(statementsOf(entry(kept + "%x : Tensor = aten::clamp(%a, %k, 1)", "%k")) == used);
}

TEST_CASE("an operator of one schema needs no overload") {
  CHECK(statementsOf(entry("%x : int = aten::factorial(%n)")) ==
        "  %x : int = aten::factorial.int(%n)\n");
  CHECK(errorOf(entry("%x : Tensor = aten::dequantize(%a)"))
            .find("found 'aten::dequantize'; there are: aten::dequantize.self, ") !=
        std::string::npos);
  // One with a default overload that does not fit tells of the others.
  CHECK(errorOf(entry("%x : Tensor = aten::add(%a, %b, 1)"))
            .find("; there is also aten::add.Tensor, ") != std::string::npos);
}

TEST_CASE("a text that is no program is refused with its place and what was expected") {
  CHECK(errorOf("") == "x.gv:1:1: expected 'graph', found the end of the text");
  CHECK(errorOf("gravure 2\n") == "x.gv:1:9: expected version 1 of program text, found 2");
  CHECK(errorOf("graph step(%x) :") == "x.gv:1:14: expected ':' and the value's type, found ')'");
  CHECK(errorOf("graph step(%x : Flot(2)):") == "x.gv:1:17: expected a type, found 'Flot'");
  CHECK(errorOf("graph step(%x : Float(2, -1)):") ==
        "x.gv:1:26: expected an int that is not negative, found '-1'");
  CHECK(errorOf("graph step(%x : Float(99999999999999999999)):") ==
        "x.gv:1:23: expected an int of 64 bits, found '99999999999999999999'");
  CHECK(errorOf("graph step(%x : Float(9223372036854775807, 9)):") ==
        "x.gv:1:22: expected a tensor whose bytes can be counted in 63 bits, found a larger one");
  CHECK(errorOf("graph step(%x : Float(2, strides=[1, 2])):") ==
        "x.gv:1:22: expected one stride a dimension, found 2 strides for 1 dimensions");
  CHECK(errorOf("graph step(%x : Float(device=cuda:300)):") ==
        "x.gv:1:30: expected a device, found 'cuda:300'");
  CHECK(errorOf("graph step(%x : Tensor {param \"x\"}):") ==
        "x.gv:1:25: expected an input's role (parameter, buffer, constant, user_input, tangent, "
        "saved, rng_state or symint), found 'param'");
  CHECK(errorOf("graph():\n  return ()\ngraph():\n return ()") ==
        "x.gv:3:1: expected entries of different names, found 'step' a second time");
  CHECK(errorOf("graph():\n  return () }") ==
        "x.gv:2:13: expected 'graph' or the end of the text, found '}'");
  CHECK(errorOf("graph():\n  aten::neg(1\n  return ()") ==
        "x.gv:3:3: expected ',' or ')', found 'return'");
  CHECK(errorOf("graph():\n  $") == "x.gv:2:3: expected a token, found the character '$'");
}

TEST_CASE("a wrong statement is refused with its place and what was expected") {
  const auto refusal = [](const std::string& statement) {
    const std::string error = errorOf(entry("  " + statement));
    CHECK(error.substr(0, 7) == "x.gv:3:");
    return error.substr(7);
  };
  const std::string neg = "its schema is aten::neg_(Tensor(a!) self) -> Tensor(a!)";
  CHECK(refusal("%x : Tensor = aten::neg(%q)") == "27: expected a value defined above, found '%q'");
  CHECK(refusal("%x : Tensor = aten::neg(%x)") == "27: expected a value defined above, found '%x'");
  CHECK(refusal("%a : Tensor = aten::neg(%b)") ==
        "3: expected a name of its own for each value, found '%a' a second time");
  CHECK(refusal("%x : Tensor = aten::neg_(%a, 1)") ==
        "32: expected at most 1 argument of 'aten::neg_', found one more; " + neg);
  CHECK(refusal("%x : Tensor = aten::neg_()") ==
        "17: expected the argument 'self' of 'aten::neg_', found none; " + neg);
  CHECK(refusal("%x : Tensor = aten::neg_(%a, q=1)") ==
        "32: expected the name of a parameter, found 'q='; the " + neg.substr(4));
  CHECK(refusal("%x : Tensor = aten::neg(%a, self=%b)") ==
        "31: expected each argument once, found 'self' a second time");
  CHECK(refusal("%x : Tensor = aten::neg(self=%a, %b)") ==
        "36: expected only named arguments after the first of them");
  CHECK(refusal("%x : Tensor = neg(%a)") ==
        "17: expected an operator as namespace::name or namespace::name.overload, found 'neg'");
  CHECK(refusal("%x : Tensor = aten::nge(%a)").find("'aten::nge'; is it 'aten::") !=
        std::string::npos);
  CHECK(refusal("%x : Tensor = mine::swizzle_everything(%a)") ==
        "17: expected an operator that PyTorch knows, found 'mine::swizzle_everything'; load the "
        "library that registers it");
  CHECK(refusal("%x : Tensor = aten::factorial.it(%a)") ==
        "17: expected an operator that PyTorch knows, found 'aten::factorial.it'; there are: "
        "aten::factorial.int");
  CHECK(refusal("%x : Tensor = aten::neg(\"abc)") ==
        "27: expected '\"' at the end of the string, found the end of the line");
  CHECK(refusal("%x : Tensor = aten::neg(\"\\q\")") ==
        "28: expected one of the escapes \\\" \\\\ \\n \\t \\r \\xHH, found '\\q'");
  CHECK(refusal("%x : Tensor = aten::add.Scalar(%a, 1e999)") ==
        "38: expected a number in a double's range, found '1e999'");
  CHECK(refusal("%x : Tensor = aten::add.Scalar(%a, 12x)") ==
        "40: expected the end of the number, found 'x'");
  CHECK(refusal("%x : Tensor = aten::neg[i=%a](%a)") == "29: expected a constant, found '%a'");
  CHECK(refusal("%x : Tensor = cudagraph::own(x=%a)") ==
        "32: expected arguments by position, found 'x='; this operator's parameters have no names");
}

TEST_CASE("a value is seen only where it stands") {
  CHECK(errorOf(entry("%y : Tensor = prim::If(%c)\n block0():\n %i : Tensor = aten::neg(%a)\n -> "
                      "(%i)\n block1():\n -> (%i)")) ==
        "x.gv:8:6: expected a value defined above, found '%i', which belongs to a block that has "
        "ended");
  CHECK(errorOf(entry("%y : Tensor = cudagraph::partition[index=0]()\n block0():\n -> (%a)")) ==
        "x.gv:5:6: expected a parameter of this block or a value defined in it, found '%a' from "
        "outside; pass it as an operand");
}

TEST_CASE("names are told apart however many there are and however the text is laid out") {
  // Some differ in one character, some in their length alone; statements read old and new ones.
  constexpr size_t kCount = 900;
  std::vector<std::string> names;
  std::string statements;
  for (size_t i = 0; i < kCount; ++i) {
    const std::string other = i ? names[i * 31 % i] : "a";
    const std::string last = i ? names.back() : "b";
    const std::string call = "aten::add.Tensor(%" + last + ", %" + other + ")\n";
    names.push_back(i % 3 ? "v_" + std::to_string(i * 7919 % kCount) : std::string(1 + i / 3, 'x'));
    statements += "  %" + names.back() + " : Tensor = " + call;
  }
  std::string text = entry(statements, "%" + names.back());
  const Program program = readProgram(text);
  CHECK(statementsOf(text) == statements);
  for (size_t i : {0, 1, 450, 899}) {
    const std::string again = "%" + names[i] + " : Tensor = aten::neg(%a)";
    const std::string error = errorOf(entry(statements + again));
    CHECK(error.substr(0, 12) == "x.gv:" + std::to_string(3 + kCount) + ":1: ");
    CHECK(error.find("a second time") != std::string::npos);
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::string why;
  CHECK(equalPrograms(program, readProgram(text), &why));
  CHECK(why.empty());
}

TEST_CASE("each entry has room for more names than it has") {
  std::string statements;
  for (size_t i = 0; i < 1000; ++i) {
    statements += "  %v" + std::to_string(i) + " : Tensor = aten::neg(%a)\n";
  }
  const std::string graph = "(%a : Tensor):\n" + statements + "  return ()\n";
  const Program program = readProgram("graph forward" + graph + "\ngraph backward" + graph);
  REQUIRE(program.entries.size() == 2);
  for (const Entry& entry : program.entries) {
    const auto& names = entry.graph->debugNames();
    CHECK(names.size() == 1001);
    CHECK(names.bucket_count() * names.max_load_factor() >= 2000);
  }
}

TEST_CASE("absurd texts are refused in linear time and memory") {
  const std::string deep(100000, '[');
  CHECK(errorOf(entry("aten::neg(" + deep)).find("nested less deep") != std::string::npos);
  CHECK(errorOf("graph(%x : " + std::string(100000, '(')).find("nested less deep") !=
        std::string::npos);
  std::string lists;
  for (size_t i = 0; i < 100000; ++i) lists += "[]";
  CHECK(errorOf("graph(%x : int" + lists).find("nested less deep") != std::string::npos);
  std::string blocks;
  for (size_t i = 0; i < 10000; ++i) blocks += "prim::If(%c) block0(): ";
  CHECK(errorOf(entry(blocks)).find("nested less deep") != std::string::npos);
  std::string attributes;
  for (size_t i = 0; i < 100000; ++i) attributes += "a" + std::to_string(i) + "=1, ";
  CHECK(errorOf(entry("aten::neg[" + attributes)).find("fewer attributes") != std::string::npos);
  // Each list holds the one before it twice.
  std::string laughs = "%l0 : int[] = prim::ListConstruct(1, 1)\n";
  for (size_t i = 1; i < 100; ++i) {
    const std::string last = "%l" + std::to_string(i - 1);
    laughs +=
        "%l" + std::to_string(i) + " : int[] = prim::ListConstruct(" + last + ", " + last + ")\n";
  }
  CHECK(errorOf(entry(laughs)).find("outgrow the text") != std::string::npos);
}

TEST_CASE("a text is cut at its separators, and lines keep their numbers") {
  const std::string text = "graph a():\n return ()\n# -----\ngraph b():\n return (\n# ----- \n";
  const auto parts = splitInputs(text);
  REQUIRE(parts.size() == 3);
  CHECK(readProgram(parts[0].text, "f", parts[0].firstLine).entries[0].name == "a");
  CHECK(parts[1].firstLine == 4);
  try {
    readProgram(parts[1].text, "f", parts[1].firstLine);
    FAIL("the second part has no end");
  } catch (const TextError& error) {
    CHECK(error.line == 6);
  }
  CHECK(parts[2].text.empty());
  CHECK(splitInputs("# ------\n").size() == 1);
}

TEST_CASE("a file that cannot be read is named") {
  CHECK_THROWS_WITH(readProgramFile("/nowhere/a.gv"),
                    Catch::Contains("'/nowhere/a.gv' cannot be read"));
}

TEST_CASE("a statement is printed for a message") {
  const Program program = readProgram(entry("%x : Tensor = aten::add.Scalar(%a, 1) @\"m.py:1\""));
  CHECK(nodeText(firstNode(program)) == "%x : Tensor = aten::add.Scalar(%a, 1) @\"m.py:1\"");
  PrintOptions plain;
  plain.sources = false;
  CHECK(programText(program, plain).find("m.py") == std::string::npos);
}

}  // namespace gravure
