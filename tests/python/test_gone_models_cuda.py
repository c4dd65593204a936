"""What of a GPU comes back when a model is gone or moved, or its captures are dropped."""

from __future__ import annotations

import gc
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import need_library
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
need_library()
pytestmark = pytest.mark.usefixtures("fresh")

WIDE = 4096  # 64 MiB of weights
WEIGHTS = 4 * WIDE * WIDE
SLACK = WEIGHTS // 2  # libraries' workspaces


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDE, WIDE, bias=False, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def train(call: Any, device: str = "cuda", steps: int = 6) -> None:
    for _ in range(steps):
        call(torch.randn(8, WIDE, device=device)).square().sum().backward()
        call.zero_grad()


def in_use() -> int:
    """PyTorch's bytes, and all bytes of the device that it does not cache."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return max(torch.cuda.memory_allocated(), total - free)


@pytest.fixture
def base() -> int:
    train(torch.compile(Wide(), backend="gravure"))  # libraries, streams, what stays for good
    torch._dynamo.reset()
    return in_use()


def test_a_model_that_is_dropped(base: int) -> None:
    for _ in range(4):
        model = Wide()
        call = torch.compile(model, backend="gravure")
        train(call)
        assert in_use() >= base + WEIGHTS
        del model, call
    assert in_use() < base + SLACK


def test_a_model_that_is_moved_away(base: int) -> None:
    model = Wide()
    call = torch.compile(model, backend="gravure")
    train(call)
    model.cpu()
    assert gravure.drop_captures(model) == 1
    assert in_use() < base + SLACK
    model.cuda()
    train(call)
    programs = [p for graph in gravure.report().graphs for p in graph.programs]
    assert max(p.stats["replays"] for p in programs) > 0


def test_a_model_that_is_moved_away_and_goes_on(base: int) -> None:
    model = Wide()
    call = torch.compile(model, backend="gravure")
    train(call)
    model.cpu()
    train(call, "cpu", 2)  # compiled anew
    assert in_use() < base + SLACK


def test_a_model_of_other_weights(base: int) -> None:
    model = Wide()
    call = torch.compile(model, backend="gravure")
    train(call)
    one = in_use()
    for _ in range(3):
        model.load_state_dict(Wide().state_dict(), assign=True)
        train(call)
    assert in_use() < one + SLACK
    del model, call
    assert in_use() < base + SLACK


def test_models_are_dropped_beside_a_capture_of_the_callers() -> None:
    models = [Wide() for _ in range(3)]
    calls = [torch.compile(model, backend="gravure") for model in models]
    for call in calls:
        train(call)
    x = torch.ones(8, device="cuda")
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        y = x * 2
        while models:
            calls.pop()
            models.pop()
        call = None
        gc.collect()
        y = y + 1
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [3.0] * 8
