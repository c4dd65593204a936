"""What cannot be exported, and what to do about it."""

from __future__ import annotations


def reason_and_cure(text: str) -> tuple[str, str]:
    """The two of a text of the library's: `reason; cure`."""
    reason, _, cure = text.partition("; ")
    return reason, cure


class ExportError(RuntimeError):
    """A function cannot become a program.

    The message names the node (or the value) that stands in the way, the reason, and a remedy;
    `source` is the user's line, where one is known.
    """

    def __init__(self, node: str, reason: str, remedy: str, source: str = "") -> None:
        location = f" at {source}" if source else ""
        super().__init__(f"cannot export {node}{location}: {reason}; {remedy}")
        self.node = node
        self.reason = reason
        self.remedy = remedy
        self.source = source
