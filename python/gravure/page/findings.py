"""What the page says in words: of all programs together, and what to change first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..sizes import bytes_text, count_text, share_text, time_text, times_text
from .costs import Costs, costs_of
from .graph_words import MANY, REASONS, frame_of
from .outside import Finding, ends_of, not_counted, one_a_line, time_of_loop, time_outside
from .step_data import Missed, Step, read_step

EMULATED = "emulated"  # a replay without a GPU, whose time is not what was predicted
_FIRST = 4  # findings that are named on top
_FEWEST = 7  # runs until the first one is captured, where times are taken
_MUCH = 0.2  # of the loop: a share to speak of
_ELSEWHERE = 3  # further lines of one of them


@dataclass
class ShownProgram:
    """One program of a graph; `step` is None where nothing is known of its calls."""

    title: str
    graph: Mapping[str, Any]
    found: Mapping[str, Any]
    step: Step | None
    costs: Costs = field(default_factory=Costs)

    @property
    def states(self) -> Mapping[str, Sequence[str]]:
        return self.found.get("partitions") or {}

    @property
    def stats(self) -> Mapping[str, int]:
        return self.found.get("stats") or {}

    @property
    def has_run(self) -> bool:
        return bool(self.stats.get("steps"))

    @property
    def is_released(self) -> bool:
        """Whether its captures were given back: it ran, and its partitions have no state."""
        planned = self.step is not None and any(each.partition >= 0 for each in self.step.sections)
        return self.has_run and planned and not any(self.states.values())

    @property
    def captured(self) -> int:
        """Operator calls that are replayed; before a run, those that are planned to be."""
        if self.step is None:
            return 0
        return self.step.captured(self.states if self.has_run else None)

    @property
    def graphs(self) -> int:
        """CUDA graphs of a step that are captured; before a run, those that are planned."""
        if self.step is None:
            return 0
        if self.has_run:
            return sum(state == "captured" for each in self.states.values() for state in each)
        return sum(each.partition >= 0 for each in self.step.sections)

    def least(self, path: str) -> int:
        """Nanoseconds of the shortest call on that path, of all entries; 0 if one has none."""
        times = self.found.get("times") or {}
        entries = self.step.entries if self.step else []
        each = [times.get(f"{entry}.{path}.least_ns", 0) for entry in entries]
        return sum(each) if each and all(each) else 0

    @property
    def replayed(self) -> float:
        """Nanoseconds of a replayed step: of all of it where that was timed (the option `times`),
        else of the thread that calls. 0 if unknown."""
        return self.costs.replayed or self.least("replayed")

    @property
    def speed(self) -> float:
        """The uncaptured path's time over a replay's; 0 where no run was made to compare (the
        options `times` and `shadow`)."""
        if self.costs.replayed and self.costs.uncaptured:
            return self.costs.uncaptured / self.costs.replayed
        replayed, plain = self.least("replayed"), self.least("plain")
        return plain / replayed if replayed else 0.0

    def cost(self, missed: Missed) -> float:
        """Nanoseconds of a step that this costs; 0 if unknown."""
        return self.costs.missed.get((missed.reason, missed.source), 0.0)

    @property
    def missed(self) -> list[Missed]:
        """Worst first: by time where that is known."""
        groups = self.step.missed if self.step else []
        return sorted(groups, key=lambda m: (self.cost(m), m.cost), reverse=True)

    def predicted_and_measured(self) -> list[tuple[str, str, str, str]]:
        """What, predicted, measured, and how far they are apart."""
        step = self.step
        detail = self.found.get("detail")
        if step is None or detail is None:
            return []
        planned, measured = detail["planned"], detail["measured"]
        partitions = sum(each.partition >= 0 for each in step.sections)
        rows = [self._partitions(partitions), self._launched(partitions), self._staged(detail)]
        for name, key in (("arena", "bytes"), ("most alive at once", "live_bytes")):
            there = bytes_text(measured[key]) if measured else "not yet"
            apart = _apart(planned[key], measured[key]) if measured else ""
            rows.append((name, bytes_text(planned[key]), there, apart))
        rows.append(self._time())
        return rows

    def _time(self) -> tuple[str, str, str, str]:
        costs, name = self.costs, "time of a step"
        if not costs.is_known:
            why = f"not known: {costs.why}" if costs.why else "with the option times"
            return name, why, time_text(costs.replayed) if costs.replayed else "not yet", ""
        apart = _apart(costs.predicted, costs.replayed) if costs.replayed else ""
        if apart and not costs.is_gpu:
            apart = EMULATED
        there = time_text(costs.replayed) if costs.replayed else "not yet"
        return name, time_text(costs.predicted), there, apart

    def _partitions(self, planned: int) -> tuple[str, str, str, str]:
        name = "partitions captured"
        if not self.stats.get("captures"):
            return name, f"{planned:,}", "not yet", ""
        return name, f"{planned:,}", f"{self.graphs:,}", _apart(planned, self.graphs)

    def _launched(self, planned: int) -> tuple[str, str, str, str]:
        name, there = "graphs launched a step", self._last("launches")
        if there is None:
            return name, f"{planned:,}", "not yet", ""
        return name, f"{planned:,}", f"{there:,}", _apart(planned, there)

    def _staged(self, detail: Mapping[str, Any]) -> tuple[str, str, str, str]:
        name, planned = "inputs copied in, a step", sum(detail.get("staged") or ())
        there = self._last("staged_bytes")
        if there is None:
            return name, bytes_text(planned), "not yet", ""
        return name, bytes_text(planned), bytes_text(there), _apart(planned, there)

    def _last(self, what: str) -> int | None:
        """Of the last replays, of all entries; None where one has none."""
        times = self.found.get("times") or {}
        entries = self.step.entries if self.step else []
        if not entries or not all(times.get(f"{each}.replayed.runs") for each in entries):
            return None
        return sum(times[f"{each}.replayed.{what}"] for each in entries)


@dataclass
class Findings:
    """Of the whole page."""

    programs: list[ShownProgram]
    of_step: list[ShownProgram]  # those that one step runs
    headline: str
    number: str  # the share of operator calls that are replayed
    not_counted: str = ""  # code of the step that is in no graph at all
    outside: float = 0.0  # nanoseconds of a step between its graphs; 0 if unknown
    loop: float = 0.0  # from one step to the next; 0 if unknown
    runtime: list[tuple[str, str, int]] = field(default_factory=list)  # program, remark, how often
    dynamo: list[Finding] = field(default_factory=list)  # what Dynamo keeps from being one graph
    first: list[Finding] = field(default_factory=list)  # to change


def find(page: Mapping[str, Any]) -> Findings:
    """`page`: what `gravure.page.html.page_of` is given."""
    programs = list(_programs(page["graphs"], page.get("pace")))
    together = _of_one_step(programs)
    operators = sum(p.step.operators for p in together if p.step)
    captured = sum(p.captured for p in together)
    number = share_text(captured, operators)
    headline = _headline(page, together, captured, operators)
    runtime = [
        (p.title, remark, count)
        for p in programs
        for remark, count in (p.found.get("remarks") or {}).items()
    ]
    ends = ends_of(page)
    found = Findings(
        programs,
        together,
        headline,
        number,
        not_counted(page) if programs else "",
        time_outside(page),
        time_of_loop(page),
        runtime,
        ends,
    )
    found.first = _first(page, found)
    return found


def _of_one_step(programs: list[ShownProgram]) -> list[ShownProgram]:
    """Without programs that a step does not run. Of code that is compiled anew again and again a
    step runs one graph: those that were captured count, or else the first. And a program that ran
    once, before another one of the same code was captured, served the first step alone, as that of
    an optimizer without state does."""
    frames = [frame_of(p.graph["label"]) for p in programs]
    captured = {_location(p) for p in programs if p.stats.get("captures")}
    kept: set[str] = set()
    found = []
    for program, frame in zip(programs, frames, strict=True):
        cold = program.has_run and not program.stats.get("captures")
        runs = len(program.step.entries) if program.step else 1  # of a step: each entry's
        if cold and program.stats["steps"] <= runs and _location(program) in captured:
            continue
        if cold and frame in kept and frames.count(frame) >= MANY:
            continue
        kept.add(frame)
        found.append(program)
    return found


def _location(program: ShownProgram) -> str:
    return program.graph["label"].rpartition(" at ")[2]


def _programs(
    graphs: Sequence[Mapping[str, Any]], pace: Mapping[str, float] | None
) -> Iterator[ShownProgram]:
    titles = Counter(graph["label"] for graph in graphs)
    for graph in graphs:
        for i, found in enumerate(graph["programs"]):
            title = graph["label"]
            if titles[title] > 1 and graph.get("number"):
                title += f", graph {graph['number']}"
            if found.get("sizes"):
                title += f", sizes {', '.join(map(str, found['sizes']))}"
            elif len(graph["programs"]) > 1:
                title += f", instance {i + 1}"
            detail = found.get("detail")
            step = read_step(detail) if detail else None
            times = found.get("call_times")
            costs = costs_of(step, times, pace) if step and times else Costs()
            yield ShownProgram(title, graph, found, step, costs)


def _headline(
    page: Mapping[str, Any], programs: list[ShownProgram], captured: int, operators: int
) -> str:
    graphs = page["graphs"]
    failed = sum(bool(graph["failure"]) and not graph["programs"] for graph in graphs)
    if not graphs and page.get("skipped"):
        count = count_text(sum(bool(left[0]) for left in page["skipped"]), "function")
        return f"Nothing is captured: {count} that Dynamo left without a graph."
    if not graphs:
        return page["nothing"]
    if not programs:
        if failed:
            graphs_text = f"{count_text(failed, 'graph')} of {len(graphs)}"
            return f"Nothing is captured: {graphs_text} run as they are."
        return (
            "No program is here: the graphs were not called yet, or their captures were let go of "
            "(gravure.drop_captures, torch._dynamo.reset, a model that is gone)."
        )
    if all(p.is_released for p in programs):
        replays = sum(p.stats.get("replays", 0) for p in programs)
        return (
            "Released: the captures were given back (shutdown). What is below was known before: "
            f"{count_text(operators, 'operator call')} of a step, "
            f"{count_text(replays, 'launch', 'launches')} of graphs."
        )
    launched = sum(p.graphs for p in programs)
    ran = any(p.has_run for p in programs)
    verb = "are replayed" if ran else "will be replayed"
    text = (
        f"{captured:,} of {count_text(operators, 'operator call')} of a step {verb}, as "
        f"{count_text(launched, 'CUDA graph')}"
    )
    timed = _largest_timed(programs)
    if timed is not None:
        whose = "" if timed.costs.replayed else " the calling thread"
        what = "the largest graph" if len(programs) > 1 else "a step"
        text += f"; {what} takes{whose} {time_text(timed.replayed)}"
        text += f" ({timed.title})" if len(programs) > 1 else ""
        if timed.speed and not is_emulated(programs):
            text += f", uncaptured {time_text(timed.replayed * timed.speed)}"
    elif ran and not any(p.stats.get("replays") for p in programs):
        text += "; nothing was replayed yet"
    elif not ran:
        text += "; nothing has run yet"
    text += "."
    if failed:
        text += f" {count_text(failed, 'graph')} of {len(graphs)} run as they are."
    if left_out := not_counted(page):
        text += f" Not counted, and never replayed: {left_out}; see below what ends them."
    return text


def is_emulated(programs: Sequence[ShownProgram]) -> bool:
    """Whether what was timed ran without a GPU: a graph is its calls, and gains nothing."""
    return any(p.costs.is_known and not p.costs.is_gpu for p in programs)


def speed_of(programs: Sequence[ShownProgram]) -> str:
    """How many times as fast as uncaptured the largest program is; "" if that was not measured."""
    largest = _largest_timed(programs)
    return times_text(largest.speed) if largest and largest.speed else ""


def _largest_timed(programs: Sequence[ShownProgram]) -> ShownProgram | None:
    timed = [p for p in programs if p.step and p.replayed]
    return max(timed, key=lambda p: p.step.operators if p.step else 0, default=None)


def time_of(programs: Sequence[ShownProgram]) -> tuple[str, str]:
    """What a replayed step of the largest program takes, and of what that is the time; "" if
    unknown."""
    largest = _largest_timed(programs)
    if largest is None:
        return "", ""
    what = "a replay of the largest graph" if len(programs) > 1 else "a replayed step"
    whose = "for" if largest.costs.replayed else "of the calling thread, for"
    return time_text(largest.replayed), f"{whose} {what} at its shortest"


def share_of_time(found: Findings) -> str:
    """Of the time of a step, what its calls in graphs take, uncaptured; "" where none was timed."""
    known = [p for p in found.of_step if p.costs.is_known]
    calls = sum(p.costs.uncaptured for p in known)
    if not calls:
        return ""
    in_graphs = sum(p.costs.share * p.costs.uncaptured for p in known)
    return share_text(in_graphs, calls + counted_outside(found))


def counted_outside(found: Findings) -> float:
    """Nanoseconds of a step between graphs, as far as they are a part of its time: while a GPU is
    at work still, the thread's are not."""
    return found.outside if is_emulated(found.programs) else 0.0


def share_of_loop(found: Findings) -> str:
    """Of the time from one step to the next, what is in compiled code; "" if unknown."""
    compiled = _compiled_time(found)
    return share_text(compiled, found.loop) if compiled else ""


def _compiled_time(found: Findings) -> float:
    """Nanoseconds of a step of the loop in programs; 0 if either is not known."""
    replayed = [p.costs.replayed or p.costs.predicted for p in found.of_step]
    return min(sum(replayed), found.loop) if found.loop and all(replayed) else 0.0


def _first(page: Mapping[str, Any], whole: Findings) -> list[Finding]:
    found = [*_too_seldom(whole.of_step), *map(_with_cost, whole.dynamo)]
    for graph in page["graphs"]:
        if graph["failure"]:
            calls = " in some calls" if graph["programs"] else ""
            what = f"runs as it is{calls}, without a program"
            found.append(Finding(what, graph["label"], graph["failure"]))
    for title, remark, count in whole.runtime:
        times = f" ({count} times)" if count > 1 else ""
        name, _, message = remark.partition(": ")
        found.append(Finding(f"{name}{times}", title, message))
    groups = [(p, missed) for p in whole.programs for missed in p.missed]
    groups.sort(key=lambda pair: (pair[0].cost(pair[1]), pair[1].cost), reverse=True)
    for program, missed, elsewhere in _by_reason(groups):
        words = REASONS.get(missed.reason, missed.reason)
        run, cut = ("run", "cut") if missed.calls > 1 else ("runs", "cuts")
        what = f"{words} ({missed.reason}): {count_text(missed.calls, 'call')} {run} on the host"
        what += f" and {cut} the step {count_text(missed.cuts, 'time')}"
        if cost := program.cost(missed):
            what += f", which costs it {time_text(cost)}"
        if elsewhere:
            what += f"; likewise at {', '.join(elsewhere[:_ELSEWHERE])}"
            what += ", …" if len(elsewhere) > _ELSEWHERE else ""
        found.append(Finding(what, missed.source or program.title, missed.cure))
    if page.get("stopped"):
        found.append(Finding("seen up to here", page["stopped"], ""))
    found = [*one_a_line(found), *_of_loop(whole)]
    return found[:_FIRST]


def _of_loop(whole: Findings) -> Iterator[Finding]:
    """What no graph can have: the loop around the compiled model."""
    compiled = _compiled_time(whole)
    rest = whole.loop - compiled - counted_outside(whole)
    if not compiled or rest < _MUCH * whole.loop:
        return
    what = f"{share_text(rest, whole.loop)} of your loop is beside these graphs"
    yield Finding(
        what,
        "",
        "for the optimizer, where it is not compiled yet, gravure.compile_optimizer, or "
        "gravure.compile_step(loss, optimizer=…); for data a DataLoader with workers; log every "
        "hundred steps",
    )


def _too_seldom(programs: Sequence[ShownProgram]) -> Iterator[Finding]:
    """Where nothing is captured, since the run was short."""
    runs = [p.stats["steps"] // max(1, len(p.step.entries) if p.step else 1) for p in programs
            if p.has_run and not p.is_released]  # fmt: skip
    if runs and not any(p.stats.get("captures") for p in programs) and max(runs) < _FEWEST:
        what = f"nothing is captured yet: it ran {count_text(max(runs), 'time')}"
        cure = "two runs warm up, and with the option times four more are timed: run ten steps"
        yield Finding(what, "", cure)


def _with_cost(end: Finding) -> Finding:
    if not end.cost:
        return end
    return replace(end, what=f"{end.what}; {time_text(end.cost)} of a step are outside of graphs")


def _by_reason(
    groups: Sequence[tuple[ShownProgram, Missed]],
) -> list[tuple[ShownProgram, Missed, list[str]]]:
    """The worst of each reason, and the lines of the others: one change mends them all, or none."""
    found: dict[str, tuple[ShownProgram, Missed, list[str]]] = {}
    for program, missed in groups:
        _, first, elsewhere = found.setdefault(missed.reason, (program, missed, []))
        if missed.source and missed.source not in (first.source, *elsewhere):
            elsewhere.append(missed.source)
    return list(found.values())


def _apart(predicted: float, measured: float) -> str:
    if predicted == measured:
        return "equal"
    if not predicted:
        return f"{measured:+,.4g}"
    percent = 100 * (measured - predicted) / predicted
    return f"{percent:+.2g} %" if abs(percent) < 10 else f"{percent:+,.0f} %"
