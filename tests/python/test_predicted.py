"""What is predicted of a step before it runs is what it does: launches, partitions and bytes that
are copied in; and the arena from the warm-up on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import models
import pytest
import torch
from gravure.page.findings import find
from running import need_library
from torch import nn
from training import Mlp

need_library()
pytest.importorskip("plotly")
pytestmark = pytest.mark.usefixtures("fresh")
ROOT = Path(__file__).resolve().parents[2]


class Loss(nn.Module):
    """Of a module whose result is no loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).square().mean()


def mlp() -> models.Model:
    module = Loss(Mlp(dropout=0.1))
    return models.Model(module, (torch.randn(5, 8),), module)


MODELS: dict[str, Callable[[], models.Model]] = {
    "mlp": mlp,
    "moe": models.moe,
    "checkpointed": models.checkpointed,
}


def planned(explanation: gravure.Explanation) -> dict[str, int]:
    (graph,) = explanation.graphs
    assert graph.detail is not None and graph.detail["measured"] is None
    return {
        "partitions": len(graph.plan["partitions"]),
        "staged_bytes": graph.plan["staged_bytes"],
    }


def measured(program: Any) -> dict[str, int]:
    entries = program.partitions
    states = [state for each in entries.values() for state in each]
    assert set(states) == {"captured"}
    launches = sum(program.times[f"{entry}.replayed.launches"] for entry in entries)
    assert launches == len(states)
    staged = sum(program.times[f"{entry}.replayed.staged_bytes"] for entry in entries)
    return {"partitions": len(states), "staged_bytes": staged}


def rows_of(report: gravure.Report) -> dict[str, tuple[str, str, str]]:
    """By name what the page shows of the last graph: predicted, measured, apart."""
    graph = report.graphs[-1]
    shown = find(
        {
            "title": "",
            "nothing": "",
            "graphs": [
                {
                    "label": graph.label,
                    "failure": "",
                    "programs": [vars(program) for program in graph.programs],
                }
            ],
        }
    )
    (program,) = shown.programs
    return {name: (a, b, c) for name, a, b, c in program.predicted_and_measured()}


def check(report: gravure.Report, prediction: dict[str, int]) -> None:
    (program,) = report.graphs[-1].programs
    assert measured(program) == prediction
    rows = rows_of(report)
    for name in ("partitions captured", "graphs launched a step", "inputs copied in, a step"):
        assert rows[name][2] == "equal", (name, rows[name])
    detail = program.detail
    assert detail is not None and detail["measured"]["bytes"] == program.stats["arena_bytes"]
    assert detail["measured"]["live_bytes"] == program.stats["arena_load"]


@pytest.mark.parametrize("name", MODELS)
def test_of_a_compiled_model(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        prediction = planned(gravure.explain(model.fn, model.args))
        compiled = torch.compile(model.fn, backend="gravure")
        for step in range(6):
            compiled(*models.next_args(model.args, step)).backward()
            model.module.zero_grad()
    check(gravure.report(html=tmp_path / "report.html"), prediction)
    assert prediction["staged_bytes"] >= sum(arg.nbytes for arg in model.args)


def test_of_a_compiled_step(tmp_path: Path) -> None:
    model = models.llama()
    step = gravure.compile_step(model.fn)
    prediction = planned(gravure.explain(step, model.args))
    for number in range(6):
        step(*models.next_args(model.args, number))
        model.module.zero_grad()
    check(gravure.report(html=tmp_path / "report.html"), prediction)


def test_of_an_exported_step(tmp_path: Path) -> None:
    """By `gravure.load`, whose program has a page of its own."""
    program = gravure.load(ROOT / "docs/examples/cpp_train/mlp", device="host", times=True)
    program.bind_saved()
    inputs = program.saved_inputs(roles=("user_input",))
    program.to_html(tmp_path / "before.html")
    assert "nothing has run yet" in (tmp_path / "before.html").read_text()
    for _ in range(12):
        program.run(inputs)
    program.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert 'data-number="timed"' in page and "a step takes " in page
    found, times = program.stats(), dict(program._program.run_times())
    detail = json.loads(program._program.detail_json())
    assert times["step.replayed.staged_bytes"] == sum(detail["staged"]) > 0
    assert times["step.replayed.launches"] == len(program.partition_states())
    assert detail["measured"]["bytes"] == found["arena_bytes"]
    with pytest.raises(OSError, match="the report cannot be written"):
        program.to_html(tmp_path / "missing" / "report.html")
    program.run(inputs)  # it goes on
    program.shutdown()
    program.to_html(tmp_path / "ended.html")
    assert "was released" in (tmp_path / "ended.html").read_text()
