"""What a step does outside of graphs, by the clock: from the end of one graph of Dynamo's until the
next one is called, and from one step to the next (the option `times`).

The programs have clocks of their own, in the library. Between two graphs runs the user's Python,
and only the calls on both sides show how long that takes.
"""

from __future__ import annotations

import functools
import inspect
import os
import statistics
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from types import CodeType
from typing import Any

_KEPT = 96  # lengths of steps


class _Last(threading.local):
    """Of this thread: the clocks of the graph that a step began with, and of the one that was
    called last; when that call ended, in nanoseconds."""

    first: StepClock | None = None
    clock: StepClock | None = None
    ended = 0


_last = _Last()


class StepClock:
    """Of one graph. Between graphs the least counts, since the first steps compile."""

    def __init__(self, frame: str, *, ends_at: str, resumes_at: str) -> None:
        """`frame`: what graphs of the same code, for other sizes, have in common. `ends_at`: the
        line where Dynamo ended it before its function did; `resumes_at`: the one that it goes on
        behind; "" for none."""
        self._frame = frame
        self._ends_at = ends_at.rpartition("/")[2]
        self._resumes_at = resumes_at
        self._began = 0
        self._calls = 0
        self._steps = 0  # that began with it
        self._lengths: deque[int] = deque(maxlen=_KEPT)  # nanoseconds from one to the next
        self._outside: dict[str, list[int]] = {}  # by line: how often, and nanoseconds

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, timed."""

        def timed(*args: Any) -> Any:
            self._begin(perf_counter_ns())
            try:
                return call(*args)
            finally:
                _last.clock, _last.ended = self, perf_counter_ns()

        return timed

    def _begin(self, now: int) -> None:
        self._calls += 1
        before, first = _last.clock, _last.first
        line = self._resumes_at or (before._ends_at if before is not None else "")
        if line and not self._resumes_at and not _is_running(line):
            line = ""  # another model, say: what lies between is the loop's
        if before is not None and line and first is not None and first._frame != self._frame:
            known = self._outside.setdefault(line, [0, 0])
            known[0] += 1
            known[1] = _least(known[1], now - _last.ended)
            return
        # A step begins. What its last graph was followed by may be the loop's: nobody knows where
        # the function ended.
        self._steps += 1
        if self._began:
            self._lengths.append(now - self._began)
        _last.first, self._began = self, now

    def read(self) -> dict[str, Any]:
        """What `GraphReport.times` of reports.py describes."""
        # Another thread may be in a step.
        outside = {line: list(known) for line, known in list(self._outside.items())}
        latest = self._latest()
        return {
            "calls": self._calls,
            "steps": self._steps,
            "step_ns": int(statistics.median(latest)),
            "longest_ns": max(latest),
            "outside": outside,
        }

    def _latest(self) -> list[int]:
        """Lengths of the last steps, when all is captured that will be, and a GPU's queue is full:
        before that a thread may be ahead of it."""
        return list(self._lengths)[-max(1, len(self._lengths) // 3) :] or [0]


def _is_running(line: str) -> bool:
    """Whether the function that has this line called what runs now."""
    frame = inspect.currentframe()
    while frame is not None:
        if line in _own_lines(frame.f_code):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=1024)
def _own_lines(code: CodeType) -> frozenset[str]:
    """Those of this function's own code, without those of functions in it: "model.py:12"."""
    file = os.path.basename(code.co_filename)
    return frozenset(f"{file}:{line}" for _, _, line in code.co_lines())


def _least(known: int, time: int) -> int:
    return min(known, time) if known else time
