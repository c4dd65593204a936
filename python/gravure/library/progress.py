"""A bar in a terminal for what takes longer than two seconds; nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .namespace import LIBRARY

_PATIENCE = 2.0  # seconds before anything is shown

LIBRARY.define("progress(str what, int done, int total) -> ()")


def _is_watched() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # none, or closed
        return False


class _Shown:
    """What is drawn: one line, of the innermost thing under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: list[str] = []
        self._timer: threading.Timer | None = None
        self._bar: Any = None
        self._task: Any = None

    def enter(self, what: str) -> None:
        with self._lock:
            self._under_way.append(what)
            if self._bar is not None:
                self._bar.update(self._task, description=what)
            elif self._timer is None:
                self._timer = threading.Timer(_PATIENCE, self._begin)
                self._timer.daemon = True
                self._timer.start()

    def leave(self, what: str) -> None:
        with self._lock:
            self._under_way.remove(what)
            if self._under_way:
                if self._bar is not None:
                    self._bar.update(self._task, description=self._under_way[-1])
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._end()

    def count(self, what: str, done: int, total: int) -> None:
        """`total` 0: it is over."""
        with self._lock:
            if total:
                if self._bar is None:
                    self._start(what)
                if self._bar is not None:
                    self._bar.update(self._task, description=what, completed=done, total=total)
            elif not self._under_way:
                self._end()

    def _begin(self) -> None:
        with self._lock:
            self._timer = None
            if self._under_way and self._bar is None:
                self._start(self._under_way[-1])

    def _start(self, what: str) -> None:
        bar = _bar()
        if bar is None:
            return
        bar.start()
        self._bar, self._task = bar, bar.add_task(what, total=None)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def _bar() -> Any:
    """None without rich."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )
    except ImportError:
        return None
    return Progress(
        TextColumn("gravure: {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )


_shown = _Shown()


@contextlib.contextmanager
def under_way(what: str) -> Iterator[None]:
    """Says `what` in a terminal, once it has lasted two seconds, and to a profiler."""
    with torch.profiler.record_function(f"gravure: {what}"):
        if not _is_watched():
            yield
            return
        _shown.enter(what)
        try:
            yield
        finally:
            _shown.leave(what)


@torch.library.impl(LIBRARY, "progress", "CompositeImplicitAutograd")
def _progress(what: str, done: int, total: int) -> None:
    if _is_watched():
        _shown.count(what, done, total)
