// What the passes believe of operators. A wrong row here is a wrong gradient there.
#include "ir/facts/op_facts.h"

#include "ir/facts/compiled_op.h"
#include "ir/facts/recurrent_operators.h"
#include "ir/facts/value_types.h"
#include "ir/text/program_text.h"
#include "tests/catch.h"

#include <llvm/ADT/STLExtras.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/library.h>

namespace gravure {
namespace {

const OpFacts& facts(const char* name, const char* overload = "") {
  const OpFacts* found = findOpFacts(c10::Symbol::fromQualString(name), overload);
  REQUIRE(found != nullptr);
  return *found;
}

using Positions = std::vector<int>;

Positions positions(const ParameterSet& parameters) {
  const auto bits = parameters.set_bits();
  return {bits.begin(), bits.end()};
}

Program program(const std::string& statements, const std::string& inputs = "") {
  return readProgram("graph step(" + inputs + "):\n" + statements);
}

const Node* nodeOf(const Program& p, size_t index) {
  auto at = p.entries[0].graph->nodes().begin();
  std::advance(at, index);
  return *at;
}

}  // namespace

TEST_CASE("an operator PyTorch does not know has no facts") {
  CHECK(findOpFacts(c10::Symbol::fromQualString("aten::no_such_operator"), "") == nullptr);
  CHECK(findOpFacts(c10::Symbol::fromQualString("aten::add"), "no_such_overload") == nullptr);
}

TEST_CASE("an operator that is defined anew has new facts, and the old ones can still be read") {
  const auto define = [](const char* schema) {
    auto library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, "gravure_test",
                                                    std::nullopt, __FILE__, __LINE__);
    library->def(schema);
    return library;
  };
  auto library = define("redefined(Tensor x) -> Tensor");
  const OpFacts& before = facts("gravure_test::redefined");
  CHECK_FALSE(before.writes);
  library.reset();
  CHECK(findOpFacts(c10::Symbol::fromQualString("gravure_test::redefined"), "") == nullptr);
  library = define("redefined(Tensor(a!) x, int n) -> ()");
  CHECK(facts("gravure_test::redefined").writes);
  CHECK(before.schema->arguments().size() == 1);
}

TEST_CASE("views alias their source, marked in the schema or not") {
  CHECK(positions(facts("aten::view").aliasedArgs[0]) == Positions{0});
  CHECK(positions(facts("aten::_unsafe_view").aliasedArgs[0]) == Positions{0});
  CHECK(positions(facts("aten::split", "Tensor").aliasedArgs[0]) == Positions{0});
  CHECK(positions(facts("aten::unsafe_split", "Tensor").aliasedArgs[0]) == Positions{0});
  CHECK_FALSE(facts("aten::mm").maybeAliases);
  CHECK_FALSE(facts("aten::clone").maybeAliases);
}

TEST_CASE("writes are known where the schema hides them") {
  CHECK(positions(facts("aten::add_", "Tensor").writtenArgs) == Positions{0});
  CHECK(positions(facts("aten::add_", "Tensor").aliasedArgs[0]) == Positions{0});
  // running_mean and running_var
  CHECK(positions(facts("aten::native_batch_norm").writtenArgs) == Positions{3, 4});
  CHECK(positions(facts("aten::_native_batch_norm_legit").writtenArgs) == Positions{3, 4});
  CHECK_FALSE(facts("aten::native_layer_norm").writes);
}

TEST_CASE("writes into running statistics are known in every operator that has them") {
  for (const char* name :
       {"aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"}) {
    CHECK(positions(facts(name).writtenArgs) == Positions{3, 4});
  }
  CHECK(positions(facts("aten::batch_norm_update_stats").writtenArgs) == Positions{1, 2});
}

TEST_CASE("a member of a list is its memory") {
  CHECK(positions(facts("aten::__getitem__", "t").aliasedArgs[0]) == Positions{0});
  CHECK(facts("aten::__getitem__", "t").numbersOnly);  // no work for the device
  CHECK(positions(facts("aten::list", "t").aliasedArgs[0]) == Positions{0});
  CHECK_FALSE(facts("aten::tensor").maybeAliases);
  const Program p = program("%l : Tensor[] = aten::split.Tensor(%a, 1)\n"
                            "%m : Tensor = aten::__getitem__.t(%l, 0)\nreturn (%m)",
                            "%a : Float(2, strides=[1], device=cpu)");
  const auto sources = aliasedInputs(nodeOf(p, 1), 0);
  REQUIRE(sources.size() == 1);
  CHECK(sources[0]->debugName() == "l");
}

TEST_CASE("more parameters than a word has bits") {
  // The dispatcher takes no more than 64 (c10::DispatchKeyExtractor), TorchScript any number.
  std::string parameters = "Tensor p0";
  for (int i = 1; i < 70; ++i) parameters += ", Tensor p" + std::to_string(i);
  parameters += ", Tensor(a!) last";
  const torch::jit::RegisterOperators registered({torch::jit::Operator(
      "gravure_test::many(" + parameters + ") -> Tensor(a!)", [](torch::jit::Stack&) {},
      c10::AliasAnalysisKind::FROM_SCHEMA)});
  const OpFacts& many = facts("gravure_test::many");
  CHECK(positions(many.writtenArgs) == Positions{70});
  CHECK(positions(many.aliasedArgs[0]) == Positions{70});
}

TEST_CASE("what a schema hides is taken to be there") {
  torch::Library library(torch::Library::FRAGMENT, "gravure_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("log(Tensor x) -> ()");
  library.def("count(Tensor x) -> int");
  library.def("exchange(Tensor x, str group_name) -> Tensor");
  library.def("draw(Tensor x, Generator? g) -> Tensor");
  library.def("mark(int number) -> ()");
  // Called for an effect that a replay would leave out.
  CHECK(facts("gravure_test::log").effects);
  CHECK(facts("gravure_test::log").reason == HostReason::OpaqueCallable);
  CHECK(facts("gravure_test::mark").reason == HostReason::OpaqueCallable);
  CHECK_FALSE(facts("gravure_test::mark").numbersOnly);
  CHECK(facts("gravure_test::count").reason == HostReason::HostSync);
  CHECK(facts("gravure_test::draw").random);
  // It waits itself: no wait_tensor follows.
  for (const char* name : {"gravure_test::exchange", "_dtensor::shard_dim_alltoall",
                           "symm_mem::one_shot_all_reduce", "symm_mem::nvshmem_put"}) {
    CHECK(facts(name).collective);
    CHECK(facts(name).blocking);
    CHECK(facts(name).reason == HostReason::BlockingCollective);
  }
  CHECK(positions(facts("c10d::allreduce_").writtenArgs)[0] == 0);
  // Where the effect is known to be repeated by a replay, the operator is captured as ever.
  CHECK_FALSE(facts("aten::_assert_async").reason);
  CHECK_FALSE(facts("aten::is_same_size").reason);
}

TEST_CASE("an in-place operator on a list writes every member") {
  const Program p =
      program("aten::_foreach_add_.Scalar([%a, %b], 1)\nreturn ()",
              "%a : Float(2, strides=[1], device=cpu), %b : Float(2, strides=[1], device=cpu)");
  const auto written = writtenInputs(nodeOf(p, 0));
  REQUIRE(written.size() == 2);
  CHECK(written[0]->debugName() == "a");
  CHECK(written[1]->debugName() == "b");
}

TEST_CASE("an unpacked list result aliases what the list's member would") {
  const Program p =
      program("%s : Float(1, strides=[1], device=cpu), %t : Float(1, strides=[1], device=cpu) = "
              "aten::split.Tensor(%a, 1)\nreturn (%s, %t)",
              "%a : Float(2, strides=[1], device=cpu)");
  for (size_t output : {0, 1}) {
    const auto sources = aliasedInputs(nodeOf(p, 0), output);
    REQUIRE(sources.size() == 1);
    CHECK(sources[0]->debugName() == "a");
  }
}

TEST_CASE("reasons that hold wherever an operator is called") {
  CHECK(facts("aten::_local_scalar_dense").reason == HostReason::HostSync);
  CHECK(facts("aten::equal").reason == HostReason::HostSync);
  CHECK(facts("aten::nonzero").reason == HostReason::DataDependentShape);
  CHECK(facts("aten::unique_dim").reason == HostReason::DataDependentShape);
  // Only a boolean mask among the indices makes this one depend on data.
  CHECK(facts("aten::index", "Tensor").reason == std::nullopt);
  CHECK(facts("cudagraph::read_host").reason == HostReason::HostSync);
  CHECK(facts("aten::mm").reason == std::nullopt);
}

TEST_CASE("a random operator whose arguments keep it from drawing does not draw") {
  const std::string x = "%x : Float(4, strides=[1], device=cpu)";
  const auto draws = [&](const std::string& call) {
    return drawsRandom(nodeOf(program(call + "\nreturn ()", x), 0));
  };
  const std::string two =
      "%y : Float(4, strides=[1], device=cpu), %m : Bool(4, strides=[1], device=cpu) = ";
  CHECK(draws(two + "aten::native_dropout(%x, 0.1, True)"));
  CHECK_FALSE(draws(two + "aten::native_dropout(%x, 0.1, False)"));
  // Attention's own default is no dropout, left out or passed over.
  const std::string attention =
      "%y : Float(4, strides=[1], device=cpu) = aten::scaled_dot_product_attention";
  CHECK_FALSE(draws(attention + "(%x, %x, %x)"));
  CHECK_FALSE(draws(attention + "(%x, %x, %x, is_causal=True)"));
  CHECK(draws(attention + "(%x, %x, %x, None, 0.1)"));
  CHECK(draws("%y : Float(4, strides=[1], device=cpu) = aten::rand_like(%x)"));
  CHECK_FALSE(draws("%y : Float(4, strides=[1], device=cpu) = aten::neg(%x)"));
}

TEST_CASE(
    "a recurrent module of cuDNN's with dropout draws by cuDNN's state, and so its backward") {
  const std::string x = "%x : Float(2, 3, 4, strides=[12, 4, 1], device=cuda:0)";
  const std::string kind = " : Float(2, 3, 4, strides=[12, 4, 1], device=cuda:0)";
  const auto forward = [&](const std::string& dropout, const std::string& train) {
    return "%y" + kind + ", %h" + kind + ", %c" + kind +
           ", %r : Byte(8, strides=[1], device=cuda:0) = gravure::recurrent(%x, [%x], %x, None, 3, "
           "True, 2, " +
           dropout + ", " + train + ", False, False, 8, [0], 24)\nreturn ()";
  };
  const auto backward = [&](const std::string& dropout) {
    return "%dx" + kind + ", %dh" + kind + ", %dc" + kind +
           " = gravure::recurrent_backward(%x, [%x], %x, None, %x, %x, %x, None, None, 3, True, "
           "2, " +
           dropout + ", False, False, [0], 24, False)\nreturn ()";
  };
  const auto uses = [&](const std::string& statements) {
    return usesCudnnDropout(nodeOf(program(statements, x), 0));
  };
  CHECK(recurrentCalls(nodeOf(program(forward("0.1", "True"), x), 0)) == 4);
  CHECK(uses(forward("0.1", "True")));
  CHECK(drawsRandom(nodeOf(program(forward("0.1", "True"), x), 0)));
  CHECK_FALSE(uses(forward("0.", "True")));
  CHECK_FALSE(uses(forward("0.1", "False")));
  CHECK(uses(backward("0.1")));
  CHECK_FALSE(drawsRandom(nodeOf(program(backward("0.1"), x), 0)));
  CHECK_FALSE(uses(backward("0.")));
  CHECK_FALSE(uses("%y" + kind +
                   ", %m : Bool(2, 3, 4, strides=[12, 4, 1], device=cuda:0) = "
                   "aten::native_dropout(%x, 0.1, True)\nreturn ()"));
}

TEST_CASE("an operator that repeats draws by seeds that it is given does not draw") {
  CHECK(facts("aten::_scaled_dot_product_efficient_attention").random);
  CHECK(!facts("aten::_scaled_dot_product_efficient_attention_backward").random);
  CHECK(!facts("aten::_scaled_dot_product_cudnn_attention_backward").random);
}

TEST_CASE("collectives and waits are told apart") {
  CHECK(facts("_c10d_functional::all_reduce").collective);
  CHECK(facts("_c10d_functional::wait_tensor").wait);
  CHECK_FALSE(facts("_c10d_functional::wait_tensor").collective);
  // The wait hands back the buffer it waited for.
  CHECK(positions(facts("_c10d_functional::wait_tensor").aliasedArgs[0]) == Positions{0});
}

TEST_CASE("compiled code that communicates is a collective that nobody waits for") {
  CHECK(leavesOpen(facts("_c10d_functional::all_reduce")));
  CHECK_FALSE(leavesOpen(facts("_dtensor::shard_dim_alltoall")));
  CHECK_FALSE(leavesOpen(facts("_c10d_functional::wait_tensor")));
  for (const char* name :
       {"gravure::compiled_communicating", "gravure::compiled_communicating_random"}) {
    CHECK(facts(name).collective);
    CHECK(facts(name).waitsInside);
    CHECK_FALSE(leavesOpen(facts(name)));
    CHECK(facts(name).reason == std::nullopt);  // captured
    CHECK_FALSE(facts(name).writes);
  }
  CHECK(facts("gravure::compiled_communicating_random").random);
  CHECK_FALSE(facts("gravure::compiled_communicating").random);
  CHECK_FALSE(facts("gravure::compiled").collective);
}

TEST_CASE("compiled code names what it communicates, in order") {
  const std::string x = "%x : Float(4, strides=[1], device=cpu)";
  const auto found = [&](const std::string& arguments) {
    const Program p = program("%y : Float(4, strides=[1], device=cpu) = gravure::compiled" +
                                  arguments + "\nreturn (%y)",
                              x);
    CHECK(compiledCalls(nodeOf(p, 0)) == 3);
    std::string all;
    for (const InnerCollective& inner : innerCollectives(nodeOf(p, 0)))
      all += inner.group + ": " + inner.text + "; ";
    return all;
  };
  CHECK(found("_communicating(\"code\", 3, [%x], [\"1\", \"0\", \"1\"], [\"a\", \"b\", \"c\"])") ==
        "1: a; 0: b; 1: c; ");
  CHECK(found("_communicating_random(\"code\", 3, [%x], [\"1\"], [\"a\"])") == "1: a; ");
  // What names no group is refused where the program runs, and never taken for silent code.
  CHECK(found("_communicating(\"code\", 3, [%x], [], [])") == ": ; ");
  CHECK(found("_communicating(\"code\", 3, [%x], [], [\"a\"])") == ": a; ");
  CHECK(found("(\"code\", 3, [%x])") == "");
}

TEST_CASE("an operator that takes and gives numbers alone makes number nodes") {
  CHECK(facts("aten::add", "int").numbersOnly);
  CHECK(facts("aten::sym_size", "int").numbersOnly);
  CHECK_FALSE(facts("aten::_local_scalar_dense").numbersOnly);
  CHECK_FALSE(facts("aten::ones").numbersOnly);
}

TEST_CASE("bytes of a storage follow sizes, strides and dtype") {
  const auto bytes = [&](const std::string& type) {
    return storageBytes(
        *program("return ()", "%x : " + type).entries[0].graph->inputs()[0]->type());
  };
  CHECK(bytes("Float(2, 3, strides=[3, 1], device=cpu)") == 24);
  CHECK(bytes("BFloat16(2, 3, strides=[8, 1], device=cpu)") == 22);
  CHECK(bytes("Long(device=cpu)") == 8);
  CHECK(bytes("Float(0, 3, strides=[3, 1], device=cpu)") == 0);
  CHECK(bytes("Float(4, 1000, strides=[0, 1], device=cpu)") == 4000);
  CHECK(bytes("Float(*, 3, strides=[3, 1], device=cpu)") == std::nullopt);
  CHECK(bytes("Tensor") == std::nullopt);
}

TEST_CASE("the compute device is that of what is not on the CPU, however little that is") {
  struct Input {
    const char *name, *device, *role = "parameter";
  };
  const auto device = [](std::initializer_list<Input> inputs, const std::string& calls = "") {
    std::string text;
    for (const Input& each : inputs) {
      text += text.empty() ? "%" : ", %";
      text += std::string(each.name) + " : Float(2, strides=[1], device=" + each.device + ") {" +
              each.role + " \"" + each.name + "\"}";
    }
    return computeDevice(program(calls + "return ()", text)).str();
  };
  CHECK(device({{"v", "cpu"}, {"u", "cpu"}, {"w", "cuda:1"}}) == "cuda:1");
  CHECK(device({{"w", "cuda:1"}, {"x", "cpu", "user_input"}}) == "cuda:1");
  CHECK(device({{"v", "cpu"}, {"x", "cuda:0", "user_input"}}) == "cuda:0");
  CHECK(device({{"x", "cpu", "user_input"}, {"y", "cuda:0", "user_input"}}) == "cuda:0");
  CHECK(device({{"v", "cpu"}}, "%y : Float(2, strides=[1], device=cuda:0) = aten::neg(%v)\n") ==
        "cuda:0");
  CHECK(device({{"v", "cpu"}, {"u", "meta"}}) == "cpu");
  CHECK(device({{"x", "cpu", "user_input"}}) == "cpu");
}

}  // namespace gravure
