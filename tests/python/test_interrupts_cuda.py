"""Ctrl-C in an operator of Python's while a partition is captured on a GPU."""

from __future__ import annotations

import gravure
import pytest
import torch
from running import need_library
from torch import Tensor

need_library()
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

_IN_CAPTURE: list[type[BaseException]] = []


@torch.library.custom_op("gravure_interrupts::checked", mutates_args=())
def checked(x: Tensor) -> Tensor:
    if _IN_CAPTURE and torch.cuda.is_current_stream_capturing():
        raise _IN_CAPTURE[0]("in a capture")
    return x.clone()


@checked.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _partitions() -> list[str]:
    (states,) = gravure.report().graphs[-1].programs[0].partitions.values()
    return states


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_it_ends_the_step_and_the_next_one_captures(kind: type[BaseException]) -> None:
    def call(x: Tensor) -> Tensor:
        return checked(torch.dropout(x * 2, 0.5, True)) + 1

    compiled = torch.compile(call, backend="gravure")
    x = torch.randn(64, device="cuda")
    _IN_CAPTURE[:] = [kind]
    for _ in range(2):
        compiled(x)
    for _ in range(3):
        with pytest.raises(kind):
            compiled(x)
    _IN_CAPTURE.clear()
    for seed in range(4):
        torch.manual_seed(seed)
        found = compiled(x)
        torch.manual_seed(seed)
        assert torch.equal(found, torch.dropout(x * 2, 0.5, True) + 1)
    assert _partitions() == ["captured"]


def test_an_error_costs_the_capture_and_not_the_step() -> None:
    compiled = torch.compile(lambda x: checked(x * 2) + 1, backend="gravure")
    x = torch.randn(64, device="cuda")
    _IN_CAPTURE[:] = [ValueError]
    for _ in range(6):
        assert torch.equal(compiled(x), x * 2 + 1)
    _IN_CAPTURE.clear()
    assert _partitions() == ["quarantined"]
    for _ in range(30):
        assert torch.equal(compiled(x), x * 2 + 1)
    assert _partitions() == ["captured"]
