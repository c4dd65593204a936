"""torch.compile(backend="gravure") in one graph over reads on the host, whose sizes follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import need_library
from torch import Tensor
from training import Mlp, host_nodes, replays, rows, same_as_eager

need_library()
pytestmark = pytest.mark.usefixtures("fresh", "whole_graphs")


@pytest.fixture
def whole_graphs() -> Iterator[None]:
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings):
        yield


def test_tensors_that_are_read_on_the_host() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            parts = self.linear(x).split(sizes.tolist())
            return torch.cat([(i + 1) * part for i, part in enumerate(parts)]).relu()

    report = same_as_eager(
        Reads(), lambda i: (torch.randn(6, 8), torch.tensor([1 + i % 3, 2, 3 - i % 3]))
    )
    assert any("host-sync" in node for node in host_nodes(report))


@pytest.mark.parametrize(
    "of",
    [
        lambda real, whole: int(real) + math.trunc(-real),
        lambda real, whole: round(real) + 10 * round(real - 0.5) + round(-real) + round(whole),
        lambda real, whole: int(abs(real - 2)) + abs(whole - 2),
        lambda real, whole: (whole << 2) + (-whole >> 1) + (whole ^ 3),
    ],
    ids=["truncated", "rounded", "absolute", "bits"],
)
def test_arithmetic_on_numbers_that_are_read_on_the_host(of: Callable[[Any, Any], Any]) -> None:
    class Reads(Mlp):
        def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
            real, whole = numbers.sum().item(), numbers.int().sum().item()
            return super().forward(x) + of(real, whole)

    # Halves and thirds, of both signs.
    report = same_as_eager(Reads(), lambda i: (*rows(i), torch.tensor([1.5 * i, -3.0, i / 3])))
    assert [(g.failure, g.graph_break) for g in report.graphs] == [("", "")]


# What models do with a number, 2 to 5, that they read, and the two that it is the sum of.
USES: dict[str, Callable[[Tensor, Any, Tensor], Tensor]] = {
    "slice": lambda y, n, k: y[:n] ** 2,
    "narrow": lambda y, n, k: y.narrow(0, 0, n) * 2,
    "least": lambda y, n, k: y[: min(n, 4)] ** 2,
    "arange": lambda y, n, k: y[torch.arange(n)] * 2,
    "zeros": lambda y, n, k: torch.zeros(n, 8) + y.sum(0),
    "full": lambda y, n, k: torch.full((n,), 2.0) * y.sum(),
    "pad": lambda y, n, k: F.pad(y, (0, n)) ** 2,
    "repeat": lambda y, n, k: y.repeat(n, 1) ** 2,
    "repeat_interleave": lambda y, n, k: y[:2].repeat_interleave(k, dim=0) ** 2,
    "expand": lambda y, n, k: y.sum(0).expand(n, 8) ** 2,
    "split": lambda y, n, k: torch.cat([p * i for i, p in enumerate(y[:n].split(k.tolist()))]),
    "cat": lambda y, n, k: torch.cat([y[:n], y[n:] * 2]),
    "mm": lambda y, n, k: y[:n] @ y.t(),
    "softmax": lambda y, n, k: y[:n].softmax(0),
    "dropout": lambda y, n, k: F.dropout(y[:n], 0.5),
    "attention": lambda y, n, k: F.scaled_dot_product_attention(*(y[None, None, :n],) * 3),
    "index_add": lambda y, n, k: torch.zeros(5, 8).index_add(0, torch.arange(n), y[:n]),
    "index_copy": lambda y, n, k: torch.zeros_like(y).index_copy(0, torch.arange(n), y[:n]),
    "factor": lambda y, n, k: y * (1.0 / n) * (0.9**n),
    "mask": lambda y, n, k: y[y > 0] ** 2,
    "masked_select": lambda y, n, k: torch.masked_select(y, y > 0) * 2,
    "nonzero": lambda y, n, k: y.flatten()[torch.nonzero(y.flatten() > 0).squeeze(1)],
    "where": lambda y, n, k: y[torch.where(y[:, 0] > 0)[0]],
    "unique": lambda y, n, k: y * torch.unique(k).sum(),
    "bincount": lambda y, n, k: y * torch.bincount(k, minlength=4).sum(),
    "one_hot": lambda y, n, k: F.one_hot(k, 8).float() @ y.t(),
}


@pytest.mark.parametrize("use", USES)
def test_uses_of_a_number_that_was_read(use: str) -> None:
    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
            n = numbers.sum().item()
            torch._check(n >= 2)
            torch._check(n <= 5)
            return USES[use](self.linear(x), n, numbers)

    report = same_as_eager(
        Uses(), lambda i: (torch.randn(5, 8), torch.tensor([1 + i % 3, 1 + i % 2]))
    )
    assert [(g.failure, g.graph_break) for g in report.graphs] == [("", "")]
    assert replays(report) > 0
