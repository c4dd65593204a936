"""Calls without torch.classes do what those by it do: values, errors, warnings, lives."""

from __future__ import annotations

import functools
import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gravure.library import direct_calls
from gravure.library.direct_calls import direct, distinct_values, memory_watch, same_objects
from gravure.library.load import program_class
from torch import Tensor, nn

library = torch.library.Library("direct_calls", "FRAGMENT")
FLOAT = "Float(4, strides=[1], device=cpu)"


def program_of(*lines: str, inputs: str, output: str) -> Any:
    text = "\n".join(
        ["gravure 1", f"graph step({inputs}):", *[f"  {line}" for line in lines]]
        + [f'  return ({output} {{output "y"}})', ""]
    )
    return program_class().of_text(text, "host", {"min_partition_size": "1"})


def scaled() -> Any:
    """y = x * k, of a float."""
    return program_of(
        f"%y : {FLOAT} = aten::mul.Scalar(%x, %k)",
        inputs=f'%x : {FLOAT} {{user_input "x"}}, %k : float {{symint "k"}}',
        output="%y",
    )


def both(program: Any, method: str = "run") -> tuple[Callable[..., Any], Callable[..., Any]]:
    direct_call = direct(program, method, "step")
    assert type(direct_call) is type(len)  # it is there, and no stand-in for it
    return direct_call, functools.partial(getattr(program, method), "step")


def test_values_are_those_of_torch_classes() -> None:
    call, slow = both(scaled())
    x = torch.arange(4.0)
    for given in ([x, 2.0], (x, 0.5), [nn.Parameter(x.clone()), -1.0]):
        for _ in range(5):  # warm-up, capture, replays
            mine, theirs = call(given), slow(given)
            assert type(mine) is type(theirs) is list
            assert torch.equal(mine[0], theirs[0])


@pytest.mark.parametrize("given", [[], [torch.ones(4)], [1.0, torch.ones(4)], [torch.ones(4), "k"]])
def test_what_does_not_fit_is_refused_in_the_same_words(given: list[Any]) -> None:
    call, slow = both(scaled())
    said = []
    for each in (call, slow):
        with pytest.raises(Exception) as found:  # noqa: PT011 the kinds are compared
            each(given)
        said.append((found.type, str(found.value)))
    assert said[0] == said[1]


class Marked(Tensor):
    """Not a plain tensor: torch.classes asks it."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Marked.asked += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_other_types_go_through_torch_classes() -> None:
    program = program_of(
        f"%y : {FLOAT} = aten::abs(%x)", inputs=f'%x : {FLOAT} {{user_input "x"}}', output="%y"
    )
    call, slow = both(program)
    x = torch.tensor([-1.0, 2.0, -3.0, 4.0]).as_subclass(Marked)
    Marked.asked = 0
    mine = call([x])
    asked = Marked.asked
    theirs = slow([x])
    assert asked == Marked.asked - asked > 0
    assert type(mine[0]) is type(theirs[0])
    assert torch.equal(mine[0].as_subclass(Tensor), theirs[0].as_subclass(Tensor))


@pytest.fixture(scope="module")
def raising() -> list[Callable[[], None]]:
    """What an operator of Python's does."""
    told: list[Callable[[], None]] = []

    def run(x: Tensor) -> Tensor:
        told[0]()
        return x + 1

    library.define("told(Tensor x) -> Tensor")
    library.impl("told", run, "CompositeExplicitAutograd")
    return told


def told_program() -> Any:
    return program_of(
        f"%y : {FLOAT} = direct_calls::told(%x)",
        inputs=f'%x : {FLOAT} {{user_input "x"}}',
        output="%y",
    )


@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, StopIteration, NotImplementedError]
)
def test_what_an_operator_raises_comes_out_as_by_torch_classes(
    raising: list[Any], kind: type[BaseException]
) -> None:
    def fail() -> None:
        raise kind("as told")

    raising[:] = [fail]
    call, slow = both(told_program())
    said = []
    for each in (call, slow):
        with pytest.raises(BaseException) as found:  # noqa: PT011 the kinds are compared
            each([torch.ones(4)])
        said.append((found.type, str(found.value)))
    assert said[0] == said[1]
    assert said[0][0] is kind
    raising[:] = [lambda: None]
    assert torch.equal(call([torch.ones(4)])[0], torch.full((4,), 2.0))


def test_warnings_are_pythons_and_may_be_errors(raising: list[Any]) -> None:
    raising[:] = [lambda: torch._C._warn()]
    call, slow = both(told_program())
    for each in (call, slow):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert torch.equal(each([torch.ones(4)])[0], torch.full((4,), 2.0))
        assert len(found) == 1 and "Test message" in str(found[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="Test message"):
                each([torch.ones(4)])


def test_nothing_is_held_behind_a_call() -> None:
    call, slow = both(scaled())
    x, given = torch.ones(4), None
    number = 2.5e300
    for _ in range(6):
        call([x, 2.0])
    kept = sys.getrefcount(x), sys.getrefcount(number), sys.getrefcount(None)
    for _ in range(100):
        given = [x, number]
        call(given)
    mine, theirs = call([x, number]), slow([x, number])
    assert sys.getrefcount(mine) == sys.getrefcount(theirs)
    assert sys.getrefcount(mine[0]) == sys.getrefcount(theirs[0])
    del given, mine, theirs
    found = sys.getrefcount(x), sys.getrefcount(number), sys.getrefcount(None)
    assert found[:2] == kept[:2]
    assert abs(found[2] - kept[2]) < 50


def test_a_call_keeps_its_program_and_lets_it_go() -> None:
    program = scaled()
    call = direct(program, "run", "step")
    del program
    gc.collect()
    x = nn.Parameter(torch.ones(4))
    gone = weakref.ref(x)
    assert torch.equal(call([x, 2.0])[0], torch.full((4,), 2.0))
    del x, call
    gc.collect()
    assert gone() is None


def test_without_pythons_functions_torch_classes_is_called() -> None:
    program = scaled()

    class Without:
        run, report_parked = staticmethod(program.run), staticmethod(program.report_parked)

        def direct_call(self, *_: Any) -> int:
            return 0

    call = direct(Without(), "run", "step")
    assert isinstance(call, functools.partial)
    assert torch.equal(call([torch.ones(4), 2.0])[0], torch.full((4,), 2.0))


class Equal:
    """Says that it is equal to all."""

    def __eq__(self, _: object) -> bool:
        raise AssertionError("nobody may ask")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("same", [same_objects(), direct_calls._same], ids=["native", "python"])
def test_objects_are_compared_by_what_they_are(same: Callable[[Any, list[Any]], bool]) -> None:
    one, two = Equal(), Equal()
    assert same([one, two], [one, two])
    assert not same([one, two], [two, one])
    assert not same([one], [one, two])
    assert not same([one, two], [one])
    assert same([], [])
    assert same({"a": one, "b": two}, ["a", one, "b", two])
    assert not same({"a": one, "b": two}, ["b", two, "a", one])
    assert not same({"a": one}, ["a", two])
    assert not same({"a": one}, ["b", one])
    assert not same({"a": one}, ["a", one, "b", two])
    assert same({}, [])
    assert not same((one,), [one])


def test_values_of_counters_are_told_apart_by_their_bits() -> None:
    read = distinct_values()
    counters = [torch.tensor(v) for v in (3.0, 3.0, 0.0, -0.0, float("nan"), 3.0)]
    values = read(counters)
    assert values is not None
    assert [str(v) for v in values] == ["3.0", "0.0", "-0.0", "nan"]
    assert read([torch.tensor(0.1)]) == [torch.tensor(0.1).item()]
    for other in (torch.ones(1), torch.tensor(1), torch.tensor(1.0, dtype=torch.bfloat16), None):
        assert read([torch.tensor(1.0), other]) is None


def test_who_comes_to_share_memory_is_seen_from_call_to_call() -> None:
    apart = memory_watch(3, [0])
    tensors = tuple(torch.zeros(8) for _ in range(3))
    assert apart(tensors) and apart(tensors)
    tensors[2].data = tensors[1].data  # neither is written
    assert apart(tensors)
    for other in (tensors[0].data, tensors[0].data[7:], torch.from_numpy(tensors[0].numpy())):
        tensors[2].data = other
        assert not apart(tensors)
        assert not apart(tensors)
        tensors[2].data = torch.zeros(8)
        assert apart(tensors)
    for others in (tensors[:2], [*tensors], (*tensors[:2], 1)):
        assert not apart(others)
    for without_memory in (torch.zeros(8).to_sparse(), None):
        assert apart((*tensors[:2], without_memory))
    assert sys.getrefcount(tensors[0]) == sys.getrefcount(tensors[1])
