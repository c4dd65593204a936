"""Where and why Dynamo ended a graph before the function did, and what keeps it whole."""

from __future__ import annotations

import logging

from torch import fx

from ..graphs.names import FrameNamer
from ..text.source_lines import Locations
from ..torch_api import numpy_draws
from ..torch_api.dynamo import Break, break_of
from ..torch_api.whether_compiled import REMEDY, asks

logger = logging.getLogger("gravure")

_READS = "torch._dynamo.config.capture_scalar_outputs"
_said: set[str] = set()


def located_break(graph: fx.GraphModule) -> str:
    """ "model.py:12: why", "" where Dynamo's `graph` ends with its function."""
    found = break_of(graph)
    return f"{_location(found)}: {found.why}" if found else ""


def graph_break_of(graph: fx.GraphModule, label: str) -> str:
    """ "model.py:12: why; remedy", "" where Dynamo's `graph` ends with its function.

    Where a setting or an option would let the graph go on, that is warned of, once a location: a
    read on the host, NumPy's draws, and a branch that code takes only where it isn't told that it
    is compiled.
    """
    found = break_of(graph)
    if found is None:
        return ""
    frame = found.frames[-1] if found.frames else None
    location = _location(found)
    if _READS in found.details:
        text = (
            f"{location}: a value is read on the host; set {_READS} = True, or compile with "
            "fullgraph=True: the graph then goes on, and only the read is left out of capture"
        )
    elif numpy_draws.SETTING in found.details:
        text = f"{location}: {numpy_draws.WHY}; {numpy_draws.REMEDY}"
    elif found.why.startswith("Data-dependent") and frame and asks(frame):
        text = f"{location}: {found.why}; to go on, {REMEDY}"
    else:
        return f"{location}: {found.why}"
    if text not in _said:
        _said.add(text)
        logger.warning("%s is cut in two by Dynamo at %s", label, text)
    return text


def _location(found: Break) -> str:
    frame = found.frames[-1] if found.frames else None
    return Locations(FrameNamer()).line(frame.filename, frame.lineno) if frame else "?"
