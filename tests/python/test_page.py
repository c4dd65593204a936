"""The page to look at: what it says of a step, before a run and after it, and where little is."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.page import step_data
from gravure.page.html import page_of
from gravure.page.plotly_script import plotly_script
from gravure.page.step_data import Step, held_by_module, makers, read_step
from gravure.page.surroundings import settings
from gravure.sizes import times_text
from running import need_library
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from training import Mlp, rows

need_library()
pytest.importorskip("plotly")
pytestmark = pytest.mark.usefixtures("fresh")
ROOT = Path(__file__).resolve().parents[2]


class Reading(nn.Module):
    """Counts on the host, so that two lines are not captured."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        top = (y > 0).sum().item()
        return self.second(y * top).square().mean()


def number_of(page: str, name: str) -> str:
    """What a card of the page's top shows."""
    found = re.search(rf'<strong data-number="{name}">([^<]*)</strong>', page)
    assert found is not None, f"the page has no number {name!r}"
    return html.unescape(found[1])


def text_of(page: str) -> str:
    """What is read: without scripts, styles and tags."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def train(model: nn.Module, steps: int = 6) -> Callable[..., Any]:
    compiled = torch.compile(model, backend="gravure")
    for _ in range(steps):
        compiled(*rows(0)).sum().backward()
        model.zero_grad()
    return compiled


def reported(file: Path) -> tuple[gravure.Report, str]:
    found = gravure.report(html=file)
    return found, file.read_text()


def step_of(found: gravure.Report) -> Step:
    (program,) = found.graphs[-1].programs
    assert program.detail is not None
    return read_step(program.detail)


def test_a_captured_model(tmp_path: Path) -> None:
    model = Mlp()
    alive = train(model)
    others = len(gravure.report().graphs)
    found, page = reported(tmp_path / "report.html")
    assert len(found.graphs) == others
    step = step_of(found)
    states = found.graphs[-1].programs[0].partitions
    assert step.captured() == step.captured(states) == step.operators > 0
    assert not step.missed
    assert "Nothing: every operator call is in a graph" in page or others > 1
    assert "are replayed" in text_of(page)
    del alive


@pytest.mark.usefixtures("fresh")
def test_a_call_is_counted_where_it_runs(tmp_path: Path) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        alive = train(Reading())
    found, page = reported(tmp_path / "report.html")
    step, program = step_of(found), found.graphs[-1].programs[0]
    # The same nodes as the remarks of the passes, grouped otherwise.
    host = sum(missed.calls for missed in step.missed)
    assert host == sum(program.host_nodes.values()) == step.operators - step.captured() > 0
    (sync,) = [missed for missed in step.missed if missed.reason == "host-sync"]
    assert sync.source.startswith("test_page.py:") and sync.waits == 1 and sync.cuts == 1
    assert sync.cure and sync.cure in html.unescape(page)
    assert sync.source in text_of(page) and "1 wait" == number_of(page, "waits")
    assert step.missed == sorted(step.missed, key=lambda missed: missed.cost, reverse=True)
    del alive


def test_memory_is_that_of_the_plan() -> None:
    """Live bytes of the curve are the plan's, and each tensor is of the call that makes it."""
    explained = gravure.explain(Mlp(), rows(0)).graphs[0]
    assert explained.detail is not None
    step = read_step(explained.detail)
    memory = step.memory
    assert memory is not None and not step.measured
    assert max(bytes for _, bytes in memory.curve) == memory.live_bytes
    assert memory.bytes == explained.plan["arena_bytes"]
    assert memory.curve[-1] == (len(step.calls), 0)
    for maker, buffer in zip(makers(step), memory.buffers, strict=True):
        # It is another result of that call.
        assert step.calls[maker].result == buffer.label or maker == buffer.begin
        assert buffer.offset + buffer.bytes <= memory.bytes
    held = sum(size for _, size in held_by_module(step))
    assert memory.live_bytes * 0.5 < held <= memory.live_bytes
    modules = {call.module for call in step.calls}
    assert {"first", "second"} <= modules


def test_recorded_memory_after_the_warm_up(tmp_path: Path) -> None:
    alive = train(Mlp())
    found, _ = reported(tmp_path / "report.html")
    step, stats = step_of(found), found.graphs[-1].programs[0].stats
    assert step.measured and step.memory is not None
    assert (step.memory.bytes, step.memory.live_bytes) == (
        stats["arena_bytes"],
        stats["arena_load"],
    )
    assert max(bytes for _, bytes in step.memory.curve) == step.memory.live_bytes
    named = [
        b.label
        for m, b in zip(makers(step), step.memory.buffers, strict=True)
        if not b.label.startswith(step.calls[m].result)
    ]
    assert named == []
    del alive


def test_runs_are_timed_by_the_path_they_take() -> None:
    alive = train(Mlp(), steps=6)
    (program,) = gravure.report().graphs[-1].programs
    times, stats = program.times, program.stats
    runs = sum(value for name, value in times.items() if name.endswith(".runs"))
    captures = len(program.partitions)  # runs that capture count as neither
    assert runs == stats["steps"] - captures
    uncaptured = [times[f"{entry}.uncaptured.runs"] for entry in program.partitions]
    assert sum(uncaptured) == stats["uncaptured_steps"]
    for name, value in times.items():
        assert value > 0, name
    del alive


def test_a_shadow_says_how_fast_a_replay_is(tmp_path: Path) -> None:
    compiled = torch.compile(Mlp(), backend="gravure", options={"shadow": 2})
    for _ in range(8):
        compiled(*rows(0)).square().mean().backward()
    found, page = reported(tmp_path / "report.html")
    times = found.graphs[-1].programs[0].times
    plain = sum(times[f"{entry}.plain.least_ns"] for entry in ("forward", "backward"))
    replayed = sum(times[f"{entry}.replayed.least_ns"] for entry in ("forward", "backward"))
    assert times["forward.plain.runs"] == 4
    assert number_of(page, "speed") == times_text(plain / replayed)


def test_what_dynamo_left_as_it_is(tmp_path: Path) -> None:
    class Loops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = x * 2
                if x.sum().item() > 1e9:
                    break
            return x

    before = set(gravure.report().skipped)
    torch.compile(Loops(), backend="gravure")(torch.randn(3))
    found, page = reported(tmp_path / "report.html")
    (new,) = set(found.skipped) - before
    assert new.startswith("forward at test_page.py:") and "in a loop" in new
    words = text_of(page)
    assert "no graph of forward at all" in words and "capture_scalar_outputs" in words


def test_before_any_run(tmp_path: Path) -> None:
    compiled = torch.compile(Mlp(), backend="gravure")
    explanation = gravure.explain(compiled, rows(0))
    explanation.to_html(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert number_of(page, "captured") == "100 %"
    assert "will be replayed" in text_of(page) and "nothing has run yet" in text_of(page)
    assert "not yet" in text_of(page)  # measured
    assert "detail" not in json.loads(explanation.as_json())["graphs"][0]


def test_without_a_graph() -> None:
    nothing = "No graph was compiled."
    page = page_of({"title": "report", "nothing": nothing, "graphs": []})
    assert nothing in text_of(page)
    assert "Nothing is known of a step's calls" in text_of(page)


def test_of_programs_that_were_let_go_of(tmp_path: Path) -> None:
    compiled = train(Mlp())
    gravure.drop_captures()
    found, page = reported(tmp_path / "report.html")
    assert found.graphs[-1].programs == []
    assert "its captures were let go of" in text_of(page)
    assert "its captures were let go of" in str(found.graphs[-1])
    del compiled


def test_of_a_program_that_has_ended(tmp_path: Path) -> None:
    program = gravure.load(ROOT / "docs/examples/cpp_train/mlp", device="host")
    program.shutdown()
    detail = json.loads(program._program.detail_json())
    assert read_step(detail).operators > 0


def test_of_a_graph_that_failed(tmp_path: Path) -> None:
    class Looping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return while_loop(lambda y: y.sum() < 10, lambda y: (y + 1,), (x,))[0].sum()

    explanation = gravure.explain(Looping(), (torch.rand(3, 3),))
    failures = [graph.failure for graph in explanation.graphs if graph.failure]
    explanation.to_html(tmp_path / "plan.html")
    page = text_of((tmp_path / "plan.html").read_text())
    assert failures and " ".join(failures[0].split()) in page
    assert "runs as it is" in page


def test_texts_of_the_user_are_no_code_of_the_page() -> None:
    """A label, a module or an error may hold anything."""
    evil = "</script><script>alert(1)</script><b>"
    calls = [[0, 0, "aten::mm", "%a", "Float[2]", evil, evil, ""]]
    plan = {"bytes": 512, "live_bytes": 512, "alignment": 512, "buffers": [[0, 1, 8, 0, "%a"]]}
    detail = {"entries": ["step"], "calls": calls, "planned": plan, "measured": None, "cures": {}}
    graph = {"label": evil, "failure": "", "programs": [{"sizes": [], "detail": detail}]}
    failed = {"label": "other", "failure": evil, "programs": []}
    page = page_of({"title": evil, "nothing": "", "graphs": [graph, failed], "stopped": evil})
    assert "<script>alert" not in page and "<b>" not in page.split("<script>", 1)[0]
    data = re.search(r'<script type="application/json" id="gravure-data">(.*?)</script>', page)
    assert data is not None and evil in json.loads(data[1])[0]["strings"]


@pytest.mark.parametrize("where", ["missing/report.html", "."])
def test_a_path_that_cannot_be_written(where: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the report cannot be written: .*name a file in a folder"):
        gravure.report(html=tmp_path / where)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [3, True, ["report.html"]])
def test_what_names_no_file(path: Any) -> None:
    with pytest.raises(TypeError, match=r"by its name as a str or a Path, not .*(3|True|html)"):
        gravure.report(html=path)


def test_without_plotly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match="pip install plotly"):
        gravure.report(html=tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


_LOOP = """
import sys, torch, gravure
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
compiled = torch.compile(model, backend="gravure")
for _ in range(8):
    compiled(torch.randn(2, 4)).sum().backward()
    model.zero_grad()
print("trained")
if "gone" in sys.argv:
    del model, compiled
    torch._dynamo.reset()
"""


def _trained(path: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    import os

    environment = os.environ | {"GRAVURE_REPORT": str(path), "PYTHONPATH": str(ROOT / "python")}
    command = [sys.executable, "-c", _LOOP, *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment | more)


@pytest.mark.parametrize("kept", ["kept", "gone"])
def test_at_exit(kept: str, tmp_path: Path) -> None:
    """Also of a model that is gone by then."""
    file = tmp_path / "report.html"
    done = _trained(file, kept)
    assert (done.returncode, done.stdout.split()) == (0, ["trained"]), done.stderr
    page = file.read_text()
    assert number_of(page, "captured") == "100 %"
    assert "GRAVURE_REPORT" in text_of(page)  # among the settings


def test_settings_of_several_graphs_are_each_named_once() -> None:
    found = settings([{"order": "program"}, {"order": "levels"}, {"order": "program"}])
    assert found["order"] == "'program', or 'levels'"


def test_at_exit_where_it_cannot_be_written(tmp_path: Path) -> None:
    """Said when gravure is imported, and at the end; the exit status is the training's."""
    done = _trained(tmp_path / "missing" / "report.html")
    assert (done.returncode, done.stdout.split()) == (0, ["trained"])
    assert "GRAVURE_REPORT: there will be no report: there is no folder" in done.stderr
    assert "the report cannot be written" in done.stderr and "Traceback" not in done.stderr
    done = _trained(tmp_path)
    assert "there will be no report" in done.stderr and "is a folder" in done.stderr


def test_the_command(tmp_path: Path) -> None:
    """`gravure plan PATH --html FILE`; without Python the tool says where the page comes from."""
    from gravure_native import tool_environment, tool_path

    try:
        tool = tool_path()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    step, file = ROOT / "docs/examples/cpp_train/mlp", tmp_path / "plan.html"
    for flags in (["--html", str(file)], [f"--html={file}"], [f"-html={file}"]):
        command = [sys.executable, "-m", "gravure_native", "plan", str(step), *flags]
        environment = tool_environment() | {"PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert number_of(file.read_text(), "captured") == "100 %"
        file.unlink()
    done = subprocess.run(
        [tool, "plan", step, f"--html={file}"],
        capture_output=True,
        text=True,
        env=tool_environment(),
    )
    assert done.returncode == 2 and "Python draws the page" in done.stderr
    assert not file.exists()


def test_what_waits() -> None:
    call = step_data.Call(0, -1, "aten::nonzero", "%a", "", "", "", "data-dependent-shape")
    assert call.waits and not call._replace(partition=0, reason="").waits
    assert step_data.Call(0, -1, "cudagraph::read_host", "%a", "", "", "", "host-sync").waits
    stage = step_data.Call(0, -1, "cudagraph::stage", "%x.staged", "", "", "", "")
    assert stage.is_ours and not stage.is_operator


def test_of_plotly_only_what_is_drawn_is_set_up() -> None:
    from plotly.offline import get_plotlyjs

    whole, ours = get_plotlyjs(), plotly_script()
    kinds = re.compile(r"\.register\(\[((?:[\w$]+\(\),?)+)\]\)")
    before, after = (kinds.findall(script)[-1].split(",") for script in (whole, ours))
    assert len(before) > 40 and len(after) == 2 and set(after) < set(before)
    assert len(whole) - len(ours) == len(",".join(before)) - len(",".join(after))


def test_plotly_in_a_form_that_is_not_known_is_taken_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for script in ("window.Plotly={}", "P.register([a(),b()])", "P.register([]);"):
        monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda script=script: script)
        assert plotly_script() == script


def _plain(**more: Any) -> str:
    """Of a program with one graph, whose second call runs on the host at two lines."""
    rows = [
        [0, 0, "aten::mm", "%a", "Float[8, 8]", "model.py:1", "a", ""],
        [0, -1, "aten::mul", "%b", "Float[8, 8]", "model.py:2", "a", "dynamic-shape"],
        [0, -1, "aten::add", "%c", "Float[8, 8]", "model.py:3", "a", "dynamic-shape"],
        [0, 0, "aten::mm", "%d", "Float[8, 8]", "model.py:4", "a", ""],
    ]
    plan = {"bytes": 0, "live_bytes": 0, "alignment": 512, "buffers": []}
    detail = {"entries": ["step"], "calls": rows, "planned": plan, "measured": None}
    detail["cures"] = {"dynamic-shape": "pad"}
    graph = {"label": "graph 0", "failure": "", "programs": [{"sizes": [], "detail": detail}]}
    return page_of({"title": "A report", "nothing": "", "graphs": [graph], **more})


def test_a_share_is_not_of_code_that_is_in_no_graph() -> None:
    assert "Not counted" not in text_of(_plain()) and "in no graph" not in text_of(_plain())
    page = text_of(_plain(skipped=[("forward", "model.py:12", "Data-dependent branching")]))
    assert "Not counted, and never replayed: 1 function without a graph; see below" in page
    assert "not counted: 1 function without a graph" in page
    page = text_of(_plain(graph_breaks={"model.py:7: Data-dependent branching": 1}))
    assert "what runs between two graphs" in page and "model.py:7" in page


def test_what_one_change_mends_is_named_once_on_top() -> None:
    top = text_of(_plain()).partition("One step From left")[0]
    assert top.count("(dynamic-shape)") == 1 and "; likewise at model.py:3" in top
    assert "model.py:3" in text_of(_plain()).partition("Calls outside of graphs")[2]


def test_a_program_that_was_released_says_so(tmp_path: Path) -> None:
    model = Mlp()
    folder = gravure.export_step(lambda x: model(x).square().mean(), rows(0), tmp_path / "step")
    program = gravure.load(folder)
    program.bind_saved()
    for i in range(5):
        program.run(rows(i))
    program.to_html(tmp_path / "before.html")
    program.shutdown()
    program.to_html(tmp_path / "after.html")
    before, after = (text_of((tmp_path / f"{n}.html").read_text()) for n in ("before", "after"))
    assert "eleased" not in before and "every operator call is in a graph" in before
    assert "Released: the captures were given back" in after and "was released" in after
    assert "every operator call is in a graph" not in after
    assert "Graphs, their sizes and instances" in after  # and shows what there is
