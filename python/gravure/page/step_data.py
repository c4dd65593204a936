"""One program's step, as the page shows it: worked out of the library's JSON
(passes/report/step_detail.h), without drawing anything."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_WAITS = {"host-sync", "data-dependent-shape", "pageable-copy", "blocking-collective"}
_OWN = "cudagraph::"  # calls that the passes put in
_READ = "cudagraph::read_host"  # but this one: reads of the user's, merged
_LABEL = re.compile(r"^%?([\w.]+)")


class Call(NamedTuple):
    """One operator call: CallRow of passes/report/step_detail.h."""

    entry: int
    partition: int  # -1 on the host
    op: str
    result: str
    type: str
    source: str
    module: str
    reason: str

    @property
    def is_ours(self) -> bool:
        """Put in by the passes, to copy arguments and results."""
        return self.op.startswith(_OWN) and self.op != _READ

    @property
    def is_operator(self) -> bool:
        """A call of the user's that works on tensors: not one of ours, not a number node."""
        return not self.is_ours and (self.partition >= 0 or bool(self.reason) or self.op == _READ)

    @property
    def waits(self) -> bool:
        """Whether the processor waits for the device there."""
        return self.partition < 0 and (self.reason in _WAITS or self.op == _READ)


class Buffer(NamedTuple):
    """In the arena, alive in the calls [begin, end)."""

    begin: int
    end: int
    bytes: int
    offset: int
    label: str


@dataclass
class Section:
    """Calls [begin, end) that follow one another: one partition, or what runs between two."""

    entry: int
    partition: int
    begin: int
    end: int
    kind: str  # "replayed"; "copies" of arguments and results alone; or "host"


@dataclass
class Missed:
    """Calls that are not captured for one reason, of one source line."""

    reason: str
    source: str
    cure: str
    operators: dict[str, int] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    calls: int = 0
    waits: int = 0
    cuts: int = 0  # sections on the host that it is part of: each ends a graph and begins another
    numbers: list[int] = field(default_factory=list)  # of the calls

    @property
    def cost(self) -> tuple[int, int, int]:
        """Worst first by this: what ends graphs, then what waits, then how much."""
        return self.cuts, self.waits, self.calls


@dataclass
class Memory:
    """An arena over a step."""

    bytes: int
    live_bytes: int
    buffers: list[Buffer]
    curve: list[tuple[int, int]]  # from this call on, so many bytes are alive
    peak: int  # the first call with the most


@dataclass
class Step:
    """One step: all entries, one behind the other. Calls are numbered through them."""

    entries: list[str]
    calls: list[Call]
    sections: list[Section]
    missed: list[Missed]
    memory: Memory | None
    measured: bool  # whether the memory is as recorded in runs, or planned from types

    @property
    def operators(self) -> int:
        return sum(call.is_operator for call in self.calls)

    def captured(self, states: Mapping[str, Sequence[str]] | None = None) -> int:
        """Operator calls in partitions; with `states`, in those that are captured by now."""
        ready = None if states is None else self.states(states)
        return sum(
            sum(call.is_operator for call in self.calls[section.begin : section.end])
            for section in self.sections
            if section.partition >= 0
            and (ready is None or ready.get(section.partition) == "captured")
        )

    def states(self, by_entry: Mapping[str, Sequence[str]]) -> dict[int, str]:
        """By partition. Partitions are numbered through all entries, and `by_entry` in each."""
        found: dict[int, str] = {}
        for entry, name in enumerate(self.entries):
            own = [r.partition for r in self.sections if r.entry == entry and r.partition >= 0]
            found |= zip(sorted(own), by_entry.get(name, ()), strict=False)
        return found


def read_step(detail: Mapping[str, Any]) -> Step:
    """`detail`: the JSON of passes/report/step_detail.h."""
    calls = [Call(*row) for row in detail["calls"]]
    sections = _sections(calls)
    found = detail["measured"] or detail["planned"]
    memory = _memory(found) if found and found["buffers"] else None
    missed = _missed(calls, sections, detail["cures"])
    return Step(detail["entries"], calls, sections, missed, memory, bool(detail["measured"]))


def _sections(calls: Sequence[Call]) -> list[Section]:
    sections: list[Section] = []
    for i, call in enumerate(calls):
        last = sections[-1] if sections else None
        if last and (last.entry, last.partition) == (call.entry, call.partition):
            last.end = i + 1
        else:
            sections.append(Section(call.entry, call.partition, i, i + 1, "replayed"))
    for section in sections:
        if section.partition < 0:
            ours = all(call.is_ours for call in calls[section.begin : section.end])
            section.kind = "copies" if ours else "host"
    return sections


def _missed(
    calls: Sequence[Call], sections: Iterable[Section], cures: Mapping[str, str]
) -> list[Missed]:
    groups: dict[tuple[str, str], Missed] = {}
    operators: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for section in sections:
        if section.partition >= 0:
            continue
        here = set()
        for i in range(section.begin, section.end):
            call = calls[i]
            if not call.reason or not call.is_operator:
                continue
            key = call.reason, call.source
            group = groups.get(key)
            if group is None:
                cure = cures.get(call.reason, "")
                group = groups[key] = Missed(call.reason, call.source, cure)
            operators[key][call.op] += 1
            if call.module and call.module not in group.modules:
                group.modules.append(call.module)
            group.calls += 1
            group.waits += call.waits
            group.numbers.append(i)
            here.add(key)
        for key in here:
            groups[key].cuts += 1
    for key, group in groups.items():
        group.operators = dict(operators[key].most_common())
    return sorted(groups.values(), key=lambda group: group.cost, reverse=True)


def _memory(found: Mapping[str, Any]) -> Memory:
    buffers = [Buffer(*row) for row in found["buffers"]]
    alignment = found["alignment"]
    changes: Counter[int] = Counter()
    for buffer in buffers:
        rounded = -(-buffer.bytes // alignment) * alignment
        changes[buffer.begin] += rounded
        changes[buffer.end] -= rounded
    curve, alive = [], 0
    for step in sorted(changes):
        alive += changes[step]
        curve.append((step, alive))
    peak = max(curve, key=lambda point: point[1], default=(0, 0))[0]
    return Memory(found["bytes"], found["live_bytes"], buffers, curve, peak)


def makers(step: Step) -> list[int]:
    """By buffer of the step's memory, the number of the call that makes it."""
    assert step.memory is not None
    by_name: dict[str, list[int]] = {}
    for i, call in enumerate(step.calls):
        by_name.setdefault(call.result.removeprefix("%"), []).append(i)
    found = []
    for buffer in step.memory.buffers:
        match = _LABEL.match(buffer.label)
        name = match[1] if match else ""
        if step.calls[buffer.begin].result == f"%{name}":
            found.append(buffer.begin)
            continue
        # Reserved from the step's begin on: forward and backward may each have the name.
        several = by_name.get(name) or by_name.get(name.removesuffix(".staged"), [])
        alive = [i for i in several if buffer.begin <= i < buffer.end]
        # Not a call's first result: it is made where its life begins.
        found.append((alive or several or [buffer.begin])[-1])
    return found


def holder(step: Step, maker: int) -> str:
    """What a buffer is counted for: the module of the call that makes it, else its line."""
    call = step.calls[maker]
    if call.op.startswith(_OWN) and not call.module:
        return "inputs, copied in" if call.op.endswith("stage") else "copies of results"
    return call.module or call.source or call.op


def alive_at_peak(step: Step) -> list[tuple[int, Buffer]]:
    """Buffers in use at the peak, the largest first, each with its maker."""
    memory = step.memory
    if memory is None:
        return []
    pairs = zip(makers(step), memory.buffers, strict=True)
    alive = [(i, b) for i, b in pairs if b.begin <= memory.peak < b.end]
    return sorted(alive, key=lambda pair: (-pair[1].bytes, pair[1].begin))


def held_by_module(step: Step) -> list[tuple[str, int]]:
    """Bytes in use at the peak by who made them, the most first."""
    held: Counter[str] = Counter()
    for maker, buffer in alive_at_peak(step):
        held[holder(step, maker)] += buffer.bytes
    return held.most_common()
