"""What became of one compiled graph and of its programs, as data and as lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..alike_remarks import worst_first
from ..options import CompileOptions
from ..sizes import bytes_text
from ..torch_api.artifacts import add_artifact
from .instance import Instance

ATENS = "ATen's kernels"
_TOLD = ", is_compiling"  # the option
_ATENS = (
    "Capture takes the host's time out of a step and makes no kernel faster: a step that is as "
    'long as its kernels gains by options={"codegen": "inductor"}, which fuses them and rounds '
    "otherwise than eager"
)
_INDUCTORS = (
    'codegen="aten" has eager\'s operators and bits, and is slower where a step is as long as its '
    "kernels"
)
_MISSING = (
    "backward-missing: its backward has not run, so the forward is captured alone; use "
    "torch.no_grad() where there is none"
)
_RETAINED = (
    "backward-retained: its backward runs uncaptured, since a replay would overwrite what "
    "retain_graph=True keeps; leave that out where one backward is enough"
)
_PATIENCE = 3  # runs of a forward before its backward is missed


@dataclass
class ProgramReport:
    """One program of a graph: the one for `sizes`, or the only one."""

    sizes: list[int]
    partitions: dict[str, list[str]]  # by entry, the state of each
    host_nodes: dict[str, int]  # "reason: operator at line", and how many there are
    # What the runtime could not do as planned, and how often. What differs in a name alone is one:
    # alike_remarks.py.
    remarks: dict[str, int]
    stats: dict[str, int]  # RuntimeStats of runtime/runtime.h
    times: dict[str, int]  # of calls, by entry and path: python/csrc/process/run_times.h
    plan: str = field(repr=False)
    # Which of the instances for these sizes and this module: 0 is for a call at a time, others were
    # made for calls while what earlier ones saved was held.
    instance: int = 0
    # Every call and buffer: passes/report/step_detail.h. None unless it was asked for.
    detail: dict[str, Any] | None = field(default=None, repr=False)
    # By entry, what its runs and their calls take: python/csrc/timed_runs.h. Empty without `times`.
    call_times: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass
class GraphReport:
    """One graph. `failure` says why calls run as they are: some of them, or all of them where it
    has no program.

    `graph_break` says where Dynamo ended it before its function did, why, and what helps; "" where
    it did not.
    """

    number: int  # graphs are numbered as they are compiled
    label: str
    failure: str  # "" where none does
    programs: list[ProgramReport]
    graph_break: str = ""
    kernels: str = ATENS  # or Inductor's, and in which mode
    options: dict[str, Any] = field(default_factory=dict)  # those that are not as by default
    # Of its calls, what StepClock of step_clock.py read: `calls`, `steps` that began with it,
    # `step_ns` from one of the last of them to the next, the most of these, `longest_ns`, and by
    # source line `outside`, how often and how many nanoseconds the thread was outside of graphs
    # before a call. Empty without `times`.
    times: dict[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def trace_program(label: str, program: Any) -> None:
    """Its plan, remarks and text for tlparse: what a compilation made."""
    name = "_".join(filter(None, re.split(r"\W+", label)))
    add_artifact(f"gravure_plan_{name}", program.plan)
    add_artifact(f"gravure_remarks_{name}", program.remarks_text)
    add_artifact(f"gravure_program_{name}", program.text)


ended: list[GraphReport] = []  # graphs that are gone, for the report at exit


def program_report(
    instance: Instance, options: CompileOptions, *, detailed: bool = False
) -> ProgramReport:
    """What became of the program of `instance`, which has one. `detailed`: with every call."""
    found = report_of_program(instance.program, detailed=detailed)
    missed = Counter(found.remarks)
    missed.update(instance.missed)
    times, backward = found.times, set(found.partitions.get("backward", ()))
    ran = any(times.get(f"backward.{path}.runs") for path in ("uncaptured", "replayed"))
    captures = instance.captures and not options.uncaptured
    if captures and backward == {"cold"} and not ran and found.stats["steps"] > _PATIENCE:
        retained = found.stats["uncaptured_steps"] > times.get("forward.uncaptured.runs", 0)
        missed[_RETAINED if retained else _MISSING] = 1
    found.sizes, found.instance = list(instance.sizes), instance.number
    found.remarks = worst_first(missed)
    return found


def report_of_program(program: Any, *, detailed: bool) -> ProgramReport:
    """`program`: of the library's class."""
    remarks = json.loads(program.remarks_json())
    return ProgramReport(
        sizes=[],
        partitions={entry: program.partition_states(entry) for entry in program.entries()},
        host_nodes=host_nodes(remarks),
        remarks=worst_first(Counter(missed_otherwise(remarks))),
        stats=dict(program.stats()),
        times=dict(program.run_times()),
        plan=program.plan(),
        detail=json.loads(program.detail_json()) if detailed else None,
        call_times=json.loads(program.call_times_json()) if detailed else {},
    )


def kernels_of(options: CompileOptions) -> str:
    """Whose kernels are captured, as a person says it, and of which way of the code."""
    told = _TOLD if options.is_compiling else ""
    if options.codegen == "aten":
        return ATENS + told
    mode = f", mode {options.mode}" if options.mode else ""
    draws = ", fused_random" if options.fused_random else ""
    return f"Inductor's kernels{mode}{draws}{told}"


def choices(kernels: set[str], broken: int) -> list[str]:
    """What is in force, and what another choice would bring: a sentence each.

    `kernels`: of the graphs, as `kernels_of` says it. `broken`: graphs that Dynamo ended early.
    """
    found = []
    for named in sorted(kernels):
        if not named.startswith(ATENS):
            of = ", in the bits of the same kernels uncaptured"
            found.append(f"in force: {named}{of}. {_INDUCTORS}")
            continue
        of = ", in eager's bits" if named == ATENS else ""
        found.append(f"in force: {named}{of}. {_ATENS}")
    if any(named.endswith(_TOLD) for named in kernels):
        found.append(
            "is_compiling: code that asks takes the way that it has for compilers, which may have "
            "slower kernels (attention of transformers gets a mask, and is not flash) and other "
            "bits; it is needed only where the code is no one graph without"
        )
    if broken:
        found.append(
            f"graphs that end early: {broken}. What such a graph hands on is copied, unless it "
            "is large and nobody keeps it; mended, or in gravure.compile_step, which refuses a "
            "break, a step has no such copies"
        )
    return found


def host_nodes(remarks: list[dict[str, Any]]) -> dict[str, int]:
    """What the passes kept out of graphs: "reason: operator at line", and how many there are."""
    found: Counter[str] = Counter()
    for remark in remarks:
        if remark["kind"] == "missed" and remark["node"] and remark["pass"] != "runtime":
            found[f"{remark['name']}: {_node_of(remark)}"] += 1
    return dict(found.most_common())


def missed_otherwise(remarks: list[dict[str, Any]]) -> list[str]:
    """What was missed besides: by the runtime, or for a whole entry."""
    missed = (r for r in remarks if r["kind"] == "missed")
    return [
        f"{r['name']}: {r['message']}" for r in missed if r["pass"] == "runtime" or not r["node"]
    ]


def _node_of(remark: dict[str, Any]) -> str:
    operator = remark.get("node", "").rpartition(" = ")[2]
    source, module = remark.get("source", ""), remark.get("module", "")
    text = operator or remark.get("message", "")
    return text + (f" at {source}" if source else "") + (f" in {module}" if module else "")


def _counted(programs: list[ProgramReport]) -> list[str]:
    """How many programs there are of one graph, why, and what all of them take and did."""
    sizes = {tuple(each.sizes) for each in programs}
    further = [each for each in programs if each.instance]
    found = []
    if len(sizes) > 1:
        found.append(f"{len(sizes)} sets of sizes, a program each")
    if further:
        at_once = 1 + max(each.instance for each in further)
        found.append(
            f"{len(further)} further instances, since {at_once} calls were in flight at once"
        )
    if found:
        arenas = bytes_text(sum(each.stats["arena_bytes"] for each in programs))
        replays = sum(each.stats["replays"] for each in programs)
        found[-1] += f"; arenas of {arenas} in all, which share pages, and {replays} replays"
    return found


def _lines(graph: GraphReport) -> list[str]:
    if graph.failure and not graph.programs:
        return [f"{graph.label}: runs as it is: {graph.failure}"]
    lines = [f"{graph.label} ends at {graph.graph_break}"] if graph.graph_break else []
    if graph.failure:
        lines.append(f"{graph.label}: runs as it is in some calls: {graph.failure}")
    if not graph.programs:
        lines.append(
            f"{graph.label}: no program: it was not called yet, or its captures were let go of"
        )
    lines += [f"{graph.label}: {each}" for each in _counted(graph.programs)]
    for program in graph.programs:
        sizes = f" for sizes {program.sizes}" if program.sizes else ""
        if program.instance:
            sizes += f", call {1 + program.instance} in flight"
        theirs = "" if graph.kernels == ATENS else f" ({graph.kernels})"
        lines.append(f"{graph.label}{sizes}{theirs}:")
        for entry, states in program.partitions.items():
            counted = ", ".join(f"{n} {state}" for state, n in Counter(states).items())
            lines.append(f"  {entry}: {len(states)} partitions: {counted or 'none'}")
        lines += [f"  {n} on the host, {node}" for node, n in program.host_nodes.items()]
        s = program.stats
        lines.append(
            f"  {s['steps']} runs, {s['uncaptured_steps']} of them uncaptured; {s['captures']} "
            f"captures, {s['replays']} replays; arena of {bytes_text(s['arena_bytes'])}"
            + (f", {bytes_text(held)} held until the backward" if (held := s["held_bytes"]) else "")
        )
        if (sets := s["capture_sets"]) > 1:
            lines.append(f"  captured for {sets} sets of addresses, between which inputs move")
        lines += [f"  {remark}" for remark in program.remarks]
    return lines
