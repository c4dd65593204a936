"""An operator of a user's that returns nothing and writes nothing is called as in eager.

It is called for its effect: a log, a socket, a count. AOTAutograd takes it for dead code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gravure
import pytest
import torch
from gravure.errors import ExportError
from running import bits, need_library
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

SEEN: list[float] = []


@torch.library.custom_op("effects_alone::noted", mutates_args=())
def noted(x: Tensor) -> None:
    SEEN.append(float(x.sum()))


@noted.register_fake
def _(x: Tensor) -> None:
    return None


@pytest.fixture(autouse=True)
def defined() -> Iterator[None]:
    SEEN.clear()
    library = torch.library.Library("effects_alone_too", "DEF")
    library.define("noted(Tensor x) -> ()")
    library.define("noted.scaled(Tensor x, float by) -> ()")
    library.define("counted(Tensor x, Tensor(a!) count) -> ()")
    library.impl("noted", lambda x: SEEN.append(float(x.sum())), "CompositeExplicitAutograd")
    library.impl(
        "noted.scaled",
        lambda x, by: SEEN.append(float(x.sum()) * by),
        "CompositeExplicitAutograd",
    )
    library.impl("counted", lambda x, count: _add_one(count), "CompositeExplicitAutograd")
    yield
    library._destroy()


def _add_one(count: Tensor) -> None:
    count.add_(1)


def by_custom_op(x: Tensor) -> None:
    noted(x)


def by_its_name(x: Tensor) -> None:
    torch.ops.effects_alone_too.noted(x)


def by_an_overload(x: Tensor) -> None:
    torch.ops.effects_alone_too.noted.scaled(x, 2.0)


class Net(nn.Module):
    def __init__(self, note: Callable[[Tensor], None], *, checkpointed: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.note, self.checkpointed = note, checkpointed

    def hidden(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        self.note(y)
        return y.sin()

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            y = checkpoint(self.hidden, x, use_reentrant=False)
        else:
            y = self.hidden(x)
        return self.second(y).square().mean()


def run(model: Any, net: nn.Module, *, train: bool) -> list[Tensor]:
    results = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        x = torch.randn(3, 4, generator=generator)
        with torch.set_grad_enabled(train):
            loss = model(x)
        results.append(loss.detach().clone())
        if train:
            loss.backward()
            results += [p.grad.clone() for p in net.parameters() if p.grad is not None]
            net.zero_grad()
    return results


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("note", [by_custom_op, by_its_name, by_an_overload])
def test_it_is_called_in_each_call(
    note: Callable[[Tensor], None], checkpointed: bool, train: bool
) -> None:
    torch.manual_seed(0)
    net = Net(note, checkpointed=checkpointed)
    expected = run(net, net, train=train)
    wanted, SEEN[:] = [*SEEN], []
    found = run(torch.compile(net, backend="gravure"), net, train=train)
    assert wanted and SEEN == wanted
    assert [bits(each) for each in found] == [bits(each) for each in expected]


def test_the_report_names_the_users_line_and_the_cure() -> None:
    net = Net(by_custom_op, checkpointed=False)
    run(torch.compile(net, backend="gravure"), net, train=True)
    text = str(gravure.report())
    assert f"{__file__.rpartition('/')[2]}:" in text and "custom_ops.py" not in text
    assert "returns nothing and writes nothing" in text and "let it return" in text


def test_a_step_refuses_it() -> None:
    net = Net(by_custom_op, checkpointed=False)
    step = gravure.compile_step(net)
    with pytest.raises(ExportError, match="effects_alone.noted.default; call it outside") as raised:
        step(torch.randn(3, 4))
    assert f"{__file__}:" in str(raised.value)
    assert SEEN == []


def test_one_that_writes_is_in_the_graph() -> None:
    count = torch.zeros(())

    def loss(x: Tensor) -> Tensor:
        torch.ops.effects_alone_too.counted(x, count)
        return (x * 2).sum()

    compiled = torch.compile(loss, backend="gravure", fullgraph=True)
    for _ in range(4):
        compiled(torch.ones(3))
    assert count == 4


def test_an_assertion_without_a_message_is_in_the_graph() -> None:
    layer = nn.Linear(3, 3)

    def loss(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all())
        return layer(x).sum()

    compiled = torch.compile(loss, backend="gravure", fullgraph=True)
    for _ in range(4):
        compiled(torch.ones(2, 3)).backward()
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        compiled(-torch.ones(2, 3))
    step = gravure.compile_step(loss)
    for _ in range(3):
        step(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        step(-torch.ones(2, 3))


def test_other_backends_have_the_graph_that_they_had() -> None:
    def loss(x: Tensor) -> Tensor:
        noted(x)
        return (x * 2).sum()

    torch.compile(loss, backend="gravure")(torch.ones(3))
    torch._dynamo.reset()
    graphs = []

    def other(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph

    torch.compile(loss, backend=other, fullgraph=True)(torch.ones(3))
    assert len(graphs) == 1
