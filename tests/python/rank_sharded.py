"""One rank of a test of optimizers of DTensors, FSDP2's and tensor parallelism's: see rank.py.

Each loop is run by eager and with what Gravure compiles, from the same start. Parameters,
gradients and state are compared bit by bit after each step.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import gravure
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn as nn
from gravure.torch_api import dtensors, private_names
from rank import DEVICE, RANK, WORLD, found, main
from running import bits
from torch import Tensor, optim
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.optim import Optimizer, lr_scheduler

STEPS = 6
LENIENT = StateDictOptions(strict=False)  # some parameters have no state yet
Make = Callable[[list[nn.Parameter]], Optimizer]
said: list[str] = []
noted: set[int] = set()  # graphs, by number


class Said(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said.append(record.getMessage())


logging.getLogger("gravure").addHandler(Said(logging.WARNING))


def local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def all_of(model: nn.Module, optimizer: Optimizer) -> list[Any]:
    """Of this rank."""
    rows = []
    for name, p in model.named_parameters():
        rows.append((name, bits(local(p.detach())), bits(local(p.grad))))
        state = optimizer.state.get(p, {})
        rows += [(name, key, type(value), bits(local(value))) for key, value in state.items()]
    return rows


def same_results(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, DTensor) and one.placements != other.placements:
        return False
    return bits(local(one)) == bits(local(other))


class Mlp(nn.Module):
    """Seven rows on two ranks, and one row, of which a rank has none."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 7), nn.Linear(7, width)
        self.gain = nn.Parameter(torch.rand(1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """A layer that the loss reaches in some steps, and one that it never does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Mlp(), Mlp()])
        self.expert, self.unused = Mlp(), nn.Linear(6, 2)

    def forward(self, x: Tensor, *, expert: bool = False) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (self.expert(x) if expert else x).square().mean()


def sharded(*, compiled: bool = False, **how: Any) -> nn.Module:
    model = Net().to(DEVICE)
    for layer in [*model.layers, model.expert]:
        if compiled:
            layer.compile(backend="gravure")
        fully_shard(layer, **how)
    return fully_shard(model, **how)


def tensor_parallel() -> nn.Module:
    """Some parameters are DTensors, others are not: a list for each."""
    torch.manual_seed(0)
    mesh = init_device_mesh(DEVICE.type, (WORLD,))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.LayerNorm(6)).to(DEVICE)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model.forward = lambda x, expert=False: nn.Sequential.forward(model, x).square().mean()
    return model


def batch(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + RANK)
    return torch.randn(4, 6, generator=generator).to(DEVICE)


class Pair:
    """Equal models, the one with an optimizer as it is, the other with a compiled one."""

    def __init__(self, make: Make, *models: nn.Module, foreign: bool = False) -> None:
        self.models = models
        self.optimizers = [make(list(model.parameters())) for model in models]
        gravure.compile_optimizer(self.optimizers[1], foreign=foreign)
        self.schedules = [lr_scheduler.CosineAnnealingLR(o, 10) for o in self.optimizers]
        self.seed = 0
        self.equal = True

    @property
    def update(self) -> Any:
        return self.optimizers[1].step.gravure_update

    def backward(self, *, expert: bool = False, scale: float = 1.0) -> None:
        self.seed += 1
        for model in self.models:
            (model(batch(self.seed), expert=expert) * scale).backward()

    def accumulate(self, *, expert: bool = False) -> None:
        """Two microbatches, of which the second one reduces the gradients of both."""
        for model in self.models:
            model.set_requires_gradient_sync(False)
        self.backward(expert=expert, scale=0.5)
        for model in self.models:
            model.set_requires_gradient_sync(True)
        self.backward(expert=expert, scale=0.5)

    def clip(self, by: str, *args: Any, **kwargs: Any) -> None:
        """torch.nn.utils' own for the one, Gravure's for the other."""
        results = [
            getattr(whose, f"clip_grad_{by}_")(model.parameters(), *args, **kwargs)
            for whose, model in zip((nn.utils, gravure), self.models, strict=True)
        ]
        self.equal &= same_results(*results)

    def update_all(self, *, keep: bool = False) -> None:
        """`keep`: gradients become zeros, at the same addresses."""
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            schedule.step()
        self.compare()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=not keep)

    def step(self, **how: Any) -> None:
        self.backward(**how)
        self.update_all()

    def compare(self) -> None:
        one, other = map(all_of, self.models, self.optimizers)
        self.equal &= one == other

    def note(self, key: str) -> None:
        note(key, equal=self.equal, own=self.update.own_steps, programs=self.update.programs)


def note(key: str, **more: Any) -> None:
    """Of the programs made since the last note: replays, and what their partitions are."""
    graphs = [graph for graph in gravure.report().graphs if graph.number not in noted]
    noted.update(graph.number for graph in graphs)
    reports = [(graph.label, p) for graph in graphs for p in graph.programs]
    updates = [p for label, p in reports if label.startswith(("the step of ", "average"))]
    clips = [p for label, p in reports if label == "clipping"]
    found[key] = more | {
        "replays": [p.stats["replays"] for p in updates],
        "clip replays": [p.stats["replays"] for p in clips],
        "states": sorted(
            {s for p in updates + clips for each in p.partitions.values() for s in each}
        ),
        "said": [each for each in dict.fromkeys(said) if "[often-uncaptured]" not in each],
    }
    said.clear()


CLASSES: dict[str, Make] = {
    "adamw": lambda ps: optim.AdamW(ps, 0.02),
    "adamw_foreach": lambda ps: optim.AdamW(ps, 0.02, foreach=True),
    "adam_fused": lambda ps: optim.Adam(ps, 0.02, fused=True, weight_decay=0.1),
    "sgd": lambda ps: optim.SGD(ps, 0.1, momentum=0.9, nesterov=True),
    "sgd_foreach": lambda ps: optim.SGD(ps, 0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "adagrad": lambda ps: optim.Adagrad(ps, 0.01),
    "nadam": lambda ps: optim.NAdam(ps, 0.01),
    "radam": lambda ps: optim.RAdam(ps, 0.01),
    "muon": lambda ps: optim.Muon([p for p in ps if p.dim() == 2], 0.01),
}


def classes() -> None:
    """Each in a loop of FSDP2's."""
    for name, make in CLASSES.items():
        pair = Pair(make, sharded(), sharded())
        for _ in range(STEPS):
            pair.step()
        pair.note(name)


def adamw(parameters: list[nn.Parameter]) -> Optimizer:
    return optim.AdamW(parameters, 0.02)


def fsdp() -> None:
    """What a trainer does: schedules, clipping, accumulation, layers without gradients."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, make, hows in (
        ("plain", sharded, ({}, {})),
        ("compiled layers", sharded, ({}, {"compiled": True})),
        ("mixed precision", sharded, ({"mp_policy": half}, {"mp_policy": half})),
        ("gathered once", sharded, ({"reshard_after_forward": False},) * 2),
    ):
        pair = Pair(adamw, *[make(**how) for how in hows])
        for number in range(8):
            pair.accumulate(expert=number in (0, 2, 3, 6))
            pair.clip("norm", 0.1)
            pair.update_all()
        pair.note(name)


def tensor_parallelism() -> None:
    """Parameters of one optimizer are DTensors and plain ones, which PyTorch's foreach refuses."""
    makes: dict[str, Make] = {
        "adamw": lambda ps: optim.AdamW(ps, 0.02, foreach=False),
        "sgd": lambda ps: optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, foreach=False),
        "muon": CLASSES["muon"],
    }
    for name, make in makes.items():
        pair = Pair(make, tensor_parallel(), tensor_parallel())
        for _ in range(STEPS):
            pair.step()
        pair.note(name)


def implicit() -> None:
    """Plain tensors beside DTensors, where the caller has PyTorch take them for replicated ones."""
    pair = Pair(CLASSES["adamw_foreach"], tensor_parallel(), tensor_parallel())
    for _ in range(STEPS):
        pair.backward()
        with implicit_replication():
            pair.clip("norm", 0.1)
            pair.update_all()
    pair.note("foreach")


def checkpoints() -> None:
    """State that comes back from a checkpoint, in the optimizer's words and in DCP's."""
    for name in ("adam_fused", "sgd_foreach"):
        pair = Pair(CLASSES[name], sharded(), sharded())
        for number in range(10):
            if number == 3:
                kept = [copy.deepcopy(o.state_dict()) for o in pair.optimizers]
                both = list(zip(pair.models, pair.optimizers, strict=True))
                whole = [copy.deepcopy(get_optimizer_state_dict(m, o)) for m, o in both]
            if number == 5:
                for optimizer, state in zip(pair.optimizers, kept, strict=True):
                    optimizer.load_state_dict(state)
            if number == 7:
                for (model, optimizer), state in zip(both, whole, strict=True):
                    set_optimizer_state_dict(model, optimizer, state, options=LENIENT)
            pair.step(expert=number > 8)
        pair.note(name)
        # What a process does that goes on with the training of another one.
        pair = Pair(CLASSES[name], *pair.models)
        for (model, _), optimizer, state in zip(both, pair.optimizers, whole, strict=True):
            set_optimizer_state_dict(model, optimizer, state, options=LENIENT)
        for _ in range(3):
            pair.step()
        pair.note(f"{name}, resumed")


NORMS = ((0.1,), (0.1, 1.0), (0.1, 3.0), (100.0, 2.0, True), (0.1, 2.0, True, False))


def clipping() -> None:
    """By norms of all ranks' gradients, and by values."""
    pair = Pair(lambda ps: optim.SGD(ps, 0.1), sharded(), sharded())
    for arguments in NORMS:
        for _ in range(5):
            pair.backward()
            pair.clip("norm", *arguments)
            pair.update_all(keep=True)
    for foreach in (True, False):
        for _ in range(5):
            pair.backward()
            pair.clip("value", 0.01, foreach)
            pair.update_all(keep=True)
    pair.note("fsdp2")


class Signs(Optimizer):
    """Somebody's own, which reads the norm of each whole parameter."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.01, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - 0.1 / (1 + p.norm()))
                    p.add_(p.grad.sign(), alpha=-group["lr"] / group["k"] ** 0.5)


def foreign() -> None:
    def make() -> nn.Module:
        model = Net().to(DEVICE)
        del model.unused
        return fully_shard(model)

    pair = Pair(Signs, make(), make(), foreign=True)
    for _ in range(STEPS):
        pair.step(expert=True)
    pair.note("signs")


def averages() -> None:
    """Of a model's shards, by compile_update."""

    def average(averages: list[Tensor], values: list[Tensor], weight: float) -> None:
        torch._foreach_lerp_(averages, values, weight)

    compiled = gravure.compile_update(average)
    model = sharded()
    both = [[p.detach().clone() for p in model.parameters()] for _ in range(2)]
    equal = True
    for number in range(STEPS):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1)
        for averaged, run in zip(both, (average, compiled), strict=True):
            run(averaged, [p.detach() for p in model.parameters()], 0.1 / (1 + number))
        one, other = ([bits(local(a)) for a in averaged] for averaged in both)
        equal &= one == other
    update = compiled.gravure_update
    note("lerp", equal=equal, own=update.own_calls, programs=update.programs)


def scaled() -> None:
    """By a GradScaler, with an infinite gradient in one step, which all ranks skip."""
    for name in ("adam_fused", "adamw"):
        pair = Pair(CLASSES[name], sharded(), sharded())
        scalers = [torch.amp.GradScaler(DEVICE.type, init_scale=64.0) for _ in range(2)]
        for number in range(8):
            seed = pair.seed = pair.seed + 1
            for model, scaler, optimizer in zip(pair.models, scalers, pair.optimizers, strict=True):
                loss = model(batch(seed))
                scaler.scale(loss * (float("inf") if number == 4 and RANK == 1 else 1)).backward()
                scaler.step(optimizer)
                scaler.update()
            pair.equal &= scalers[0].get_scale() == scalers[1].get_scale()
            pair.compare()
            for optimizer in pair.optimizers:
                optimizer.zero_grad()
        pair.note(name)


def others(pair: Pair) -> None:
    """FSDP2 gives parameters other tensors when it has loaded or converted them."""
    for model, optimizer in zip(pair.models, pair.optimizers, strict=True):
        for p in model.parameters():
            for value in [p, *optimizer.state.get(p, {}).values()]:
                if isinstance(value, DTensor):
                    value._local_tensor = value._local_tensor.clone()


def converted(pair: Pair) -> None:
    for model in pair.models:
        model.to(torch.float64).to(torch.float32)


def loaded(pair: Pair) -> None:
    for model in pair.models:
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})


def moved() -> None:
    """Parameters and state hold other tensors than they did."""
    for change in (others, converted, loaded):
        pair = Pair(adamw, sharded(), sharded())
        for number in range(STEPS):
            if number == 3:
                change(pair)
            pair.step()
        pair.note(change.__name__)


def copies() -> None:
    """A copy of an optimizer has its own step and its own shards."""
    pair = Pair(adamw, sharded(), sharded())
    for number in range(STEPS):
        if number == 3:
            copied = copy.deepcopy(pair.optimizers[1])
            assert not hasattr(copied.step, "gravure_update")
            for p in (p for group in copied.param_groups for p in group["params"]):
                p.grad = torch.ones_like(p)
            copied.step()
        pair.step()
    pair.note("after the copy")


def meshes() -> None:
    """FSDP2 over tensor parallelism, and sharded copies, with clipping over both dimensions."""
    names = ("data", "tensor")

    def both() -> nn.Module:
        mesh = init_device_mesh(DEVICE.type, (WORLD, 1), mesh_dim_names=names)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).to(DEVICE)
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["tensor"], plan)
        model.forward = lambda x, expert=False: nn.Sequential.forward(model, x).square().mean()
        return fully_shard(model, mesh=mesh["data"])

    def copied() -> nn.Module:
        mesh = init_device_mesh(DEVICE.type, (1, WORLD), mesh_dim_names=("copies", "data"))
        return sharded(mesh=mesh)

    for name, make in (("both", both), ("copied", copied)):
        pair = Pair(adamw, make(), make())
        for _ in range(STEPS):
            pair.backward()
            pair.clip("norm", 0.1)
            pair.update_all()
        pair.note(name)


def gradients() -> None:
    """A collective is still writing them, or has not begun."""
    mesh = init_device_mesh(DEVICE.type, (WORLD,))
    for name in ("adamw", "sgd"):
        torch.manual_seed(0)
        lists = [
            [nn.Parameter(distribute_tensor(torch.ones(5, 3), mesh, [Replicate()]))
             for _ in range(2)] for _ in range(2)
        ]  # fmt: skip
        models = [nn.ParameterList(ps) for ps in lists]
        pair = Pair(CLASSES[name], *models)
        for number in range(10):
            for model in models:
                more = RANK if number < 4 else 0
                own = torch.full((5, 3), 0.1 * (number + more), device=DEVICE)
                reduced = funcol.all_reduce(own.clone(), "sum", mesh.get_group())
                model[0].grad = DTensor.from_local(reduced, mesh, [Replicate()], run_check=False)
                lies = Partial() if number < 4 else Replicate()
                model[1].grad = DTensor.from_local(own, mesh, [lies], run_check=False)
                if number == 5 and name == "sgd":
                    state = pair.optimizers[model is models[1]].state[model[0]]
                    held = state["momentum_buffer"].to_local()
                    state["momentum_buffer"] = DTensor.from_local(held, mesh, [Partial()])
                pair.equal &= isinstance(model[0].grad._local_tensor, AsyncCollectiveTensor)
            pair.update_all()
        pair.note(name)


def missing() -> None:
    """A torch without a private name: optimizers run their own steps, and say why."""
    for name in ("AsyncCollectiveTensor", "ShardingPropagator"):
        there = getattr(dtensors, name)
        dtensors._patch.cache_clear()
        setattr(
            dtensors, name, private_names._stand_in(private_names.NAMES[name], "does not have it")
        )
        pair = Pair(adamw, sharded(), sharded())
        for _ in range(3):
            pair.step()
        setattr(dtensors, name, there)
        pair.note(name)


def refusals() -> None:
    """What PyTorch refuses it refuses, and a whole step of DTensors is refused by name."""
    pair = Pair(CLASSES["adamw_foreach"], tensor_parallel(), tensor_parallel())
    pair.backward()
    errors = []
    for whose, model in zip((nn.utils, gravure), pair.models, strict=True):
        try:
            whose.clip_grad_norm_(model.parameters(), 0.1)
        except RuntimeError as error:
            errors.append(str(error))
    for optimizer in pair.optimizers:
        try:
            optimizer.step()
        except RuntimeError as error:
            errors.append(str(error))
    model = sharded()
    optimizer = adamw(list(model.parameters()))
    step = gravure.compile_step(lambda x: model(x), optimizer=optimizer)
    try:
        step(batch(0))
    except gravure.ExportError as error:
        found["step"] = str(error)
    found["errors"] = errors
    found["said"] = [*said]
    said.clear()


if __name__ == "__main__":
    main(globals())
