"""What Dynamo changes of the whole process around the call of a step, whichever threads run steps.

`torch.compile` changes these around each call, and puts back what it found. Of two threads whose
calls overlap the later one finds what the earlier one has set, and puts that back for good:

- `dynamic=False` sets two settings, so that every size is a number;
- up to 2.11 `fullgraph=True` has Dynamo skip whatever frames are called inside. Left so, it
  compiles nothing any more behind a graph break, for anybody in the process, and says nothing. From
  2.12 on each thread has a setting of its own.

Private: `make_set_enable_dynamic` changes the first two. Without it a second shape of a step has
symbols for sizes, which a step's program cannot hold. `set_eval_frame_override` is the third, of
`_EvalFrameOverride`'s values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .private_names import (
    _EvalFrameOverride,
    is_there,
    make_set_enable_dynamic,
    set_eval_frame_override,
)

_IS_PER_PROCESS = is_there("set_eval_frame_override")


def frames_inside() -> Any:
    """What Dynamo does now with frames that are called inside of what it compiled; up to 2.11."""
    if not _IS_PER_PROCESS:
        return None
    found = set_eval_frame_override(_EvalFrameOverride.NONE)
    set_eval_frame_override(found)
    return found


class _StepSettings:
    """Held while a step is called: the first to come sets them, the last to go puts them back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._compiles_inside = True
        self._set: Callable[[], Callable[[], None]] | None = None
        self._put_back: Callable[[], None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._set = self._set or make_set_enable_dynamic(False)
                self._put_back = self._set()
                self._compiles_inside = _IS_PER_PROCESS and (
                    frames_inside() == _EvalFrameOverride.NONE
                )
            self._inside += 1

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside or self._put_back is None:
                return
            self._put_back()
            if self._compiles_inside:
                set_eval_frame_override(_EvalFrameOverride.NONE)


step_settings = _StepSettings()
