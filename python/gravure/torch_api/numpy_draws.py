"""NumPy's random numbers stay NumPy's: Dynamo breaks the graph where code draws from `np.random`.

Dynamo would draw from PyTorch's generator in place of NumPy's: other numbers than eager's, and both
generators go on otherwise.

Private: Dynamo's `NumpyVariable` calls functions of NumPy, and looks at the setting
`use_numpy_random_stream` of `_dynamo`. Without it such a graph has other numbers than eager's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .private_names import NumpyVariable, _dynamo

SETTING = "use_numpy_random_stream"
WHY = "NumPy draws a random number here"
REMEDY = "draw outside of the compiled function and pass the numbers in, or draw with torch"


def draw_from_numpy(is_ours: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    NumpyVariable.call_function = _drawing(NumpyVariable.call_function, is_ours)


def _drawing(call: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(tx.output.compiler_fn):
            return call(self, tx, *args, **kwargs)
        with _dynamo.config.patch({SETTING: True}):
            return call(self, tx, *args, **kwargs)

    return called
