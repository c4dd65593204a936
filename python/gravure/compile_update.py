"""`gravure.compile_update(fn)`: a change of tensors in place, without gradients, as a program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .compile_optimizer import NOT_FOR_OPTIMIZERS
from .options import CompileOptions
from .steps.update_function import UpdateFunction

Fn = TypeVar("Fn", bound=Callable[..., None])


def compile_update(fn: Fn, *, options: Mapping[str, Any] | None = None) -> Fn:
    """`fn`, which changes tensors among its arguments in place, as a program of its operators.

    In eager's bits, without gradients. `fn(*args, **kwargs)` takes tensors, floats, and lists,
    tuples and dictionaries of them; floats are read at each call, and whatever else it is given
    (an int, a string, None), or its code reads elsewhere (`self.decay`, a closure, a global), has a
    program for each value. It returns None:

        @gravure.compile_update
        def average(averages, parameters, decay):
            torch._foreach_lerp_(averages, parameters, 1 - decay)

        AveragedModel(model, multi_avg_fn=gravure.compile_update(get_ema_multi_avg_fn(0.999)))

    What cannot be a program (a tensor that is no argument, random numbers, a branch on a tensor, a
    result) runs as it is, and a warning says why, once. Raises TypeError for what is no function,
    ValueError for an option that there is not.
    """
    if not callable(fn):
        raise TypeError(f"compile_update takes a function, not a {type(fn).__name__}")
    for name in (*NOT_FOR_OPTIMIZERS, "results"):
        if name in (options or {}):
            raise ValueError(f"compile_update takes no option {name!r}")
    update = UpdateFunction(fn, CompileOptions.parse(options))

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return update(args, kwargs)

    call.gravure_update = update  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
