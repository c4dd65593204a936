"""What tlparse shows among a compilation's artifacts (TORCH_TRACE).

Private: `trace_structured`, which writes them where a trace was asked for. Without it tlparse finds
nothing of Gravure's.
"""

from __future__ import annotations

from collections.abc import Callable

from . import private_names


def add_artifact(name: str, text: Callable[[], str]) -> None:
    """`name`: "gravure_plan". `text` is asked only where somebody wants a trace."""
    if not private_names.is_there("trace_structured"):
        return
    private_names.trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "string"},
        payload_fn=text,
        expect_trace_id=False,
    )
