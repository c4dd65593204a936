"""Warnings that come once for each reason."""

from __future__ import annotations

import logging

logger = logging.getLogger("gravure")


class SaidOnce:
    """Why something runs as it is."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def __call__(self, reason: str, message: str, *names: str) -> None:
        """`message` has a `%s` for each of `names`, and a last one for the reason."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            logger.warning(message, *names, reason)
