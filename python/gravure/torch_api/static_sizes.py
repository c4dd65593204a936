"""Every size of a step is a number, whichever threads run steps at once.

`torch.compile(dynamic=False)` changes two of Dynamo's settings around each call, and puts back what
it found. The settings are the whole process's: of two threads the later one finds what the earlier
one has set, and puts that back for good.

Private: `make_set_enable_dynamic` changes these two. Without it a second shape of a step has
symbols for sizes, which a step's program cannot hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch._dynamo.eval_frame import make_set_enable_dynamic


class _StaticSizes:
    """Held while a step is called: the first to come sets them, the last to go puts them back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._set: Callable[[], Callable[[], None]] = make_set_enable_dynamic(False)
        self._put_back: Callable[[], None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._put_back = self._set()
            self._inside += 1

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._put_back is not None:
                self._put_back()


static_sizes = _StaticSizes()
