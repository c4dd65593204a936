// How arguments, results and random states of single calls reach their operators.
#include "runtime/program/inputs_file.h"
#include "tests/unit/runtime_fixture.h"

#include <torch/csrc/jit/serialization/pickle.h>

#include <filesystem>
#include <fstream>

using namespace gravure;

namespace {

/// Runs a step without partitions, uncaptured and served, and returns its results once they agree.
std::vector<c10::IValue> runBoth(const std::string& text, const std::vector<c10::IValue>& inputs) {
  auto reference = makeReference(text);
  auto runtime = makeRuntime(text);
  const auto expected = reference->run("step", inputs);
  for (int step = 0; step < 4; ++step) CHECK(sameBits(runtime->run("step", inputs), expected));
  CHECK(remarksOf(*runtime) == "");
  return expected;
}

std::string step(const std::string& body) { return "gravure 1\ngraph step" + body; }

}  // namespace

TEST_CASE("a number in a tensor's place keeps the tensor's dtype") {
  const at::Tensor x = at::randn({3}).to(at::kBFloat16);
  const auto got =
      runBoth(step(R"((%x : BFloat16(3, strides=[1], device=cpu), %n : int, %f : float):
    %a : BFloat16(3, strides=[1], device=cpu) = aten::mul.Tensor(%x, 0.5)
    %b : BFloat16(3, strides=[1], device=cpu) = aten::add.Tensor(%a, %n)
    %c : BFloat16(3, strides=[1], device=cpu) = aten::mul.Tensor(%b, %f)
    return (%c))"),
              {x, int64_t{3}, 0.25});
  CHECK(sameBits(got[0].toTensor(), (x * 0.5 + 3) * 0.25));
}

TEST_CASE("lists take members from values, constants and None") {
  const at::Tensor x = at::randn({4, 3}), i = at::tensor({2, 0}, at::kLong);
  const auto got = runBoth(
      step(
          R"((%x : Float(4, 3, strides=[3, 1], device=cpu), %i : Long(2, strides=[1], device=cpu), %n : int):
    %c : Float(8, 3, strides=[3, 1], device=cpu) = aten::cat([%x, %x])
    %r : Float(8, 2, strides=[2, 1], device=cpu) = aten::index.Tensor(%c, [None, %i])
    %e : Float(2, 8, strides=[8, 1], device=cpu) = aten::reshape(%r, [%n, 8])
    %s0 : Float(2, 4, strides=[8, 1], device=cpu), %s1 : Float(2, 4, strides=[8, 1], device=cpu) = aten::split.Tensor(%e, 4, 1)
    %l : Tensor[] = aten::split.Tensor(%e, 4, 1)
    %k : Float(4, 4, strides=[4, 1], device=cpu) = aten::cat(%l)
    %p : Float(4, 4, strides=[4, 1], device=cpu) = aten::add.Tensor(%k, 1, alpha=2)
    return (%p, %s1, %l))"),
      {x, i, int64_t{2}});
  const at::Tensor e = at::cat({x, x}).index({at::indexing::Slice(), i}).reshape({2, 8});
  CHECK(sameBits(got[0].toTensor(), at::cat(e.split(4, 1)) + 2));
  CHECK(sameBits(got[1].toTensor(), e.split(4, 1)[1]));
  CHECK(got[2].toTensorVector().size() == 2);
}

TEST_CASE("one number stands for a list, and defaults are filled in") {
  const at::Tensor x = at::randn({1, 2, 8, 8}), w = at::randn({3, 2, 3, 3});
  const auto got = runBoth(
      step(
          R"((%x : Float(1, 2, 8, 8, strides=[128, 64, 8, 1], device=cpu), %w : Float(3, 2, 3, 3, strides=[18, 9, 3, 1], device=cpu)):
    %y : Float(1, 3, 8, 8, strides=[192, 64, 8, 1], device=cpu) = aten::conv2d(%x, %w, padding=1)
    %o : Float(1, 3, 8, 8, strides=[192, 64, 8, 1], device=cpu) = aten::full([1, 3, 8, 8], True, dtype=torch.float32, device=device("cpu"))
    %z : Float(1, 3, 8, 8, strides=[192, 64, 8, 1], device=cpu) = aten::add.Tensor(%y, %o)
    return (%z))"),
      {x, w});
  CHECK(sameBits(got[0].toTensor(), at::conv2d(x, w, {}, 1, 1) + 1));
}

TEST_CASE("a condition decides at run time which block runs") {
  const std::string text = step(R"((%x : Float(3, strides=[1], device=cpu)):
    %s : Float(device=cpu) = aten::sum(%x)
    %n : float = aten::_local_scalar_dense(%s)
    %c : bool = aten::gt.float(%n, 0.)
    %y : Float(3, strides=[1], device=cpu) = prim::If(%c)
      block0():
        %a : Float(3, strides=[1], device=cpu) = aten::mul.Tensor(%x, 2.)
        -> (%a)
      block1():
        %t : Float(3, strides=[1], device=cpu) = aten::neg(%x)
        %b : Float(3, strides=[1], device=cpu) = aten::exp(%t)
        -> (%b)
    %z : Float(3, strides=[1], device=cpu) = aten::add.Tensor(%y, %x)
    return (%z))");
  const at::Tensor x = at::ones({3});
  CHECK(sameBits(runBoth(text, {x})[0].toTensor(), x * 3));
  CHECK(sameBits(runBoth(text, {-x})[0].toTensor(), x.exp() - 1));
}

TEST_CASE("read_host reads all elements at once") {
  const auto got = runBoth(step(R"((%x : Long(3, strides=[1], device=cpu)):
    %a : int, %b : int, %c : int = cudagraph::read_host(%x)
    return (%a, %b, %c))"),
                           {at::tensor({4, 5, 6}, at::kLong)});
  CHECK(got[0].toInt() == 4);
  CHECK(got[2].toInt() == 6);
}

TEST_CASE("tensors of sizes known only at run time stay out of the arena") {
  const std::string text = step(R"((%x : Float(6, strides=[1], device=cpu)):
    %i : Long(*, 1, device=cpu) = aten::nonzero(%x)
    %f : Float(*, 1, device=cpu) = aten::to.dtype(%i, torch.float32)
    %s : Float(device=cpu) = aten::sum(%f)
    return (%s))");
  auto runtime = makeRuntime(text);
  auto reference = makeReference(text);
  for (int step = 0; step < 6; ++step) {
    const at::Tensor x = at::relu(at::randn({6}));
    CHECK(sameBits(runtime->run("step", {x}), reference->run("step", {x})));
  }
  CHECK(remarksOf(*runtime) == "");
}

TEST_CASE("a program of a GPU runs on the host device") {
  const std::string text = R"(gravure 1
graph step(%w : Float(3, strides=[1], device=cuda:0) {parameter "w"}):
  %y.out : Float(3, strides=[1], device=cuda:0) = cudagraph::launch[index=0](%w)
    block0(%w.0 : Float(3, strides=[1], device=cuda:0)):
      %o : Float(3, strides=[1], device=cuda:0) = aten::ones([3], dtype=torch.float32, device=device("cuda:0"))
      %y : Float(3, strides=[1], device=cuda:0) = aten::add.Tensor(%w.0, %o)
      -> (%y)
  %y.own : Float(3, strides=[1], device=cuda:0) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";
  auto runtime = makeRuntime(text);
  const at::Tensor w = at::randn({3});
  for (int step = 0; step < 4; ++step)
    CHECK(sameBits(runtime->run("step", {w})[0].toTensor(), w + 1));
  CHECK(remarksOf(*runtime) == "");
  CHECK(runtime->stats().replays == 2);

  const std::string mixed = R"(gravure 1
graph step(%w : Float(3, strides=[1], device=cuda:0) {parameter "w"}, %c : Float(3, strides=[1], device=cpu) {constant "c"}):
  %y.out : Float(3, strides=[1], device=cuda:0) = cudagraph::launch[index=0](%w, %c)
    block0(%w.0 : Float(3, strides=[1], device=cuda:0), %c.0 : Float(3, strides=[1], device=cpu)):
      %d : Float(3, strides=[1], device=cuda:0) = aten::_to_copy(%c.0, device=device("cuda:0"))
      %y : Float(3, strides=[1], device=cuda:0) = aten::add.Tensor(%w.0, %d)
      -> (%y)
  %y.own : Float(3, strides=[1], device=cuda:0) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";
  auto refused = makeRuntime(mixed);
  for (int step = 0; step < 4; ++step)
    CHECK(sameBits(refused->run("step", {w, w})[0].toTensor(), w + w));
  CHECK_THAT(remarksOf(*refused),
             Catch::Contains("it copies between pageable memory and the device"));
}

TEST_CASE("random calls draw from the state they are bound to") {
  const std::string text = R"(gravure 1
graph step(%x : Float(64, strides=[1], device=cpu) {parameter "x"}, %g : Generator {rng_state "cpu"}, %p : Generator {rng_state "cpu#1"}):
  %a.out : Float(64, strides=[1], device=cpu), %b.out : Float(64, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "rng: cpu", "rng: cpu#1"]](%x, %g, %p)
    block0(%x.0 : Float(64, strides=[1], device=cpu), %g.0 : Generator, %p.0 : Generator):
      %a : Float(64, strides=[1], device=cpu), %am : Bool(64, strides=[1], device=cpu) = aten::native_dropout(%x.0, 0.5, True) rng(%g.0)
      %b : Float(64, strides=[1], device=cpu), %bm : Bool(64, strides=[1], device=cpu) = aten::native_dropout(%x.0, 0.5, True) rng(%p.0)
      -> (%a, %b)
  %s : Byte(5056, strides=[1], device=cpu) = cudagraph::save_rng_state("cpu")
  %c : Float(64, strides=[1], device=cpu), %cm : Bool(64, strides=[1], device=cpu) = aten::native_dropout(%x, 0.5, True)
  %d : Float(64, strides=[1], device=cpu), %dm : Bool(64, strides=[1], device=cpu) = aten::native_dropout(%x, 0.5, True) rng(%s)
  %a.own : Float(64, strides=[1], device=cpu), %b.own : Float(64, strides=[1], device=cpu) = cudagraph::own(%a.out, %b.out)
  return (%a.own {output "a"}, %b.own {output "b"}, %c {output "c"}, %d {output "d"})
)";
  const at::Tensor x = at::ones({64});
  auto runtime = makeRuntime(text);
  at::Generator paired = at::detail::createCPUGenerator(7);
  at::manual_seed(5);
  std::vector<at::Tensor> drawnDefault, drawnPaired;
  for (int step = 0; step < 5; ++step) {
    const auto got = runtime->run("step", {x, c10::IValue(), paired});
    drawnDefault.push_back(got[0].toTensor());
    drawnDefault.push_back(got[2].toTensor());
    drawnPaired.push_back(got[1].toTensor());
    CHECK(sameBits(got[2].toTensor(), got[3].toTensor()));
  }
  CHECK(remarksOf(*runtime) == "");
  CHECK(runtime->stats().replays == 3);
  const auto draw = [&] { return std::get<0>(at::native_dropout(x, 0.5, true)); };
  at::manual_seed(5);
  for (const at::Tensor& drawn : drawnDefault) CHECK(sameBits(drawn, draw()));
  at::manual_seed(7);
  for (const at::Tensor& drawn : drawnPaired) CHECK(sameBits(drawn, draw()));
}

TEST_CASE("saved inputs are read by name, and a bad file is refused") {
  const Program program = readProgram(step(
      R"((%w : Float(3, strides=[1], device=cpu) {parameter "layer.w"}, %n : int {symint "s0"}, %g : Generator {rng_state "cpu"}):
    return (%w))"));
  const Entry& entry = program.entries[0];
  c10::impl::GenericDict values(c10::StringType::get(), c10::AnyType::get());
  values.insert("layer.w", at::arange(3, at::kFloat));
  values.insert("s0", int64_t{4});
  c10::impl::GenericDict file(c10::StringType::get(), c10::AnyType::get());
  file.insert("step", values);
  const std::vector<char> bytes = torch::jit::pickle_save(file);
  const std::string path = std::filesystem::temp_directory_path() / "gravure_inputs_test.pt";
  const auto write = [&](size_t count) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(count));
  };
  write(bytes.size());
  const auto bound = InputsFile::read(path).bind(entry, {});
  CHECK(sameBits(bound[0].toTensor(), at::arange(3, at::kFloat)));
  CHECK(bound[1].toInt() == 4);
  CHECK(bound[2].isNone());

  Program other = program.clone();
  other.entries[0].inputs[0].name = "layer.v";
  CHECK_THROWS_WITH(InputsFile::read(path).bind(other.entries[0], {}),
                    Catch::Contains("lacks parameter \"layer.v\" (input 0 of step)"));
  other.entries[0].name = "forward";
  CHECK_THROWS_WITH(InputsFile::read(path).bind(other.entries[0], {}),
                    Catch::Contains("has no entry 'forward'"));
  write(bytes.size() / 2);
  CHECK_THROWS_WITH(InputsFile::read(path),
                    Catch::Contains("is damaged or was not written by torch.save"));
  std::filesystem::remove(path);
  CHECK_THROWS_WITH(InputsFile::read(path), Catch::Contains("cannot open the inputs file"));
}
