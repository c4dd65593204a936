"""What an export holds: inputs, outputs, mutations."""

from __future__ import annotations

import functools
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import bits, exported, run, same_as_eager, statements, step_of, weight
from torch import Tensor

SCALE = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ---- what is found and lifted


def test_closure_global_and_attribute(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    model.register_buffer("shift", torch.ones(3))
    bias = torch.randn(3)

    def loss(x: Tensor) -> Tensor:
        return model(x * SCALE + bias + model.shift).sum()

    step = step_of(loss, (torch.randn(2, 3),), tmp_path)
    roles = {name: role for _, _, role, name in step.inputs}
    assert roles == {
        "x": "user_input",
        "SCALE": "constant",
        "bias": "constant",
        "model.shift": "buffer",
        "model.0.weight": "parameter",
        "model.0.bias": "parameter",
        "model.2.weight": "parameter",
        "model.2.bias": "parameter",
    }
    same_as_eager(loss, (torch.randn(2, 3),), tmp_path)


def test_module_method_and_partial(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x).sum()

        def scaled(self, x: Tensor, factor: float) -> Tensor:
            return self(x) * factor

    def outer(model: nn.Module, x: Tensor) -> Tensor:
        return model(x)

    model, x = Model(), torch.randn(2, 3)
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "head.weight": (model, (x,)),
        "model.head.weight": (functools.partial(outer, model), (x,)),
    }
    for name, (fn, args) in calls.items():
        step = step_of(fn, args, tmp_path / name)
        assert name in [n for _, _, role, n in step.inputs if role == "parameter"]
    step = step_of(model.scaled, (x, 0.5), tmp_path)
    assert "head.weight" in [n for _, _, role, n in step.inputs if role == "parameter"]
    step = step_of(outer, (model, x), tmp_path)
    assert "model.head.weight" in [n for _, _, role, n in step.inputs if role == "parameter"]


def test_nested_arguments(tmp_path: Path) -> None:
    w = weight(3)

    def loss(batch: dict[str, Tensor], extra: list[Tensor]) -> Tensor:
        return (batch["x"] * w + extra[1]).sum()

    args = {"x": torch.randn(3)}, [torch.randn(1), torch.randn(3)]
    step = step_of(loss, args, tmp_path)
    names = {name: role for _, _, role, name in step.inputs}
    assert names == {"batch.x": "user_input", "extra.1": "user_input", "w": "parameter"}


def test_tied_parameters_are_one_input(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embedding(ids)).square().sum()

    model = Tied()
    step = step_of(model, (torch.tensor([1, 2]),), tmp_path)
    assert [n for _, _, role, n in step.inputs if role == "parameter"] == ["embedding.weight"]
    text = (tmp_path / "program.gv").read_text()
    assert "# embedding.weight is also head.weight" in text
    found = same_as_eager(model, (torch.tensor([1, 2]),), tmp_path)
    assert list(found.gradients) == ["embedding.weight"]


def test_shared_storages_are_saved_once(tmp_path: Path) -> None:
    flat = torch.randn(3000)
    views = [flat[:1000], flat[1000:2000], flat[2000:]]
    w = weight(1000)
    alone = torch.randn(1_000_000)[:10]

    def loss(x: Tensor) -> Tensor:
        return ((views[0] + views[1] + views[2]) * w * x[:1]).sum() + alone.sum()

    folder = gravure.export_step(loss, (torch.randn(2),), tmp_path)
    values = torch.load(folder / "inputs.pt")["step"]
    storages = {values[f"views.{i}"].untyped_storage().data_ptr() for i in range(3)}
    assert len(storages) == 1
    assert (folder / "inputs.pt").stat().st_size < 40_000


def test_constants_in_code(tmp_path: Path) -> None:
    w = weight(3)

    def loss(x: Tensor) -> Tensor:
        return (x * w).minimum(torch.tensor([1.0, math.inf, 2.0])).sum()

    entries, state = exported(loss, (torch.randn(3),), tmp_path)
    constants = [n for _, _, role, n in entries["step"].inputs if role == "constant"]
    assert len(constants) == 1 and math.isinf(state["step"][constants[0]][1])
    same_as_eager(loss, (torch.randn(3),), tmp_path)


# ---- outputs


def test_duplicated_none_and_returned_inputs(tmp_path: Path) -> None:
    w = weight(3)

    def loss(x: Tensor) -> Any:
        y = x * w
        return y.sum(), y, None, {"again": y, "input": x, "view": x[1:], "number": 3}

    x = torch.randn(3)
    found = same_as_eager(loss, (x,), tmp_path)
    assert bits(found.outputs["output1"]) == bits(found.outputs["again"]) == bits(x * w)
    assert list(found.aliases) == ["x"]
    step = step_of(loss, (x,), tmp_path)
    assert [(r, n) for _, r, n in step.outputs] == [
        ("loss", ""),
        ("gradient", "w"),
        ("output", "output1"),
        ("output", "again"),
        ("alias", "x"),
        ("alias", "x"),
    ]


def test_unused_parameter_has_no_gradient(tmp_path: Path) -> None:
    used, unused, frozen = weight(3), weight(3), nn.Parameter(torch.ones(3), requires_grad=False)

    def loss(x: Tensor) -> Any:
        return (x * used * frozen).sum(), (x * unused).detach()

    found = same_as_eager(loss, (torch.randn(3),), tmp_path)
    assert list(found.gradients) == ["used"]


def test_user_input_with_gradient(tmp_path: Path) -> None:
    w, x = weight(3), torch.randn(3, requires_grad=True)
    found = same_as_eager(lambda x: (x * w).sum(), (x,), tmp_path)
    assert set(found.gradients) == {"x", "w"}


def test_loss_that_is_a_view(tmp_path: Path) -> None:
    w = weight(3)
    same_as_eager(lambda x: (x * w).sum(0, keepdim=True).view(()), (torch.randn(3),), tmp_path)
    same_as_eager(lambda x: (x * w).sum(0, keepdim=True), (torch.randn(3),), tmp_path)


def test_number_as_output(tmp_path: Path) -> None:
    w = weight(3)

    def loss(x: Tensor, n: Tensor) -> Any:
        return (x * w).sum(), n.item() + 1

    found = same_as_eager(loss, (torch.randn(3), torch.tensor(4)), tmp_path)
    assert found.outputs["output1"] == 5


def test_joint_takes_a_tangent_of_any_shape(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    entries, state = exported(model, (x,), tmp_path, joint=True)
    tangent = torch.randn(4, 2)
    state["backward"]["loss"] = tangent
    found = run(entries, state)
    model(x).backward(tangent)
    assert bits(found.gradients["weight"]) == bits(model.weight.grad)
    assert bits(found.gradients["bias"]) == bits(model.bias.grad)


# ---- mutation


def test_buffer_is_read_before_it_is_written(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(3))
            self.w = weight(3)

        def forward(self, x: Tensor) -> Tensor:
            y = (x * self.state * self.w).sin()
            self.state.mul_(2.0).add_(y.detach())
            return (y * self.state).sum()

    for joint in (False, True):
        model, x = Counter(), torch.randn(3)
        entries, state = exported(model, (x,), tmp_path / str(joint), joint=joint)
        for _ in range(3):
            model.w.grad = None
            loss = model(x)
            loss.backward()
            found = run(entries, state)
            assert bits(found.loss) == bits(loss)
            assert bits(found.gradients["w"]) == bits(model.w.grad)
            assert bits(state["forward" if joint else "step"]["state"]) == bits(model.state)
            assert bits(found.mutated["state"]) == bits(model.state)


def test_user_input_is_written(tmp_path: Path) -> None:
    w = weight(3)

    def loss(x: Tensor) -> Tensor:
        x.add_(1.0)
        return (x * w).sum()

    step = step_of(loss, (torch.zeros(3),), tmp_path)
    assert [s.args[0].name for s in statements(step, "aten::copy_")] == ["x"]
    assert [n for _, role, n in step.outputs if role == "mutation"] == ["x"]


def test_custom_operator_that_writes(tmp_path: Path) -> None:
    @torch.library.custom_op("gravure_test::accumulate", mutates_args={"into"})
    def accumulate(into: Tensor, x: Tensor) -> None:
        into.add_(x)

    w, total = weight(3), torch.zeros(3)

    def loss(x: Tensor) -> Tensor:
        y = x * w
        accumulate(total, y.detach())
        return y.sum()

    entries, state = exported(loss, (torch.ones(3),), tmp_path)
    assert len(statements(entries["step"], "gravure_test::accumulate")) == 1
    for i in range(2):
        run(entries, state)
        assert torch.equal(state["step"]["total"], (i + 1) * w.detach())


def test_logging_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w, logger = weight(3), logging.getLogger("gravure_test")

    def loss(x: Tensor) -> Tensor:
        y = x * w
        print("a print")
        logger.warning("shape %s", y.shape)
        warnings.warn("a warning", stacklevel=1)
        return y.sum()

    step_of(loss, (torch.randn(3),), tmp_path)
    assert capsys.readouterr().out == ""


def test_python_state_is_left_alone(tmp_path: Path) -> None:
    class Logger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.calls, self.last = weight(3), 0, None

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.last = x * self.w
            return self.last.sum()

    model = Logger()
    exported(model, (torch.randn(3),), tmp_path)
    assert model.calls == 0 and model.last is None
