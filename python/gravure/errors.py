"""What cannot be exported, and what to do about it; errors of a run, as eager raises them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_DISTRIBUTED = ("DistError", "DistBackendError", "DistNetworkError", "DistStoreError")
# By their names in c10, as torch/csrc/Exceptions.h has them.
_TYPES: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "ValueError": ValueError,
    "TypeError": TypeError,
    "NotImplementedError": NotImplementedError,
    "OutOfMemoryError": torch.OutOfMemoryError,
    "LinAlgError": torch.linalg.LinAlgError,
}
if torch.distributed.is_available():
    _TYPES |= {name: getattr(torch.distributed, name) for name in _DISTRIBUTED}


def raising_as_eager(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, a method of a program of the library's, with errors of the types that eager raises.

    By itself such a method raises RuntimeError whatever was thrown.
    """

    def call(*args: Any) -> Any:
        try:
            return run(*args)
        except RuntimeError as error:
            kind = _TYPES.get(torch.classes.gravure.Program.take_error_kind())
            if kind is None:
                raise
            raise kind(*error.args) from None

    return call


class ExportError(RuntimeError):
    """A function cannot become a program.

    The message names the node (or the value) that stands in the way, the reason, and a remedy;
    `source` is the user's line, where one is known.
    """

    def __init__(self, node: str, reason: str, remedy: str, source: str = "") -> None:
        place = f" at {source}" if source else ""
        super().__init__(f"cannot export {node}{place}: {reason}; {remedy}")
        self.node = node
        self.reason = reason
        self.remedy = remedy
        self.source = source
