// Compiled code lets go of its operands one after another: what it makes then lies where they lay.
#include "runtime/device/arena_session.h"
#include "runtime/results/watched_operands.h"
#include "tests/unit/device_fixture.h"
#include "tests/unit/runtime_fixture.h"

#include <torch/library.h>

#include <algorithm>
#include <functional>

using namespace gravure;

namespace {

constexpr int64_t kBytes = 4096;

/// Whether the code lets go of each operand once it has read it, or of all at its end.
bool letsGo = true;
/// Whether it reads the last one first.
bool lastFirst = false;
/// Called whenever it has let go of one, if there is anything to call.
std::function<void()> onLetGo;

/// "forward": three results of one operand. Else a gradient of each operand but the last, the tangent; the
/// first `donated` of them are written over once they were read, before they are let go of.
std::vector<at::Tensor> run(const std::string& name, const std::vector<at::Tensor>& operands,
                            size_t donated) {
  std::vector<at::Tensor> given = watchOperands(operands), made;
  if (name == "forward") {
    for (const double factor : {2., 3., 4.})
      made.push_back(at::mul(given[0], at::scalar_tensor(factor)));
    return made;
  }
  const std::vector<at::Tensor> held = letsGo ? std::vector<at::Tensor>() : given;
  const at::Tensor tangent = given.back();
  given.pop_back();
  made.resize(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    const size_t at = lastFirst ? given.size() - 1 - i : i;
    const at::Tensor scratch = at::mul(given[at], tangent);
    if (at < donated) given[at].fill_(7);
    made[at] = at::tanh(scratch);
    given[at].reset();
    if (onLetGo) onLetGo();
  }
  return made;
}

std::vector<at::Tensor> compiled(const std::string& name, int64_t /*calls*/, at::TensorList inputs,
                                 at::IntArrayRef /*numbers*/) {
  return run(name, inputs.vec(), 0);
}

std::vector<at::Tensor> compiledDonated(const std::string& name, int64_t /*calls*/,
                                        at::TensorList inputs, at::TensorList donated) {
  std::vector<at::Tensor> operands = donated.vec();
  operands.insert(operands.end(), inputs.begin(), inputs.end());
  return run(name, operands, donated.size());
}

/// Forward saves three values; backward makes three gradients of them. `inside`: in a partition.
/// `donated`: two of them it may write over.
std::string program(bool inside, bool donated = false) {
  const std::string t = " : Float(1024, strides=[1], device=cpu)";
  const std::string made = "%a" + t + ", %b" + t + ", %c" + t;
  const std::string code = donated ? " = gravure::compiled_donated(\"backward\", 3, ["
                                   : " = gravure::compiled(\"backward\", 3, [";
  const auto operands = [&](const std::string& suffix, const std::string& tangent) {
    const std::string x = "%x" + suffix, y = "%y" + suffix, z = "%z" + suffix;
    return donated ? z + ", " + tangent + "], [" + x + ", " + y + "])"
                   : x + ", " + y + ", " + z + ", " + tangent + "])";
  };
  return "gravure 1\ngraph forward(%w" + t + " {parameter \"w\"}):\n  %x.out" + t + ", %y.out" + t +
         ", %z.out" + t + " = cudagraph::launch[index=0, tags=[\"static: parameter\"]](%w)\n" +
         "    block0(%w.0" + t + "):\n      %x" + t + ", %y" + t + ", %z" + t +
         " = gravure::compiled(\"forward\", 3, [%w.0])\n      -> (%x, %y, %z)\n  %z.own" + t +
         " = cudagraph::own(%z.out)\n  return (%z.own {output \"z\"}, %x.out {saved \"x\"}, %y.out "
         "{saved \"y\"}, %z.out {saved \"z\"})\ngraph backward(%x" +
         t + " {saved \"x\"}, %y" + t + " {saved \"y\"}, %z" + t + " {saved \"z\"}, %g" + t +
         " {tangent \"z\"}):\n  %gs" + t + " = cudagraph::stage(%g)\n" +
         (inside
              ? "  %a.out" + t + ", %b.out" + t + ", %c.out" + t +
                    " = cudagraph::launch[index=0, tags=[\"static: saved value\", \"static: saved "
                    "value\", \"static: saved value\", \"staged: tangent\"]](%x, %y, %z, %gs)\n" +
                    "    block0(%x.0" + t + ", %y.0" + t + ", %z.0" + t + ", %g.0" + t +
                    "):\n      " + made + code + operands(".0", "%g.0") +
                    "\n      -> (%a, %b, %c)\n"
              : "  %a.out" + t + ", %b.out" + t + ", %c.out" + t + code + operands("", "%gs") +
                    "\n") +
         "  %a.own" + t + ", %b.own" + t + ", %c.own" + t +
         " = cudagraph::own(%a.out, %b.out, %c.out)\n  return (%a.own {gradient \"a\"}, %b.own "
         "{gradient \"b\"}, %c.own {gradient \"c\"})\n";
}

/// Both in one entry, which ends with the code that reads what it returns.
std::string wholeStep() {
  const std::string t = " : Float(1024, strides=[1], device=cpu)";
  const auto out = [&](const std::string& names, const std::string& suffix) {
    std::string all;
    for (const char name : names)
      all += (all.empty() ? "%" : ", %") + std::string(1, name) + suffix + t;
    return all;
  };
  return "gravure 1\ngraph step(%w" + t + " {parameter \"w\"}):\n  " + out("xyabc", ".out") +
         " = cudagraph::launch[index=0, tags=[\"static: parameter\"]](%w)\n    block0(%w.0" + t +
         "):\n      " + out("xyz", "") + " = gravure::compiled(\"forward\", 3, [%w.0])\n      " +
         out("abc", "") + " = gravure::compiled(\"backward\", 3, [%z, %x, %y, %w.0])\n" +
         "      -> (%x, %y, %a, %b, %c)\n  return (%x.out {saved \"x\"}, %y.out {saved \"y\"}, " +
         "%a.out {saved \"a\"}, %b.out {saved \"b\"}, %c.out {saved \"c\"})\n";
}

/// The bits of a forward and a backward are those uncaptured.
void checkStep(Runtime& runtime, Runtime& reference, const at::Tensor& w) {
  const at::Tensor g = at::randn({1024});
  auto results = runtime.run("forward", {w}), expected = reference.run("forward", {w});
  CHECK(sameBits(results, expected));
  const at::Tensor output = results[0].toTensor(), bits = output.clone();
  const auto gradients = runtime.run("backward", {results[1], results[2], results[3], g});
  CHECK(sameBits(gradients, reference.run("backward", {expected[1], expected[2], expected[3], g})));
  CHECK(sameBits(output, bits));  // the caller has it, though the backward has let go of it
}

}  // namespace

TORCH_LIBRARY_IMPL(gravure, CompositeExplicitAutograd, m) {
  m.impl("compiled", &compiled);
  m.impl("compiled_donated", &compiledDonated);
}

TEST_CASE("gradients of compiled code lie where it lets go of saved values", "[law1][law5]") {
  int64_t bytes[2];
  const ResultPolicy policy =
      GENERATE(ResultPolicy::Owned, ResultPolicy::Copied, ResultPolicy::Static);
  for (const bool lets : {false, true}) {
    CAPTURE(lets, policy);
    letsGo = lets;
    RuntimeOptions options;
    options.results = policy;
    auto runtime = makeRuntime(program(true), options);
    auto reference = makeReference(program(true));
    const at::Tensor w = at::randn({1024});
    for (int step = 0; step < 6; ++step) checkStep(*runtime, *reference, w);
    CHECK(runtime->stats().replays >= 6);
    CHECK(remarksOf(*runtime).find("mismatch") == std::string::npos);
    bytes[lets] = runtime->stats().arenaBytes;
  }
  letsGo = true;
  // Three saved values, the tangent, three gradients and what makes the last one. Static gradients are
  // there while the next forward saves.
  CHECK(bytes[false] == 8 * kBytes);
  CHECK(bytes[true] == (policy == ResultPolicy::Static ? 8 : 6) * kBytes);
}

TEST_CASE("what an entry returns is not let go of by its last code", "[law5]") {
  letsGo = true;
  auto runtime = makeRuntime(wholeStep());
  auto reference = makeReference(wholeStep());
  for (int step = 0; step < 6; ++step) {
    const at::Tensor w = at::randn({1024});
    CHECK(sameBits(runtime->run("step", {w}), reference->run("step", {w})));
  }
  CHECK(runtime->stats().replays > 0);
  // %z alone ends within the code.
  CHECK(runtime->stats().arenaBytes == 6 * kBytes);
}

TEST_CASE("code that lets go of its operands otherwise than in the warm-up harms none", "[law1]") {
  auto runtime = makeRuntime(program(false));
  auto reference = makeReference(program(false));
  const at::Tensor w = at::randn({1024});
  for (int step = 0; step < 12; ++step) {
    CAPTURE(step);
    letsGo = step < 4 || step % 3 != 0;
    lastFirst = step >= 4 && step % 3 == 1;
    checkStep(*runtime, *reference, w);
  }
  letsGo = true;
  lastFirst = false;
  CHECK(runtime->remarks().count("allocation-mismatch") == 1);
}

TEST_CASE("where the warm-ups do not agree, an operand ends with the code that reads it",
          "[law1]") {
  auto runtime = makeRuntime(program(true));
  auto reference = makeReference(program(true));
  const at::Tensor w = at::randn({1024});
  for (int step = 0; step < 6; ++step) {
    letsGo = step != 0;
    checkStep(*runtime, *reference, w);
  }
  letsGo = true;
  CHECK(runtime->stats().arenaBytes == 8 * kBytes);
}

TEST_CASE("an operand's place is served once nobody holds it, or a view of it", "[law2]") {
  DeviceOnHost device;
  ArenaShape shape;
  shape.bytes = 2 * kBytes;
  const std::shared_ptr<Slab> slab = device.makeSlab(shape);
  const ServePlan plan = {{{kBytes, 0, false, true}}, {{kBytes, 0, false, true}}};
  const OperandPlan operands = {{{0, kBytes}}, {{0, kBytes}}};
  const at::Tensor operand = at::from_blob(slab->base(), {kBytes}, at::kByte);
  ArenaSession session(plan, slab, c10::kCPU, &operands);
  session.enterCall(0);
  std::vector<at::Tensor> watched = watchOperands({operand, operand});
  CHECK(isWatchedOperand(watched[0]));
  CHECK(session.serve(kBytes) == nullptr);
  at::Tensor view = watched[0].slice(0, 0, 16);
  watched.clear();
  CHECK(session.serve(kBytes) == nullptr);
  view.reset();
  CHECK(session.serve(kBytes) == slab->base());

  // One that is let go of behind its step is not taken for the next one's.
  session.enterCall(0);
  watched = watchOperands({operand});
  session.enterCall(1);
  const std::vector<at::Tensor> later = watchOperands({operand});
  watched.clear();
  CHECK(session.serve(kBytes) == nullptr);
  session.leaveCall();
  CHECK(!isWatchedOperand(watchOperands({operand})[0]));
}

TEST_CASE("compiled code writes over what it is donated, and nobody sees it", "[law1][law2]") {
  const bool inside = GENERATE(true, false);
  auto runtime = makeRuntime(program(inside, true));
  auto reference = makeReference(program(inside));
  const at::Tensor w = at::randn({1024});
  for (int step = 0; step < 8; ++step) checkStep(*runtime, *reference, w);
  CHECK(runtime->stats().replays > 0);
}

TEST_CASE("a run whose inputs are given to another one leaves them as they are", "[law2]") {
  const bool inside = GENERATE(true, false);
  auto runtime = makeRuntime(program(inside, true));
  auto reference = makeReference(program(inside));
  const at::Tensor w = at::randn({1024}), g = at::randn({1024});
  for (int step = 0; step < 8; ++step) {
    const auto results = runtime->run("forward", {w}), expected = reference->run("forward", {w});
    const std::vector<c10::IValue> saved = {results[1], results[2], results[3], g};
    const auto gradients = reference->run("backward", {expected[1], expected[2], expected[3], g});
    for (int times = 0; times < 2; ++times) {
      CHECK(sameBits(runtime->runUncaptured("backward", saved), gradients));
      CHECK(sameBits(saved, {expected[1], expected[2], expected[3], g}));
    }
    CHECK(sameBits(runtime->run("backward", saved), gradients));
  }
}

TEST_CASE("a run that no plan serves gives memory back where compiled code lets go of it",
          "[law5]") {
  const bool inside = GENERATE(true, false), donated = GENERATE(true, false);
  CAPTURE(inside, donated);
  RuntimeOptions options;
  options.uncaptured = GENERATE(true, false);
  auto runtime = makeRuntime(program(inside, donated), options);
  const at::Tensor w = at::randn({1024});
  for (int step = 0; step < 2; ++step) {
    auto results = runtime->run("forward", {w});
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
    for (size_t i = 1; i <= 3; ++i)
      storages.push_back(results[i].toTensor().storage().getWeakStorageImpl());
    std::vector<c10::IValue> saved = {results[1], results[2], results[3], at::randn({1024})};
    results.clear();
    std::vector<int64_t> gone;
    onLetGo = [&] {
      gone.push_back(std::count_if(storages.begin(), storages.end(),
                                   [](const auto& each) { return each.expired(); }));
    };
    runtime->run("backward", std::move(saved));
    onLetGo = nullptr;
    CHECK(gone == std::vector<int64_t>{1, 2, 3});
  }
}

TEST_CASE("what was handed over lives as long as what watches it, or another tensor", "[law4]") {
  at::Tensor operand = at::randn({8}), other = at::randn({8});
  const at::Tensor bits = operand.clone();
  const auto memory = operand.storage().getWeakStorageImpl();
  const at::Tensor handed = handOver(operand), view = handOver(operand.slice(0, 0, 4));
  operand.reset();
  CHECK(sameBits(handed, bits));  // nobody has watched it yet
  std::vector<at::Tensor> watched = watchOperands({handed, other, view, handed});
  CHECK(sameBits(watched[0], bits));
  CHECK(sameBits(watched[2], bits.slice(0, 0, 4)));
  CHECK(watched[1].is_same(other));
  CHECK(handed.sizes() == bits.sizes());
  watched.erase(watched.begin());
  watched.pop_back();
  CHECK(!memory.expired());  // the view
  watched.pop_back();
  CHECK(memory.expired());
}
