// equalPrograms finds every kind of difference, and nothing else.
#include "ir/check/program_equality.h"
#include "ir/text/program_text.h"
#include "tests/catch.h"

namespace gravure {

TEST_CASE("each kind of difference is found") {
  const std::string text =
      R"(graph step(%a : Float(2, strides=[1], device=cpu) {parameter "p"}, %g : Generator, %h : Generator, %c : bool):
  %x : Tensor = aten::add.Tensor(%a, 0., alpha=2) @"m.py:1" in "layer"
  %y : Tensor, %m : Tensor = aten::native_dropout[fate=1](%x, 0.5, True) rng(%g)
  %z : Tensor = prim::If(%c)
    block0():
      %i : Tensor = aten::cat([%x, %y], 0)
      -> (%i)
    block1():
      -> (%y)
  return (%z {gradient "p"}, %a {mutation %a}, %m))";
  const Program original = readProgram(text);
  const auto [from, to] = GENERATE(table<std::string, std::string>({
      {"graph step", "graph other"},
      {"%a : Float(2, strides=[1], device=cpu)", "%a : Float(3, strides=[1], device=cpu)"},
      {"device=cpu) {parameter \"p\"}", "device=cpu) {buffer \"p\"}"},
      {"device=cpu) {parameter \"p\"}", "device=cpu) {parameter \"q\"}"},
      {"aten::add.Tensor", "aten::sub.Tensor"},
      {"aten::add.Tensor(%a, 0., alpha=2)", "aten::add.Scalar(%a, 0., 2)"},
      {"(%a, 0.,", "(%a, -0.,"},
      {"(%a, 0.,", "(%a, 0,"},
      {"(%a, 0.,", "(%a, %a,"},
      {", alpha=2", ""},
      {"\"m.py:1\"", "\"m.py:2\""},
      {"in \"layer\"", ""},
      {"fate=1", "fate=2"},
      {"fate=1", "fate=True"},
      {"fate=1", "host=1"},
      {"[fate=1]", ""},
      {"rng(%g)", "rng(%h)"},
      {" rng(%g)", ""},
      {"[%x, %y]", "(%x, %y)"},
      {"[%x, %y]", "[%y, %x]"},
      {"[%x, %y]", "[%x]"},
      {"-> (%i)", "-> (%x)"},
      {"%i : Tensor = aten::cat([%x, %y], 0)\n      -> (%i)", "-> (%x)"},
      {"      -> (%y)", "      aten::_foreach_neg_([%x])\n      -> (%y)"},
      {"%z : Tensor =", "%z : Tensor? ="},
      {"%z {gradient \"p\"}", "%z {gradient \"q\"}"},
      {"%z {gradient \"p\"}", "%z {loss}"},
      {"%z {gradient \"p\"}", "%y {gradient \"p\"}"},
      {"mutation %a", "alias %a"},
      {"mutation %a", "mutation %g"},
      {", %m)", ")"},
      {", %c : bool)", ", %c : bool, %d : int)"},
  }));
  INFO(from << " -> " << to);
  std::string changed = text;
  changed.replace(changed.find(from), from.size(), to);
  const Program other = readProgram(changed);
  std::string why;
  CHECK_FALSE(equalPrograms(original, other, &why));
  CHECK_FALSE(why.empty());
  CHECK_FALSE(equalPrograms(other, original));
}

TEST_CASE("renamed and anonymous values differ, numbers of anonymous ones do not") {
  const auto with = [](const std::string& name) {
    return readProgram("graph(%a : Tensor):\n %" + name + " : Tensor = aten::neg(%a)\n return (%" +
                       name + ")");
  };
  CHECK(equalPrograms(with("1"), with("23")));
  CHECK_FALSE(equalPrograms(with("x"), with("y")));
  CHECK_FALSE(equalPrograms(with("x"), with("1")));
  CHECK_FALSE(equalPrograms(with("1"), with("x")));
}

}  // namespace gravure
