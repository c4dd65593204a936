"""What became of each compiled graph: `gravure.report()`, and GRAVURE_REPORT=path at exit."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from .calls import reports
from .calls.live_graphs import followed
from .calls.reports import GraphReport

_PROCESS = os.getpid()


@dataclass
class Report:
    """Every compiled graph that lives; `str` of it is for reading."""

    graphs: list[GraphReport]
    choices: list[str] = field(init=False)  # what is in force, and what another choice would bring

    def __post_init__(self) -> None:
        made = {graph.kernels for graph in self.graphs if graph.programs}
        self.choices = reports.choices(made, sum(bool(g.graph_break) for g in self.graphs))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.graphs), *self.choices]) or "no compiled graph"

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def report() -> Report:
    """Plan and counts of every compiled graph that is alive."""
    return _in_order(graph.report() for graph in followed())


def _in_order(graphs: Iterable[GraphReport]) -> Report:
    return Report(sorted(graphs, key=lambda graph: graph.number))


def _at_exit() -> None:
    """Writes the report, then ends programs while the device still lives."""
    if os.getpid() != _PROCESS:
        return  # a forked child: programs and report are its parent's
    found = _in_order([*reports.ended, *(graph.whole_report() for graph in followed())])
    if reports.WRITTEN_TO:
        text = found.as_json() if reports.WRITTEN_TO.endswith(".json") else f"{found}\n"
        with open(reports.WRITTEN_TO, "w") as file:
            file.write(text)
    for graph in followed():
        graph.shutdown()


atexit.register(_at_exit)
