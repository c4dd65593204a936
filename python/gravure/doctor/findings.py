"""What costs captures, from what was seen: each with its line, since when, and what to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..alike_remarks import grouped
from ..calls.compiled_graph import CompiledGraph
from ..calls.without_graph import LIMIT, Left
from ..page.graph_words import compiled_anew, read_break, remedy_of
from ..page.step_data import read_step
from ..sizes import count_text
from .steps import Done
from .watch import Change


@dataclass
class Cause:
    """One thing that costs captures."""

    what: str
    where: str  # a source line, or a name; "" where neither is known
    instead: str  # what to write
    since: int = 1  # the step that it was first seen in


# By what differs: what it costs, and what to write.
_CURES = {
    "shape": (
        "each set of sizes is a program of its own, which warms up and is captured anew",
        "batches of one size: drop_last=True in the DataLoader, or pad to a few sizes",
    ),
    "number": (
        "a number is part of the program, so another one compiles or captures anew",
        "a tensor that is written into: count = torch.tensor(0, device=x.device); "
        "count.fill_(step)",
    ),
    "value": ("another value takes another way through the code", "one value for a whole run"),
    "dtype": ("another dtype is another program", "one dtype: cast before the step"),
    "device": ("another device is another program", "move it before the step: x.to(device)"),
    "stride": (
        "another memory format is warmed up and captured anew",
        "one format: x.contiguous() before the step",
    ),
    "requires_grad": (
        "what requires a gradient decides what the program computes",
        "freeze parameters before the first step; detach() what is given",
    ),
    "kind": ("another kind of value is another program", "one kind of value for a whole run"),
    "thread": (
        "a program is captured for the thread that calls; another one may run it uncaptured",
        "call the step from one thread",
    ),
}
WARM = 3  # steps that a program takes until it is replayed, whatever is written
_HURTS = ("compiled", "captured", "uncaptured")
# Remarks that tell of an input that differs, which the steps' own differences say better.
_OF_INPUTS = {"guard-failed", "often-uncaptured"}
_CURES_OF_REMARKS = {
    "result-held": "optimizer.zero_grad(set_to_none=True) before the next forward; keep "
    "p.grad.clone() where a gradient is wanted later",
    "saved-values-held": "run backward before the next forward, or torch.no_grad() where there is "
    "none; keep loss.item() or loss.detach() in lists, never the loss itself",
    "threads-differ": "torch.autograd.set_multithreading_enabled(False) on the thread that trains",
    "no-arena": "a smaller batch, or gravure.release_memory()",
    "step-inside": "call it outside of the operator",
    "caller-captures": "leave out the capture around it: Gravure makes its own graphs",
    "unstable-allocations": 'options={"host": ["namespace::operator"]} leaves the operator out',
    "allocation-mismatch": 'options={"host": ["namespace::operator"]} leaves the operator out',
    "shadow-differs": "what the message says",
}


def causes(
    graphs: Sequence[CompiledGraph],
    steps: Sequence[Done],
    changes: Sequence[Change],
    held: Sequence[tuple[int, str, list[str]]],
    optimizers: Sequence[str] = (),
    skipped: Collection[Left] = (),
) -> list[Cause]:
    """Worst first: what keeps all from capture, then what costs captures again and again, then
    what stays on the host in each step. `held`: step, result, and who held it. `optimizers`: names
    of those that are part of a program and can be fused. `skipped`: what Dynamo left as it is, and
    why.
    """
    # What a limit ends comes behind what differs from call to call, which brings it about.
    limited = [left for left in skipped if left.why.startswith(LIMIT)]
    found = [*_of_skipped(left for left in skipped if left not in limited), *_of_graphs(graphs)]
    found += [*_of_changes(steps, changes), *_of_skipped(limited), *_of_held(steps, held)]
    found += _of_remarks(steps, bool(held), bool(changes))
    if not changes:
        found += [
            Cause(a.what, a.location, a.remedy) for a in compiled_anew(g.label for g in graphs)
        ]
    if not found and steps and steps[-1].kind == "uncaptured":
        found += map(_of_remark, steps[-1].standing, [1] * len(steps[-1].standing))
        found += _of_backwards(graphs)
    found += _of_host(graphs, optimizers, lists_small=not found)
    seen: set[tuple[str, str]] = set()
    return [c for c in found if (c.what, c.where) not in seen and not seen.add((c.what, c.where))]


def _of_skipped(skipped: Iterable[Left]) -> Iterator[Cause]:
    for left in skipped:
        yield Cause(left.what, left.location, remedy_of(left.why))


def _of_graphs(graphs: Sequence[CompiledGraph]) -> Iterator[Cause]:
    for graph in graphs:
        if graph.failure:
            has_program = any(each.program is not None for each in graph.all_instances())
            calls = " in some calls" if has_program else ""
            yield Cause(f"it runs as it is{calls}, without a program", graph.label, graph.failure)
    broken = Counter(graph.graph_break for graph in graphs if graph.graph_break)
    for reason, times in broken.items():
        location, why, remedy = read_break(reason)
        what = f"a graph break: {why}"
        yield Cause(what + (f" ({times} times)" if times > 1 else ""), location, remedy)


def _of_changes(steps: Sequence[Done], changes: Sequence[Change]) -> Iterator[Cause]:
    kinds = {step.number: step.kind for step in steps}
    for change in changes:
        costs = [s.number for s in steps if s.number >= change.step and s.kind in _HURTS]
        if change.what == "address":
            if change.name.startswith("argument") or not costs:
                continue  # it is copied before each replay
            how = f"is another tensor in {count_text(change.times, 'step')}"
            attribute = change.name.partition('"')[2].partition('"')[0]
            cure = f"write into the one that is there: self.{attribute}.copy_(…)"
            yield Cause(
                f"{change.name} {how}, and its address is part of a capture",
                change.location,
                cure,
                change.step,
            )
            continue
        if kinds.get(change.step) not in _HURTS and change.what != "thread":
            continue
        if change.what == "number" and kinds.get(change.last) == "replayed" and max(costs) <= WARM:
            continue  # it is written into the capture
        cost, cure = _CURES[change.what]
        if change.what == "number":
            cure = _instead_of_number(change.name)
        differs = f"{change.name}: {change.what} was {change.before}, and is {change.after}"
        again = f", and changes {change.times} times" if change.times > 1 else ""
        yield Cause(f"{differs}{again}; {cost}", change.location, cure, change.step)


def _instead_of_number(name: str) -> str:
    """A tensor that is written into, as the user would write it."""
    kind, _, rest = name.partition(' "')
    word = rest.partition('"')[0]
    if kind == "setting":
        return f"a tensor: {word}=torch.tensor(…) for the optimizer, and group[{word!r}].fill_(…)"
    if kind == "attribute":
        return (
            f'a buffer: self.register_buffer("{word}", torch.tensor(0)) in __init__, and '
            f"self.{word}.add_(1)"
        )
    return _CURES["number"][1]


def _of_held(steps: Sequence[Done], held: Sequence[tuple[int, str, list[str]]]) -> Iterator[Cause]:
    remarks = {r["name"] for step in steps for r in step.remarks}
    if not remarks & {"result-held", "saved-values-held"}:
        return
    for step, name, holders in held:
        kind = "result-held" if "gradient" in name else "saved-values-held"
        by = ", ".join(holders)
        what = f"{name} of the step before is still held when a step begins, by {by}"
        yield Cause(what, "", _CURES_OF_REMARKS[kind], step)


def _of_remarks(steps: Sequence[Done], held: bool, changed: bool) -> Iterator[Cause]:
    for step in steps:
        told = [
            remark
            for remark in step.remarks
            if not (held and remark["name"] in ("result-held", "saved-values-held"))
            and not (changed and remark["name"] in _OF_INPUTS)
        ]
        alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for remark in told:
            alike.setdefault((remark["name"], _where(remark)), []).append(remark)
        for remarks in alike.values():
            for message in grouped(remark["message"] for remark in remarks):
                yield _of_remark({**remarks[0], "message": message}, step.number)


def _of_backwards(graphs: Sequence[CompiledGraph]) -> Iterator[Cause]:
    for graph in graphs:
        for remark in (r for program in graph.report().programs for r in program.remarks):
            if remark.startswith("backward-"):
                what, _, cure = remark.partition("; ")
                yield Cause(what, graph.label.rpartition(" at ")[2], cure)


def _where(remark: Mapping[str, Any]) -> str:
    return remark.get("source", "") or remark.get("node", "")


def _of_remark(remark: Mapping[str, Any], step: int) -> Cause:
    name = remark["name"]
    message, _, cure = remark["message"].partition("; ")
    cure = _CURES_OF_REMARKS.get(name, cure) or f"docs/remarks.md: {name}"
    return Cause(f"{name}: {message}", _where(remark), cure, step)


def _of_host(
    graphs: Sequence[CompiledGraph], optimizers: Sequence[str], *, lists_small: bool
) -> Iterator[Cause]:
    """`lists_small`: also what is left out for being little, which other causes bring about."""
    for graph in graphs:
        for program in graph.report(detailed=True).programs:
            if program.detail is None:
                continue
            for missed in read_step(program.detail).missed:
                if missed.reason == "too-small" and not lists_small:
                    continue
                operators = ", ".join(missed.operators)
                what = f"{missed.reason}: {operators} on the host, in each step"
                waits = f", where it waits {count_text(missed.waits, 'time')}"
                cure = missed.cure
                if missed.reason == "too-small":
                    cure = 'options={"min_partition_size": 1}, if a launch is worth it'
                elif not missed.source and optimizers:
                    cure = f"{optimizers[0]}(…, fused=True), which reads nothing on the host"
                yield Cause(what + (waits if missed.waits else ""), missed.source, cure)
