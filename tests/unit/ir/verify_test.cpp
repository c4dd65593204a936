// Each rule of verifyProgram, by the text of its error.
#include "ir/check/verify.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/text/constant_text.h"
#include "ir/text/program_text.h"
#include "tests/catch.h"

namespace gravure {
namespace {

const std::string kInputs =
    "%a : Float(2, 3, strides=[3, 1], device=cpu) {user_input \"a\"}, %b : Tensor, %n : int, "
    "%f : float, %c : bool, %g : Generator {rng_state \"cpu\"}, %l : Tensor[], %s : str";

Program step(const std::string& statements, const std::string& result = "") {
  return readProgram("graph step(" + kInputs + "):\n" + statements + "\n  return (" + result + ")");
}

/// What verifyProgram says, "" if nothing.
std::string verdict(const Program& program) {
  try {
    verifyProgram(program);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

std::string verdict(const std::string& statements, const std::string& result = "") {
  return verdict(step(statements, result));
}

Node* node(Program& program, size_t index = 0) {
  auto at = program.entries[0].graph->nodes().begin();
  std::advance(at, index);
  return *at;
}

}  // namespace

TEST_CASE("well-formed calls pass") {
  const std::string call = GENERATE(
      as<std::string>(),                          //
      "%x : Tensor = aten::mul.Tensor(%a, 0.5)",  // a number for a tensor
      "%x : Tensor = aten::mul.Tensor(%a, %n)", "%x : Tensor = aten::index.Tensor(%a, [None, %b])",
      "%x : Tensor = aten::view(%a, [%n, 3])", "%x : Tensor = aten::clamp(%a, None, 1)",
      "%x : Tensor = aten::mul.Tensor(%a, None)",  // an undefined tensor
      "%x : Tensor = aten::max_pool2d(%a, 2)",     // one int for a list of fixed length
      "%x : Tensor = aten::max_pool2d(%a, %n)",
      "%x : Tensor = aten::dropout(%a, 0, True)",  // an int for a float
      "%x : Tensor = aten::full([2], True, dtype=torch.float32, device=device(\"cpu\"))",
      "%x : Tensor = aten::cat(%l, 1)", "%x : Tensor[] = aten::split.Tensor(%a, 1)",
      "%x : Tensor, %y : Tensor = aten::split.Tensor(%a, 1)",
      "%x : Float(2, device=cpu), %y : NoneType, %z : Tensor? = aten::native_layer_norm(%a, [3], "
      "None, None, 1e-05)",
      "%x : float = aten::_local_scalar_dense(%a)", "%x : int = aten::add.int(%n, 1)",
      "%x : Tensor = aten::__getitem__.t(%l, 0)", "%x : Tensor = aten::bernoulli(%a, generator=%g)",
      "%x : Tensor = aten::bernoulli.p(%a, 0.5) rng(%g)", "aten::_foreach_add_.Scalar([%a, %b], 1)",
      "%x : int, %y : bool = cudagraph::read_host(%a)",
      "%x : Tensor, %y : int = cudagraph::stage(%a, %n)",
      "%x : Tensor = _c10d_functional::all_reduce(%a, \"sum\", \"0\") "
      "%w : Tensor = _c10d_functional::wait_tensor(%x)",
      "%x : Tensor[] = _c10d_functional::all_reduce_coalesced([%a], \"sum\", \"0\") "
      "%m : Tensor = aten::__getitem__.t(%x, 0) %w : Tensor = _c10d_functional::wait_tensor(%m)",
      "%x : Tensor = _c10d_functional::all_reduce(%a, \"sum\", \"0\") "
      "%v : Tensor = aten::alias(%x) %w : Tensor = _c10d_functional::wait_tensor(%v)");
  CHECK(verdict(call) == "");
}

TEST_CASE("a program's constants that are returned pass") {
  CHECK(verdict("%k : NoneType = prim::Constant[value=None]()", "%k") == "");
  CHECK(verdict("%k : int[] = prim::Constant[value=[1, 2]]()", "%k") == "");
  CHECK(verdict("%k : int = prim::Constant[value=1.5]()", "%k") ==
        "entry 'step': %k = prim::Constant: the constant 1.5 is not of type int");
}

TEST_CASE("arguments of the wrong type are named") {
  const std::string neg = "entry 'step': %x = aten::neg at m.py:3 in net: the argument 'self' is ";
  const auto call = [](const std::string& arg) {
    return verdict("%x : Tensor = aten::neg(" + arg + ") @\"m.py:3\" in \"net\"");
  };
  CHECK(call("\"t\"") == neg + "\"t\", expected Tensor");
  CHECK(call("%s") == neg + "%s of type str, expected Tensor");
  CHECK(call("[%a]") ==
        neg + "[%a of type Float(2, 3, strides=[3, 1], device=cpu)], expected Tensor");
  CHECK(call("%l") == neg + "%l of type Tensor[], expected Tensor");
  CHECK(verdict("%x : Tensor = aten::view(%a, [1.5])")
            .find("the argument 'size' is [1.5], expected ") != std::string::npos);
  CHECK(verdict("%x : Tensor = aten::view(%a, [%f])")
            .find("the argument 'size' is [%f of type float]") != std::string::npos);
  CHECK(verdict("%x : Tensor = aten::view(%a, 1)").find("the argument 'size' is 1") !=
        std::string::npos);
  CHECK(verdict("%x : Tensor = aten::cat([%a, \"t\"])").find("the argument 'tensors' is [") !=
        std::string::npos);
  CHECK(verdict("%x : Tensor = aten::view(%a, None)").find("the argument 'size' is None") !=
        std::string::npos);
}

TEST_CASE("outputs must be what the operator returns") {
  CHECK(verdict("%x : Tensor, %y : Tensor = aten::neg(%a)") ==
        "entry 'step': %x = aten::neg: there are 2 outputs, but the operator returns 1");
  CHECK(verdict("aten::neg(%a)") ==
        "entry 'step': aten::neg: there are 0 outputs, but the operator returns 1");
  CHECK(verdict("%x : int = aten::neg(%a)") ==
        "entry 'step': %x = aten::neg: the output %x is int, but the operator returns Tensor");
  CHECK(verdict("%x : Tensor, %y : int = aten::split.Tensor(%a, 1)") ==
        "entry 'step': %x = aten::split.Tensor: the output %y is int, but the operator returns "
        "Tensor[]");
  CHECK(verdict("%x : Tensor = aten::_local_scalar_dense(%a)").find("the output %x is Tensor") !=
        std::string::npos);
}

TEST_CASE("an argument without a default must be there") {
  Program program = step("%x : Tensor = aten::mm(%a, %b)");
  auto args = c10::make_intrusive<ArgList>();
  args->args.push_back(InputArg{0});
  setArgs(node(program), args);
  node(program)->removeInput(1);
  CHECK(verdict(program) ==
        "entry 'step': %x = aten::mm: the argument 'mat2' is missing; the schema "
        "is aten::mm(Tensor self, Tensor mat2) -> Tensor");
}

TEST_CASE("arguments and inputs must agree") {
  Program program = step("%x : Tensor = aten::mm(%a, %b)");
  auto args = c10::make_intrusive<ArgList>();
  args->args.push_back(InputArg{0});
  args->args.push_back(InputArg{0});
  setArgs(node(program), args);
  CHECK(verdict(program) ==
        "entry 'step': %x = aten::mm: its input %b stands nowhere in its arguments");
  args = c10::make_intrusive<ArgList>();
  args->args.push_back(InputArg{0});
  args->args.push_back(InputArg{2});
  setArgs(node(program), args);
  CHECK(verdict(program) == "entry 'step': %x = aten::mm: its arguments refer to input 2 of 2");
}

TEST_CASE("constants stand in place") {
  Program program =
      step("%k : NoneType = prim::Constant[value=None]() %x : Tensor = aten::neg(%a)", "%k");
  node(program, 1)->replaceInput(0, node(program, 0)->output(0));
  CHECK(verdict(program) ==
        "entry 'step': %x = aten::neg: its argument is %k, a constant; constants "
        "stand in place, among the arguments");
}

TEST_CASE("an unknown operator is named") {
  Program program = step("%x : Tensor = aten::neg(%a)");
  setOverload(node(program), "nowhere");
  CHECK(verdict(program) ==
        "entry 'step': %x = aten::neg.nowhere: PyTorch knows no such operator; load "
        "the library that registers it, or check the overload's name");
}

TEST_CASE("a value must be defined before it is used") {
  Program program = step("%x : Tensor = aten::neg(%a) %y : Tensor = aten::abs(%x)", "%y");
  node(program, 0)->moveAfter(node(program, 1));
  CHECK(verdict(program) ==
        "entry 'step': %y = aten::abs: its argument is %x, which is not defined before it");
}

TEST_CASE("a block's values end with it") {
  Program program = step("%y : Tensor = prim::If(%c) block0(): %i : Tensor = aten::neg(%a) -> (%i) "
                         "block1(): -> (%a)\n %z : Tensor = aten::neg(%y)",
                         "%z");
  Value* inner = (*node(program)->blocks()[0]->nodes().begin())->output(0);
  node(program, 1)->replaceInput(0, inner);
  CHECK(verdict(program) ==
        "entry 'step': %z = aten::neg: its argument is %i, which belongs to a block "
        "that has ended");
  program.entries[0].graph->return_node()->replaceInput(0, inner);
  node(program, 1)->replaceInput(0, node(program)->output(0));
  CHECK(verdict(program) == "entry 'step': it returns %i, which belongs to a block that has ended");
}

TEST_CASE("a partition's block sees only its parameters") {
  Program program = step("%y : Tensor = cudagraph::partition[index=0](%b) block0(%p : Tensor): "
                         "%i : Tensor = aten::neg(%p) -> (%i)",
                         "%y");
  CHECK(verdict(program) == "");
  Node* inner = *node(program)->blocks()[0]->nodes().begin();
  inner->replaceInput(0, program.entries[0].graph->inputs()[0]);
  CHECK(verdict(program) ==
        "entry 'step': %i = aten::neg: its argument is %a from outside its block; a "
        "block of a cudagraph:: node sees only its parameters");
}

TEST_CASE("cudagraph nodes have the shape that belongs to them") {
  const auto partition = [](const std::string& attributes, const std::string& block) {
    return verdict("%y : Tensor = cudagraph::partition" + attributes + "(%b) " + block, "%y");
  };
  const std::string block = "block0(%p : Tensor): -> (%p)";
  const std::string where = "entry 'step': %y = cudagraph::partition: ";
  CHECK(partition("[index=0, tags=[\"static: parameter\"], arena=[0]]", block) == "");
  CHECK(partition("", block) == where + "it has no attribute 'index'");
  CHECK(partition("[index=0]", "") == where + "it has 0 blocks, expected 1");
  CHECK(partition("[index=0]", "block0(): %q : Tensor = aten::ones([1]) -> (%q)") ==
        where + "its block has 0 parameters for 1 operand");
  CHECK(partition("[index=0]", "block0(%p : Tensor): -> ()") ==
        where + "its block ends with 0 values for 1 output");
  CHECK(partition("[index=0]", "block0(%p : int): %q : Tensor = aten::ones([%p]) -> (%q)") ==
        where + "its block's parameter %p is int, but the operand is Tensor");
  CHECK(partition("[index=-1]", block) == where + "the attribute 'index' is not an int from 0 up");
  CHECK(partition("[index=0, tags=[]]", block) == where + "there are 0 tags for 1 operand");
  CHECK(partition("[index=0, tags=[\"weird\"]]", block) ==
        where +
            "the attribute 'tags' holds something else than 'static: …', 'staged: …', 'rng: …' or "
            "'guarded: …'");
  CHECK(partition("[index=0, arena=[0, 1]]", block) ==
        where + "the attribute 'arena' is not a list of one offset an output");
  CHECK(partition("[index=0, arena=[-2]]", block) ==
        where + "the attribute 'arena' holds something else than offsets and -1");
  CHECK(partition("[index=0, colour=1]", block) == where + "it has an unknown attribute 'colour'");
  CHECK(verdict("%x : Tensor = cudagraph::stage(%a, %b)") ==
        "entry 'step': %x = cudagraph::stage: it has 1 output for 2 operands");
  CHECK(verdict("%x : int = cudagraph::read_host(%a, %b)") ==
        "entry 'step': %x = cudagraph::read_host: it reads one tensor, not its 2 operands");
  CHECK(verdict("%x : Tensor = cudagraph::read_host(%a)") ==
        "entry 'step': %x = cudagraph::read_host: its outputs are not all int, float or bool");
  for (const char* argument : {"%a", "\"gpu\""}) {
    CHECK(verdict("%x : Tensor = cudagraph::save_rng_state(" + std::string(argument) + ")") ==
          "entry 'step': %x = cudagraph::save_rng_state: its argument is not a device's name");
  }
}

TEST_CASE("attributes of any node are of their kinds") {
  CHECK(verdict("%x : Tensor = aten::neg[host=\"no such reason\"](%a)") ==
        "entry 'step': %x = aten::neg: the attribute 'host' is not the name of a reason");
  CHECK(verdict("%x : Tensor = aten::neg[fate=\"1\"](%a)") ==
        "entry 'step': %x = aten::neg: the attribute 'fate' is not an int from 0 up");
  CHECK(verdict("%x : Tensor = aten::neg[host=\"host-sync\", fate=0, arena=[-1], note=None](%a)") ==
        "");
}

TEST_CASE("prim::If takes a bool and two blocks") {
  CHECK(verdict("%y : Tensor = prim::If(%a) block0(): -> (%a) block1(): -> (%a)") ==
        "entry 'step': %y = prim::If: its argument is not one bool");
  CHECK(verdict("%y : Tensor = prim::If(%c) block0(): -> (%a)") ==
        "entry 'step': %y = prim::If: it has 1 block, expected 2");
  CHECK(verdict("%y : Tensor = prim::If(%c) block0(): -> (%a) block1(): -> ()") ==
        "entry 'step': %y = prim::If: its block ends with 0 values for 1 output");
  CHECK(verdict("%y : Tensor = aten::neg(%a) block0(): -> ()") ==
        "entry 'step': %y = aten::neg: it cannot have blocks");
}

TEST_CASE("a random state is a generator or saved bytes") {
  CHECK(
      verdict("%x : Tensor = aten::bernoulli.p(%a, 0.5) rng(%n)") ==
      "entry 'step': %x = aten::bernoulli.p: its random state %n is int, expected a Generator or a "
      "tensor of bytes that holds a saved state");
  CHECK(verdict("%x : Tensor = aten::bernoulli.p(%a, 0.5) rng(%a)")
            .find("its random state %a is Float") != std::string::npos);
  CHECK(verdict("%st : Byte(8, strides=[1], device=cpu) = cudagraph::save_rng_state(\"cpu\") %x : "
                "Tensor = "
                "aten::bernoulli.p(%a, 0.5) rng(%st)") == "");
}

TEST_CASE("a collective is waited for") {
  CHECK(
      verdict("%x : Tensor = _c10d_functional::all_reduce(%a, \"sum\", \"0\")", "%x") ==
      "entry 'step': %x = _c10d_functional::all_reduce: the collective's result %x is never waited "
      "for; add _c10d_functional::wait_tensor");
  const std::string two = verdict(
      "%x : Tensor, %y : Tensor = _c10d_functional::all_reduce_coalesced([%a, %b], \"sum\", \"0\") "
      "%w : Tensor = _c10d_functional::wait_tensor(%x) "
      "%v : Tensor = _c10d_functional::wait_tensor(%w)");
  CHECK(two.find("the collective's result %y is never waited for") != std::string::npos);
}

TEST_CASE("roles describe inputs and outputs one by one") {
  const auto roles = [](const std::string& inputs, const std::string& outputs) {
    return verdict(readProgram("graph(" + inputs + "): return (" + outputs + ")"));
  };
  CHECK(roles("%a : int {parameter \"p\"}", "") ==
        "entry 'step': the input %a is a parameter and cannot be of type int");
  CHECK(roles("%a : Tensor {symint \"s0\"}", "") ==
        "entry 'step': the input %a is a symint and cannot be of type Tensor");
  CHECK(roles("%a : Tensor {rng_state \"cpu\"}", "") ==
        "entry 'step': the input %a is a rng_state and cannot be of type Tensor");
  CHECK(roles("%g : Generator {rng_state \"gpu:0\"}", "") ==
        "entry 'step': the input %g is the random state of 'gpu:0', which is no device");
  CHECK(roles("%g : Generator {rng_state \"cuda:0#1\"}, %h : Generator {rng_state}", "") == "");
  CHECK(roles("%a : int", "%a {loss}") ==
        "entry 'step': the output %a is the loss and cannot be of type int");
  CHECK(roles("%a : Tensor, %n : int", "%a {mutation %n}") ==
        "entry 'step': the output %a is a mutation of %n, which is no tensor but int");
  CHECK(roles("%a : Tensor {saved \"x\"}, %b : Tensor {saved \"x\"}", "") ==
        "entry 'step': two inputs are saved 'x'");
  CHECK(roles("%a : Tensor", "%a {saved \"x\"}, %a {saved \"x\"}") ==
        "entry 'step': two outputs are saved 'x'");

  Program program = step("", "%a");
  program.entries[0].inputs.pop_back();
  CHECK(verdict(program) == "entry 'step': 8 inputs have 7 roles");
  program = step("", "%a");
  program.entries[0].outputs.emplace_back();
  CHECK(verdict(program) == "entry 'step': 1 outputs have 2 roles");
  program = step("", "%a {mutation %a}");
  program.entries[0].outputs[0].input = 8;
  CHECK(verdict(program) ==
        "entry 'step': the output %a is a mutation of input 8, which the entry does not have");
  program = step("", "%a {loss}");
  program.entries[0].outputs[0].input = 0;
  CHECK(verdict(program) ==
        "entry 'step': the output %a names an input, but is no mutation and no alias");
}

TEST_CASE("entries have names of their own, and graphs") {
  Program program = step("");
  program.entries.push_back(program.entries[0]);
  CHECK(verdict(program) == "two entries are called 'step'");
  program.entries[1].name = "other";
  program.entries[1].graph = nullptr;
  CHECK(verdict(program) == "entry 'other': it has no graph");
}

TEST_CASE("a value's name can be written") {
  Program program = step("%x : Tensor = aten::neg(%a)");
  node(program)->output(0)->setDebugName("x:0");
  CHECK(verdict(program) ==
        "entry 'step': the value '%x:0' has a name with characters other than [A-Za-z0-9_.]");
}

TEST_CASE("what forward saves is what backward takes") {
  const auto pair = [](const std::string& saved, const std::string& taken) {
    return verdict(readProgram("graph forward(%x : Tensor): return (%x {saved \"" + saved +
                               "\"}) graph backward(%y : " + taken + "): return ()"));
  };
  CHECK(pair("x", "Tensor {saved \"x\"}") == "");
  CHECK(pair("x", "Tensor {saved \"z\"}") ==
        "entry 'backward': the input %y is saved 'z', which 'forward' does not save");
  CHECK(pair("x", "int {saved \"x\"}") ==
        "entry 'backward': the saved input %y is int, but 'forward' saves 'x' as Tensor");
}

namespace {

const std::string kFour = " : Float(4, device=cpu)";

/// A forward that returns %y and saves %s, and a backward that gives it to compiled code.
std::string donating(const std::string& forward, const std::string& results,
                     const std::string& behind = "", const std::string& inputs = "%g",
                     const std::string& returned = "") {
  return verdict(readProgram("graph forward(%x" + kFour + " {user_input \"x\"}):\n" + forward +
                             "  return (" + results + ")\ngraph backward(%s" + kFour +
                             " {saved \"s\"}, %g" + kFour + " {tangent \"y\"}):\n  %r" + kFour +
                             " = gravure::compiled_donated(\"code\", 2, [" + inputs + "], [%s])\n" +
                             behind + "  return (%r {gradient \"x\"}" + returned + ")"));
}

}  // namespace

TEST_CASE("what is donated nobody needs behind the call, or has but the program") {
  const std::string made =
      "  %s" + kFour + " = aten::exp(%x)\n  %y" + kFour + " = aten::mul.Tensor(%s, %x)\n";
  const std::string results = "%y {output \"y\"}, %s {saved \"s\"}";
  CHECK(donating(made, results).empty());
  const std::string read = "  %t" + kFour + " = aten::exp(%s)\n";
  CHECK(donating(made, results, read).find("whose memory %t = aten::exp has behind it") !=
        std::string::npos);
  const std::string view = "  %v" + kFour + " = aten::view(%s, [4])\n";
  CHECK(donating(made, results, view).find("has behind it") != std::string::npos);
  CHECK(donating(made, results, "", "%g, %s").find("another operand has") != std::string::npos);
  CHECK(donating(made, results, "", "%g", ", %s {output \"s\"}").find("the entry returns") !=
        std::string::npos);
  const std::string given = "is saved and donated, and its memory the caller or another";
  CHECK(donating(made, results + ", %s {output \"s\"}").find(given) != std::string::npos);
  const std::string ofInput =
      "  %s" + kFour + " = aten::view(%x, [4])\n  %y" + kFour + " = aten::exp(%x)\n";
  CHECK(donating(ofInput, results).find(given) != std::string::npos);
  const std::string twice = made + "  %v" + kFour + " = aten::view(%s, [4])\n";
  CHECK(donating(twice, results + ", %v {saved \"v\"}").find(given) != std::string::npos);
}

TEST_CASE("what the caller gives is not donated") {
  const std::string text = "graph step(%a" + kFour + " {user_input \"a\"}, %p" + kFour +
                           " {parameter \"p\"}):\n  %r" + kFour +
                           " = gravure::compiled_donated(\"code\", 2, [], [";
  for (const std::string operand : {"%a", "%p"}) {
    const std::string said =
        verdict(readProgram(text + operand + "])\n  return (%r {output \"r\"})"));
    CHECK(said.find("whose memory the caller has") != std::string::npos);
  }
}

}  // namespace gravure
