"""Whose fault it is where AOTAutograd's call ends in an error.

Private: `TorchDynamoException` is what Dynamo itself acts on, as are the errors of a stand-in that
is asked for what it has not (`exceptions_allowed_to_be_fallback`). Without them a graph that Dynamo
would cut runs as it is.
"""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb

import torch

from ..errors import ExportError
from .private_names import (
    MissingName,
    TorchDynamoException,
    exceptions_allowed_to_be_fallback,
    warn_of,
)

_OURS = str(Path(__file__).parent.parent)
_CALLS_AOT = str(Path(__file__).with_name("aot_autograd.py"))


def is_of_aot(error: Exception) -> bool:
    """Whether AOTAutograd, or the code that it traces, raised it, and nothing of ours: eager may
    run such a graph.

    Only the files of the traceback tell. The error may be of any class, and AOTAutograd calls code
    of ours in many places: compilers, the partitioner, decompositions, stand-ins of operators.
    """
    if isinstance(error, (ExportError, torch.OutOfMemoryError, MemoryError, *_dynamos())):
        return False
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    if _CALLS_AOT not in files:
        return False
    inside = files[len(files) - files[::-1].index(_CALLS_AOT) :]
    return not any(file.startswith(_OURS) for file in inside)


def _dynamos() -> tuple[type[Exception], ...]:
    try:
        return (TorchDynamoException, *exceptions_allowed_to_be_fallback)
    except MissingName as error:
        warn_of(error)
        return (TorchDynamoException,)
