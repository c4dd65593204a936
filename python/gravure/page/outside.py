"""What a step does outside of Dynamo's graphs: where they end, why, and how long that takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..sizes import count_text
from .graph_words import compiled_anew, read_break, remedy_of

# By so many calls graphs may differ that each step calls once: the first steps lack some.
_MOST_APART = 4
# Longest time between two calls over the usual one: beyond, a step is more than one call.
_UNEVEN = 3.0


@dataclass(frozen=True)
class Finding:
    """One thing to change, or to know. `where` is a source line, or a graph."""

    what: str
    where: str
    cure: str
    cost: float = 0.0  # nanoseconds that the thread is outside of graphs for it; 0 if unknown


def ends_of(page: Mapping[str, Any]) -> list[Finding]:
    """What keeps a step from being one graph, each source line once: what takes longest first,
    then functions without a graph."""
    costs = _costs(page)
    found = [*_left(page), *_breaks(page), *_anew(page)]
    costed = [replace(each, cost=costs.pop(_short(each.where), 0.0)) for each in found]
    # Lines of which nothing else is known: a call of a function that another one names, say.
    costed += [
        Finding("a graph begins behind this line", line, remedy_of(""), cost)
        for line, cost in costs.items()
    ]
    return sorted(one_a_line(costed), key=lambda each: -each.cost)


def one_a_line(findings: Iterable[Finding]) -> list[Finding]:
    """Those of one source line are one."""
    found: dict[tuple[str, str], Finding] = {}
    for each in findings:
        key = (_short(each.where), "" if each.where else each.what)
        known = found.setdefault(key, each)
        if known is not each:
            found[key] = Finding(
                _joined(known.what, each.what),
                max(known.where, each.where, key=len),
                _joined(known.cure, each.cure),
                max(known.cost, each.cost),
            )
    return list(found.values())


def _short(location: str) -> str:
    """Without folders, which Dynamo does not tell of all."""
    return location.rpartition("/")[2]


def _joined(known: str, more: str) -> str:
    return known if more in known else f"{known}; {more}" if known else more


def not_counted(page: Mapping[str, Any]) -> str:
    """What no share of the calls in graphs counts; "" where nothing is between graphs."""
    skipped = sum(bool(function) for function, _, _ in page.get("skipped") or ())
    parts = [count_text(skipped, "function") + " without a graph"] if skipped else []
    parts += ["what runs between two graphs"] if _breaks(page) else []
    parts += ["what comes behind the end of this plan"] if page.get("stopped") else []
    return " and ".join(parts)


def time_outside(page: Mapping[str, Any]) -> float:
    """Nanoseconds of the thread, of a step, between its graphs; 0 where no times were taken."""
    return sum(_costs(page).values())


def time_of_loop(page: Mapping[str, Any]) -> float:
    """Nanoseconds from one step to the next; 0 if unknown, as where a graph is called several times
    in a step: for several modules, or from a function without a graph."""
    graphs = [graph for graph in _clocked(page) if graph["times"]["calls"] > _MOST_APART]
    known = [graph["times"] for graph in graphs]
    calls = [each["calls"] for each in known]
    if not known or max(calls) - min(calls) > _MOST_APART:
        return 0.0
    if any(len(graph["programs"]) > 1 for graph in graphs):
        return 0.0
    first = max(known, key=lambda each: each["step_ns"])
    is_even = first["longest_ns"] <= _UNEVEN * first["step_ns"]
    left = any(function for function, _, _ in page.get("skipped") or ())
    return float(first["step_ns"]) if is_even or not left else 0.0


def _clocked(page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Graphs that times were taken of. One that was let go of is of no step any more: Dynamo may
    hold it for good, behind a reset also."""
    return [graph for graph in page["graphs"] if graph.get("times") and _is_of_a_step(graph)]


def _is_of_a_step(graph: Mapping[str, Any]) -> bool:
    return bool(graph["programs"] or graph["failure"])


def _costs(page: Mapping[str, Any]) -> dict[str, float]:
    """By the line that ends a graph, nanoseconds of a step until the next one begins."""
    calls = page.get("calls") or {}  # where the function is called in which that line is
    known = [graph["times"] for graph in _clocked(page)]
    # None where the graph that steps begin with was let go of.
    steps = max((each["steps"] for each in known), default=0) or 1
    each_time: dict[str, float] = {}
    often: defaultdict[str, int] = defaultdict(int)
    for times in known:
        for line, (count, least) in times["outside"].items():
            line = _short(line)
            line = calls.get(line, line)
            often[line] += count
            each_time[line] = min(least, each_time.get(line, least))
    return {line: ns * max(1, round(often[line] / steps)) for line, ns in each_time.items()}


def _left(page: Mapping[str, Any]) -> list[Finding]:
    """Functions that Dynamo left as they are, and breaks with no operator in front of them."""
    found = []
    for function, location, why in page.get("skipped") or ():
        what = f"no graph of {function} at all: {why}" if function else f"graph break: {why}"
        found.append(Finding(what, location, remedy_of(why)))
    return found


def _anew(page: Mapping[str, Any]) -> list[Finding]:
    """Functions that it compiled again and again."""
    anew = compiled_anew(graph["label"] for graph in page["graphs"])
    return [Finding(each.what, each.location, each.remedy) for each in anew]


def _breaks(page: Mapping[str, Any]) -> list[Finding]:
    """Where it ended graphs before their functions did. Of those that were let go of, nothing."""
    texts = [
        graph["graph_break"]
        for graph in page["graphs"]
        if graph.get("graph_break") and _is_of_a_step(graph)
    ]
    read = map(read_break, dict.fromkeys([*texts, *(page.get("graph_breaks") or ())]))
    return [Finding(f"graph break: {each.why}", each.location, each.remedy) for each in read]
