"""NumPy's random numbers in a compiled function are eager's, and both generators go on alike."""

from __future__ import annotations

from collections.abc import Callable

import gravure
import numpy
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

DRAWS: dict[str, Callable[[], object]] = {
    "randn": lambda: numpy.random.randn(4),
    "rand": lambda: numpy.random.rand(4),
    "normal": lambda: numpy.random.normal(size=4),
    "uniform": lambda: numpy.random.uniform(size=4),
    "randint": lambda: numpy.random.randint(0, 9, size=4),
    "choice": lambda: numpy.random.choice(numpy.arange(4), size=4),
}


def _noisy(weight: Tensor, draw: Callable[[], object]) -> Callable[[Tensor], Tensor]:
    def fn(x: Tensor) -> Tensor:
        scaled = weight * x
        return (scaled + torch.as_tensor(draw()).float()).pow(2).sum()

    return fn


def _trained(compiled: bool, draw: Callable[[], object]) -> list[Tensor]:
    torch.manual_seed(0)
    numpy.random.seed(0)
    weight = nn.Parameter(torch.arange(4.0))
    fn = _noisy(weight, draw)
    if compiled:
        fn = torch.compile(fn, backend="gravure")
    seen = []
    for _ in range(4):
        loss = fn(torch.ones(4))
        loss.backward()
        assert weight.grad is not None
        seen += [loss.detach().clone(), weight.grad.clone()]
    return [*seen, torch.rand(2), torch.tensor(numpy.random.rand())]


@pytest.mark.parametrize("name", DRAWS)
def test_numpy_draws_what_it_draws_in_eager(name: str) -> None:
    ours, eager = _trained(True, DRAWS[name]), _trained(False, DRAWS[name])
    assert [bits(value) for value in ours] == [bits(value) for value in eager]


def test_the_cut_is_warned_of_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    _trained(True, lambda: numpy.random.randn(4))  # a line of its own: each is warned of once
    said = [line for line in caplog.messages if "NumPy draws a random number here" in line]
    assert said and "test_numpy_draws.py" in said[0] and "pass the numbers in" in said[0]


def test_a_whole_step_refuses_it_with_its_line() -> None:
    weight = nn.Parameter(torch.arange(4.0))
    fn = _noisy(weight, lambda: numpy.random.randn(4))
    step = gravure.compile_step(fn, optimizer=torch.optim.SGD([weight], lr=0.1))
    with pytest.raises(gravure.ExportError, match="NumPy draws a random number here; draw outside"):
        step(torch.ones(4))
    assert torch.equal(weight.detach(), torch.arange(4.0))


def test_other_backends_trace_as_before() -> None:
    torch.compile(lambda x: x + 1, backend="gravure")(torch.ones(1))  # Dynamo is changed by now
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    fn = _noisy(nn.Parameter(torch.ones(4)), lambda: numpy.random.randn(4))
    torch.compile(fn, backend=backend, fullgraph=True)(torch.ones(4))
    assert len(graphs) == 1
