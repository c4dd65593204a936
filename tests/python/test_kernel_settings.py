"""Settings by which PyTorch's operators choose their kernels, changed around compiled calls.

Each call has eager's bits under those of its time.

Dynamo guards some of them (TF32, deterministic algorithms); attention's it does not look at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.calls.live_graphs import followed
from running import bits, need_library
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import differentiated

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Step = Callable[[Tensor], Tensor]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2)).square().mean()


def math() -> AbstractContextManager[Any]:
    return sdpa_kernel(SDPBackend.MATH)


def under(setting: str) -> AbstractContextManager[Any]:
    return math() if setting == "math" else nullcontext()


def compiled(model: Attention, **options: Any) -> Step:
    options = {"poison": DEVICE == "cpu"} | options
    return differentiated(torch.compile(model, backend="gravure", options=options))


def by_step(model: Attention) -> Step:
    return gravure.compile_step(model, options={"poison": DEVICE == "cpu"})


def of_each_step(make: Callable[[Attention], Step], settings: list[str]) -> Iterator[list[Any]]:
    torch.manual_seed(0)
    model = Attention().to(DEVICE)
    step = make(model)
    for setting in settings:
        model.zero_grad()
        x = torch.randn(4, 64, 32, device=DEVICE)
        with under(setting):
            loss = step(x)
        yield [bits(loss.detach()), *[bits(p.grad) for p in model.parameters()]]


WAYS = [compiled, by_step]
# Evaluation under another setting, twice; a setting that comes to stay.
LOOPS = {
    "now and then": (["flash"] * 5 + ["math"] * 3) * 3,
    "each other step": ["flash", "math"] * 8,
    "for good": ["flash"] * 5 + ["math"] * 6,
}


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize("loop", LOOPS)
def test_law_3_each_step_has_eagers_bits_under_the_settings_of_its_call(
    make: Callable[[Attention], Step], loop: str
) -> None:
    settings = LOOPS[loop]
    expected = list(of_each_step(differentiated, settings))
    found = list(of_each_step(make, settings))
    differing = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    assert differing == [], f"steps {differing} of {settings}"
    plain = list(of_each_step(differentiated, ["flash"] * len(settings)))
    assert plain != expected, "both settings have the same bits: this shows nothing"


@pytest.mark.parametrize("make", WAYS)
def test_law_3_each_setting_keeps_its_captures(make: Callable[[Attention], Step]) -> None:
    torch.manual_seed(0)
    step = make(Attention().to(DEVICE))
    x = torch.randn(4, 64, 32, device=DEVICE)

    def run(settings: list[str]) -> None:
        for setting in settings:
            with under(setting):
                step(x)

    run((["flash"] * 5 + ["math"] * 5) * 2)
    programs = [i.program for graph in followed() for i in graph.all_instances()]
    before = [(p.stats()["captures"], p.stats()["uncaptured_steps"]) for p in programs]
    run(["flash", "math"] * 4)
    after = [(p.stats()["captures"], p.stats()["uncaptured_steps"]) for p in programs]
    assert after == before
    assert len(programs) == 2


def test_law_3_evaluation_without_gradients_obeys_the_setting() -> None:
    torch.manual_seed(0)
    model = Attention().to(DEVICE)
    call = torch.compile(model, backend="gravure")
    x = torch.randn(4, 64, 32, device=DEVICE)
    with torch.no_grad():
        for setting in itertools.chain(["flash"] * 4, ["math"] * 4, ["flash", "math"] * 2):
            with under(setting):
                assert bits(call(x)) == bits(model(x)), setting


def test_law_3_a_forward_under_a_setting_and_its_backward_without() -> None:
    def run(make: Callable[[Attention], Any]) -> list[list[Any]]:
        torch.manual_seed(0)
        model = Attention().to(DEVICE)
        call = make(model)
        found = []
        for _ in range(8):
            model.zero_grad()
            with math():
                loss = call(torch.randn(4, 64, 32, device=DEVICE))
            loss.backward()
            found.append([bits(loss.detach()), *[bits(p.grad) for p in model.parameters()]])
        return found

    assert run(lambda m: torch.compile(m, backend="gravure")) == run(lambda m: m)


def test_more_settings_than_programs_may_be_are_refused_in_words() -> None:
    model = Attention().to(DEVICE)
    call = torch.compile(model, backend="gravure", options={"max_shapes": 1})
    x = torch.randn(4, 64, 32, device=DEVICE)
    call(x)
    with math():
        call(x)
    with (
        sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]),
        pytest.raises(RuntimeError, match="torch.backends.cuda.enable_flash_sdp"),
    ):
        call(x)
