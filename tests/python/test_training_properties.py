"""Properties that TransformerEngine's and Megatron-LM's tests ask of graphed layers, by number.

They are numbered as P1 to P27 of what was read of TransformerEngine (#2937) and of Megatron-LM
(#3970, #4162, #4433, #5975, #3948): gradients that stay, micro-batches in any order, a warm-up
that leaves no trace, values saved for a backward. Those on FP8, on buffers of pipeline stages and
on several ranks do not apply here. On a machine with a GPU every test runs on it too.
"""

from __future__ import annotations

import copy

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import DEVICES, bits, need_library
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from training import Mlp, compiled, replays, state_of

need_library()
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.parametrize("device", DEVICES)]


def pair(model: nn.Module, device: str) -> tuple[nn.Module, nn.Module]:
    """The same model twice."""
    model = model.to(device)
    return model, copy.deepcopy(model)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters()]


def same_state(ours: nn.Module, theirs: nn.Module) -> None:
    assert state_of(ours) == state_of(theirs)


@pytest.mark.parametrize("way", ["backend", "step"])
@pytest.mark.parametrize("marked_late", [False, True])
def test_p1_p5_gradients_that_are_kept_stay(device: str, way: str, marked_late: bool) -> None:
    """P5: somebody may begin to hold gradients long after the capture."""
    model, theirs = pair(Mlp(), device)
    whole = gravure.compile_step(lambda x: model(x).square().mean(), options={"poison": True})
    call = compiled(model)
    held = []
    for i in range(9):
        x = torch.randn(5, 8, device=device)
        model.zero_grad(set_to_none=True)
        theirs.zero_grad(set_to_none=True)
        whole(x) if way == "step" else call(x).square().mean().backward()
        theirs(x).square().mean().backward()
        same_state(model, theirs)
        if i > 5 or not marked_late:
            held.append((gradients(model), [bits(g) for g in gradients(model)]))
    for kept, expected in held:
        assert [bits(g) for g in kept] == expected
    addresses = [g.data_ptr() for kept, _ in held for g in kept]
    assert len(set(addresses)) == len(addresses)


def test_p2_gradients_of_two_backwards_add_up(device: str) -> None:
    model, theirs = pair(Mlp(), device)
    call = compiled(model)
    for i in range(10):
        if i % 3 == 0:
            for side in (model, theirs):
                side.zero_grad(set_to_none=i % 2 == 0)
        x = torch.randn(5, 8, device=device)
        call(x).square().mean().backward()
        theirs(x).square().mean().backward()
        same_state(model, theirs)


def test_p3_p4_static_gradients_lie_at_one_address(device: str) -> None:
    model, theirs = pair(Mlp(), device)
    step = gravure.compile_step(lambda x: model(x).square().mean(), options={"results": "static"})
    addresses = []
    for _ in range(8):
        x = torch.randn(5, 8, device=device)
        model.zero_grad(set_to_none=True)
        theirs.zero_grad(set_to_none=True)
        step(x)
        theirs(x).square().mean().backward()
        same_state(model, theirs)
        addresses.append([g.data_ptr() for g in gradients(model)])
    assert addresses[-1] == addresses[-2] == addresses[-3]


def test_p4_static_gradients_are_not_added_to(device: str) -> None:
    model = Mlp().to(device)
    step = gravure.compile_step(lambda x: model(x).square().mean(), options={"results": "static"})
    step(torch.randn(5, 8, device=device))
    with pytest.raises(RuntimeError, match="static gradient of the last step.*zero_grad"):
        step(torch.randn(5, 8, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_p6_whole_model_and_layers_apart_agree(device: str, dtype: torch.dtype) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(3)]
        return nn.Sequential(*blocks).to(device, dtype)

    eager, whole, layers = make(), make(), make()
    calls = [eager, compiled(whole), nn.Sequential(*map(compiled, layers))]
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (eager, whole, layers)]
    for _ in range(6):
        batches = [torch.randn(4, 8, device=device, dtype=dtype) for _ in range(2)]
        for call, optimizer in zip(calls, optimizers, strict=True):
            optimizer.zero_grad()
            for batch in batches:
                call(batch).square().mean().backward()
            optimizer.step()
        same_state(whole, eager)
        same_state(layers, eager)


def test_p8_keyword_arguments_and_unused_ones(device: str) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, unused: Tensor, *, mask: Tensor, scale: float = 2.0) -> Tensor:
            return F.gelu(self.linear(x)).masked_fill(mask, 0) * scale

    model, theirs = pair(Masked(), device)
    call = compiled(model)
    for _ in range(6):
        x, unused = torch.randn(4, 8, device=device), torch.randn(3, device=device)
        mask = torch.rand(4, 8, device=device) > 0.5
        for side, run in ((model, call), (theirs, theirs)):
            side.zero_grad()
            run(x, unused, mask=mask, scale=3.0).square().mean().backward()
        same_state(model, theirs)


@pytest.mark.parametrize(
    "order",
    [
        [1, 2, 1, 2, -2, -1, 1, 2, -2, -1, -2, -1],
        [1, 1, 2, 2, -2, -1, -2, -1],
        [1, 2, -2, -1, 1, 2, -2, -1],
    ],
)
def test_p9_chunks_of_a_pipeline_in_any_order(device: str, order: list[int]) -> None:
    """`k` is a forward of chunk k, `-k` the backward of its oldest forward that still waits."""
    chunks = [pair(Mlp(0.2 if device == "cpu" else 0.0), device) for _ in range(2)]
    calls = [compiled(ours) for ours, _ in chunks]

    def run(step: int, ours: bool) -> None:
        waiting: dict[int, list[Tensor]] = {1: [], 2: []}
        for at, work in enumerate(order):
            if work > 0:
                torch.manual_seed(1000 * step + at)
                x = torch.randn(5, 8, device=device)
                call = calls[work - 1] if ours else chunks[work - 1][1]
                waiting[work].append(call(x))
            else:
                waiting[-work].pop(0).square().mean().backward()

    for step in range(5):
        for ours, theirs in chunks:
            ours.zero_grad()
            theirs.zero_grad()
        run(step, ours=True)
        run(step, ours=False)
        for ours, theirs in chunks:
            same_state(ours, theirs)


def test_p10_hooks_run_each_step_and_never_in_a_capture(device: str) -> None:
    model, seen = Mlp().to(device), []

    def capturing() -> bool:
        return device == "cuda" and torch.cuda.is_current_stream_capturing()

    model.second.weight.register_hook(lambda g: seen.append(capturing()))
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append(capturing()))
    model.register_forward_hook(lambda *_: seen.append(capturing()))
    call = compiled(model)
    for i in range(6):
        call(torch.randn(5, 8, device=device)).square().mean().backward()
        assert len(seen) == 6 * (i + 1)
    assert not any(seen)


def test_p12_arguments_that_are_views_of_one_tensor(device: str) -> None:
    model, theirs = pair(nn.Linear(8, 8), device)

    def fn(model: nn.Module, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (model(a) * b).sum(0) + c

    call = compiled(fn)
    for _ in range(6):
        packed = torch.randn(9, 8, device=device)
        sides = []
        for run, side in ((call, model), (fn, theirs)):
            side.zero_grad()
            found = run(side, packed[:4], packed[4:8], packed[8])
            found.square().mean().backward()
            sides.append(bits(found))
        assert sides[0] == sides[1]
        same_state(model, theirs)


def test_p14_a_parameter_reached_through_nested_checkpoints(device: str) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outer, self.hidden = nn.Linear(8, 8), nn.Linear(8, 8)

        def inner(self, x: Tensor) -> Tensor:
            return torch.tanh(self.hidden(x))

        def middle(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.outer(x), use_reentrant=False) + x

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.middle, x, use_reentrant=False)

    model, theirs = pair(Nested(), device)
    call = compiled(model)
    for _ in range(6):
        x = torch.randn(4, 8, device=device)
        for side, run in ((model, call), (theirs, theirs)):
            side.zero_grad()
            run(x).square().mean().backward()
        assert model.hidden.weight.grad is not None
        same_state(model, theirs)


def test_p15_p16_warm_up_capture_and_replay_are_one_step_each(device: str) -> None:
    """Statistics, random states and gradients after each are what eager's step leaves."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)
            self.steps = nn.Buffer(torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.steps.add_(1)
            return F.dropout(self.linear(self.norm(x)), 0.5, self.training)

    model, theirs = pair(Noisy(), device)
    call = compiled(model)
    for i in range(6):
        x, sides = torch.randn(6, 8, device=device), []
        for run in (call, theirs):
            torch.manual_seed(i)
            run(x).square().mean().backward()  # gradients of all steps add up
            sides.append(bits(torch.rand(3, device=device)))
        assert sides[0] == sides[1]
        same_state(model, theirs)
    assert int(model.steps) == 6 and replays(gravure.report())


def test_p17_flags_on_the_device_are_read_where_they_lie(device: str) -> None:
    flag = torch.zeros((), dtype=torch.bool, device=device)
    address = flag.data_ptr()

    def fn(x: Tensor) -> Tensor:
        return torch.where(flag, x.sin() * 2, x.cos())

    call = compiled(fn)
    for i in range(9):
        flag.fill_(i % 3 == 0)
        x = torch.randn(4, device=device)
        assert bits(call(x)) == bits(fn(x))
    assert flag.data_ptr() == address and replays(gravure.report())


def test_p21_losses_of_a_hundred_steps(device: str) -> None:
    model, theirs = pair(Mlp(0.1), device)
    call, sides = compiled(model), []
    for side, run in ((model, call), (theirs, theirs)):
        optimizer = torch.optim.Adam(side.parameters(), 1e-2)
        torch.manual_seed(0)
        losses = []
        for _ in range(100):
            x = torch.randn(8, 8, device=device)
            optimizer.zero_grad()
            loss = (run(x) - x[:, :4].sin()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        sides.append([bits(loss) for loss in losses])
    assert sides[0] == sides[1]
    same_state(model, theirs)


def test_p23_p24_what_a_capture_reads_outlives_its_owner(device: str) -> None:
    """A table that the program read goes, and its memory is asked for again."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.randn(64, 64, device=device)

        def forward(self, x: Tensor) -> Tensor:
            made = torch.arange(64, device=device).float()  # made while the arguments are mapped
            return (x @ self.table).sin() + made

    model = Table()
    call = compiled(model)
    for i in range(12):
        x = torch.randn(8, 64, device=device)
        assert bits(call(x)) == bits(model(x))
        if i % 4 == 3:
            model.table = torch.randn(64, 64, device=device)
            if device == "cuda":
                torch.cuda.empty_cache()
            pressure = [torch.full((64, 64), float("nan"), device=device) for _ in range(20)]
            del pressure


def test_p25_saved_values_stay_until_their_backward(device: str) -> None:
    model, theirs = pair(Mlp(), device)
    call = compiled(model)
    for i in range(8):
        xs = [torch.randn(5, 8, device=device) for _ in range(3)]
        for side, run in ((model, call), (theirs, theirs)):
            side.zero_grad()
            results = [run(x) for x in xs]
            pressure = [torch.full((16, 16), float("nan"), device=device) for _ in range(50)]
            del pressure
            for result in results if i % 2 else reversed(results):
                result.square().mean().backward()
        same_state(model, theirs)


def test_p26_the_first_steps_already_train(device: str) -> None:
    """A warm-up on made-up values, or a buffer not put back, shows as a gap in the losses."""
    model, theirs = pair(Mlp(), device)
    call = compiled(model)
    for _ in range(4):
        x = torch.randn(5, 8, device=device)
        losses = []
        for side, run in ((model, call), (theirs, theirs)):
            side.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in side.parameters():
                    p.sub_(p.grad, alpha=0.1)
            losses.append(bits(loss))
        assert losses[0] == losses[1]
        same_state(model, theirs)


def test_p27_what_stays_at_its_address_is_not_copied(device: str) -> None:
    model = Mlp().to(device)
    with torch.no_grad():
        call = compiled(model)
        x = torch.randn(5, 8, device=device)
        for _ in range(6):
            call(x)
    (graph,) = gravure.report().graphs[-1:]
    staged = graph.programs[0].stats["staged_bytes"]
    assert staged <= replays(gravure.Report([graph])) * x.nbytes  # no parameter is ever copied
