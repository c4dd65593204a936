"""Numbers that Python computes with while a graph is recorded: each becomes a node of the graph.

A number has two values. Python decides by the real one: comparisons and branches. What it hands to
an operator is a mark, another double for each number, by which it is known again behind PyTorch's
argument parsers, which take a float and forget which one it was.
"""

from __future__ import annotations

import contextlib
import math
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx

from ..errors import ExportError

OWN_STEP = "its own step runs"  # the remedy of all that is refused

_FIRST_MARK = 0.25  # marks lie in front of 0.5, so that an operator's checks of its arguments pass
_DISTANCE = 2.0**-40  # between two marks


class Unrecorded(ExportError):
    """What the recorded code does cannot be a program."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        refused = getattr(_here, "refused", None)
        if refused is not None:  # the recorded code may catch it
            refused.append(self)


_here = threading.local()


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Raises at its end what was refused within, where the code caught it."""
    before = getattr(_here, "refused", None)
    refused: list[Unrecorded] = []
    _here.refused = refused
    try:
        yield
    finally:
        _here.refused = before
    if refused:
        raise refused[0]


class NumberBook:
    """The numbers of one graph, and the conditions on them that its code branched on."""

    def __init__(self, graph: fx.Graph, shift: int) -> None:
        """`shift`: another one gives other marks."""
        self.graph = graph
        self.conditions: list[str] = []  # Python, of the inputs `n[i]` and the counters `c[i]`
        self._last_mark = _FIRST_MARK + shift * 2.0**-12
        self._of_mark: dict[float, Number] = {}

    def make(
        self, node: fx.Node, real: float, source: str | None, *, whole: bool = False
    ) -> Number:
        """A number whose value is `real`, and which `node` computes.

        `source`: an expression of Python's for it, of `n` and `c` as in conditions; None where only
        the program can compute it. `whole`: Python has an int there.
        """
        self._last_mark += _DISTANCE
        number = Number(self._last_mark)
        number.book, number.node, number.real, number.source = self, node, real, source
        number.whole = whole
        node.meta["val"] = real
        self._of_mark[self._last_mark] = number
        return number

    def marked(self, value: float) -> Number | None:
        """The number that this mark stands for; None if it is none's."""
        return self._of_mark.get(value)

    def compute(self, function: Callable[..., Any], sign: str, *operands: Any) -> Number:
        """One step of Python's arithmetic. `sign`: how Python writes it, `{}` for each operand.

        Raises Unrecorded where its result would not be the program's; ZeroDivisionError as Python.
        """
        if function is operator.truediv and isinstance(operands[1], Number):
            divisor = operands[1]
            if divisor.source is not None and not divisor:  # the program would go on
                raise ZeroDivisionError("float division by zero")
        if function is operator.pow and all(map(_is_whole, operands)):  # Python's has all digits
            raise Unrecorded("a number of its step", "is an int that is taken to a power", OWN_STEP)
        nodes = [o.node if isinstance(o, Number) else o for o in operands]
        real = function(*[o.real if isinstance(o, Number) else o for o in operands])
        if not isinstance(real, float):
            raise Unrecorded("a number of its step", f"becomes a {type(real).__name__}", OWN_STEP)
        whole = function in _OF_INTS and all(map(_is_whole, operands))
        return self.make(self.graph.call_function(function, tuple(nodes)), real,
                         _source(sign, operands), whole=whole)  # fmt: skip

    def decide(self, function: Callable[..., bool], sign: str, *operands: Any) -> bool:
        """A branch: the graph holds for as long as the condition has the same outcome.

        Raises Unrecorded for one that only the program can decide.
        """
        source = _source(sign, operands)
        if source is None:
            raise Unrecorded(
                "a branch of its step", "depends on a value that the program computes", OWN_STEP
            )
        outcome = bool(function(*[o.real if isinstance(o, Number) else o for o in operands]))
        self.conditions.append(f"bool({source}) is {outcome}")
        return outcome


_OF_INTS = (operator.add, operator.sub, operator.mul, operator.neg)  # an int of ints


def _source(sign: str, operands: tuple[Any, ...]) -> str | None:
    texts = [o.source if isinstance(o, Number) else literal(o) for o in operands]
    return None if None in texts else f"({sign.format(*texts)})"


def literal(value: Any) -> str | None:
    """A number as Python; None for one of another type than Python's own."""
    if type(value) is float:
        return f'float("{value!r}")' if not math.isfinite(value) else f"({value!r})"
    return f"({value!r})" if type(value) in (int, bool) else None


def _is_whole(operand: Any) -> bool:
    return operand.whole if isinstance(operand, Number) else isinstance(operand, int)


def _binary(function: Callable[..., Any], sign: str, *, swapped: bool = False) -> Any:
    def method(self: Number, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        pair = (other, self) if swapped else (self, other)
        return self.book.compute(function, sign, *pair)

    return method


def _compared(function: Callable[..., Any], sign: str) -> Any:
    def method(self: Number, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self.book.decide(function, sign, self, other)

    return method


def _refused(what: str) -> Any:
    def method(self: Number, *_: Any) -> Any:
        raise Unrecorded("a number of its step", what, OWN_STEP)

    return method


class Number(float):
    """A float whose arithmetic is recorded."""

    __slots__ = ("book", "node", "real", "source", "whole")

    book: NumberBook
    node: fx.Node
    real: float
    source: str | None
    whole: bool

    def mark(self) -> float:
        """It as operators see it, for code that hands it on and does nothing else with it."""
        return float.__add__(self, 0.0)

    __add__ = _binary(operator.add, "{} + {}")
    __radd__ = _binary(operator.add, "{} + {}", swapped=True)
    __sub__ = _binary(operator.sub, "{} - {}")
    __rsub__ = _binary(operator.sub, "{} - {}", swapped=True)
    __mul__ = _binary(operator.mul, "{} * {}")
    __rmul__ = _binary(operator.mul, "{} * {}", swapped=True)
    __truediv__ = _binary(operator.truediv, "{} / {}")
    __rtruediv__ = _binary(operator.truediv, "{} / {}", swapped=True)
    __pow__ = _binary(operator.pow, "{} ** {}")
    __rpow__ = _binary(operator.pow, "{} ** {}", swapped=True)

    def __neg__(self) -> Any:
        return self.book.compute(operator.neg, "-{}", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    __eq__ = _compared(operator.eq, "{} == {}")
    __ne__ = _compared(operator.ne, "{} != {}")
    __lt__ = _compared(operator.lt, "{} < {}")
    __le__ = _compared(operator.le, "{} <= {}")
    __gt__ = _compared(operator.gt, "{} > {}")
    __ge__ = _compared(operator.ge, "{} >= {}")

    def __bool__(self) -> bool:
        return self.book.decide(bool, "{}", self)

    # Identity is no number's: a table of numbers would miss another one of the same value.
    __hash__ = _refused("is looked up in a table")  # type: ignore[assignment]
    __int__ = __trunc__ = __index__ = _refused("is made an int")
    __floor__ = __ceil__ = __round__ = _refused("is rounded")
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refused("is divided with a remainder")
    __divmod__ = __rdivmod__ = _refused("is divided with a remainder")
    __float__ = _refused("is made a plain float")
    __repr__ = __str__ = __format__ = _refused("is written as text")
    is_integer = as_integer_ratio = hex = _refused("is taken apart")


_sqrt = math.sqrt
_recordings = 0
_lock = threading.Lock()


def _recorded_sqrt(value: Any, /) -> float:
    if not isinstance(value, Number):
        return _sqrt(value)
    if value < 0.0:
        raise ValueError("math domain error")
    found: float = value.book.compute(_sqrt, "sqrt({})", value)
    return found


@contextlib.contextmanager
def recorded_functions() -> Iterator[None]:
    """Python's own functions of a float know no stand-in: math.sqrt would take the mark. Other
    threads' numbers pass through."""
    global _recordings
    with _lock:
        _recordings += 1
        math.sqrt = _recorded_sqrt
    try:
        yield
    finally:
        with _lock:
            _recordings -= 1
            if _recordings == 0:
                math.sqrt = _sqrt
