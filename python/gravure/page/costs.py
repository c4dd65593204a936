"""What calls cost: a step's time, predicted from the times of its calls, and what each reason for
not capturing adds to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .step_data import Missed, Step

_WEIGHED = 60  # groups of missed calls whose cost is worked out


class CallTime(NamedTuple):
    """Of one call of an uncaptured run, in nanoseconds: python/csrc/timed_runs.h."""

    host: float  # of the thread that calls
    device: float  # of its kernels and copies
    items: int  # how many these are


@dataclass(frozen=True)
class Pace:
    """How fast a GPU goes, in nanoseconds: calls/device_pace.py. All zero for the host device."""

    gap: float = 0.0  # between two kernels of one graph
    launch: float = 0.0  # of the thread, for a graph of one kernel
    each: float = 0.0  # of the thread, for each kernel more
    start: float = (
        0.0  # from a launch until its kernel runs, and from its end until the thread knows
    )
    copy: float = 0.0  # a small kernel by itself

    @property
    def is_gpu(self) -> bool:
        return self.start > 0


NO_GPU = Pace()


@dataclass
class Costs:
    """Of one program's step. Times in nanoseconds; 0 where nothing was timed."""

    uncaptured: float = 0.0  # measured, from an idle device to an idle device
    replayed: float = 0.0  # measured likewise
    predicted: float = 0.0  # of a replay, from the times of calls
    share: float = 0.0  # of the calls' time uncaptured, that of calls in graphs; 0 to 1
    why: str = ""  # why calls have no times
    missed: dict[tuple[str, str], float] = field(default_factory=dict)  # by reason and source

    @property
    def is_known(self) -> bool:
        return self.predicted > 0


def costs_of(step: Step, times: Mapping[str, Any], pace: Mapping[str, float] | None) -> Costs:
    """`times`: by entry, the JSON of python/csrc/timed_runs.h. `pace`: fields of Pace, of a GPU."""
    whole = [times.get(entry) or {} for entry in step.entries]
    found = Costs()
    if not any(whole):
        return found
    if all(each.get("uncaptured_ns") for each in whole):
        found.uncaptured = sum(each["uncaptured_ns"] for each in whole)
    if all(each.get("replayed_ns") for each in whole):
        found.replayed = sum(each["replayed_ns"] for each in whole)
    found.why = next((each["why"] for each in whole if each.get("why")), "")
    if not all(each.get("calls") for each in whole):
        return found
    timeline = _Timeline(step, _scaled(whole), Pace(**pace) if pace else NO_GPU)
    found.predicted = timeline.time()
    found.share = timeline.share()
    for missed in _by_own_time(step.missed, timeline)[:_WEIGHED]:
        found.missed[missed.reason, missed.source] = timeline.cost(missed.numbers)
    return found


def _scaled(whole: Sequence[Mapping[str, Any]]) -> dict[int, CallTime]:
    """By call. Who watches a run makes it longer: the thread's times are scaled to a plain one."""
    found: dict[int, CallTime] = {}
    for entry in whole:
        watched, plain = entry.get("watched_ns") or 0, entry.get("uncaptured_ns") or 0
        scale = min(1.0, plain / watched) if watched and plain else 1.0
        for number, host, device, items in entry["calls"]:
            before = found.get(number, CallTime(0.0, 0.0, 0))
            found[number] = CallTime(
                before.host + host * scale, before.device + device, before.items + items
            )
    return found


def _by_own_time(missed: Sequence[Missed], timeline: _Timeline) -> list[Missed]:
    return sorted(missed, key=lambda group: -timeline.own(group.numbers))


class _Timeline:
    """Two clocks, the thread's and the device's, that go through a step."""

    def __init__(self, step: Step, times: Mapping[int, CallTime], pace: Pace) -> None:
        self._step, self._times, self._pace = step, times, pace
        self._none = CallTime(0.0, 0.0, 0)

    def own(self, numbers: Sequence[int]) -> float:
        """What these calls take by themselves, uncaptured."""
        each = (self._times.get(i, self._none) for i in numbers)
        return sum(max(time.host, time.device) for time in each)

    def share(self) -> float:
        calls = self._step.calls
        known = [(calls[i], max(t.host, t.device)) for i, t in self._times.items()]
        whole = sum(time for _, time in known)
        return sum(time for call, time in known if call.partition >= 0) / whole if whole else 0.0

    def cost(self, numbers: Sequence[int]) -> float:
        """What a step would take less if these calls were in graphs. Without a GPU a graph is no
        faster than its calls: then it is what they take."""
        if not self._pace.is_gpu:
            return self.own(numbers)
        return max(0.0, self.time() - self.time(frozenset(numbers)))

    def time(self, captured: Collection[int] = ()) -> float:
        """Of a step. `captured`: calls on the host that are taken to be in graphs."""
        whole = 0.0
        for entry in range(len(self._step.entries)):
            whole += self._entry(entry, captured)
        return whole

    def _entry(self, entry: int, captured: Collection[int]) -> float:
        pace, host, device = self._pace, 0.0, 0.0
        begins = True  # the next partition is a graph of its own
        for run in self._step.runs:
            if run.entry != entry:
                continue
            if run.partition >= 0:
                times = [self._times.get(i, self._none) for i in range(run.begin, run.end)]
                if not pace.is_gpu:
                    host += sum(time.host for time in times)
                    continue
                kernels = sum(time.items for time in times)
                if kernels:
                    host += (pace.launch if begins else 0.0) + pace.each * kernels
                    device = max(device, host) + pace.gap * kernels
                    device += sum(time.device for time in times)
                begins = False
                continue
            for i in range(run.begin, run.end):
                time, call = self._times.get(i, self._none), self._step.calls[i]
                if i in captured:
                    device += time.device + pace.gap * time.items
                    host += pace.each * time.items
                elif call.is_ours:
                    host, device = host + pace.copy, device + pace.copy
                elif call.waits and pace.is_gpu:
                    begins = True
                    device = max(device, host) + time.device
                    host = max(host, device) + min(time.host, pace.start)
                else:
                    begins = begins or call.is_operator
                    host += time.host
                    if time.items:
                        device = max(device, host) + time.device
        return max(host, device) + pace.start
