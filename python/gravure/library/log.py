"""What the C++ library tells its user: lines of the logger "gravure"."""

from __future__ import annotations

import logging

import torch

from ..alike_remarks import grouped
from .namespace import LIBRARY

logger = logging.getLogger("gravure")

LIBRARY.define("log(int level, str[] messages) -> ()")


@torch.library.impl(LIBRARY, "log", "CompositeImplicitAutograd")
def _log(level: int, messages: list[str]) -> None:
    if logger.isEnabledFor(level):
        for message in grouped(messages):
            logger.log(level, "%s", message)
