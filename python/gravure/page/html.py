"""The page as HTML: words and tables are written here, pictures are drawn in the browser
(assets/page.js) from the data at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from ..sizes import bytes_text, count_text, share_text, time_text
from .costs import Span
from .findings import (
    EMULATED,
    Findings,
    ShownProgram,
    counted_outside,
    find,
    is_emulated,
    share_of_loop,
    share_of_time,
    speed_of,
    time_of,
)
from .graph_words import REASONS, read_break
from .plotly_script import plotly_script
from .step_data import Missed, Step, alive_at_peak, held_by_module, holder, makers

_DRAWN = 12  # programs whose step is drawn: those with the most calls
_RECTANGLES = 1200  # buffers in the map of memory: those with the largest areas
_ROWS = 12  # of who holds memory
_GROUPS = 100  # of what is not captured


def page_of(page: Mapping[str, Any]) -> str:
    """One HTML file that needs nothing else.

    `page`: `title`; `graphs`, as GraphReport of calls/reports.py has them, whose programs may have
    `detail` (passes/report/step_detail.h), `times` (python/csrc/process/run_times.h) and
    `call_times` (python/csrc/timed_runs.h); `nothing`, what to say without graphs; `settings` and
    `versions`, by name. There may be `graph_breaks`, `stopped`, `skipped` (functions without a
    graph: name, location, why), `calls` (left_frames.lines_of_calls) and `pace` (costs.Pace).

    Raises ImportError where plotly, which draws, is not installed.
    """
    plotly = plotly_script()
    found = find(page)
    drawn = sorted(
        (p for p in found.programs if p.step and p.step.calls),
        key=lambda p: -len(p.step.calls if p.step else ()),
    )[:_DRAWN]
    # What was captured first: it is what a reader looks for.
    drawn.sort(key=lambda p: (not p.stats.get("captures"), found.programs.index(p)))
    body = "\n".join(
        [
            _top(page, found),
            _time_line(drawn, found),
            _not_captured(page, found),
            _memory(drawn),
            _graphs(page, found),
            _settings(page),
        ]
    )
    data = json.dumps([_data_of(p) for p in drawn], separators=(",", ":"))
    data = data.replace("<", "\\u003c")  # nothing in it ends the script that holds it
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(page["title"])}</title>
<link rel="icon" href="data:,">
<style>{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
{body}
<script type="application/json" id="gravure-data">{data}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


# ---- the sections, in order


def _top(page: Mapping[str, Any], found: Findings) -> str:
    partial = ' class="partial"' if found.not_counted else ""
    verb, is_ = ("are", "is") if any(p.has_run for p in found.programs) else ("will be", "will be")
    most, rest = "", ""
    if found.not_counted:
        most, rest = "at most ", f"; not counted: {found.not_counted}"
    text = f"of a step's operator calls {verb} replayed{rest}"
    cards = [(text, most + found.number, "captured")]
    if share := share_of_time(found):
        text = f"of their time {is_} in graphs: the time that calls take uncaptured"
        if between := counted_outside(found):
            text = (
                f"of a step's time {is_} in graphs: the time that calls take uncaptured, and "
                f"{time_text(between)} between graphs"
            )
        cards.append((text, most + share, "timed"))
    if share := share_of_loop(found):
        text = (
            f"of your loop is in these graphs; {time_text(found.loop)} from one step to the next, "
            "with data, optimizer and Python"
        )
        cards.append((text, share, "loop"))
    time, whose = time_of(found.programs)
    if time:
        cards.append((whose, time, "time"))
    if speed := speed_of(found.programs):
        what = "graph" if len(found.programs) > 1 else "step"
        text = f"as fast as the same {what} uncaptured"
        if is_emulated(found.programs):
            speed, text = "no GPU", "graphs are emulated here: what capture brings is not measured"
        cards.append((text, speed, "speed"))
    arena = sum(p.step.memory.bytes for p in found.of_step if p.step and p.step.memory)
    live = sum(p.step.memory.live_bytes for p in found.of_step if p.step and p.step.memory)
    if arena:
        measured = all(p.step.measured for p in found.of_step if p.step and p.step.memory)
        how = "as recorded" if measured else "as planned from types"
        text = f"for a step's tensors (the arena), {how}; {bytes_text(live)} alive at once"
        cards.append((text, bytes_text(arena), "arena"))
    waits = sum(m.waits for p in found.of_step if p.step for m in p.step.missed)
    where = "in its graphs; reads between them not counted" if found.not_counted else "in a step"
    text = f"of the processor for the device, {where}"
    cards.append((text, count_text(waits, "wait"), "waits"))
    shown = "".join(
        f"<li{partial if name in ('captured', 'timed') else ''}>"
        f'<strong data-number="{name}">{escape(value)}</strong> '
        f"<span>{escape(text)}</span></li>"
        for text, value, name in cards
    )
    first = "".join(
        f"<li><strong>{escape(f.what)}</strong>"
        + (f" at <code>{escape(f.where)}</code>" if f.where else "")
        + (f"<br>{escape(f.cure)}" if f.cure else "")
        + "</li>"
        for f in found.first
    )
    todo = f"<ol>{first}</ol>" if first else f"<p>{_all_well(found)}</p>"
    return f"""<header>
<p class="brand">Gravure</p>
<h1>{escape(page["title"])}</h1>
<p class="lead">{escape(found.headline)}</p>
{f'<ul class="cards">{shown}</ul>' if any(not p.is_released for p in found.programs) else ""}
<nav aria-label="Sections"><a href="#change">What to change</a><a href="#step">One step</a>
<a href="#missed">Not captured</a><a href="#memory">Memory</a><a href="#graphs">Graphs</a>
<a href="#settings">Settings</a></nav>
</header>
<main id="main">
<section id="change" aria-labelledby="change-title">
<h2 id="change-title">What should I change first?</h2>
{todo}
</section>"""


def _all_well(found: Findings) -> str:
    if not found.programs:
        return "There is no program to say it of."
    if any(p.is_released for p in found.programs):
        return "Nothing is captured any more: the program was released."
    return "Nothing: every operator call is in a graph, and no run left its captures."


def _time_line(drawn: Sequence[ShownProgram], found: Findings) -> str:
    if not drawn:
        body = "<p>Nothing is known of a step's calls.</p>"
        return _section("step", "One step", body)
    options = "".join(
        f'<option value="{i}">{escape(p.title)}</option>' for i, p in enumerate(drawn)
    )
    left_out = len([p for p in found.programs if p.step]) - len(drawn)
    note = ""
    if len(found.of_step) > 1:
        note = f"A step runs {count_text(len(found.of_step), 'program')}; one of them is drawn. "
    if left_out > 0:
        largest = count_text(len(drawn), "largest program")
        note += f"To choose from are the {largest} of {len(drawn) + left_out}."
    body = f"""<p>From left to right. A green bar is one CUDA graph, which is replayed; what is
orange is called from C++ on the processor, one by one; red is where the processor waits for the
device.
Drag to zoom, double-click to see all, click a bar for its calls.</p>
{f"<p>{note}</p>" if note else ""}
<div class="controls">
<label{"" if len(drawn) > 1 else " hidden"}>Program <select id="program">{options}</select></label>
<label>Drawn <select id="order"><option value="time">by time</option>
<option value="order">in order</option></select></label>
<span class="buttons" role="group" aria-label="Zoom of the time line">
<button type="button" data-zoom="in">Zoom in</button>
<button type="button" data-zoom="out">Zoom out</button>
<button type="button" data-zoom="left" aria-label="To the left">◀</button>
<button type="button" data-zoom="right" aria-label="To the right">▶</button>
<button type="button" data-zoom="all">All</button></span>
<label>Find <input id="search" type="search" placeholder="operator, module or source line"></label>
<span id="matches" role="status" aria-live="polite"></span>
</div>
<figure id="time-line" role="img" aria-label="Time line of one step. The tables below have the same
numbers."></figure>
<ul id="legend" class="legend" aria-label="Colours of single calls, by part of the model"></ul>
<p id="time-line-text" class="note"></p>
<div class="scroll" tabindex="0" role="region" aria-label="Calls"><table id="calls" hidden>
<caption></caption>
<thead><tr><th scope="col">call</th><th scope="col">operator</th><th scope="col">result</th>
<th scope="col">module</th><th scope="col">source line</th><th scope="col">runs</th>
<th scope="col">takes</th></tr></thead>
<tbody></tbody></table></div>
{"".join(_compared(p, i) for i, p in enumerate(drawn))}"""
    return _section("step", "One step", body)


def _compared(program: ShownProgram, number: int) -> str:
    rows = [list(map(escape, row)) for row in program.predicted_and_measured()]
    if not rows:
        return ""
    head = ["", "predicted", "measured", "apart"]
    table = _table("Predicted and measured", head, rows, numbers={1, 2, 3})
    if any(row[-1] == EMULATED for row in rows):
        table += (
            '<p class="note">Without a GPU a graph is emulated. Its time is predicted as the sum '
            "of what its calls take, and a replay calls them one by one besides what emulation "
            "does for itself: how far the two are apart says nothing of a GPU.</p>"
        )
    return f'<div data-program="{number}"{" hidden" if number else ""}>{table}</div>'


def _cost_text(program: ShownProgram, missed: Missed) -> str:
    """What it costs a step, and how much of the step that is."""
    cost = program.cost(missed)
    if not cost:
        return "–"
    whole = program.costs.replayed or program.costs.predicted
    return f"{time_text(cost)}<br><small>{share_text(min(cost, whole), whole)}</small>"


def _not_captured(page: Mapping[str, Any], found: Findings) -> str:
    rows = [(p, m) for p in found.programs for m in p.missed]
    rows.sort(key=lambda pair: (pair[0].cost(pair[1]), pair[1].cost), reverse=True)
    several = len(found.programs) > 1
    timed = any(p.costs.missed for p in found.programs)
    parts = []
    if rows:
        head = ["reason", "source line", "what to do", *(["time"] if timed else [])]
        head += ["calls", "waits", "cuts", "operators"]
        head += ["module"] + (["program"] if several else [])
        body = [
            [
                f"<code>{escape(m.reason)}</code><br>"
                f"<small>{escape(REASONS.get(m.reason, ''))}</small>",
                f"<code>{escape(m.source or '–')}</code>",
                escape(m.cure),
                *([_cost_text(p, m)] if timed else []),
                f"{m.calls:,}",
                f"{m.waits:,}",
                f"{m.cuts:,}",
                "<br>".join(f"{n:,} {escape(op)}" for op, n in m.operators.items()),
                "<br>".join(map(escape, m.modules[:4])) + (" …" if len(m.modules) > 4 else ""),
                *([escape(p.title)] if several else []),
            ]
            for p, m in rows[:_GROUPS]
        ]
        text = (
            "What it costs, worst first: <em>cuts</em> are sections on the host that it is part "
            "of, each of which ends one graph and begins another; at <em>waits</em> the processor "
            "stands until the device has caught up; <em>calls</em> are launched one by one."
        )
        if timed:
            text += (
                " <em>Time</em> is what a step would gain if these calls were in a graph, as far "
                "as the times of its calls tell; the gains of two rows do not add up."
                if page.get("pace")
                else " <em>Time</em> is what these calls take in a step; without a GPU a graph is "
                "no faster than its calls."
            )
        numbers = {3, 4, 5, 6} if timed else {3, 4, 5}
        parts.append(f"<p>{text}</p>")
        parts.append(_table("Calls outside of graphs", head, body, numbers=numbers))
        if len(rows) > _GROUPS:
            parts.append(f"<p>And {len(rows) - _GROUPS:,} more, each of which costs less.</p>")
    if found.dynamo:
        clocked = any(f.cost for f in found.dynamo)
        body = [
            [
                f"<code>{escape(f.where or '–')}</code>",
                escape(f.what),
                escape(f.cure),
                *([time_text(f.cost) if f.cost else "–"] if clocked else []),
            ]
            for f in found.dynamo
        ]
        head = ["source line", "what", "what to do", *(["outside of graphs"] if clocked else [])]
        parts.append(f"<p>{_of_ends(clocked)}</p>")
        parts.append(_table("Where graphs end", head, body, numbers={3}))
    if found.runtime:
        parts.append("<h3>What the runtime could not do as planned</h3>")
        body = [
            [f"<code>{escape(r.partition(': ')[0])}</code>", escape(r.partition(": ")[2])]
            + [f"{n:,}", escape(title)]
            for title, r, n in found.runtime
        ]
        head = ["remark", "what happened, and what to do", "times", "program"]
        parts.append(_table("Remarks of the runtime", head, body, numbers={2}))
    cold = sum(p.has_run and not p.stats.get("captures") for p in found.programs)
    if cold:
        text = (
            f"{count_text(cold, 'program')} ran too seldom to be captured: two runs warm up, and "
            "with the option times four more are timed."
        )
        parts.append(f"<p>{text} The table of graphs says which.</p>")
    if not parts:
        parts.append("<p>Nothing was missed.</p>" if found.programs else "<p>No program.</p>")
    return _section("missed", "What is not captured, and why", "\n".join(parts))


def _of_ends(clocked: bool) -> str:
    text = (
        "Where Dynamo ends a graph, the step goes on in Python until the next graph begins: what "
        "runs there is never captured, nor is its backward."
    )
    if clocked:
        return (
            f"{text} <em>Outside of graphs</em> is how long the thread is there, in a step at its "
            "shortest. Of several lines between the same two graphs the last one has the time."
        )
    return f"{text} With the option times the page says how long that takes."


def _memory(drawn: Sequence[ShownProgram]) -> str:
    if not any(p.step and p.step.memory for p in drawn):
        return _section("memory", "Memory over the step", "<p>No arena is planned.</p>")
    parts = [
        "<p>Above, the bytes that are alive; below, where they lie in the arena: a rectangle is "
        "one tensor, as wide as it lives and as high as it is large. Parameters, and what the "
        "optimizer keeps, are yours and not in it.</p>",
        '<figure id="memory-map" role="img" aria-label="Arena over the step, by offset and time. '
        'The tables below say who holds it at the peak."></figure>',
        '<p id="memory-text" class="note"></p>',
    ]
    for i, program in enumerate(drawn):
        step = program.step
        if step is None or step.memory is None:
            continue
        hidden = " hidden" if i else ""
        parts.append(f'<div data-program="{i}"{hidden}>{_peak(step)}</div>')
    return _section("memory", "Memory over the step", "\n".join(parts))


def _peak(step: Step) -> str:
    memory = step.memory
    assert memory is not None
    alive = alive_at_peak(step)
    total = sum(buffer.bytes for _, buffer in alive)
    held = held_by_module(step)
    at = step.calls[memory.peak] if memory.peak < len(step.calls) else None
    where = f"at call {memory.peak:,}, <code>{escape(at.op)}</code>" if at else ""
    where += f" in <code>{escape(at.module)}</code>" if at and at.module else ""
    rows = [
        [f"<code>{escape(name)}</code>", bytes_text(size), share_text(size, total)]
        for name, size in held[:_ROWS]
    ]
    if rest := sum(size for _, size in held[_ROWS:]):
        others = f"{len(held) - _ROWS} others"
        rows.append([others, bytes_text(rest), share_text(rest, total)])
    modules = _table("Who holds it, by module", ["made in", "bytes", "share"], rows, numbers={1, 2})
    rows = []
    for maker, buffer in alive[:_ROWS]:
        call = step.calls[maker]
        rows.append(
            [
                f"<code>{escape(call.op)}</code>",
                escape(call.type),
                bytes_text(buffer.bytes),
                share_text(buffer.bytes, total),
                f"<code>{escape(holder(step, maker))}</code>",
                f"<code>{escape(call.source)}</code>",
                f"{buffer.begin:,} to {buffer.end - 1:,}",
            ]
        )
    head = ["made by", "type", "bytes", "share", "module", "source line", "alive in calls"]
    largest = _table("The largest of them", head, rows, numbers={2, 3})
    how = (
        "As recorded in runs."
        if step.measured
        else "Planned from types: what operators need for themselves is known after the warm-up."
    )
    return f"""<h3>At the peak</h3>
<p>{bytes_text(memory.live_bytes)} of {bytes_text(memory.bytes)} are alive {where}.
{how}</p>
{modules}
{largest}"""


def _graphs(page: Mapping[str, Any], found: Findings) -> str:
    shown: dict[int, list[ShownProgram]] = {}
    for program in found.programs:
        shown.setdefault(id(program.graph), []).append(program)
    rows = []
    for graph in page["graphs"]:
        if graph["failure"]:
            calls = " in some calls" if graph["programs"] else ""
            state = f"runs as it is{calls}: {graph['failure']}"
            rows.append([escape(graph["label"]), "", escape(state), *[""] * 7])
        elif not graph["programs"]:
            state = "no program: not called yet, or its captures were let go of"
            rows.append([escape(graph["label"]), "", state, *[""] * 7])
        rows += [_row(program) for program in shown.get(id(graph), [])]
    head = ["graph", "sizes", "partitions", "calls replayed", "runs", "uncaptured", "captures"]
    head += ["launches", "shortest replay", "shortest warm-up"]
    if not rows:
        return _section("graphs", "Graphs", f"<p>{escape(found.headline)}</p>")
    text = (
        "<p>The last two columns: the shortest call, in the time of the thread that calls. A GPU "
        "may be at work when a call returns, and a run of the warm-up records besides.</p>"
    )
    table = _table("Graphs, their sizes and instances", head, rows, numbers={3, 4, 5, 6, 7, 8, 9})
    return _section("graphs", "Graphs", text + table)


def _row(program: ShownProgram) -> list[str]:
    step, stats = program.step, program.stats
    states = []
    for entry, theirs in program.states.items():
        counted = ", ".join(f"{theirs.count(s)} {s}" for s in dict.fromkeys(theirs))
        states.append(f"{escape(entry)}: {escape(counted or 'none')}")
    if not states and step:
        counts = [
            sum(each.entry == e and each.partition >= 0 for each in step.sections)
            for e in range(len(step.entries))
        ]
        states = [f"{escape(e)}: {n} planned" for e, n in zip(step.entries, counts, strict=True)]
    label = program.graph["label"]
    ends = read_break(program.graph.get("graph_break") or "")
    theirs = program.graph.get("kernels") or ""
    label = escape(label) + (f"<br><small>{escape(theirs)}</small>" if theirs else "")
    if ends.why:
        label += f"<br><small>ends at {escape(f'{ends.location}: {ends.why}')}</small>"
    times = [program.least(path) for path in ("replayed", "uncaptured")]
    return [
        label,
        escape(", ".join(map(str, program.found.get("sizes") or []))),
        "<br>".join(states),
        share_text(program.captured, step.operators) if step else "",
        *(f"{stats[key]:,}" if stats else "" for key in ("steps", "uncaptured_steps", "captures")),
        f"{stats['replays']:,}" if stats else "",
        *(time_text(each) if each else "–" for each in times),
    ]


def _settings(page: Mapping[str, Any]) -> str:
    parts = []
    for caption, key in (("Settings", "settings"), ("Versions", "versions")):
        rows = [
            [f"<code>{escape(str(name))}</code>", f"<code>{escape(str(value))}</code>"]
            for name, value in (page.get(key) or {}).items()
        ]
        if rows:
            parts.append(_table(caption, ["name", "value"], rows))
    body = f'<div class="columns">{"".join(parts)}</div>' if parts else "<p>None.</p>"
    return _section("settings", "Settings and versions", body) + "\n</main>"


def _section(name: str, title: str, body: str) -> str:
    return f"""<section id="{name}" aria-labelledby="{name}-title">
<h2 id="{name}-title">{title}</h2>
{body}
</section>"""


def _table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: set[int] | None = None,
) -> str:
    """Cells of `rows` are HTML. `numbers`: columns that are set to the right."""
    right = numbers or set()

    def cells(row: Sequence[str]) -> str:
        return "".join(
            f'<td class="number">{cell}</td>' if i in right else f"<td>{cell}</td>"
            for i, cell in enumerate(row)
        )

    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "\n".join(f"<tr>{cells(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


# ---- what is drawn


def _data_of(program: ShownProgram) -> dict[str, Any]:
    """Of one program, for assets/page.js. Texts stand in `strings`, and elsewhere by number."""
    step = program.step
    assert step is not None
    strings: dict[str, int] = {}

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    calls = [
        [c.partition, *map(number, (c.op, c.result, c.type, c.source, c.module, c.reason))]
        for c in step.calls
    ]
    data: dict[str, Any] = {
        "title": program.title,
        "entries": step.entries,
        "calls": calls,
        "sections": [[s.entry, s.partition, s.begin, s.end, s.kind] for s in step.sections],
        "states": step.states(program.states),
        "waits": [i for i, call in enumerate(step.calls) if call.waits],
        "operators": step.operators,
        "captured": program.captured,
        "time": _times_of(program),
        "why": program.costs.why,
        "memory": None,
    }
    memory = step.memory
    if memory is not None:
        pairs = sorted(
            zip(makers(step), memory.buffers, strict=True),
            key=lambda pair: -pair[1].bytes * (pair[1].end - pair[1].begin),
        )
        drawn, rest = pairs[:_RECTANGLES], pairs[_RECTANGLES:]
        data["memory"] = {
            "bytes": memory.bytes,
            "live_bytes": memory.live_bytes,
            "peak": memory.peak,
            "measured": step.measured,
            "curve": memory.curve,
            "buffers": [
                [b.begin, b.end, b.bytes, b.offset, maker, number(holder(step, maker))]
                for maker, b in drawn
            ],
            "left_out": [len(rest), sum(b.bytes for _, b in rest)],
        }
    data["strings"] = list(strings)
    return data


def _times_of(program: ShownProgram) -> dict[str, Any] | None:
    """When what runs, in milliseconds; None where no times were taken."""
    schedule = program.costs.schedule
    if schedule is None:
        return None

    def span(each: Span) -> tuple[float, float]:
        return round(each.begin / 1e6, 6), round(each.end / 1e6, 6)

    return {
        "gpu": bool(schedule.launches),
        "end": round(schedule.end / 1e6, 6),
        "calls": [span(each) for each in schedule.calls],
        "sections": [span(each) for each in schedule.sections],
        "launches": [(section, *span(each)) for section, each in schedule.launches.items()],
        "waits": [(call, *span(each)) for call, each in schedule.waits.items()],
    }
