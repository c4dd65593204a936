"""What became of each compiled graph: `gravure.report()`, and GRAVURE_REPORT=path at exit."""

from __future__ import annotations

import atexit
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .calls import reports
from .calls.device_pace import device_pace
from .calls.live_graphs import followed, reported
from .calls.reports import GraphReport
from .options import PAGE_AT_EXIT, WRITTEN_TO
from .page.file import write_page, write_text
from .page.graph_words import compiled_anew, remedy_of
from .page.surroundings import settings, versions
from .torch_api.artifacts import add_artifact
from .torch_api.dispatch import not_traced
from .torch_api.left_frames import left_frames, lines_of_calls

logger = logging.getLogger("gravure")
_PROCESS = os.getpid()

_NOT_COMPILED = (
    "call the compiled model or step first. Module.compile() compiles nothing of a class of "
    'PyTorch\'s own, as nn.Sequential: use torch.compile(model, backend="gravure"), or a class of '
    "your own around it"
)


@dataclass
class Report:
    """Every compiled graph that lives; `str` of it is for reading."""

    graphs: list[GraphReport]
    choices: list[str] = field(init=False)  # what is in force, and what another choice would bring
    # Functions without a graph, and where Dynamo gave up, why, and what to write instead.
    skipped: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.skipped = [f"{left}; {remedy_of(left.why)}" for left in left_frames()]
        made = {graph.kernels for graph in self.graphs if graph.programs}
        self.choices = reports.choices(made, sum(bool(g.graph_break) for g in self.graphs))

    def __str__(self) -> str:
        lines = list(map(str, self.graphs))
        if not lines:
            lines = ["no compiled graph" + ("" if self.skipped else f"; {_NOT_COMPILED}")]
        anew = compiled_anew(graph.label for graph in self.graphs)
        lines += [f"{each.location}: {each.what}; {each.remedy}" for each in anew]
        return "\n".join([*lines, *self.skipped, *self.choices])

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


@not_traced
def report(html: str | os.PathLike[str] | None = None) -> Report:
    """Plan and counts of every compiled graph that is alive.

    `html`: a file for a page to look at, which needs nothing else: what is replayed, a step over
    time, what is not captured and what to do about it, the arena. With it, the report's programs
    have their `detail`. Raises OSError, which names the path, where it cannot be written.
    """
    found = _in_order(graph.report(detailed=html is not None) for graph in reported())
    if html is not None:
        write_page(html, _page(found.graphs))
    return found


def write_program(
    path: str | os.PathLike[str], name: str, program: Any, options: Mapping[str, Any]
) -> None:
    """The page of one program that is of no compiled graph. Raises as `report`."""
    graph = GraphReport(0, name, "", [reports.report_of_program(program, detailed=True)])
    graph.kernels, graph.options = "", dict(options)
    write_page(path, _page([graph]) | {"title": f"Report of {name}", "skipped": []})


def _in_order(graphs: Iterable[GraphReport]) -> Report:
    return Report(sorted(graphs, key=lambda graph: graph.number))


def _page(graphs: Sequence[GraphReport]) -> dict[str, Any]:
    return {
        "title": "Report of a training run",
        "nothing": (
            "No graph was compiled. Call the compiled model or step first: "
            'torch.compile(model, backend="gravure"), or gravure.compile_step.'
        ),
        "graphs": [asdict(graph) for graph in graphs],
        "skipped": list(left_frames()),
        "calls": lines_of_calls(),
        "settings": settings(graph.options for graph in graphs),
        "versions": versions(),
        "pace": _pace(graphs),
    }


def _pace(graphs: Sequence[GraphReport]) -> dict[str, float]:
    """What times are predicted with, of the GPU; empty where nothing was timed, or on the host."""
    timed = any(program.call_times for graph in graphs for program in graph.programs)
    try:
        return device_pace() if timed else {}
    except RuntimeError as error:  # as where somebody captures, or the GPU is lost
        logger.warning("the page predicts no time of a step: %s", error)
        return {}


def _at_exit() -> None:
    """Writes the report, then ends programs while the device still lives."""
    if os.getpid() != _PROCESS:
        return  # a forked child: programs and report are its parent's
    try:
        add_artifact("gravure_report", lambda: str(_in_order(g.report() for g in reported())))
        if WRITTEN_TO:
            _write(WRITTEN_TO)
    except Exception as error:  # the training is done, and its exit status is its own
        logger.warning("GRAVURE_REPORT: %s", error)
    finally:
        for graph in followed():
            graph.shutdown()


def _write(path: str) -> None:
    found = _in_order([*reports.ended, *(graph.whole_report() for graph in reported())])
    if PAGE_AT_EXIT:
        write_page(path, _page(found.graphs))
    else:
        write_text(path, found.as_json() if path.endswith(".json") else f"{found}\n")


def _check_place(path: str) -> None:
    """Said now, and not after a day of training."""
    folder = Path(path).parent
    if Path(path).is_dir():
        logger.warning("GRAVURE_REPORT: there will be no report: %s is a folder; name a file", path)
    elif not folder.is_dir():
        logger.warning("GRAVURE_REPORT: there will be no report: there is no folder %s", folder)
    elif not os.access(folder, os.W_OK | os.X_OK):
        logger.warning("GRAVURE_REPORT: there will be no report: %s cannot be written to", folder)


if WRITTEN_TO:
    _check_place(WRITTEN_TO)
atexit.register(_at_exit)
