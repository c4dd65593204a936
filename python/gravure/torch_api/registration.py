"""Makes `torch.compile(backend="gravure")` find the backend, installed or not.

Private: `registry`, whose `_BACKENDS` holds entry points that are not loaded yet. Without it the
name is known only where the wheel is installed. `torch._TorchCompileWrapper`, which holds a
backend's options from torch.compile() until the first call: it is made to have the backend check
them. Without it a wrong option is an error of that call, inside of a BackendCompilerFailed.
"""

from __future__ import annotations

import functools
import logging
from importlib.metadata import EntryPoint
from typing import Any

import torch

from . import private_names

logger = logging.getLogger("gravure")

_ENTRY_POINT = EntryPoint("gravure", "gravure.backend:compile_graph", "torch_dynamo_backends")


def register() -> None:
    """Registers what the wheel's own entry point says.

    An installed entry point is loaded and then registered by PyTorch, which refuses a second
    registration: so here too it is the entry point that is known, not the function.
    """
    try:
        private_names.registry._BACKENDS.setdefault(_ENTRY_POINT.name, _ENTRY_POINT)
    except private_names.MissingName as error:
        logger.debug("%s", error)
    _check_where_given()


def _check_where_given() -> None:
    """A backend with `gravure_check` is asked about its options when torch.compile() is called."""
    wrapper = getattr(torch, "_TorchCompileWrapper", None)
    if wrapper is None or hasattr(wrapper.__init__, "gravure"):
        return
    given = wrapper.__init__

    @functools.wraps(given)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given(self, *args, **kwargs)
        check = getattr(self.compiler_fn, "gravure_check", None)
        if check is not None:
            check(**self.kwargs)

    init.gravure = True  # type: ignore[attr-defined]
    wrapper.__init__ = init
