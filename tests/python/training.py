"""Trains two equal models side by side, one as it is and one compiled: every bit must agree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import gravure
import models
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import DEVICE, bits
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Batch = tuple[Any, ...]
Step = Callable[[Any, torch.optim.Optimizer, Batch], Any]


def rows(_: int) -> tuple[Tensor]:
    return (torch.randn(5, 8),)


def images(_: int) -> tuple[Tensor]:
    return (torch.randn(3, 3, 8, 8),)


class TwoLayers(nn.Module):
    """What models of calls in flight have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)


def batch(seed: int, rows: int = 8) -> Tensor:
    """Theirs."""
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(F.gelu(self.first(x)), self.dropout, self.training))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class Net(nn.Module):
    """Running statistics, dropout, and a layer that the loss does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.second, self.unused = nn.Linear(16, 4), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(F.gelu(self.norm(self.first(x))), 0.15, self.training))


class Checkpointed(nn.Module):
    """Layers that are recomputed in the backward, with their dropout."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def _block(self, x: Tensor, layer: nn.Module) -> Tensor:
        return x + F.dropout(F.gelu(layer(x)), 0.3, self.training)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(self._block, x, layer, use_reentrant=False)
        return x


def compiled(
    fn: Callable[..., Any], options: dict[str, Any] | None = None, **how: Any
) -> Callable[..., Any]:
    """`fn` through the backend, which overwrites dead memory."""
    return torch.compile(fn, backend="gravure", options={"poison": True} | (options or {}), **how)


def train_step(model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Any:
    """The plain step: what it returns is compared."""
    optimizer.zero_grad()
    result = model(*batch)
    first = result if isinstance(result, Tensor) else result[0]
    loss = first.float().square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach(), result


def step_around(
    casts: Callable[[], AbstractContextManager[Any]],
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    inside: bool,
) -> Any:
    """The plain step under `casts`, its backward `inside` or behind."""
    optimizer.zero_grad()
    with casts():
        result = model(*batch)
        loss = result.float().square().mean()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    optimizer.step()
    return loss.detach(), result


def differentiated(call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`call`, a loss, with its backward."""

    def step(x: Tensor) -> Tensor:
        loss = call(x)
        loss.backward()
        return loss.detach()

    return step


def same_gradients(eager: Any, compiled: Any, inputs: Iterable[Tensor]) -> None:
    """What both return for each input, and the input's gradient, are the same in bits."""
    for i, x in enumerate(inputs):
        found = []
        for call in (eager, compiled):
            given = x.clone().requires_grad_()
            result = call(given)
            result.backward()
            found.append((bits(result), bits(given.grad)))
        assert found[0] == found[1], i


def leaves(value: Any) -> list[Any]:
    found = torch.utils._pytree.tree_leaves(value)
    return [bits(leaf) for leaf in found]


def state_of(model: nn.Module) -> dict[str, Any]:
    """Parameters, gradients and buffers."""
    found = {name: bits(buffer) for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        found[name] = bits(parameter)
        found[f"gradient of {name}"] = bits(parameter.grad)
    return found


class Side:
    """A model, how it is called, and its optimizer."""

    def __init__(self, model: nn.Module, call: Any) -> None:
        self.model = model
        self.call = call
        self.optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def run(self, step: Step, batch: Batch, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        values = [v.clone() if isinstance(v, Tensor) else v for v in batch]
        found = leaves(step(self.call, self.optimizer, tuple(values)))
        return [*found, bits(torch.get_rng_state()), leaves(values)]


def same_as_eager(
    model: nn.Module,
    batches: Callable[[int], Batch],
    step: Step = train_step,
    steps: int = 7,
    *,
    options: dict[str, Any] | None = None,
    **compile_arguments: Any,
) -> gravure.Report:
    """Results, arguments, parameters, gradients, buffers, random state of every step are eager's.

    Dead memory is poisoned on the compiled side. Returns the report of what was compiled.
    """
    torch._dynamo.reset()
    older = [graph.number for graph in gravure.report().graphs]
    ours = copy.deepcopy(model)
    sides = Side(ours, compiled(ours, options, **compile_arguments)), Side(model, model)
    for i in range(steps):
        torch.manual_seed(1000 + i)
        batch = batches(i)
        found, expected = (side.run(step, batch, i) for side in sides)
        assert found == expected, f"results of step {i}"
        assert state_of(ours) == state_of(model), f"state after step {i}"
    return gravure.Report([g for g in gravure.report().graphs if g.number not in older])


def eager_step(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = fn(*args, **kwargs)
    (result if isinstance(result, Tensor) else result[0]).backward()
    return result


def same_steps(step: Callable[..., Any], ours: nn.Module, model: models.Model, steps: int) -> None:
    """`step`, of `ours`, beside eager's steps of `model`, which began alike: results and state."""
    for i in range(steps):
        args = models.next_args(model.args, i)
        torch.manual_seed(i)
        found = step(*args)
        torch.manual_seed(i)
        assert leaves(found) == leaves(eager_step(model.fn, *args))
        assert state_of(ours) == state_of(model.module)


def host_nodes(report: gravure.Report) -> list[str]:
    """What is kept out of graphs, of all programs."""
    return [node for g in report.graphs for p in g.programs for node in p.host_nodes]


def replays(report: gravure.Report) -> int:
    return sum(p.stats["replays"] for graph in report.graphs for p in graph.programs)


def uncaptured(report: gravure.Report) -> int:
    return sum(p.stats["uncaptured_steps"] for graph in report.graphs for p in graph.programs)


def with_gradients(model: nn.Module, way: str, options: dict[str, Any]) -> Callable[..., Any]:
    """A step that leaves gradients, by the backend or by compile_step, undivided or not."""
    if way != "backend":
        options = options | {"regions": way}
        return gravure.compile_step(lambda x: model(x).square().mean(), options=options)
    options = options | {"on_missed": "raise"}
    call = torch.compile(model, backend="gravure", fullgraph=True, options=options)

    def step(x: Tensor) -> Tensor:
        result = call(x)
        result.square().mean().backward()
        return result.detach()

    return step
