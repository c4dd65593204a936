"""What a step does outside of graphs: each cause once and by the user's own line, how long it
takes, and numbers on the page that do not pass over it."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
from gravure.calls.step_clock import StepClock
from gravure.page.findings import find, is_emulated, share_of_time
from gravure.page.html import page_of
from gravure.page.outside import Finding, ends_of, one_a_line, time_of_loop, time_outside
from gravure.torch_api import left_frames
from running import need_library
from test_page import number_of, text_of
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")
_ASLEEP = 0.005  # seconds, which are seen beside all else


def _untraced() -> int:
    time.sleep(_ASLEEP)  # nothing that Dynamo traces
    return len(open(__file__).readline())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x).relu()
        return y * (y > 0).float().mean().item()  # reads


class Looping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + self.gate(x).mean()
            if x.sum().item() > 1e9:  # loops
                break
        return x


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.scaled, self.looping = nn.Linear(8, 16), Scaled(), Looping()
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        print(end="")  # prints
        y = self.scaled(y)
        _untraced()  # opens
        y = self.looping(y)
        return self.last(y).square().mean()


def line_of(kind: type, mark: str) -> str:
    lines, first = inspect.getsourcelines(kind)
    number = first + next(i for i, text in enumerate(lines) if f"# {mark}" in text)
    return f"{Path(__file__).name}:{number}"


def trained(model: nn.Module, steps: int = 14, **options: Any) -> Any:
    compiled = torch.compile(model, backend="gravure", options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        compiled(torch.randn(32, 8)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return compiled


CAUSES = [(Broken, "prints"), (Scaled, "reads"), (Broken, "opens"), (Looping, "loops")]


def test_each_cause_is_told_once_by_the_users_line(tmp_path: Path) -> None:
    """Dynamo breaks in what is called and once more where it is called, and goes on in functions
    of its own."""
    alive = trained(Broken(), times=True)
    found = gravure.report(html=tmp_path / "report.html")
    text = str(found)
    ends = [g.graph_break for g in found.graphs if g.graph_break]
    ends += found.skipped
    ends = [each for each in ends if "test_outside.py" in each]  # graphs of other tests may live
    for kind, mark in CAUSES:
        line = line_of(kind, mark)
        assert sum(line in each for each in ends) == 1, (mark, ends)
    assert len(ends) == len(CAUSES) and "torch_dynamo_resume" not in text
    assert f"{line_of(Broken, 'opens')}: graph break" in text and "`print`" in text
    top = text_of((tmp_path / "report.html").read_text())
    top = top.partition("What should I change first?")[2].partition("One step From left")[0]
    for kind, mark in CAUSES:
        assert top.count(line_of(kind, mark)) <= 1, mark
    del alive


class Calls(nn.Module):
    """What breaks lies two calls down, and nothing follows any of them."""

    def forward(self, x: Tensor) -> Tensor:
        return self.between(x * 2)

    def between(self, x: Tensor) -> Tensor:
        return self.inner(x + 1)

    def inner(self, x: Tensor) -> Tensor:
        y = x.relu()
        print(end="")  # deep
        return y * 3


def test_a_break_in_a_call_of_a_call_is_told_once() -> None:
    compiled = torch.compile(Calls(), backend="gravure")
    for _ in range(4):
        compiled(torch.randn(8))
    found = gravure.report()
    ends = [g.graph_break for g in found.graphs if g.graph_break and g.programs] + found.skipped
    assert sum(line_of(Calls, "deep") in each for each in ends) >= 1
    assert not any("is without a graph" in each for each in found.skipped), found.skipped


def _told_alone(x: Tensor) -> None:
    return print(end="")  # alone


def _told_too(x: Tensor) -> None:
    return print(end="")  # too


def test_two_functions_that_break_alike_are_both_told() -> None:
    """Nothing follows either break, and neither calls the other."""
    for each in (_told_alone, _told_too):
        torch.compile(each, backend="gravure")(torch.randn(3))
    skipped = gravure.report().skipped
    for name in ("_told_alone", "_told_too"):
        assert sum(name in each for each in skipped) == 1, skipped


def test_functions_that_call_each_other_end_at_one_of_them() -> None:
    calls = {"m.py:1": "m.py:2", "m.py:2": "m.py:3", "m.py:3": "m.py:2", "m.py:4": "m.py:5"}
    assert left_frames._last_of(calls, "m.py:1") == "m.py:3"
    assert left_frames._last_of(calls, "m.py:4") == "m.py:5"


def test_a_run_that_was_too_short_says_so(tmp_path: Path) -> None:
    layer = nn.Linear(4, 4)
    step = torch.compile(lambda x: layer(x).sum(), backend="gravure", options={"times": True})
    for _ in range(3):
        step(torch.randn(2, 4)).backward()
    gravure.report(html=tmp_path / "report.html")
    top = text_of((tmp_path / "report.html").read_text())
    assert "nothing is captured yet: it ran 3 times" in top and "run ten steps" in top


def test_diagnose_names_them_too() -> None:
    found = gravure.diagnose(Broken(), torch.randn(32, 8))
    told = [cause.where for cause in found.causes]
    for kind, mark in CAUSES:
        assert told.count(line_of(kind, mark)) == 1, (mark, told)


def test_explain_names_them_too() -> None:
    """`.item()` needs a value, which nothing has there: what is in front of it is seen."""
    text = str(gravure.explain(Broken(), (torch.randn(32, 8),)))
    assert line_of(Broken, "prints") in text and "torch_dynamo_resume" not in text


def test_time_between_graphs_is_that_of_the_line(tmp_path: Path) -> None:
    alive = trained(Broken(), times=True)
    found = gravure.report(html=tmp_path / "report.html")
    outside = {
        line: time
        for graph in found.graphs
        for line, (_, time) in graph.times.get("outside", {}).items()
    }
    asleep = 1e9 * _ASLEEP
    assert 0 < outside[line_of(Broken, "prints")] < asleep
    assert 0 < outside[line_of(Scaled, "reads")] < asleep
    assert any(time > asleep for time in outside.values())  # before what is behind the sleep
    first = next(graph for graph in found.graphs if graph.times.get("steps"))
    assert first.times["calls"] == 14 and first.times["step_ns"] > asleep
    page = (tmp_path / "report.html").read_text()
    row = page.partition("Where graphs end")[2].partition("</table>")[0]
    assert line_of(Looping, "loops") in row.partition("</tr>")[2].partition("</tr>")[0]  # the worst
    del alive


def test_a_step_that_is_half_outside_is_no_captured_one(tmp_path: Path) -> None:
    """The shares of calls and of time say what they leave out, and count time between graphs."""
    alive = trained(Broken(), 20, times=True)
    gravure.report(html=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert number_of(page, "captured").startswith("at most ")
    assert number_of(page, "timed").startswith("at most ")
    share = number_of(page, "timed").removeprefix("at most ").removesuffix(" %")
    assert float(share.lstrip("< ")) < 50  # it sleeps for most of it
    assert page.count('class="partial"') == 2
    if "of your loop is in these graphs" in page:  # not where the machine held up a step
        assert float(number_of(page, "loop").removesuffix(" %").lstrip("< ")) < 50
    assert "reads between them not counted" in page
    del alive


def test_a_whole_step_is_told_of_its_loop(tmp_path: Path) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).square().mean()

    model = Whole()
    compiled = torch.compile(model, backend="gravure", options={"times": True})
    for _ in range(14):
        compiled(torch.randn(4, 8)).backward()
        model.zero_grad()
        time.sleep(_ASLEEP)
    own = gravure.report(html=tmp_path / "report.html").graphs[-1]
    assert own.times["steps"] == own.times["calls"] == 14 and own.times["outside"] == {}
    page = (tmp_path / "report.html").read_text()
    assert "at most" not in number_of(page, "captured")
    assert "of your loop is beside these graphs" in page and "compile_optimizer" in page


def test_without_the_option_nothing_is_clocked() -> None:
    alive = trained(Broken(), steps=4)
    own = gravure.report().graphs
    assert own and all(graph.times == {} for graph in own)
    del alive


def test_without_a_gpu_no_speed_is_claimed(tmp_path: Path) -> None:
    """A graph is emulated: what it takes says nothing of capture, and is not what was predicted."""
    alive = trained(Broken(), times=True)
    gravure.report(html=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert number_of(page, "speed") == "no GPU"
    assert '<td class="number">emulated</td>' in page and "says nothing of a GPU" in page
    del alive


# ---- the clock, and the page, of made-up calls


def _called(*clocks: StepClock, times: int = 3) -> None:
    for _ in range(times):
        for clock in clocks:
            clock.around(lambda: None)()


_BROKEN = """def step(first, called, rest):
    first(), called()
    rest()
"""


def test_the_clock_tells_a_step_from_what_is_in_it() -> None:
    first = StepClock("0 at m.py:1", ends_at="m.py:2", resumes_at="")
    called = StepClock("1 at m.py:9", ends_at="", resumes_at="")  # ends, and the first one goes on
    rest = StepClock("2 at m.py:4", ends_at="m.py:5", resumes_at="m.py:3")
    names: dict[str, Any] = {}
    exec(compile(_BROKEN, "m.py", "exec"), names)
    for _ in range(3):
        names["step"](*(clock.around(lambda: None) for clock in (first, called, rest)))
    assert [clock.read()["steps"] for clock in (first, called, rest)] == [3, 0, 0]
    assert list(called.read()["outside"]) == ["m.py:2"] and called.read()["outside"]["m.py:2"][0]
    assert list(rest.read()["outside"]) == ["m.py:3"]
    # What the last graph is followed by, up to the next step, is the loop's.
    assert first.read()["outside"] == {} and first.read()["step_ns"] > 0


def test_what_runs_between_two_models_is_the_loops() -> None:
    """Also where the first one ends in a graph break: its function is over."""
    one = StepClock("0 at m.py:1", ends_at="m.py:2", resumes_at="")
    other = StepClock("1 at m.py:9", ends_at="", resumes_at="")
    _called(one, other)
    assert [clock.read()["steps"] for clock in (one, other)] == [3, 3]
    assert one.read()["outside"] == other.read()["outside"] == {}


def _page(**more: Any) -> dict[str, Any]:
    return {"title": "", "nothing": "", "graphs": [], **more}


def _timed(number: int, graph_break: str, **times: Any) -> dict[str, Any]:
    known = {"calls": 20, "steps": 0, "step_ns": 0, "longest_ns": 0, "outside": {}} | times
    label = f"graph {number}/0 at m.py:{number}"
    return {
        "label": label,
        "failure": "",
        "programs": [{"sizes": []}],
        "graph_break": graph_break,
        "times": known,
    }


def test_what_dynamo_forgets_no_report_has(tmp_path: Path) -> None:
    """As in a notebook, where the cell with the cure runs behind the one without."""
    alive = trained(Broken(), steps=2)
    assert gravure.report().skipped
    gravure.drop_captures()  # which Dynamo does not know of
    assert gravure.report().skipped
    torch._dynamo.reset()
    assert gravure.report().skipped == []
    del alive


def test_what_takes_longest_is_first_and_time_counts_where_the_called_function_breaks() -> None:
    graphs = [
        _timed(0, "m.py:2: why; do this", steps=20, step_ns=9000),
        _timed(1, "m.py:9: why", outside={"folder/m.py:2": [20, 300]}),
        _timed(2, "", outside={"m.py:4": [20, 500], "m.py:2": [1, 9_000_000]}),  # it compiles
        _timed(3, "", outside={"m.py:6": [40, 200]}),  # twice a step
    ]
    found = ends_of(_page(graphs=graphs, calls={"m.py:4": "m.py:9"}))
    assert [(each.where, each.cost) for each in found[:2]] == [("m.py:9", 500), ("m.py:6", 400)]
    assert (found[2].where, found[2].cost, found[2].cure) == ("m.py:2", 300, "do this")


def _run(graph: dict[str, Any], *, gpu: bool) -> dict[str, Any]:
    """The graph, with a program of one call, which takes 900 ns in a CUDA graph or emulated."""
    calls = [[0, 0, "aten::mm", "%a", "Float[8]", "m.py:1", "", ""]]
    plan = {"bytes": 0, "live_bytes": 0, "alignment": 512, "buffers": []}
    detail = {"entries": ["step"], "calls": calls, "planned": plan, "measured": None, "cures": {}}
    row = [0, 900, 900, 1] if gpu else [0, 900, 0, 0]
    times = {"step": {"uncaptured_ns": 900, "replayed_ns": 900, "calls": [row]}}
    return graph | {"programs": [{"sizes": [], "detail": detail, "call_times": times}]}


@pytest.mark.parametrize("gpu", [True, False])
def test_time_between_graphs_is_a_part_of_a_steps_where_no_gpu_is_at_work_meanwhile(
    gpu: bool,
) -> None:
    graph = _run(_timed(1, "", steps=20, outside={"m.py:2": [20, 300]}), gpu=gpu)
    pace = {"gap": 1.0, "launch": 5.0, "each": 0.0, "start": 3.0, "copy": 1.0} if gpu else None
    found = find(_page(graphs=[graph], pace=pace))
    assert is_emulated(found.programs) is not gpu
    # Also where a GPU's pace is not known.
    assert is_emulated(find(_page(graphs=[graph], pace=None)).programs) is not gpu
    assert found.outside == 300
    assert share_of_time(found) == ("100 %" if gpu else "75 %")


def test_the_share_of_the_loop_is_told_where_its_time_is_known() -> None:
    """A step that was held up may be two: then nothing is said of the loop."""
    left = [("forward", "m.py:4", "a graph break, in a loop")]
    for longest, shown in [(5000, True), (50_000, False)]:
        clock = _timed(1, "", steps=20, step_ns=4500, longest_ns=longest)
        page = page_of(
            _page(graphs=[_run(clock, gpu=False)], skipped=left, settings={}, versions={})
        )
        assert ("of your loop is in these graphs" in page) is shown
        if shown:
            assert number_of(page, "loop") == "20 %"


def test_a_loop_has_a_time_only_where_a_step_calls_each_graph_once() -> None:
    even = _timed(0, "", steps=20, step_ns=900, longest_ns=1000)
    assert time_of_loop(_page(graphs=[even])) == 900
    often = _timed(1, "", calls=60)
    assert time_of_loop(_page(graphs=[even, often])) == 0
    compiled_for_once = _timed(1, "", calls=1)
    assert time_of_loop(_page(graphs=[even, compiled_for_once])) == 900
    layers = even | {"programs": [{"sizes": []}, {"sizes": []}]}
    assert time_of_loop(_page(graphs=[layers])) == 0
    # A pause now and then; or a function without a graph that calls it several times a step.
    uneven = _timed(0, "", steps=20, step_ns=900, longest_ns=9000)
    assert time_of_loop(_page(graphs=[uneven])) == 900
    left = [("forward", "m.py:4", "a graph break, in a loop")]
    assert time_of_loop(_page(graphs=[uneven], skipped=left)) == 0
    assert time_of_loop(_page(graphs=[even], skipped=left)) == 900


def test_a_graph_that_was_let_go_of_is_of_no_loop() -> None:
    """Dynamo holds the first graph of a function that breaks, also behind its reset."""
    gone = _timed(0, "", steps=90, calls=90, step_ns=5000, longest_ns=90_000) | {"programs": []}
    gone["times"]["outside"] = {"m.py:7": [90, 8000]}
    left = [("forward", "m.py:4", "a graph break, in a loop")]
    page = _page(graphs=[gone, _timed(1, "", steps=20, step_ns=900, longest_ns=1000)], skipped=left)
    assert time_of_loop(page) == 900 and time_outside(page) == 0
    assert "m.py:7" not in [each.where for each in ends_of(page)]
    eager = gone | {"failure": "why"}  # no program, and it runs
    assert time_outside(_page(graphs=[eager])) == 8000


def test_a_plan_that_stops_counts_nothing_behind_it() -> None:
    page = _page(graphs=[_timed(0, "")], stopped="code between graphs needs a value")
    found = find(page)
    assert found.not_counted == "what comes behind the end of this plan"


def test_a_time_stays_where_the_graph_that_steps_begin_with_was_let_go_of() -> None:
    rest = _timed(1, "", outside={"m.py:2": [1, 300]})
    (found,) = ends_of(_page(graphs=[rest]))
    assert (found.where, found.cost) == ("m.py:2", 300)


def test_a_line_stands_once() -> None:
    both = [Finding("one", "m.py:1", "this"), Finding("two", "f/m.py:1", "that", 5.0)]
    (found,) = one_a_line(both)
    assert found == Finding("one; two", "f/m.py:1", "this; that", 5.0)
    assert len(one_a_line([Finding("a", "", ""), Finding("b", "", "")])) == 2


def test_a_program_that_ran_once_before_another_of_its_line_is_not_of_a_step() -> None:
    """As with a number that Dynamo takes for a constant first: forward and backward ran once."""
    calls = [[0, 0, "aten::mm", "%a", "Float[8]", "m.py:1", "", ""]]
    calls += [[1, 0, "aten::mm", "%b", "Float[8]", "m.py:1", "", ""]]
    plan = {"bytes": 0, "live_bytes": 0, "alignment": 512, "buffers": []}
    detail = {"entries": ["forward", "backward"], "calls": calls, "planned": plan}
    detail |= {"measured": None, "cures": {}}

    def graph(number: int, steps: int, captures: int) -> dict[str, Any]:
        stats = {"steps": steps, "captures": captures, "replays": captures}
        state = ["captured" if captures else "cold"]
        program = {"sizes": [], "detail": detail, "stats": stats}
        program["partitions"] = {"forward": state, "backward": []}
        return {"label": f"graph 3/{number} at m.py:1", "failure": "", "programs": [program]}

    found = find(_page(graphs=[graph(0, 2, 0), graph(1, 26, 2)]))
    assert len(found.programs) == 2 and len(found.of_step) == 1 and found.number == "100 %"
