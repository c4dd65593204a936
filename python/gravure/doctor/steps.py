"""What the programs of the process did in each step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..calls.compiled_graph import CompiledGraph
from ..calls.live_graphs import followed

_COUNTED = ("steps", "uncaptured_steps", "captures", "replays")


@dataclass
class Done:
    """What one step did: runs of entries, and of them those that were not replays."""

    number: int  # from 1
    runs: int = 0
    uncaptured: int = 0
    captures: int = 0
    new_graphs: list[CompiledGraph] = field(default_factory=list)
    remarks: list[dict[str, Any]] = field(default_factory=list)  # the runtime's, made in it
    # Those of programs that ran uncaptured in it, whenever they were made: each is made once.
    standing: list[dict[str, Any]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        if self.new_graphs:
            return "compiled"
        if not self.runs:
            return "no program ran"
        if self.uncaptured:
            return "uncaptured"
        return "captured" if self.captures else "replayed"


class Programs:
    """Counts of all programs, from step to step."""

    def __init__(self) -> None:
        self._graphs = {graph.number for graph in followed()}
        self._counts, self._remarks = _read()

    def look(self, number: int) -> Done:
        """Behind a step."""
        done = Done(number)
        counts, remarks = _read()
        for key, now in counts.items():
            was = self._counts.get(key, dict.fromkeys(_COUNTED, 0))
            done.runs += now["steps"] - was["steps"]
            uncaptured = now["uncaptured_steps"] - was["uncaptured_steps"]
            done.uncaptured += uncaptured
            done.standing += remarks[key] if uncaptured else []
            done.captures += now["captures"] - was["captures"]
        for key, made in remarks.items():
            done.remarks += made[len(self._remarks.get(key, ())) :]
        done.new_graphs = [g for g in followed() if g.number not in self._graphs]
        self._graphs |= {graph.number for graph in done.new_graphs}
        self._counts, self._remarks = counts, remarks
        return done


def _read() -> tuple[dict[int, dict[str, int]], dict[int, list[dict[str, Any]]]]:
    counts: dict[int, dict[str, int]] = {}
    remarks: dict[int, list[dict[str, Any]]] = {}
    for graph in followed():
        for instance in graph.all_instances():
            program = instance.program
            if program is None:
                continue
            stats = dict(program.stats())
            counts[id(program)] = {name: stats[name] for name in _COUNTED}
            made = json.loads(program.remarks_json())
            runtime = [r for r in made if r["pass"] == "runtime" and r["kind"] == "missed"]
            remarks[id(program)] = runtime
    return counts, remarks


def strip(steps: Sequence[Done]) -> str:
    """`1 compiled, 2-3 uncaptured, 4 captured, 5-12 replayed`."""
    found: list[str] = []
    begin = 0
    for i in range(1, len(steps) + 1):
        if i < len(steps) and steps[i].kind == steps[begin].kind:
            continue
        first, last = steps[begin].number, steps[i - 1].number
        found.append(f"{first}{f'-{last}' if last > first else ''} {steps[begin].kind}")
        begin = i
    return ", ".join(found)


def counted(steps: Sequence[Done], kind: str) -> int:
    return Counter(step.kind for step in steps)[kind]
