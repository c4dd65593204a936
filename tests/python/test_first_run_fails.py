"""A graph that fails in its first run, where eager does not: eager answers, and says so."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import gravure
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

OPS = torch.ops.gravure_first_run


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """Of a user, with fake kernels that say another layout than the real ones give."""
    library = torch.library.Library("gravure_first_run", "DEF")
    library.define("turned(Tensor x) -> Tensor")
    library.define("turned_back(Tensor x) -> Tensor")
    library.define("on_the_host(Tensor x) -> Tensor")
    library.define("checked(Tensor x) -> Tensor")
    library.define("counted(Tensor(a!) count) -> ()")

    def turned(x: Tensor) -> Tensor:
        return (x * 2).t().contiguous().t()

    def checked(x: Tensor) -> Tensor:
        if x.isnan().any():
            raise ValueError("no numbers")
        return x * 2

    for name, kernel in {
        "turned": turned,
        "turned_back": lambda x: x * 2,
        "on_the_host": lambda x: x * 2,
        "checked": checked,
    }.items():
        library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(
            f"gravure_first_run::{name}",
            lambda x: torch.empty_like(x, memory_format=torch.contiguous_format),
            lib=library,
        )

    def backward(name: str, formula: Callable[[Tensor], Tensor]) -> None:
        torch.library.register_autograd(
            f"gravure_first_run::{name}", lambda _, g: formula(g), lib=library
        )

    library.impl("counted", lambda count: count.add_(1) and None, "CompositeExplicitAutograd")
    torch.library.register_fake("gravure_first_run::counted", lambda count: None, lib=library)
    backward("turned", lambda g: g * 2)
    backward("turned_back", OPS.turned)
    backward("on_the_host", lambda g: torch.from_numpy(g.numpy() * 2))
    backward("checked", lambda g: g * 2)
    yield
    library._destroy()


class Model(nn.Module):
    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.inside = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return OPS.turned(self.inside(self.norm(self.drop(x)))).reshape(-1).square().sum()


class Behind(Model):
    """Whose backward fails."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.inside(self.norm(self.drop(x)))
        return OPS.turned_back(y.reshape(-1).view(4, 4)).square().sum()


class Hosted(Model):
    """Whose backward nobody can trace."""

    def forward(self, x: Tensor) -> Tensor:
        return OPS.on_the_host(self.inside(self.drop(x))).square().sum()


class Plain(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.inside(self.norm(self.drop(x))).square().sum()


def train(model: nn.Module, run: Callable[..., Tensor], steps: int = 6) -> list[Any]:
    """Every bit that training leaves: losses, gradients, weights, buffers, the random state."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    found: list[Any] = []
    for _ in range(steps):
        loss = run(torch.randn(4, 6))
        loss.backward()
        found += [bits(loss), *(bits(p.grad) for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return [*found, *map(bits, model.state_dict().values()), bits(torch.get_rng_state())]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("norm", [False, True], ids=["reads", "writes a buffer last"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_eager_answers(caplog: pytest.LogCaptureFixture, norm: bool, dynamic: bool) -> None:
    eager, ours = Model(norm=norm), Model(norm=norm)
    compiled = torch.compile(ours, backend="gravure", dynamic=dynamic)
    assert train(ours, compiled) == train(eager, eager)
    (warning,) = warnings_of(caplog)
    assert "test_first_run_fails.py:" in warning
    assert "view size is not compatible" in warning
    assert "torch.compiler.disable" in warning
    (graph,) = gravure.report().graphs
    assert "view size is not compatible" in graph.failure
    assert not graph.programs
    assert "runs as it is" in str(gravure.report())


def test_other_graphs_are_captured() -> None:
    failing, ours, eager = Model(), Plain(), Plain()
    train(failing, torch.compile(failing, backend="gravure"), 2)
    assert train(ours, torch.compile(ours, backend="gravure")) == train(eager, eager)
    captured = [g for g in gravure.report().graphs if not g.failure]
    assert [g.programs[0].stats["replays"] > 0 for g in captured] == [True]


def test_without_gradients() -> None:
    model = Model()
    with torch.no_grad():
        torch.manual_seed(1)
        expected = model(torch.ones(4, 6))
        torch.manual_seed(1)
        found = torch.compile(model, backend="gravure")(torch.ones(4, 6))
    assert bits(found) == bits(expected)


def test_a_missed_capture_that_shall_raise() -> None:
    compiled = torch.compile(Model(), backend="gravure", options={"on_missed": "raise"})
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        compiled(torch.ones(4, 6))


def test_where_eager_fails_too(caplog: pytest.LogCaptureFixture) -> None:
    """The user has eager's error, and the graph is captured all the same."""

    class Checked(Model):
        def forward(self, x: Tensor) -> Tensor:
            return OPS.checked(self.inside(self.drop(x))).square().sum()

    eager, ours = Checked(), Checked()
    compiled = torch.compile(ours, backend="gravure")
    states = []
    for run in (eager, compiled):
        torch.manual_seed(2)
        with pytest.raises(ValueError, match="^no numbers$"):
            run(torch.full((4, 6), float("nan")))
        states.append(bits(torch.get_rng_state()))
    assert states[0] == states[1]
    assert train(ours, compiled) == train(eager, eager)
    assert not warnings_of(caplog)
    (graph,) = gravure.report().graphs
    assert graph.programs[0].stats["replays"] > 0


def test_an_input_is_written_once() -> None:
    count = torch.zeros(())

    def counted(x: Tensor) -> Tensor:
        OPS.counted(count)
        return OPS.turned(x * count).reshape(-1).sum()

    compiled = torch.compile(counted, backend="gravure")
    found = compiled(torch.ones(3, 4))
    assert count.item() == 1
    assert found.item() == 24


def test_the_backward_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Eager's graph of autograd is not there: an error, and what to do. Later calls are eager's."""
    eager, ours = Behind(), Behind()
    compiled = torch.compile(ours, backend="gravure")
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        compiled(torch.ones(4, 6)).backward()
    (warning,) = warnings_of(caplog)
    assert "backward failed in the first run" in warning
    assert "aten::view" in warning
    assert "torch.compiler.disable" in warning
    ours.zero_grad()
    assert train(ours, compiled) == train(eager, eager)
    assert len(warnings_of(caplog)) == 1


def test_nobody_can_trace_the_backward(caplog: pytest.LogCaptureFixture) -> None:
    eager, ours = Hosted(), Hosted()
    assert train(ours, torch.compile(ours, backend="gravure")) == train(eager, eager)
    (warning,) = warnings_of(caplog)
    assert "AOTAutograd cannot differentiate it" in warning
    assert "torch.compiler.disable" in warning
    (graph,) = gravure.report().graphs
    assert "AOTAutograd cannot differentiate it" in graph.failure


def test_gone_with_the_model() -> None:
    """What runs as it is keeps nothing of it."""
    model = Model()
    compiled = torch.compile(model, backend="gravure")
    train(model, compiled, 2)
    assert gravure.report().graphs
    torch._dynamo.reset()
    del compiled, model
    gc.collect()
    assert not gravure.report().graphs
