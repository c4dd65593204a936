"""Attention with a mask and dropout, whose backward runs one by one behind a replayed forward.

PyTorch's kernel reads the dropout's seed on the host then, where the forward had left it on the
device: the process ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import need_library
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import replays

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.1)
        return self.out(mixed.transpose(1, 2).flatten(-2)).square().mean()


def losses_and_gradients(make: Callable[[nn.Module], Any]) -> tuple[list[Tensor], Any]:
    """With the report. Gradients are held, and added to, in three steps of four."""
    torch.manual_seed(0)
    model = Attention().cuda()
    call = make(model)
    mask = (torch.arange(24, device="cuda") < 20).expand(2, 1, 24, 24)
    found = []
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        for step in range(16):
            if step % 4 == 0:
                model.zero_grad()
            loss = call(torch.randn(2, 24, 32, device="cuda"), mask)
            loss.backward()
            found += [loss.detach().clone(), *[p.grad.clone() for p in model.parameters()]]
    return found, gravure.report()


@pytest.mark.parametrize("codegen", ["aten", "inductor"])
def test_law_3_a_backward_that_is_not_replayed_behind_a_forward_that_is(codegen: str) -> None:
    options = {"codegen": codegen}
    found, report = losses_and_gradients(
        lambda model: torch.compile(model, backend="gravure", options=options)
    )
    assert replays(report) and "result-held" in str(report)
    expected, _ = losses_and_gradients(lambda model: model)
    for one, other in zip(found, expected, strict=True):
        if codegen == "aten":
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other)
