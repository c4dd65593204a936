"""A graph's first run, and what answers in its place where it fails and eager does not.

A graph is traced by stand-ins without values. Where the stand-in of an operator says other sizes or
strides than its kernel gives, a traced view fails where eager's own code copies. Nothing is
captured by then, so eager can answer, if nothing that it would read was changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..errors import ExportError
from ..torch_api.dynamo_errors import first_line
from ..torch_api.random_states import put_back, states_of_generators

CURE = (
    "give the fake kernel (torch.library.register_fake) of the operator before it the sizes and "
    "strides of the real one, or keep this out of the graph with torch.compiler.disable"
)
# The library says of an operator's error in which call it was: ir/core, describeWithSource().
_CALL = re.compile(r"\bin ((?:%\S+ = )?\w+::\S+(?: at [^\s)]+)?)")
_OURS = str(Path(__file__).parent.parent)
_AROUND = ("/torch/_dynamo/eval_frame.py", "/torch/_compile.py")  # of calls into the library
_TOLD_AS_THEY_ARE = (
    ExportError,
    AssertionError,
    MemoryError,
    torch.OutOfMemoryError,
    torch.AcceleratorError,
)


class FirstRun:
    """What a graph's first run may change, as it was before."""

    def __init__(self, args: Sequence[Any], written: Sequence[int]) -> None:
        """`written`: the arguments that the graph writes into."""
        self._states = states_of_generators()
        self._written = [(args[i], _copied(args[i])) for i in written]

    @classmethod
    def of(cls, args: Sequence[Any], written: Sequence[int]) -> FirstRun | None:
        """None where it cannot be looked at: a graph is being captured, or there is no memory."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None
        try:
            return cls(args, written)
        except (torch.OutOfMemoryError, MemoryError):
            return None

    def put_back(self) -> bool:
        """Has eager find all as it was. False where an argument was written by now."""
        if not all(_have_same_bytes(now, before) for now, before in self._written):
            return False
        put_back(self._states)
        return True


def is_of_operator(error: Exception, *, has_program: bool) -> bool:
    """Whether an operator raised it, or PyTorch's own code around the graph, and not ours.

    Memory that runs out, a device that fails and what Gravure refuses are told as they are. An
    operator's error may be of any other class, as may one of our Python: the library says in its
    text in which call it was, and of an error without that only the file that raised it tells.
    """
    if isinstance(error, _TOLD_AS_THEY_ARE) or "INTERNAL ASSERT" in str(error):
        return False
    if not has_program or _CALL.search(str(error)):
        return True
    file = _innermost(error.__traceback__)
    return not file.startswith(_OURS) and not file.endswith(_AROUND)


def why_it_failed(part: str, error: Exception) -> str:
    """Why a graph runs as it is from now on: how its `part` failed, and the cure."""
    text = f"{type(error).__name__}: {first_line(error)}"
    found = _CALL.search(str(error))
    at = f" (in {found[1]})" if found and found[1] not in text else ""
    whose = ", and eager's did not" if part == "forward" else ""
    return f"its {part} failed in the first run{whose}: {text}{at}; {CURE}"


def _copied(value: Any) -> Tensor | None:
    return value.detach().clone() if isinstance(value, Tensor) else None


def _have_same_bytes(now: Any, before: Tensor | None) -> bool:
    """False, too, where that cannot be asked, as under vmap."""
    if before is None:
        return True
    if now.shape != before.shape or now.dtype != before.dtype:
        return False
    try:
        first, second = (t.detach().contiguous().flatten() for t in (now, before))
        return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
    except RuntimeError:
        return False


def _innermost(traceback: TracebackType | None) -> str:
    files = [frame.f_code.co_filename for frame, _ in walk_tb(traceback)]
    return files[-1] if files else ""
