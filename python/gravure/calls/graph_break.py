"""Where and why Dynamo ended a graph, or would have, before its function ends; what helps."""

from __future__ import annotations

import logging
from dataclasses import replace

from torch import fx

from ..graphs.names import FrameNamer
from ..options import CompileOptions
from ..text.source_lines import Locations
from ..torch_api import chosen_formulas, effects_alone, numpy_draws
from ..torch_api.dynamo import Break, break_of
from ..torch_api.whether_compiled import REMEDY, asks, told_the_truth_for

logger = logging.getLogger("gravure")

_READS = "torch._dynamo.config.capture_scalar_outputs"
_CURES = {
    chosen_formulas.WHY: chosen_formulas.REMEDY,
    effects_alone.WHY: effects_alone.REMEDY,
}
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
    elif found.why in _CURES:
        return f"{location}: {found.why}; {_CURES[found.why]}"
    else:
        return f"{location}: {found.why}"
    if text not in _said:
        _said.add(text)
        logger.warning("%s is cut in two by Dynamo at %s", label, text)
    return text


def as_told(options: CompileOptions, label: str) -> CompileOptions:
    """In a backend's call: the options of this graph, with what its code was told.

    Where that is the truth, since eager's way branches on data, a warning says so, once a location.
    """
    branch = told_the_truth_for()
    if branch is None:
        return options
    location = Locations(FrameNamer()).line(*branch)
    text = (
        f"{location}: eager's way branches on data; code that asks whether it is compiled was told "
        'so, and the graph goes on. Leave the way to eager by options={"is_compiling": False}: '
        "the graph then ends there"
    )
    if text not in _said:
        _said.add(text)
        logger.warning("%s takes the way of compiled code at %s", label, text)
    return replace(options, is_compiling=True)


def _location(found: Break) -> str:
    frame = found.frames[-1] if found.frames else None
    return Locations(FrameNamer()).line(frame.filename, frame.lineno) if frame else "?"
