"""One rank of a test of PyTorch's own ways to train on several ranks: see rank.py.

Each way is run by eager and by Gravure, from the same start, and compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gravure
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn as nn
from rank import DEVICE, RANK, STEPS, WIDTH, WORLD, batch, found, main
from running import bits
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[Tensor], Tensor]
noted: set[int] = set()  # graphs, by number


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def trained(model: nn.Module, step: Step) -> Iterator[list[Any]]:
    """The loss, gradients and parameters of each step, as bits."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for number in range(STEPS):
        loss = step(batch(number))
        gradients = [bits(local(p.grad)) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        yield [bits(local(loss)), *gradients, *(bits(local(p)) for p in model.parameters())]


def by_autograd(model: nn.Module) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = model(x)
        loss.backward()
        return loss.detach()

    return step


WAYS: dict[str, Callable[[nn.Module], Step]] = {
    "layers": by_autograd,  # compiled by themselves
    "compile": lambda model: by_autograd(torch.compile(model, backend="gravure")),
    "step": lambda model: gravure.compile_step(lambda x: model(x)),
}


def compare(way: str, ours: nn.Module, reference: nn.Module) -> None:
    """`way` beside eager, step by step."""
    torch._dynamo.reset()
    pairs = zip(
        trained(ours, WAYS[way](ours)), trained(reference, by_autograd(reference)), strict=True
    )
    note(way, equal=all([a == b for a, b in pairs]))


def note(key: str, *, equal: bool) -> None:
    """Of the programs made since the last note: partitions by state, and what was missed."""
    graphs = [graph for graph in gravure.report().graphs if graph.number not in noted]
    noted.update(graph.number for graph in graphs)
    programs = [p for graph in graphs for p in graph.programs]
    found[key] = {
        "equal": equal,
        "states": [p.partitions for p in programs],
        "missed": [remark for p in programs for remark in p.remarks],
        "nodes": [node for p in programs for node in p.host_nodes],
        "replays": sum(p.stats["replays"] for p in programs),
    }


# ---- parameters in shards


class Gather(torch.autograd.Function):
    """FSDP2's pair: parameters are gathered, gradients reduced and scattered."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor) -> Tensor:
        return funcol.all_gather_tensor(shard, 0, dist.group.WORLD)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return funcol.reduce_scatter_tensor(gradient, "sum", 0, dist.group.WORLD)


class Sharded(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(RANK)
        self.shards = nn.ParameterList(
            torch.randn(WIDTH // WORLD, WIDTH, generator=generator).to(DEVICE)
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        # Each layer's shards are on their way while the layer before it computes.
        coming = Gather.apply(self.shards[0])
        for i in range(len(self.shards)):
            weight = coming
            if i + 1 < len(self.shards):
                coming = Gather.apply(self.shards[i + 1])
            x = torch.tanh(x @ weight.t())
        return x.square().mean()


def gathered_parameters() -> None:
    compare("compile", Sharded(), Sharded())
    compare("step", Sharded(), Sharded())


# ---- tensor parallelism


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Mlps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Mlp(), Mlp()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def tensor_parallelism() -> None:
    mesh = init_device_mesh(DEVICE.type, (WORLD,))

    def make() -> nn.Module:
        model = Mlps().to(DEVICE)
        plan = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
        return parallelize_module(model, mesh, plan)

    compare("compile", make(), make())
    model = make()
    try:
        WAYS["step"](model)(batch(0))
    except gravure.ExportError as error:
        found["refused"] = str(error)


# ---- gradients averaged by hooks


def data_parallel() -> None:
    """DistributedDataParallel around the model that is compiled, and compiled with it.

    With small buckets, where Dynamo's graph is cut between them.
    """
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1000

    def averaged(module: nn.Module) -> DistributedDataParallel:
        return DistributedDataParallel(module, bucket_cap_mb=0.001)

    def make() -> nn.Module:
        return Mlps().to(DEVICE)

    compare("compile", averaged(make()), averaged(make()))
    inside = make()
    inside.compile(backend="gravure")
    compare("layers", averaged(inside), averaged(make()))
    model = averaged(make())
    found["refused"] = []
    for called in (model, model.module):
        try:
            WAYS["step"](called)(batch(0))
        except RuntimeError as error:
            found["refused"].append(str(error))
    assert all(p.grad is None for p in model.parameters())


# ---- FSDP2 itself


def fsdp2() -> None:
    """Layers are compiled, FSDP2's hooks run between them: its parameters come and go."""

    def make(compiled: bool) -> nn.Module:
        model = Mlps().to(DEVICE)
        for layer in model.layers:
            if compiled:
                layer.compile(backend="gravure")
            fully_shard(layer)
        return fully_shard(model)

    compare("layers", make(True), make(False))


# ---- a pipeline


def pipeline() -> None:
    """Each rank compiles its stage; activations and gradients are sent between the calls."""
    for name, schedule in (("gpipe", ScheduleGPipe), ("1f1b", Schedule1F1B)):
        torch._dynamo.reset()
        both = [staged_by(schedule, compiled) for compiled in (False, True)]
        note(name, equal=both[0][0] == both[1][0])


def staged_by(schedule: Any, compiled: bool) -> tuple[list[Any], Any]:
    """What each step gave, and what keeps the programs."""
    torch.manual_seed(RANK)
    module = Mlp().to(DEVICE)
    run = torch.compile(module, backend="gravure") if compiled else module
    stage = PipelineStage(run, RANK, WORLD, DEVICE)
    pipe = schedule(stage, n_microbatches=2, loss_fn=lambda y, t: (y - t).square().mean())
    return [piped(pipe, module, step) for step in range(STEPS)], pipe


def piped(pipe: Any, module: nn.Module, step: int) -> list[Any]:
    x = batch(step)
    losses: list[Tensor] = []
    if RANK == 0:
        pipe.step(x)
    else:
        pipe.step(target=torch.zeros_like(x), losses=losses)
    gradients = [bits(p.grad) for p in module.parameters()]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.1 * parameter.grad
    module.zero_grad()
    return gradients + [bits(loss) for loss in losses]


def pipeline_step() -> None:
    """The last stage in one call: it is sent activations, and sends their gradient back."""
    torch._dynamo.reset()
    reference, ours = (Mlp().to(DEVICE) for _ in range(2))
    ours.load_state_dict(reference.state_dict())
    expected = list(staged(reference, loss_of(reference)))
    step = gravure.compile_step(loss_of(ours))
    note("step", equal=list(staged(ours, step)) == expected)


def loss_of(module: nn.Module) -> Step:
    return lambda x: module(x).square().mean()


def staged(module: nn.Module, step: Step) -> Iterator[list[Any]]:
    for number in range(STEPS):
        x = batch(number)
        if RANK == 0:
            y = module(x)
            dist.send(y.detach(), 1)
            dist.recv(gradient := torch.empty_like(y), 1)
            y.backward(gradient)
            yield [bits(p.grad) for p in module.parameters()]
        else:
            dist.recv(x, 0)
            loss = step(x.requires_grad_())
            if loss.requires_grad:  # eager's
                loss.backward()
            dist.send(x.grad, 0)
            yield [bits(loss), bits(x.grad), *(bits(p.grad) for p in module.parameters())]
        module.zero_grad()


if __name__ == "__main__":
    main(globals())
