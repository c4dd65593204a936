"""What `gravure.report()` and `explain()` say of the kernels in force, and of other choices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    gravure.drop_captures()
    yield
    torch._dynamo.reset()


def _model(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ x).sum()


def _explained(**options: Any) -> Any:
    return gravure.explain(_model, (torch.ones(4, 4),), options=options)


def test_eagers_bits_are_named_with_what_inductor_would_bring():
    found = _explained()
    assert len(found.choices) == 1
    assert found.choices[0].startswith("in force: ATen's kernels, in eager's bits.")
    assert 'options={"codegen": "inductor"}' in found.choices[0]
    assert found.choices[0] in str(found)
    assert json.loads(found.as_json())["choices"] == found.choices


def test_inductors_kernels_are_named_with_their_mode_and_whose_bits_they_have():
    (said,) = _explained(mode="max-autotune").choices
    assert said.startswith("in force: Inductor's kernels, mode max-autotune, in the bits of the ")
    assert 'codegen="aten"' in said


def test_who_is_told_that_it_is_compiled_is_promised_no_bits_of_eagers():
    kernels, told = _explained(is_compiling=True).choices
    assert kernels.startswith("in force: ATen's kernels, is_compiling. ")
    assert told.startswith("is_compiling: ")


def test_a_graph_that_ends_early_is_counted():
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = _model(x)
        torch._dynamo.graph_break()
        return y + 1

    found = gravure.explain(broken, (torch.ones(4, 4),))
    assert found.choices[-1].startswith("graphs that end early: 1.")


def test_a_step_is_explained_with_its_options():
    step = gravure.compile_step(
        lambda w: _model(w), options={"codegen": "inductor", "is_compiling": True}
    )
    found = gravure.explain(step, (torch.ones(4, 4, requires_grad=True),))
    assert found.kernels == "Inductor's kernels, is_compiling"


def test_the_report_says_it_once_for_all_graphs():
    compiled = torch.compile(_model, backend="gravure", dynamic=False)
    for size in (4, 8):
        compiled(torch.ones(size, size))
    found = gravure.report()
    assert len([graph for graph in found.graphs if "_model" in graph.label or graph.programs]) >= 2
    assert len([said for said in found.choices if "in eager's bits" in said]) == 1
    assert str(found).endswith(found.choices[-1])
    assert json.loads(found.as_json())["choices"] == found.choices


def test_nothing_compiled_has_no_choices():
    said = "import gravure; print(gravure.report().choices, gravure.report())"
    package = str(Path(gravure.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", said],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": package},
    )
    assert done.stdout.startswith("[] no compiled graph; "), done.stderr
