"""What cannot be exported is refused: by name, with the reason and a remedy."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gravure
import numpy as np
import pytest
import torch
from running import weight
from torch import Tensor


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def refused(fn: Any, args: tuple[Any, ...], folder: Path) -> gravure.ExportError:
    for export in (gravure.export_step, gravure.export_joint):
        with pytest.raises(gravure.ExportError) as caught:
            export(fn, args, folder / "refused")
        assert caught.value.node and caught.value.reason and caught.value.remedy
        for part in (caught.value.node, caught.value.reason, caught.value.remedy):
            assert part in str(caught.value)
        assert not (folder / "refused").exists()
    return caught.value


def test_no_tensor_no_gradient(tmp_path: Path) -> None:
    w, x = weight(3), torch.randn(3)
    assert "float" in refused(lambda x: (x * w).sum().item() * 1.0, (x,), tmp_path).reason
    assert "dict" in refused(lambda x: {"loss": (x * w).sum()}, (x,), tmp_path).reason
    assert "gradient" in refused(lambda x: (x * w).sum().detach(), (x,), tmp_path).reason
    assert "backward" in refused(lambda x: w, (x,), tmp_path).reason
    assert "callable" in refused(3, (x,), tmp_path).reason


def test_arguments_that_are_no_tuple(tmp_path: Path) -> None:
    for export in (gravure.export_step, gravure.export_joint):
        with pytest.raises(TypeError, match="expected a tuple of arguments"):
            export(torch.sum, torch.ones(2), tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_loss_that_is_no_scalar(tmp_path: Path) -> None:
    w = weight(3)
    with pytest.raises(gravure.ExportError, match=r"shape \[3\].*\.mean\(\)"):
        gravure.export_step(lambda x: x * w, (torch.randn(3),), tmp_path)


def test_generators(tmp_path: Path) -> None:
    w = weight(3)
    generator = torch.Generator()

    def loss(x: Tensor) -> Tensor:
        return (x * w * torch.rand(3, generator=generator)).sum()

    assert "enerator" in str(refused(loss, (torch.randn(3),), tmp_path))


def test_graph_break(tmp_path: Path) -> None:
    w = weight(3)

    def loss(x: Tensor) -> Tensor:
        y = x * w
        if y.sum() > 0:
            y = y * 2
        return y.sum()

    error = refused(loss, (torch.randn(3),), tmp_path)
    assert "test_refusals.py" in error.source
    assert "torch.compile" in error.remedy


def test_a_branch_on_a_number_that_was_read(tmp_path: Path) -> None:
    w = weight(3)

    def loss(x: Tensor) -> Tensor:
        y = x * w
        return y.sum() * 2 if y.sum().item() > 0 else y.sum()

    error = refused(loss, (torch.randn(3),), tmp_path)
    assert "test_refusals.py" in error.source and "torch.where" in error.remedy


def test_outer_graph(tmp_path: Path) -> None:
    w = weight(3)
    outside = w * 2
    error = refused(lambda x: (x * outside).sum(), (torch.randn(3),), tmp_path)
    assert "outside" in error.node and "outside of the function" in error.reason


def test_while_loop(tmp_path: Path) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    w = weight(3)

    def loss(x: Tensor) -> Tensor:
        n, y = while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 2), (torch.tensor(0), x))
        return (y * w).sum() + n

    assert "while_loop" in str(refused(loss, (torch.randn(3),), tmp_path))


def test_overlapping_inputs_that_are_written(tmp_path: Path) -> None:
    w, base = weight(3), torch.zeros(4)
    a, b = base[:3], base[1:]

    def loss(x: Tensor) -> Tensor:
        a.add_(x)
        return (b * w).sum()

    assert "share memory" in refused(loss, (torch.randn(3),), tmp_path).reason


def test_python_random(tmp_path: Path) -> None:
    w = weight(3)
    error = refused(lambda x: (x * w * random.random()).sum(), (torch.randn(3),), tmp_path)
    assert "random" in error.reason


def test_numpy_argument(tmp_path: Path) -> None:
    w = weight(3)

    def loss(x: Any) -> Tensor:
        return (torch.as_tensor(x) * w).sum()

    assert "pass a tensor" in refused(loss, (np.ones(3, dtype=np.float32),), tmp_path).remedy


def test_change_of_shape_in_place(tmp_path: Path) -> None:
    w, x = weight(2, 3), torch.randn(3, 2)

    def loss(x: Tensor) -> Tensor:
        x.t_()
        return (x * w).sum()

    assert "inplace view" in refused(loss, (x,), tmp_path).reason


def test_prims_without_an_aten_form(tmp_path: Path) -> None:
    w, cbrt = weight(3), torch.ops.prims.cbrt
    error = refused(lambda x: (cbrt(x) * w).sum(), (torch.randn(3),), tmp_path)
    assert "prims::cbrt" in error.node and "test_refusals.py" in error.source


def test_a_backward_that_branches_on_data_is_named_by_its_line(tmp_path: Path) -> None:
    with torch.library._scoped_library("gravure_test", "FRAGMENT") as library:
        library.define("first_rows(Tensor x, SymInt n) -> Tensor")
        library.impl("first_rows", lambda x, n: x[:n].clone(), "CPU")
        library.impl("first_rows", lambda x, n: x.new_empty(n, x.shape[1]), "Meta")

        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.rows, ctx.shape = inputs[1], inputs[0].shape

        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            scale = 0.0 if ctx.rows == 3 else 1.0  # a number that is read from x
            return gradient.new_zeros(ctx.shape) + scale, None

        torch.library.register_autograd(
            "gravure_test::first_rows", backward, setup_context=setup, lib=library
        )
        w, x = weight(4, 4), torch.randn(4, 4)

        def step(x: Tensor) -> Tensor:
            rows = int((x[:, 0] > 0).sum().item())
            torch._check(rows >= 0)
            torch._check(rows <= 4)
            return torch.ops.gravure_test.first_rows(x * w, rows).sum()

        error = refused(step, (x,), tmp_path)
    assert "test_refusals.py:" in error.source and "data-dependent" in error.reason
    assert "torch.compile" in error.remedy


def test_a_cure_is_said_once_and_keeps_what_is_trained() -> None:
    """As with a frozen embedding and checkpoints: Dynamo's own hint would drop the gradient."""

    def loss(x: Tensor) -> Tensor:
        y = (x * 2).requires_grad_()
        return torch.utils.checkpoint.checkpoint(torch.sin, y, use_reentrant=True).sum()

    step = gravure.compile_step(loss)
    with pytest.raises(gravure.ExportError) as caught:
        step(torch.randn(3))
    said = str(caught.value)
    assert "detach" not in caught.value.remedy
    assert said.count(caught.value.remedy) == 1 and 'backend="gravure"' in said


def test_an_error_of_our_own_is_said_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    w = weight(3)

    def fail(*_: Any) -> None:
        raise AttributeError("a library without a name that is asked for")

    monkeypatch.setattr("gravure.steps.step_compiler.StepCompiler.write", fail)
    step = gravure.compile_step(lambda x: (x * w).sum())
    with pytest.raises(gravure.ExportError) as caught:
        step(torch.randn(3))
    assert "AttributeError: a library without a name that is asked for" in caught.value.reason
    assert "report it" in caught.value.remedy
