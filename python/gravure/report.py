"""What became of each compiled graph: `gravure.report()`, and GRAVURE_REPORT=path at exit."""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiled_graph import CompiledGraph
    from .options import CompileOptions
    from .program_maker import Instance

_LIVE: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
ATENS = "ATen's kernels"
_PATIENCE = 3  # runs of a forward before its backward is missed
_PATH = os.environ.get("GRAVURE_REPORT", "")
_PROCESS = os.getpid()
_ended: list[GraphReport] = []  # graphs that are gone, for the report at exit


@dataclass
class ProgramReport:
    """One program of a graph: the one for `sizes`, or the only one."""

    sizes: list[int]
    partitions: dict[str, list[str]]  # by entry, the state of each
    host_nodes: dict[str, int]  # "reason: operator at place", and how many there are
    remarks: dict[str, int]  # what the runtime could not do as planned
    stats: dict[str, int]  # RuntimeStats of runtime/runtime.h
    plan: str = field(repr=False)


@dataclass
class GraphReport:
    """One graph. `failure` says why it runs as it is; "" where it has programs.

    `graph_break` says where Dynamo ended it before its function did, and why; "" where it did not.
    """

    number: int  # graphs are numbered as they are compiled
    label: str
    failure: str
    programs: list[ProgramReport]
    graph_break: str = ""
    kernels: str = ATENS  # or Inductor's, and in which mode


@dataclass
class Report:
    """Every compiled graph that lives; `str` of it is for reading."""

    graphs: list[GraphReport]

    def __str__(self) -> str:
        if not self.graphs:
            return "no compiled graph"
        return "\n".join(line for graph in self.graphs for line in _lines(graph))

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def report() -> Report:
    """Plan and counts of every compiled graph that is alive."""
    return Report(sorted(map(_of_graph, _LIVE), key=lambda graph: graph.number))


def follow(graph: CompiledGraph) -> None:
    """Makes `graph` part of every report, for as long as it lives."""
    _LIVE.add(graph)


def followed() -> list[CompiledGraph]:
    """Those that are alive."""
    return list(_LIVE)


def ending(graph: CompiledGraph) -> None:
    """`graph` is about to go: what became of it is kept, if a report is written at exit."""
    if _PATH:
        _ended.append(_with_ended(graph))


def program_ending(graph: CompiledGraph, instance: Instance) -> None:
    """The same for one of its programs."""
    if _PATH and instance.program is not None:
        graph.ended.append(_of_program(graph, instance))


def _with_ended(graph: CompiledGraph) -> GraphReport:
    living = _of_graph(graph)
    living.programs[:0] = graph.ended
    return living


def _of_graph(graph: CompiledGraph) -> GraphReport:
    made = [i for i in graph.all_instances() if i.program is not None]
    programs = [_of_program(graph, instance) for instance in made]
    kernels = kernels_of(graph.options)
    return GraphReport(
        graph.number, graph.label, graph.failure, programs, graph.graph_break, kernels
    )


def _of_program(graph: CompiledGraph, instance: Instance) -> ProgramReport:
    program, captures = instance.program, instance.captures and not graph.options.uncaptured
    remarks = json.loads(program.remarks_json())
    missed = Counter(missed_otherwise(remarks))
    missed.update(instance.missed)
    states = {entry: program.partition_states(entry) for entry in program.entries()}
    stats = dict(program.stats())
    cold = captures and set(states.get("backward", ())) == {"cold"}
    if cold and stats["steps"] > _PATIENCE:
        missed[
            "backward-missing: its backward has not run, and both are captured together; use "
            "torch.no_grad() where there is none"
        ] = 1
    return ProgramReport(
        sizes=list(instance.sizes),
        partitions=states,
        host_nodes=host_nodes(remarks),
        remarks=dict(missed.most_common()),
        stats=stats,
        plan=program.plan(),
    )


def kernels_of(options: CompileOptions) -> str:
    """Whose kernels are captured, as a person says it."""
    if options.codegen == "aten":
        return ATENS
    mode = f", mode {options.mode}" if options.mode else ""
    return f"Inductor's kernels{mode}"


def host_nodes(remarks: list[dict[str, Any]]) -> dict[str, int]:
    """What the passes kept out of graphs: "reason: operator at place", and how many there are."""
    found: Counter[str] = Counter()
    for remark in remarks:
        if remark["kind"] == "missed" and remark["node"] and remark["pass"] != "runtime":
            found[f"{remark['name']}: {_place(remark)}"] += 1
    return dict(found.most_common())


def missed_otherwise(remarks: list[dict[str, Any]]) -> list[str]:
    """What was missed besides: by the runtime, or for a whole entry."""
    missed = (r for r in remarks if r["kind"] == "missed")
    return [
        f"{r['name']}: {r['message']}" for r in missed if r["pass"] == "runtime" or not r["node"]
    ]


def _place(remark: dict[str, Any]) -> str:
    operator = remark.get("node", "").rpartition(" = ")[2]
    source, module = remark.get("source", ""), remark.get("module", "")
    text = operator or remark.get("message", "")
    return text + (f" at {source}" if source else "") + (f" in {module}" if module else "")


def _lines(graph: GraphReport) -> list[str]:
    if graph.failure:
        return [f"{graph.label}: runs as it is: {graph.failure}"]
    lines = [f"{graph.label} ends at {graph.graph_break}"] if graph.graph_break else []
    for program in graph.programs:
        sizes = f" for sizes {program.sizes}" if program.sizes else ""
        theirs = "" if graph.kernels == ATENS else f" ({graph.kernels})"
        lines.append(f"{graph.label}{sizes}{theirs}:")
        for entry, states in program.partitions.items():
            counted = ", ".join(f"{n} {state}" for state, n in Counter(states).items())
            lines.append(f"  {entry}: {len(states)} partitions: {counted or 'none'}")
        lines += [f"  {n} on the host, {node}" for node, n in program.host_nodes.items()]
        s = program.stats
        lines.append(
            f"  {s['steps']} runs, {s['uncaptured_steps']} of them uncaptured; {s['captures']} "
            f"captures, {s['replays']} replays; arena of {s['arena_bytes']} bytes"
        )
        lines += [f"  {remark}" for remark in program.remarks]
    return lines


def _at_exit() -> None:
    """Writes the report, then ends programs while the device still lives."""
    if os.getpid() != _PROCESS:
        return  # a forked child: programs and report are its parent's
    graphs = sorted([*_ended, *map(_with_ended, _LIVE)], key=lambda graph: graph.number)
    if _PATH:
        text = Report(graphs).as_json() if _PATH.endswith(".json") else f"{Report(graphs)}\n"
        with open(_PATH, "w") as file:
            file.write(text)
    for graph in list(_LIVE):
        for instance in graph.all_instances():
            if instance.program is not None:
                instance.program.shutdown()


atexit.register(_at_exit)
