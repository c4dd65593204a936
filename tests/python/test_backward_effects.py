"""Operators whose effects are ordered, and that the backward alone has: it takes a token for them,
which holds nothing. PyTorch's own are the checks of `torch.linalg`."""

from __future__ import annotations

from collections.abc import Callable

import gravure
import pytest
import torch
from gravure.errors import ExportError
from running import need_library
from torch import Tensor
from torch.torch_version import TorchVersion
from training import replays, same_gradients

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "eigvals": lambda x: torch.linalg.eigvals(x).abs().sum(),
    "eig": lambda x: torch.linalg.eig(x)[0].abs().sum(),
    "with_more": lambda x: torch.tanh(torch.linalg.eigvals(x @ x.T).abs()).sum() + x.square().sum(),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_law_1_a_backward_with_effects_has_eagers_bits(value: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    inputs = [torch.rand(5, 5) for _ in range(8)]
    same_gradients(value, torch.compile(value, backend="gravure"), inputs)
    assert replays(gravure.report()), str(gravure.report())


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 15), reason="there these checks may have no order"
)
def test_a_compiled_step_names_the_operator() -> None:
    w = torch.rand(5, 5, requires_grad=True)
    step = gravure.compile_step(lambda x: torch.linalg.eigvals(w * x).abs().sum())
    with pytest.raises(ExportError, match="run in its backward .*_linalg_check_errors"):
        step(torch.rand(5, 5))
