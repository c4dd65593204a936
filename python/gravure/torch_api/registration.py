"""Makes `torch.compile(backend="gravure")` find the backend, installed or not.

Private: `registry`, whose `_BACKENDS` holds entry points that are not loaded yet. Without it the
name is known only where the wheel is installed.
"""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint

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
