"""Python's own random numbers inside of compiled functions: eager's, in each call."""

from __future__ import annotations

import random
from collections.abc import Callable

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.errors import ExportError
from gravure.torch_api.private_names import MINOR
from running import need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

OTHER = random.Random(0)


def sample(x: Tensor) -> Tensor:
    first, second = random.sample(range(5), 2)
    return x * first + second


def shuffle(x: Tensor) -> Tensor:
    order = [0, 1, 2, 3]
    random.shuffle(order)
    return x * order[0] + order[1]


def of_another(x: Tensor) -> Tensor:
    return x * OTHER.random() + OTHER.randint(0, 100)


def sample_of_another(x: Tensor) -> Tensor:
    return x * OTHER.sample(range(9), 1)[0]


def single(x: Tensor) -> Tensor:
    return x * random.random() + random.randint(0, 9) + random.uniform(1.0, 2.0)


def choice(x: Tensor) -> Tensor:
    return x * random.choice([1.0, 2.0, 3.0]) + random.gauss(0.0, 1.0)


def state(x: Tensor) -> Tensor:
    kept = random.getstate()
    drawn = random.random()
    random.setstate(kept)
    return x * drawn


def seeded(x: Tensor) -> Tensor:
    random.seed(3)
    order = [0, 1, 2, 3]
    random.shuffle(order)
    return x * order[0] + random.random()


def of_its_own(x: Tensor) -> Tensor:
    return x * random.Random(3).random()


DRAWS = [
    sample,
    shuffle,
    of_another,
    sample_of_another,
    single,
    choice,
    state,
    seeded,
    of_its_own,
]


@pytest.fixture
def _as_traced(draw: Callable[[Tensor], Tensor]) -> None:
    if MINOR < 15 and draw in (single, of_its_own, seeded):
        pytest.skip("Dynamo passes a float that it draws in another dtype than it traced")


def numbers(call: Callable[[Tensor], Tensor]) -> list[float]:
    """Results of calls, and what both generators draw behind them."""
    random.seed(1)
    OTHER.seed(2)
    found = [call(torch.ones(1)).item() for _ in range(7)]
    return [*found, random.random(), OTHER.random()]


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
@pytest.mark.usefixtures("_as_traced")
def test_law_3_each_call_has_eagers_numbers(draw: Callable[[Tensor], Tensor]) -> None:
    expected = numbers(draw)
    assert numbers(torch.compile(draw, backend="gravure")) == expected


class Layers(nn.Module):
    """Two of four layers in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for i in sorted(random.sample(range(4), 2)):
            x = self.layers[i](x).tanh()
        return x.square().mean()


def test_layers_that_are_drawn() -> None:
    def losses(compiled: bool) -> list[float]:
        torch.manual_seed(0)
        random.seed(0)
        model = Layers()
        call = torch.compile(model, backend="gravure") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        found = []
        for _ in range(12):
            loss = call(torch.ones(2, 8))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return [*found, random.random()]

    assert losses(compiled=True) == losses(compiled=False)


@pytest.mark.parametrize("draw", [sample, shuffle], ids=lambda draw: draw.__name__)
def test_a_step_refuses_what_would_be_frozen(draw: Callable[[Tensor], Tensor]) -> None:
    weight = nn.Parameter(torch.ones(1))
    step = gravure.compile_step(lambda x: (draw(x) * weight).sum())
    words = "draws random numbers here.*draw outside" if MINOR >= 14 else "cannot export"
    with pytest.raises(ExportError, match=words):
        step(torch.ones(1))
