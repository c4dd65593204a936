"""`gravure.explain(fn, args)`: how a model or a step will be cut, before anything of it runs."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn

from .alike_remarks import grouped
from .calls.compiled_graph import CompiledGraph
from .calls.frame import FrameRequest
from .calls.graph_break import located_break
from .calls.instance import Instance
from .calls.reports import choices, host_nodes, kernels_of, missed_otherwise
from .calls.without_graph import without_graph
from .given_arguments import arguments_of, refuse_misplaced, refuse_unfitting
from .graphs.codegen import ATEN
from .library.load import program_class
from .options import CompileOptions
from .page.file import write_page
from .page.graph_words import read_break, remedy_of
from .page.plan import graph_of_plan
from .page.surroundings import settings, versions
from .sizes import bytes_text
from .steps.step_compiler import StepCompiler
from .steps.step_function import step_with
from .text.dynamo_graph import label_of
from .torch_api.aot_autograd import boxed
from .torch_api.compile_lock import one_at_a_time
from .torch_api.dispatch import not_traced
from .torch_api.dynamo import BackendCompilerFailed, graph_breaks
from .torch_api.dynamo_errors import first_line
from .torch_api.eager_tracing import must_trace_as_eager, traces_as_eager
from .torch_api.fake_run import faked, forgotten
from .torch_api.fake_tensors import DataDependentOutputException, unset_fake_temporarily
from .torch_api.left_frames import Left, left_frames, short_reason
from .torch_api.modules import uncompiled


@dataclass
class GraphPlan:
    """How one graph of Dynamo's will be cut. `failure` says why it runs as it is, if it does."""

    label: str
    device: str  # "host", "cuda:0"
    sizes: list[int]  # of a graph with symbolic sizes: those that were planned for
    failure: str
    plan: dict[str, Any]  # entries, partitions, host runs, bytes: what `gravure plan --json` prints
    host_nodes: dict[str, int]  # "reason: operator at line", and how many there are
    remarks: list[dict[str, str]] = field(repr=False)  # docs/remarks.md
    text: str = field(repr=False)  # the program, docs/program-text.md
    # Every call and buffer: passes/report/step_detail.h. None where there is a failure.
    detail: dict[str, Any] | None = field(default=None, repr=False)
    # Of a graph with a backward: what a call holds of the arena until then, as planned, and how
    # many calls in flight have instances. 0 where it has none.
    held_bytes: int = 0
    max_in_flight: int = 0
    max_shapes: int = 0  # sets of sizes that have programs; 0 where sizes are fixed

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        if self.failure:
            return [f"{self.label}: runs as it is: {self.failure}"]
        sizes = f" for sizes {self.sizes}" if self.sizes else ""
        lines = [f"{self.label}{sizes}, on {self.device}:"]
        for entry in self.plan["entries"]:
            own = [p for p in self.plan["partitions"] if p["entry"] == entry["name"]]
            captured = sum(partition["calls"] for partition in own)
            lines.append(
                f"  {entry['name']}: {len(own)} partitions of {captured} nodes; "
                f"{entry['calls'] - captured} on the host"
            )
        lines += [f"  {n} on the host, {node}" for node, n in self.host_nodes.items()]
        lines.append(
            f"  {bytes_text(self.plan['staged_bytes'])} staged a step; planned arena of "
            f"{bytes_text(self.plan['arena_bytes'])}, "
            f"{bytes_text(self.plan['live_bytes'])} live at once"
        )
        if self.max_in_flight:
            lines.append(
                f"  each call in flight has an instance, which holds {bytes_text(self.held_bytes)} "
                f"until its backward; {self.max_in_flight} at most (max_in_flight)"
            )
        if self.max_shapes:
            lines.append(
                "  each set of sizes has a program, whose arena shares pages with the others; "
                f"{self.max_shapes} at most (max_shapes)"
            )
        return lines + [f"  {remark}" for remark in grouped(missed_otherwise(self.remarks))]


@dataclass
class Explanation:
    """Every graph that Dynamo made, in order. `str` of it is for reading."""

    name: str
    graphs: list[GraphPlan]
    graph_breaks: dict[str, int]  # where Dynamo cuts between graphs, why, and how often
    stopped: str  # why nothing was seen of what comes next; "" if all was seen
    kernels: str  # ATen's, or Inductor's and in which mode
    options: dict[str, Any] = field(default_factory=dict)  # those that are not as by default
    # Functions without a graph, where Dynamo gave up, and why.
    skipped: list[Left] = field(default_factory=list)
    choices: list[str] = field(init=False)  # what is in force, and what another choice would bring

    def __post_init__(self) -> None:
        planned = {self.kernels for graph in self.graphs if not graph.failure}
        self.choices = choices(planned, sum(self.graph_breaks.values()))

    def __str__(self) -> str:
        lines = [str(graph) for graph in self.graphs]
        for reason in self.graph_breaks:
            found = read_break(reason)
            where = f"{found.location}: " if found.location else ""
            lines.append(f"graph break: {where}{found.why}; {found.remedy}")
        lines += [f"{left}; {remedy_of(left.why)}" for left in self.skipped]
        if self.stopped:
            lines.append(f"seen up to here: {self.stopped}")
        lines += self.choices
        return "\n".join(lines or [f"{self.name}: no graph, it runs as it is"])

    def as_json(self) -> str:
        """All but every call and buffer, which `to_html` shows."""
        found = asdict(replace(self, graphs=[replace(g, detail=None) for g in self.graphs]))
        for graph in found["graphs"]:
            del graph["detail"]
        return json.dumps(found, indent=1)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page to look at, one file that needs nothing else: the plan over a step, what
        will not be captured and why, the arena.

        Raises OSError, which names the path, where it cannot be written.
        """
        write_page(
            path,
            {
                "title": f"Plan of {self.name}",
                "nothing": f"{self.name} has no graph: it runs as it is.",
                "graphs": [_graph_of_page(graph) for graph in self.graphs],
                "graph_breaks": self.graph_breaks,
                "skipped": self.skipped,
                "stopped": self.stopped,
                "settings": settings([self.options]),
                "versions": versions(),
            },
        )


def _graph_of_page(graph: GraphPlan) -> dict[str, Any]:
    remarks = grouped(missed_otherwise(graph.remarks))
    kernels = f"planned for {graph.device}"
    planned = graph_of_plan(graph.label, kernels, graph.sizes, graph.detail, remarks)
    return planned | {"failure": graph.failure}


@not_traced
@one_at_a_time
def explain(
    fn: Callable[..., Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    **misplaced: Any,
) -> Explanation:
    """How `fn(*args, **kwargs)` will be cut: partitions, what stays on the host and why, memory.

    `fn` is what `torch.compile(fn, backend="gravure")` would be given, or is compiled so already;
    or a step that `compile_step` made. `args` is a tuple or a list; anything else, as a tensor, is
    one argument. Nothing is run or changed: operators work on shapes alone, on any device. Code
    between graphs runs, on tensors without values; where it needs a value, `Explanation.stopped`
    says so. Sizes of the arena are planned from types: the runtime plans again, with the
    temporaries of operators.

    Raises TypeError for what cannot be called, for arguments that `fn` does not take, and for
    keywords of `fn`'s outside of `kwargs`; ValueError for an option that there is not, and
    ExportError for a step that cannot become a program.
    """
    if not callable(fn):
        raise TypeError(f"explain takes a function, a model or a step, not a {type(fn).__name__}")
    refuse_misplaced("explain", misplaced, "in kwargs: explain(fn, kwargs={{{given}}})")
    given = arguments_of(args)
    kwargs = dict(kwargs or {})
    step = getattr(fn, "gravure_step", None)
    explained = uncompiled(fn) if step is None else step.fn
    refuse_unfitting("explain", explained, given, kwargs)
    if step is not None:
        return _explain_step(explained, given, kwargs, options or step.options)
    return _explain_graphs(explained, given, kwargs, options)


def _explain_step(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Any
) -> Explanation:
    name = getattr(fn, "__name__", type(fn).__name__)
    # What Inductor compiles is cut as the operators that it is compiled from.
    chosen = CompileOptions.parse(options)
    planner = _StepPlanner(fn, name, replace(chosen, codegen="aten"))
    with faked(fn, args, kwargs), forgotten(planner):
        step_with(fn, name, planner)(None, *args, **kwargs)
    options = planner.options.chosen()
    return Explanation(name, planner.plans, {}, "", kernels_of(chosen), options)


def _explain_graphs(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Any
) -> Explanation:
    name = getattr(fn, "__name__", type(fn).__name__)
    chosen = CompileOptions.parse(options)
    plans: list[GraphPlan] = []
    located: Counter[str] = Counter()

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        if found := located_break(graph):
            located[found] += 1
        must_trace_as_eager()
        return _PlanRequest(graph, label_of(graph), chosen, plans=plans).compile(inputs)

    backend = traces_as_eager(
        backend, lambda _: chosen.answer, has_eagers_bits=lambda _: chosen.has_eagers_bits
    )
    breaks, skipped = graph_breaks(), left_frames()
    stopped = ""
    with faked(fn, args, kwargs), forgotten(backend):
        try:
            torch.compile(fn, backend=backend)(*args, **kwargs)
        except _BackwardCalled:
            stopped = "it calls backward(); compile_step explains a step with its backward"
        except Exception as error:
            stopped = _reason(error)
    left = left_frames() - skipped
    if not plans and not left and not stopped:
        left = without_graph(fn, [fn] if isinstance(fn, nn.Module) else ())
    reasons = _with_lines(graph_breaks() - breaks, located, left)
    options = chosen.chosen()
    return Explanation(name, plans, reasons, stopped, kernels_of(chosen), options, list(left))


def _with_lines(
    reasons: Counter[str], located: Counter[str], left: Counter[Left]
) -> dict[str, int]:
    """Graph breaks with their lines. `reasons`: Dynamo's words for all of them, without lines;
    `left`: functions without a graph, which are told apart."""
    told = [read_break(text).why for text in located] + [each.why for each in left]
    found = dict(located)
    for reason, times in reasons.items():
        first, short = reason.partition("\n")[0], short_reason(reason)
        if not any(first in why or why.startswith(short) for why in told):
            found[short] = times
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, BackendCompilerFailed):
        error = error.inner_exception
    if isinstance(error, DataDependentOutputException):
        return f"code between graphs needs a value: {error.func}"
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


class _BackwardCalled(Exception):
    """The function that is explained calls backward(), of values that are not there."""


def _plan(
    label: str, text: str, device: str, sizes: Sequence[int], options: CompileOptions
) -> GraphPlan:
    """Raises RuntimeError, which names the node."""
    with unset_fake_temporarily():
        found = json.loads(program_class().explain(text, device, options.for_library()))
    remarks = found["remarks"]
    return GraphPlan(
        label,
        device,
        list(sizes),
        "",
        found["plan"],
        host_nodes(remarks),
        remarks,
        text,
        found["detail"],
    )


class _StepPlanner(StepCompiler):
    """Plans Dynamo's graph of a step instead of loading it."""

    def __init__(self, fn: Callable[..., Any], name: str, options: CompileOptions) -> None:
        super().__init__(fn, name, options)
        self.plans: list[GraphPlan] = []

    def __call__(self, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        written = self.write(graph, inputs)
        plan = _plan(written.label, written.text, written.device, (), self.options)
        self.plans.append(plan)
        self.programs += 1
        return lambda *_: [torch.zeros((), device="cpu") for _ in written.positions]


@dataclass(frozen=True)
class _PlanRequest(FrameRequest):
    """Has a graph of Dynamo's planned instead of run."""

    plans: list[GraphPlan] = field(default_factory=list)

    def new_graph(self) -> CompiledGraph:
        return _PlannedGraph(self.label, self.options, self.plans)


class _PlannedGraph(CompiledGraph):
    """Plans its programs instead of loading them. Its calls work on fake tensors."""

    def __init__(self, label: str, options: CompileOptions, plans: list[GraphPlan]) -> None:
        super().__init__(label, options, ATEN)
        self._plans = plans

    def __del__(self) -> None:
        """It is no compiled graph that a report at exit would name."""

    def _make(self, sizes: tuple[int, ...], **_: Any) -> Instance:
        device = "host"
        try:
            with unset_fake_temporarily():
                device = self._maker.device
                text = self._maker.text(self._symbols.known(sizes)).text
            plan = _plan(self.label, text, device, sizes, self.options)
            plan.max_shapes = self._most_sizes if self._symbols else 0
            if len(plan.plan["entries"]) > 1 and self._may_be_several:
                plan.held_bytes = _held(plan.detail)
                plan.max_in_flight = self.options.max_in_flight
        except RuntimeError as error:  # ExportError among them
            self.failure = first_line(error)
            plan = GraphPlan(self.label, device, list(sizes), self.failure, {}, {}, [], "")
        self._plans.append(plan)
        instance = self._maker.as_it_is()
        if instance.backward is not None:
            instance.backward = _refuse_backward
        return instance


def _held(detail: dict[str, Any] | None) -> int:
    """Bytes that live from the first entry into the next one."""
    assert detail is not None
    border = sum(1 for call in detail["calls"] if call[0] == 0)
    return sum(b[2] for b in detail["planned"]["buffers"] if b[0] < border < b[1])


@boxed
def _refuse_backward(args: list[Any]) -> list[Any]:
    raise _BackwardCalled
