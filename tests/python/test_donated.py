"""Compiled backwards write over what was saved for them alone, and nobody sees it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.graphs import codegen
from gravure.torch_api.inductor import compile_region
from running import bits, need_library
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from training import (
    Checkpointed,
    Mlp,
    compiled,
    replays,
    rows,
    same_as_eager,
    state_of,
    uncaptured,
)

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

INDUCTOR = {"codegen": "inductor"}


class Overwriting:
    """Stands for Inductor: leaves each operand that it may write over as bytes that nobody could
    take for values, and everything else must be eager's, bit for bit."""

    def __init__(self) -> None:
        self.donated: list[int] = []  # of each region
        self.layouts: set[tuple[torch.Size, tuple[int, ...]]] = set()  # of what it wrote over

    def __call__(
        self, module: fx.GraphModule, *, donated: range, **_: Any
    ) -> Callable[[list[Tensor]], Any]:
        self.donated.append(len(donated))

        def run(inputs: list[Tensor]) -> Any:
            over = [inputs[i] for i in donated]
            results = fx.Interpreter(module).boxed_run(inputs)
            for tensor in over:
                tensor.view(torch.uint8).fill_(0xFF)
                self.layouts.add((tensor.shape, tensor.stride()))
            return results

        return run


@pytest.fixture
def overwriting(monkeypatch: pytest.MonkeyPatch) -> Overwriting:
    compiler = Overwriting()
    monkeypatch.setattr(codegen, "compile_region", compiler)
    monkeypatch.setattr(codegen, "styles", lambda _, *, symbolic: [codegen.Style(inductor=True)])
    return compiler


class Deep(nn.Module):
    """What it returns its backward reads."""

    def __init__(self, *, views: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.views = views

    def forward(self, x: Tensor) -> Any:
        inner = []
        for layer in self.layers:
            x = F.silu(layer(x))
            inner.append(x)
        return (x, inner[1].t(), inner[2][1:]) if self.views else x


class Padded(nn.Module):
    """Saves rows with gaps between them, as Inductor pads them for its products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.pad(self.first(x), (0, 2))[:, :-2].sin())


def loss_of(result: Any) -> Tensor:
    return sum(r.square().mean() for r in (result if isinstance(result, tuple) else [result]))


def once(model: Any, optimizer: Any, batch: Any) -> Any:
    optimizer.zero_grad()
    result = model(*batch)
    loss_of(result).backward()
    optimizer.step()
    return result


def again_and_again(model: Any, optimizer: Any, batch: Any) -> Any:
    optimizer.zero_grad()
    loss = loss_of(model(*batch))
    loss.backward(retain_graph=True)
    (2 * loss).backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    return loss


def now_and_then(model: Any, optimizer: Any, batch: Any) -> Any:
    """The graph is kept in some steps."""
    optimizer.zero_grad()
    loss = loss_of(model(*batch))
    if float(batch[0][0, 0]) > 0:
        loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    return loss


def part_by_part(model: Any, optimizer: Any, batch: Any) -> Any:
    """One gradient after another, as a Jacobian is made."""
    loss = loss_of(model(*batch))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    losses = [loss * k for k in (1, 2, 3)]
    return [
        torch.autograd.grad(each, parameters, retain_graph=each is not losses[-1])
        for each in losses
    ]


def two_calls(model: Any, optimizer: Any, batch: Any) -> Any:
    optimizer.zero_grad()
    first, second = loss_of(model(batch[0])), loss_of(model(batch[0] * 2))
    first.backward(retain_graph=True)
    second.backward()
    first.backward()
    optimizer.step()
    return first, second


STEPS = (once, again_and_again, now_and_then, part_by_part, two_calls)


MODELS = {
    "deep": Deep,
    "views": functools.partial(Deep, views=True),
    "dropout": functools.partial(Mlp, 0.2),
    "checkpointed": functools.partial(Checkpointed, 3),
    "padded": Padded,
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_bit_is_eagers(
    overwriting: Overwriting, model: Callable[[], nn.Module], step: Any
) -> None:
    report = same_as_eager(model(), rows, step, 8, options=INDUCTOR)
    assert sum(overwriting.donated) > 0
    if step is once:
        assert replays(report) and uncaptured(report) <= 4


def test_padded_rows_are_written_over(overwriting: Overwriting) -> None:
    call = compiled(Padded(), INDUCTOR)
    call(*rows(0)).sum().backward()
    assert any(layout == (torch.Size([5, 6]), (8, 1)) for layout in overwriting.layouts)


def test_what_the_user_has_is_not_written(overwriting: Overwriting) -> None:
    """Results, arguments and parameters, also by a view: they are saved, and not donated."""
    model = Deep(views=True)
    call = compiled(model, INDUCTOR)
    for i in range(8):
        x = torch.randn(5, 8)
        held = [x, *call(x), *model.parameters()]
        before = [bits(each) for each in held]
        loss_of(tuple(held[1:4])).backward()
        assert [bits(each) for each in held] == before, f"step {i}"
    assert sum(overwriting.donated) > 0


@pytest.mark.parametrize("steps", [0, 6], ids=["at first", "later"])
def test_what_a_hook_on_saved_tensors_has_is_not_written(
    overwriting: Overwriting, steps: int
) -> None:
    """In captured steps it is lent, and the next step's, donated or not."""
    model = Deep()
    twin = copy.deepcopy(model)
    call = compiled(model, INDUCTOR | {"uncaptured": True})
    for _ in range(steps):
        call(*rows(0)).sum().backward()
    assert steps == 0 or sum(overwriting.donated) > 0
    for each in (model, twin):
        each.zero_grad()
    for _ in range(3):
        x = torch.randn(5, 8)
        seen: list[Tensor] = []

        def pack(tensor: Tensor) -> Tensor:
            seen.append(tensor)  # noqa: B023
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(call(x))
        before = [bits(each) for each in seen]
        loss.backward()
        assert seen and [bits(each) for each in seen] == before
        loss_of(twin(x)).backward()
        assert state_of(model) == state_of(twin)


def test_a_second_backward_is_an_error_where_the_graph_was_not_kept(
    overwriting: Overwriting,
) -> None:
    call = compiled(Deep(), INDUCTOR)
    for _ in range(6):
        loss = loss_of(call(*rows(0)))
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert sum(overwriting.donated) > 0


def test_a_gradient_of_a_gradient_is_an_error(overwriting: Overwriting) -> None:
    call = compiled(Mlp(), INDUCTOR)
    for _ in range(6):
        x = torch.randn(5, 8, requires_grad=True)
        (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward"):
            gradient.sum().backward()
    assert sum(overwriting.donated) > 0


def test_steps_that_are_compared_with_the_uncaptured_path_are_found_the_same(
    overwriting: Overwriting,
) -> None:
    report = same_as_eager(Deep(), rows, now_and_then, 9, options=INDUCTOR | {"shadow": 1})
    (graph,) = report.graphs
    remarks = [remark for program in graph.programs for remark in program.remarks]
    assert replays(report) and sum(overwriting.donated) > 0
    assert not any("shadow" in remark for remark in remarks), remarks


@pytest.mark.parametrize("policy", ["owned", "copied", "static"])
def test_whatever_becomes_of_results(overwriting: Overwriting, policy: str) -> None:
    report = same_as_eager(Deep(), rows, once, 8, options=INDUCTOR | {"results": policy})
    assert replays(report) and sum(overwriting.donated) > 0


def test_a_program_says_what_is_donated(overwriting: Overwriting) -> None:
    report = same_as_eager(Deep(), rows, once, options=INDUCTOR)
    forward, _, backward = report.graphs[0].programs[0].plan.partition("entry backward")
    assert "= gravure::compiled_donated" in backward.partition("arena")[0]
    assert "= gravure::compiled_donated" not in forward


def test_a_step_whose_forward_and_backward_are_regions_of_their_own(
    overwriting: Overwriting,
) -> None:
    model = Deep()
    twin = copy.deepcopy(model)
    step = gravure.compile_step(
        lambda x: loss_of(model(x)),
        options=INDUCTOR | {"poison": True, "regions": "divided"},
    )
    for _ in range(8):
        x = torch.randn(5, 8)
        for each in (model, twin):
            each.zero_grad()
        loss = step(x)
        expected = loss_of(twin(x))
        expected.backward()
        assert bits(loss) == bits(expected) and state_of(model) == state_of(twin)
    assert sum(overwriting.donated) > 0


class Scores(nn.Module):
    """As much memory for scores as for all else together."""

    BYTES = 4 * 64 * 4096

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4096)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(self.head(torch.tanh(self.body(x))), wanted)


def test_the_gradient_of_scores_lies_over_the_scores() -> None:
    """As in Inductor's own backwards, whose bits they are."""
    model = Scores()
    twin = copy.deepcopy(model)
    call = compiled(model, INDUCTOR, fullgraph=True)
    theirs = torch.compile(twin, fullgraph=True)
    for _ in range(6):
        x, wanted = torch.randn(64, 16), torch.randint(4096, (64,))
        for each, run in ((model, call), (twin, theirs)):
            each.zero_grad()
            run(x, wanted).backward()
        assert state_of(model) == state_of(twin)
    (program,) = gravure.report().graphs[-1].programs
    assert program.stats["replays"]
    head = 4 * 16 * 4096  # of gradients and parameters
    assert program.stats["arena_bytes"] < 1.5 * Scores.BYTES + 2 * head


def product_behind() -> fx.GraphModule:
    """A product of what Inductor can compute in the memory of the first operand."""
    aten, graph = torch.ops.aten, fx.Graph()
    x, y = (graph.placeholder(name) for name in ("x", "y"))
    wide = graph.call_function(aten.neg.default, (x,))
    product = graph.call_function(aten.mm.default, (wide, y))
    graph.output((product,))
    with FakeTensorMode(shape_env=ShapeEnv()):  # without one nothing is cached
        for node, sizes in ((x, (64, 64)), (y, (64, 8)), (wide, (64, 64)), (product, (64, 8))):
            node.meta["val"] = torch.empty(sizes)
    return fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_inductors_cache_does_not_take_code_that_writes_for_code_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[bool, bool]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, y = torch.randn(64, 64), torch.randn(64, 8)
    for donates in (*order, *order):
        code = compile_region(
            product_behind(), decompose=False, backward=True, inference=False,
            donated=[0] if donates else [],
        )  # fmt: skip
        given = x.clone()
        (product,) = code([given, y])
        assert bits(product) == bits(-x @ y)
        assert (bits(given) == bits(x)) != donates
