"""What calls take, uncaptured and replayed (the option `times`), and what the page makes of it: a
step's time predicted beside measured, and what each reason costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
from gravure.page.costs import costs_of
from gravure.page.findings import find
from gravure.page.step_data import Step, read_step
from running import bits, need_library
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        return self.second(y * (y > 0).sum().item()).square().mean()


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().mean()


def train(model: nn.Module, steps: int, **options: Any) -> tuple[Any, list[Any]]:
    compiled = torch.compile(model, backend="gravure", options=options)
    losses = []
    for i in range(steps):
        torch.manual_seed(i)
        loss = compiled(torch.randn(256, 64))
        loss.backward()
        losses.append([bits(loss), *(bits(p.grad) for p in model.parameters())])
        model.zero_grad()
    return compiled, losses


@pytest.fixture
def whole_graph() -> Any:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield


def timed(tmp_path: Path) -> tuple[gravure.Report, Any]:
    found = gravure.report(html=tmp_path / "report.html")
    return found, found.graphs[-1].programs[0]


@pytest.mark.usefixtures("whole_graph")
def test_each_call_of_a_step_is_timed(tmp_path: Path) -> None:
    alive, _ = train(Reading(), 14, times=True)
    _, program = timed(tmp_path)
    step = read_step(program.detail)
    known = set()
    for entry, times in program.call_times.items():
        assert times["why"] == "" and 0 < times["replayed_ns"] and 0 < times["uncaptured_ns"]
        for number, host, device, items in times["calls"]:
            assert step.entries[step.calls[number].entry] == entry
            assert host > 0 and device == items == 0  # there is no GPU here
            known.add(number)
    called = {i for i, call in enumerate(step.calls) if call.is_operator}
    assert called <= known
    assert program.stats["captures"] > 0 and program.stats["replays"] > 0
    del alive


@pytest.mark.usefixtures("whole_graph")
def test_law_1_a_run_that_is_timed_has_the_bits_of_one_that_is_not() -> None:
    torch.manual_seed(0)
    model = Reading()
    plain = train(model, 12)[1]
    assert train(model, 12, times=True)[1] == plain


@pytest.mark.usefixtures("whole_graph")
def test_the_page_says_what_a_step_takes_and_what_each_reason_costs(tmp_path: Path) -> None:
    alive, _ = train(Reading(), 14, times=True)
    found, program = timed(tmp_path)
    costs = costs_of(read_step(program.detail), program.call_times, {})
    assert 0 < costs.predicted and 0 < costs.replayed < 100 * costs.predicted
    reasons = {reason for reason, _ in costs.missed}
    assert "host-sync" in reasons and all(costs.missed.values())
    page = (tmp_path / "report.html").read_text()
    assert "time of a step" in page and 'data-number="timed"' in page
    assert 'data-number="speed"' in page and "a step takes " in page
    del alive, found


def test_a_backward_that_ran_while_it_was_timed_is_not_missing(tmp_path: Path) -> None:
    """Timed runs record nothing, so its partitions are as if it had not run."""
    alive, _ = train(Plain(), 5, times=True)
    _, program = timed(tmp_path)
    assert set(program.partitions["backward"]) == {"cold"}
    assert not any("backward-missing" in remark for remark in program.remarks)
    del alive


@pytest.mark.usefixtures("whole_graph")
def test_nothing_is_timed_where_another_profiler_runs(tmp_path: Path) -> None:
    """What somebody profiles is not disturbed, and the page says why it has no times."""
    with profile(activities=[ProfilerActivity.CPU]) as theirs:
        alive, _ = train(Reading(), 8, times=True)
    _, program = timed(tmp_path)
    assert {t["why"] for t in program.call_times.values()} == {"another profiler was running"}
    assert "another profiler was running" in (tmp_path / "report.html").read_text()
    assert any(event.key.startswith("gravure: ") for event in theirs.key_averages())
    del alive


def test_without_the_option_nothing_is_timed(tmp_path: Path) -> None:
    alive, _ = train(Reading(), 6)
    _, program = timed(tmp_path)
    assert program.call_times == {}
    del alive


# ---- the two clocks, on a GPU of made-up pace

PACE = {"gap": 1.0, "launch": 10.0, "each": 0.0, "start": 5.0, "copy": 2.0}


def step_of(rows: list[tuple[int, str, str]]) -> Step:
    """`rows`: partition, reason and operator of each call of one entry."""
    calls = [
        [0, partition, op, f"%v{i}", "Float[8]", f"m.py:{i}", "", reason]
        for i, (partition, reason, op) in enumerate(rows)
    ]
    detail = {"entries": ["step"], "calls": calls, "cures": {}}
    none = {"bytes": 0, "live_bytes": 0, "alignment": 512, "buffers": []}
    return read_step(detail | {"planned": none, "measured": None})


def times_of(*calls: tuple[int, int]) -> dict[str, Any]:
    """By call what the thread takes and what its one kernel takes."""
    rows = [[i, host, device, 1] for i, (host, device) in enumerate(calls)]
    return {"step": {"uncaptured_ns": 0, "replayed_ns": 0, "calls": rows}}


def test_a_captured_step_is_its_kernels_and_the_gaps_between_them() -> None:
    step = step_of([(0, "", "aten::mm")] * 3)
    costs = costs_of(step, times_of((50, 100), (50, 200), (50, 300)), PACE)
    assert costs.predicted == 10 + (100 + 200 + 300) + 3 * 1 + 5
    assert costs.share == 1 and not costs.missed


def test_a_wait_costs_what_it_keeps_the_device_idle_for() -> None:
    rows = [(0, "", "aten::mm"), (-1, "host-sync", "aten::item"), (1, "", "aten::mm")]
    costs = costs_of(step_of(rows), times_of((50, 100), (40, 1), (50, 100)), PACE)
    # Launch, kernel, the read behind it, then the second launch on an idle device.
    assert costs.predicted == (10 + 101 + 1 + 5) + (10 + 101) + 5
    together = costs_of(step_of(rows[:1] + rows[2:]), times_of((50, 100), (50, 100)), PACE)
    assert costs.missed[("host-sync", "m.py:1")] >= costs.predicted - together.predicted - 2


def test_a_call_on_the_host_that_the_device_does_not_wait_for_costs_nothing() -> None:
    rows = [(0, "", "aten::mm"), (-1, "host-requested", "aten::neg"), (1, "", "aten::mm")]
    hidden = costs_of(step_of(rows), times_of((50, 1000), (40, 1), (50, 100)), PACE)
    shown = costs_of(step_of(rows), times_of((50, 1), (900, 1), (50, 100)), PACE)
    key = ("host-requested", "m.py:1")
    assert hidden.missed[key] < 5 and shown.missed[key] > 800


def test_worst_first_is_by_time_where_that_is_known() -> None:
    rows = [(0, "", "aten::mm"), (-1, "host-sync", "aten::item"), (1, "", "aten::mm")]
    rows += [(-1, "cpu-tensor", "aten::neg"), (2, "", "aten::mm")]
    calls = [[i, 10, 1, 1] for i in range(5)]
    calls[3][1] = 5000
    detail = {
        "entries": ["step"],
        "calls": [
            [0, p, op, f"%v{i}", "", f"m.py:{i}", "", r] for i, (p, r, op) in enumerate(rows)
        ],
        "cures": {},
        "planned": {"bytes": 0, "live_bytes": 0, "alignment": 512, "buffers": []},
        "measured": None,
    }
    times = {"step": {"uncaptured_ns": 9000, "calls": calls}}
    for call_times, worst in ((times, "(cpu-tensor)"), ({}, "(host-sync)")):
        program = {"sizes": [], "detail": detail, "call_times": call_times}
        graph = {"label": "graph", "failure": "", "programs": [program]}
        found = find({"title": "", "nothing": "", "graphs": [graph], "pace": PACE})
        assert worst in found.first[0].what, call_times
