"""torch.compile(backend="gravure"): options, reports, and what cannot be compiled."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.calls.program_maker import ProgramMaker
from gravure_native import library_path
from running import bits, need_library
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from training import (
    Mlp,
    host_nodes,
    replays,
    rows,
    same_as_eager,
    uncaptured,
)

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def _looped(x: Tensor) -> Tensor:
    return while_loop(lambda x: x.sum() < 0, lambda x: (x + 1,), (x,))[0]


def test_an_lstm_runs_as_it_is_where_it_must() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, 2, batch_first=True)
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0] * self.weight * _looped(x.detach()).mean()

    with torch._dynamo.config.patch(allow_rnn=True):
        report = same_as_eager(Tagger(), lambda i: (torch.rand(2, 5, 8),))
    assert "while_loop" in report.graphs[0].failure


def test_nested_tensors_run_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(8, 4)
    compiled = torch.compile(model, backend="gravure")
    x = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=torch.jagged)
    with caplog.at_level(logging.WARNING, "gravure"):
        assert bits(compiled(x).values()) == bits(model(x).values())
    assert "nested tensor" in caplog.text


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return _looped(x.detach()) * self.weight


def test_what_cannot_be_imported_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        report = same_as_eager(Loop(), rows)
    assert "while_loop" in report.graphs[0].failure and not report.graphs[0].programs
    for part in ("while_loop", "a program has no form of", "fixed number of iterations"):
        assert part in caplog.text  # node, reason, remedy
    assert "runs as it is" in str(report)


def test_a_read_that_breaks_the_graph_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Scaled(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * x.abs().max().item()

    with caplog.at_level(logging.WARNING, "gravure"):
        broken = same_as_eager(Scaled(), rows)
    first, *others = broken.graphs
    for text in (first.graph_break, caplog.text, str(broken)):
        assert "test_compile_limits.py:" in text
        assert "set torch._dynamo.config.capture_scalar_outputs = True" in text
    assert others and not any(graph.graph_break for graph in others)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "gravure"):
        whole = same_as_eager(Scaled(), rows, fullgraph=True)
    assert [graph.graph_break for graph in whole.graphs] == [""] and not caplog.text


def test_another_graph_break_is_in_the_report_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Two(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y + 1

    with caplog.at_level(logging.WARNING, "gravure"):
        report = same_as_eager(Two(), rows)
    assert "test_compile_limits.py:" in report.graphs[0].graph_break
    assert "graph_break()" in report.graphs[0].graph_break
    assert "graph_break" not in caplog.text


def test_on_missed_raise() -> None:
    model = torch.compile(Loop(), backend="gravure", options={"on_missed": "raise"})
    with pytest.raises(Exception, match="a program has no form of while_loop"):
        model(*rows(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hots": ["aten::mm"]}, "there is no option 'hots'; did you mean 'host'"),
        ({"require_captures": True}, "did you mean 'require_capture'"),
        ({"host": "aten::mm"}, "option 'host': expected a list"),
        ({"order": "random"}, "expected 'levels' or 'program', found 'random'"),
        ({"poison": 1}, "expected True or False"),
        ({"max_shapes": 0}, "at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        torch.compile(Mlp(), backend="gravure", options=options)


def test_host_option_keeps_an_operator_out_of_graphs() -> None:
    report = same_as_eager(Mlp(), rows, options={"host": ["aten::gelu", "second"]})
    assert len(report.graphs) == 1
    requested = [n for n in host_nodes(report) if "user-request" in n]
    assert any("aten::gelu at training.py" in node for node in requested)
    assert any("aten::addmm" in node and "in second" in node for node in requested)


def test_the_report_says_that_a_backward_is_missing() -> None:
    compiled = torch.compile(Mlp(), backend="gravure")
    for i in range(5):
        compiled(*rows(i))
    text = str(gravure.Report(gravure.report().graphs[-1:]))
    assert "backward-missing" in text and "torch.no_grad()" in text


def test_the_report_says_that_there_are_more_sizes_than_programs() -> None:
    compiled = torch.compile(Mlp(), backend="gravure", dynamic=True, options={"max_shapes": 2})
    for size in (3, 4, 5, 6):
        compiled(torch.randn(size, 8)).sum().backward()
    text = str(gravure.Report(gravure.report().graphs[-1:]))
    assert "program-missing: it is called with more than 2 sets of sizes" in text
    assert "raise the option max_shapes" in text


def test_uncaptured_option() -> None:
    report = same_as_eager(Mlp(), rows, options={"uncaptured": True})
    assert replays(report) == 0 and uncaptured(report) == 14
    assert "backward-missing" not in str(report)


def test_the_report_at_exit_names_what_is_gone(tmp_path: Path) -> None:
    script = """
import gc, torch, gravure
def train():
    model = torch.compile(torch.nn.Linear(4, 4), backend="gravure")
    for _ in range(6):
        model(torch.randn(2, 4)).square().mean().backward()
train()
torch._dynamo.reset()
gc.collect()
assert str(gravure.report()).startswith("no compiled graph; ")
"""
    written = tmp_path / "report.txt"
    environment = os.environ | {"GRAVURE_REPORT": str(written)}
    environment["PYTHONPATH"] = str(Path(gravure.__file__).parents[1])
    environment["GRAVURE_LIBRARY"] = str(library_path())
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    text = written.read_text()
    assert "backward: 1 partitions: 1 captured" in text and "4 replays" in text


def test_the_report_at_exit_names_what_was_shut_down_and_outlives_the_interpreter(
    tmp_path: Path,
) -> None:
    """As torchtitan's programs are when the process ends: shut down, and held by its modules."""
    script = """
import builtins, torch, gravure
from gravure.calls.live_graphs import followed
model = torch.compile(torch.nn.Linear(4, 4), backend="gravure")
for _ in range(6):
    model(torch.randn(2, 4)).square().mean().backward()
builtins.kept = list(followed())
for graph in builtins.kept:
    graph.shutdown()
"""
    written = tmp_path / "report.txt"
    environment = os.environ | {"GRAVURE_REPORT": str(written)}
    environment["PYTHONPATH"] = str(Path(gravure.__file__).parents[1])
    environment["GRAVURE_LIBRARY"] = str(library_path())
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, env=environment, check=True, capture_output=True, text=True)
    assert "Exception ignored" not in done.stderr
    text = written.read_text()
    assert "backward: 1 partitions: 1 captured" in text and "4 replays" in text


def test_sizes_without_a_program_run_as_they_are_beside_those_that_have_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = ProgramMaker.make

    def make_others(self: ProgramMaker, known: dict[Any, int], **rest: Any) -> Any:
        if 7 in known.values():
            raise RuntimeError("no program for seven")
        return make(self, known, **rest)

    monkeypatch.setattr(ProgramMaker, "make", make_others)
    model = Mlp()
    compiled = torch.compile(model, backend="gravure", dynamic=True)
    for size in (5, 5, 5, 7, 7, 5, 5):
        x = torch.randn(size, 8)
        assert bits(compiled(x)) == bits(model(x))
        compiled(x).sum().backward()
    # Dynamo keeps graphs that broke, as those of tests before, until the process ends.
    graph = gravure.report(html=tmp_path / "report.html").graphs[-1]
    assert graph.failure == "no program for seven"
    assert [each.sizes for each in graph.programs] == [[5]] and graph.programs[0].stats["replays"]
    assert "runs as it is in some calls: no program for seven" in str(graph)
    assert "runs as it is in some calls: no program for seven" in (
        tmp_path / "report.html"
    ).read_text(encoding="utf-8")
