"""Operators that Python implements: captured, right in bits, and never called in a replay."""

from __future__ import annotations

import copy
import gc
from collections import Counter
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import DEVICE, bits, need_library
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from training import leaves, replays, rows, same_as_eager, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

_CALLS: Counter[str] = Counter()


@torch.library.custom_op("gravure_test::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    _CALLS["scaled"] += 1
    shifted = x + 1  # memory of its own, given back inside
    return shifted * factor, x.sum(0)


@scaled.register_fake
def _(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[1:])


def _scaled_backward(context: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
    return first * context.factor + second, None


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scaled.register_autograd(_scaled_backward, setup_context=_keep)


@torch.library.custom_op("gravure_test::add_to", mutates_args={"total"})
def add_to(total: Tensor, x: Tensor) -> None:
    _CALLS["add_to"] += 1
    total.add_(x)


@torch.library.custom_op("gravure_test::halves", mutates_args=())
def halves(x: Tensor) -> list[Tensor]:
    _CALLS["halves"] += 1
    return [half.clone() for half in x.chunk(2)]


@halves.register_fake
def _(x: Tensor) -> list[Tensor]:
    return [torch.empty_like(half) for half in x.chunk(2)]


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y, sums = scaled(self.linear(x), 0.3)
        add_to(self.total, sums.detach())
        first, _ = halves(x)
        return y.tanh() + sums + first.sum()


def _prim(x: Tensor) -> Tensor:
    return torch.ops.prims.cbrt(x.detach()) * x


def test_custom_operators_are_captured_with_the_rest() -> None:
    _CALLS.clear()
    report = same_as_eager(Custom(), rows)
    (graph,) = report.graphs
    assert graph.programs[0].partitions == {"forward": ["captured"], "backward": ["captured"]}
    assert not graph.programs[0].host_nodes and replays(report) == 10
    assert min(_CALLS[name] for name in ("scaled", "add_to", "halves")) > 0


def test_custom_operators_in_a_step() -> None:
    model = Custom()
    ours = copy.deepcopy(model)
    step = gravure.compile_step(lambda x: ours(x).square().mean(), options={"poison": True})
    for i in range(6):
        (x,) = rows(i)
        found = step(x)
        loss = model(x).square().mean()
        loss.backward()
        assert leaves(found) == leaves(loss.detach()) and state_of(ours) == state_of(model)


def test_an_operator_that_only_python_knows() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return _prim(self.linear(x)).sin()

    report = same_as_eager(Net(), rows)
    assert report.graphs[0].programs[0].partitions["forward"] == ["captured"]


def test_the_host_option_keeps_them_out_of_graphs() -> None:
    report = same_as_eager(Custom(), rows, options={"host": ["gravure_test::scaled"]})
    nodes = report.graphs[0].programs[0].host_nodes
    assert any("user-request" in n and "gravure_test::scaled" in n for n in nodes)
    assert not any("gravure_test::halves" in n for n in nodes)


@torch.library.custom_op("gravure_test::read_and_empty", mutates_args=())
def read_and_empty(x: Tensor) -> Tensor:
    """As offloading does: what was copied gives its memory back at once."""
    found = x.clone()
    x.untyped_storage().resize_(0)
    return found


@read_and_empty.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_one_on_the_host_that_empties_the_storage_it_is_given() -> None:
    """What is given is a partition's, the same in each replay."""

    def fn(x: Tensor) -> Tensor:
        kept = read_and_empty((x @ x).sin().cos() @ x)
        return (kept.exp() + 1).sin() @ x

    host = {"host": ["gravure_test::read_and_empty"]}
    call = torch.compile(fn, backend="gravure", options=host)
    for _ in range(8):
        x = torch.randn(4, 4, device=DEVICE)
        assert bits(call(x)) == bits(fn(x))
    report = gravure.report()
    assert replays(report) > 4
    (program,) = report.graphs[0].programs
    assert program.partitions == {"step": ["captured", "captured"]}


class _Waits:
    """What ends by a call that breaks a capture on a GPU, as a kernel of Triton's does: it lies in
    a cycle, so the garbage collector ends it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        if torch.cuda.is_available():
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                _CALLS["broken"] += 1


def test_garbage_is_not_collected_in_the_midst_of_a_capture() -> None:
    @torch.library.custom_op("gravure_test::leaves_garbage", mutates_args=())
    def leaves_garbage(x: Tensor) -> Tensor:
        _Waits()
        [[] for _ in range(20 * gc.get_threshold()[0])]  # enough for a collection
        return x * 2

    leaves_garbage.register_fake(torch.empty_like)
    weight = nn.Parameter(torch.randn(8, device=DEVICE))
    compiled = torch.compile(lambda x: leaves_garbage(x) * weight, backend="gravure")
    _CALLS["broken"] = 0
    for _ in range(8):
        x = torch.randn(4, 8, device=DEVICE)
        compiled(x).sum().backward()
    assert _CALLS["broken"] == 0
    assert gc.isenabled()
    (graph,) = gravure.report().graphs
    assert {state for p in graph.programs for s in p.partitions.values() for state in s} == {
        "captured"
    }
    gc.disable()  # whoever has turned it off finds it off
    try:
        gravure.drop_captures()
        for _ in range(6):
            compiled(torch.randn(4, 8, device=DEVICE)).sum().backward()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_in_one_reaches_the_caller_and_the_next_step_is_right() -> None:
    fails = [False]

    @torch.library.custom_op("gravure_test::may_fail", mutates_args=())
    def may_fail(x: Tensor) -> Tensor:
        if fails[0]:
            raise ValueError("no luck today")
        return x * 2

    may_fail.register_fake(torch.empty_like)
    weight = nn.Parameter(torch.randn(8))
    compiled = torch.compile(lambda x: may_fail(x) * weight, backend="gravure")
    for i in range(8):
        fails[0] = i in (1, 5)
        x = torch.randn(8)
        if fails[0]:
            with pytest.raises(Exception, match="no luck today"):
                compiled(x)
            continue
        assert bits(compiled(x)) == bits(x * 2 * weight)


def test_flex_attention_is_carried() -> None:
    bias = torch.randn(16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + bias[i] * 0.1

        return flex_attention(q * 2, k, v, score_mod=score, block_mask=mask).tanh()

    compiled = torch.compile(attend, backend="gravure", options={"on_missed": "raise"})
    with torch.no_grad():
        for _ in range(5):
            q, k, v = (torch.randn(1, 2, 16, 16) for _ in range(3))
            assert bits(compiled(q, k, v, mask)) == bits(attend(q, k, v, mask))
    graph = gravure.report().graphs[-1]
    assert graph.programs[0].partitions == {"step": ["captured"]}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_python_is_not_called_in_a_replay_on_a_gpu() -> None:
    model = Custom().cuda()
    ours = copy.deepcopy(model)
    step = gravure.compile_step(lambda x: ours(x).square().mean())
    calls = []
    for i in range(8):
        x = rows(i)[0].cuda()
        _CALLS.clear()
        found = step(x)
        calls.append(dict(_CALLS))
        loss = model(x).square().mean()
        loss.backward()
        assert leaves(found) == leaves(loss.detach()) and state_of(ours) == state_of(model)
    once = {"scaled": 1, "add_to": 1, "halves": 1}
    assert calls == [once] * 3 + [{}] * 5  # two warm-ups and the capture
