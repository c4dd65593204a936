"""What calls cost: a step's time, predicted from the times of its calls, and what each reason for
not capturing adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    # From a launch until its kernel runs, and from its end until the thread knows.
    start: float = 0.0
    copy: float = 0.0  # a small kernel by itself

    @property
    def is_gpu(self) -> bool:
        return self.start > 0


NO_GPU = Pace()


class Span(NamedTuple):
    """In nanoseconds from a step's begin."""

    begin: float
    end: float


@dataclass
class Schedule:
    """When what runs in a replay, as worked out of the times of its calls."""

    calls: list[Span]  # on the device; those of the host, and all without a GPU, on the thread
    sections: list[Span]  # by section of the step, likewise
    launches: dict[int, Span]  # by section: until its graph is launched, on the thread; with a GPU
    waits: dict[int, Span]  # by call: until the device has caught up
    end: float


@dataclass
class Costs:
    """Of one program's step. Times in nanoseconds; 0 where nothing was timed."""

    uncaptured: float = 0.0  # measured, from an idle device to an idle device
    replayed: float = 0.0  # measured likewise
    predicted: float = 0.0  # of a replay, from the times of calls
    share: float = 0.0  # of the calls' time uncaptured, that of calls in graphs; 0 to 1
    why: str = ""  # why calls have no times
    is_gpu: bool = False
    missed: dict[tuple[str, str], float] = field(default_factory=dict)  # by reason and source
    schedule: Schedule | None = None  # of a replay

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
    known = _times(whole)
    found.is_gpu = bool(pace) or any(time.items for time in known.values())
    timeline = _Timeline(step, known, Pace(**pace) if pace else NO_GPU)
    found.schedule = timeline.schedule()
    found.predicted = found.schedule.end
    found.share = timeline.share()
    for missed in _by_own_time(step.missed, timeline)[:_WEIGHED]:
        found.missed[missed.reason, missed.source] = timeline.cost(missed.numbers)
    return found


def _times(whole: Sequence[Mapping[str, Any]]) -> dict[int, CallTime]:
    """By call."""
    return {row[0]: CallTime(*row[1:]) for entry in whole for row in entry["calls"]}


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

    def time(self, captured: frozenset[int] = frozenset()) -> float:
        """Of a step. `captured`: calls on the host that are taken to be in graphs."""
        return self.schedule(captured).end

    def schedule(self, captured: frozenset[int] = frozenset()) -> Schedule:
        """Likewise."""
        none = Span(0.0, 0.0)
        found = Schedule(
            [none] * len(self._step.calls), [none] * len(self._step.sections), {}, {}, 0.0
        )
        for entry in range(len(self._step.entries)):
            self._entry(entry, captured, found)
        return found

    def _entry(self, entry: int, captured: frozenset[int], found: Schedule) -> None:
        """From an idle device to an idle device. A wait is where the two clocks meet."""
        pace, host, device = self._pace, found.end, found.end
        begins = True  # the next partition is a graph of its own
        for r, section in enumerate(self._step.sections):
            if section.entry != entry:
                continue
            if section.partition >= 0:
                times = [self._times.get(i, self._none) for i in range(section.begin, section.end)]
                kernels = sum(time.items for time in times)
                if pace.is_gpu and kernels:
                    before = host
                    host += (pace.launch if begins else 0.0) + pace.each * kernels
                    found.launches[r] = Span(before, host)
                    device = max(device, host)
                begins = True
                at = device if pace.is_gpu else host
                first = at
                for i, time in zip(range(section.begin, section.end), times, strict=True):
                    took = time.device + pace.gap * time.items if pace.is_gpu else time.host
                    found.calls[i] = Span(at, at + took)
                    at += took
                found.sections[r] = Span(first, at)
                host, device = (host, at) if pace.is_gpu else (at, at)
                continue
            first = host
            numbers = range(section.begin, section.end)
            # In one graph with what is before and behind it.
            begins = captured.isdisjoint(numbers) or any(
                self._step.calls[i].is_operator and i not in captured for i in numbers
            )
            for i in numbers:
                time, call = self._times.get(i, self._none), self._step.calls[i]
                before = host
                if i in captured:
                    device += time.device + pace.gap * time.items
                    host += pace.each * time.items
                elif call.is_ours:
                    host, device = host + pace.copy, max(device, host) + pace.copy
                elif call.waits and pace.is_gpu:
                    device = max(device, host) + time.device
                    host = max(host, device) + min(time.host, pace.start)
                    found.waits[i] = Span(before, host)
                else:
                    host += time.host
                    if time.items:
                        device = max(device, host) + time.device
                found.calls[i] = Span(before, host)
            found.sections[r] = Span(first, host)
        found.end = max(host, device) + pace.start
