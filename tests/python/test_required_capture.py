"""An error where a capture is missed, on every way in: node, reason, source line and cure in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import need_library
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from training import Mlp, rows, same_as_eager

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

REQUIRED = {"require_capture": True}


class ReadsTheHost(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.inner(x).detach().sum().item()
        torch._check(scale != 3)  # or the number would become a tensor again
        return (self.inner(x) * scale).square().mean()


def _by_backend(model: nn.Module, options: dict[str, Any], folder: Path) -> Callable[..., Any]:
    compiled = torch.compile(model, backend="gravure", options=options)

    def step(x: Tensor) -> None:
        compiled(x).backward()

    return step


def _by_step(model: nn.Module, options: dict[str, Any], folder: Path) -> Callable[..., Any]:
    return gravure.compile_step(model, options=options)


def _by_load(model: nn.Module, options: dict[str, Any], folder: Path) -> Callable[..., Any]:
    gravure.export_step(model, rows(0), folder)
    program = gravure.load(folder, **options)
    program.bind_saved()
    return lambda x: program.run([x])


WAYS = {"backend": _by_backend, "compile_step": _by_step, "load": _by_load}
ways = pytest.mark.parametrize("way", list(WAYS))


@pytest.fixture(autouse=True)
def _scalars() -> Any:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield


def _message(way: str, model: nn.Module, options: dict[str, Any], folder: Path) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  what it says is looked at below
        step = WAYS[way](model, options, folder)
        for _ in range(5):
            step(*rows(0))
    return str(caught.value)


@ways
def test_a_node_outside_of_graphs(way: str, tmp_path: Path) -> None:
    message = _message(way, ReadsTheHost(), REQUIRED, tmp_path)
    for part in (
        "would run outside of graphs",
        "aten::_local_scalar_dense",  # the node
        "[host-sync]",  # the reason
        "test_required_capture.py:",  # the line
        "cure: keep the value on the device",
    ):
        assert part in message


@ways
def test_nodes_that_the_user_keeps_out_are_none(way: str, tmp_path: Path) -> None:
    asked = ["aten::_local_scalar_dense", "aten::mul", "aten::scalar_tensor"]
    options = REQUIRED | {"host": asked, "min_partition_size": 1}
    step = WAYS[way](ReadsTheHost(), options, tmp_path)
    for i in range(5):
        step(*rows(i))


@ways
def test_all_captured_is_no_error(way: str, tmp_path: Path) -> None:
    class Plain(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square().mean()

    step = WAYS[way](Plain(), REQUIRED, tmp_path)
    for i in range(5):
        step(*rows(i))


def test_a_capture_that_fails_names_the_operator(tmp_path: Path) -> None:
    class Plain(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square().mean()

    gravure.export_step(Plain(), rows(0), tmp_path)
    program = gravure.load(tmp_path, require_capture=True)
    program.bind_saved()
    program.inject_fault("capture-call", 2)
    with pytest.raises(RuntimeError) as caught:
        for i in range(4):
            program.run(rows(i))
    for part in ("cudagraph::launch", "injected fault", "training.py:", "the option host"):
        assert part in str(caught.value)


def test_a_graph_that_gets_no_program() -> None:
    def call(x: Tensor) -> Tensor:
        return while_loop(lambda x: x.sum() < 0, lambda x: (x + 1,), (x,))[0]

    for options in (REQUIRED, {"on_missed": "raise"}):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="a program has no form of while_loop"):
            torch.compile(call, backend="gravure", options=options)(*rows(0))


def test_more_sizes_than_programs() -> None:
    options = REQUIRED | {"max_shapes": 2, "min_partition_size": 1}
    compiled = torch.compile(
        lambda x: (x * 2).relu(), backend="gravure", options=options, dynamic=True
    )
    compiled(torch.randn(3, 4))
    compiled(torch.randn(4, 4))
    with pytest.raises(gravure.ExportError, match="more than 2 sets of sizes; raise.*max_shapes"):
        compiled(torch.randn(5, 4))


def test_on_missed_alone_lets_nodes_run_on_the_host() -> None:
    class Outputs(ReadsTheHost):
        pass

    report = same_as_eager(Outputs(), rows, options={"on_missed": "raise"})
    assert any("host-sync" in node for node in report.graphs[0].programs[0].host_nodes)
