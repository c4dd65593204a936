"""torch.compile(backend="gravure") and compile_step on a GPU: captured, and right in bits."""

from __future__ import annotations

import copy
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gravure
import models
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from training import replays, same_as_eager, same_steps, train_step

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def rows(_: int) -> tuple[Tensor]:
    return (torch.randn(64, 32, device="cuda"),)


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64, device="cuda")
        self.second = nn.Linear(64, 8, device="cuda")
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(F.gelu(self.first(x)), self.dropout, self.training))


def test_two_layers_are_captured_and_replayed() -> None:
    report = same_as_eager(Mlp(), rows)
    program = report.graphs[0].programs[0]
    assert program.partitions == {"forward": ["captured"], "backward": ["captured"]}


def test_dropout_draws_what_eager_draws() -> None:
    assert replays(same_as_eager(Mlp(0.15), rows))


def test_a_first_step_under_autocast_leaves_no_blocks_in_the_cache() -> None:
    # It runs as it is; an optimizer's state would come to lie in a corner of each block.
    wide = nn.Sequential(*(nn.Linear(1024, 1024, device="cuda") for _ in range(6)))
    compiled = torch.compile(wide, backend="gravure")
    x = torch.randn(1 << 14, 1024, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = compiled(x).square().mean()
    in_use = torch.cuda.memory_allocated()
    loss.backward()
    assert in_use - torch.cuda.memory_allocated() > 128 << 20  # what the forward saved
    idle = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    assert idle < 64 << 20


class MostlyOnTheCpu(nn.Module):
    """More of its parameters are on the CPU than on the GPU, as of a large table's layers."""

    def __init__(self, on_the_gpu: int) -> None:
        super().__init__()
        self.near = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
        self.far = nn.ModuleList(
            nn.Linear(32, 32, bias=False, device="cuda") for _ in range(on_the_gpu)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.near(x).to("cuda")
        for layer in self.far:
            y = torch.tanh(layer(y))
        return (y * y).sin()


@pytest.mark.parametrize("on_the_gpu", [0, 1, 3])
def test_a_model_most_of_which_is_on_the_cpu(on_the_gpu: int) -> None:
    def batch(_: int) -> tuple[Tensor]:
        return (torch.randn(8, 32),)

    report = same_as_eager(MostlyOnTheCpu(on_the_gpu), batch)
    assert replays(report), str(report)


def test_autocast_and_two_forwards() -> None:
    # With its cache eager casts a weight once for both forwards, and adds their gradients in bf16.
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            results = [model(batch[0]), model(batch[0] * 2)]
        loss = sum(result.float().square().mean() for result in results)
        loss.backward()
        optimizer.step()
        return loss.detach(), results

    assert replays(same_as_eager(Mlp(0.1), rows, step))


def test_retain_graph_and_accumulation() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        for k in range(2):
            loss = model(batch[0] + k).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
        optimizer.step()
        return loss.detach()

    assert replays(same_as_eager(Mlp(), rows, step))


def test_steps_inside_a_memory_pool_of_the_callers() -> None:
    """PyTorch gives no pool back while allocations are routed to another: the warm-up's waits."""
    pool = torch.cuda.MemPool()

    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        with torch.cuda.use_mem_pool(pool):
            return train_step(model, optimizer, batch)

    report = same_as_eager(Mlp(0.15), rows, step)
    assert report.graphs[0].programs[0].stats["replays"] > 0
    assert report.graphs[0].programs[0].remarks == {}


def test_programs_on_several_threads_warm_up_at_once() -> None:
    mlps = [Mlp() for _ in range(6)]
    x = rows(0)[0]
    expected = [eager_loss(model, x) for model in mlps]
    steps = [gravure.compile_step(lambda x, m=m: m(x).square().mean()) for m in mlps]
    for step in steps:  # Dynamo compiles on one thread
        step(x)
    together = threading.Barrier(len(mlps))

    def train(i: int) -> list[Any]:
        with torch.cuda.stream(torch.cuda.Stream()):
            together.wait()
            found = []
            for _ in range(40):
                mlps[i].zero_grad()
                loss = steps[i](x)
                found.append([bits(loss), *(bits(p.grad) for p in mlps[i].parameters())])
            return found

    with ThreadPoolExecutor(len(mlps)) as threads:
        for i, found in enumerate(threads.map(train, range(len(mlps)))):
            assert all(each == expected[i] for each in found)


def eager_loss(model: nn.Module, x: Tensor) -> list[Any]:
    loss = model(x).square().mean()
    loss.backward()
    return [bits(loss), *(bits(p.grad) for p in model.parameters())]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("results", ["owned", "copied"])
def test_a_model_on_a_gpu_that_is_not_current(results: str) -> None:
    def there(i: int) -> tuple[Tensor]:
        return (rows(i)[0].to("cuda:1"),)

    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        assert torch.cuda.current_device() == 0
        loss, result = train_step(model, optimizer, batch)
        assert loss.device == result.device == batch[0].device
        return loss, result

    assert replays(same_as_eager(Mlp(0.15).to("cuda:1"), there, step, options={"results": results}))


def test_checkpointing_without_dropout() -> None:
    class Checkpointed(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    assert replays(same_as_eager(Checkpointed(), rows))


def test_checkpointed_dropout_repeats_its_mask() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1024, device="cuda"))

        def _run(self, x: Tensor) -> Tensor:
            return F.dropout(x * self.scale, 0.5).sin()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self._run, x, use_reentrant=False)

    model = Masked()
    compiled = torch.compile(model, backend="gravure")
    x = torch.full((1024,), 0.5, device="cuda")
    masks = []
    for _ in range(7):
        model.zero_grad()
        result = compiled(x)
        result.sum().backward()
        kept = result != 0
        assert torch.equal(kept, model.scale.grad != 0)  # the recomputed mask is the forward's
        masks.append(kept)
    assert all(not torch.equal(a, b) for a, b in zip(masks, masks[1:], strict=False))


def test_dynamic_sizes() -> None:
    report = same_as_eager(
        Mlp(0.2),
        lambda i: (torch.randn((5, 7, 3)[i % 3], 32, device="cuda"),),
        steps=15,
        dynamic=True,
    )
    assert all(p.stats["replays"] for p in report.graphs[0].programs)


@pytest.mark.parametrize("make", [models.llama, models.moe])
def test_steps_of_models(make: Any) -> None:
    model = make("cuda")
    ours = copy.deepcopy(model.module)
    fn = ours if model.fn is model.module else None
    if fn is None:

        def fn(ids: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(ours(ids).float().flatten(0, 1), targets.flatten())

    step = gravure.compile_step(fn)
    same_steps(step, ours, model, 6)
    assert replays(gravure.report())


def test_a_step_is_one_launch() -> None:
    model = Mlp()
    step = gravure.compile_step(lambda x: model(x).square().mean())
    for _ in range(6):
        model.zero_grad()
        loss = step(*rows(0))
    assert bits(loss) and model.first.weight.grad is not None
    (program,) = gravure.report().graphs[-1].programs
    assert program.partitions == {"step": ["captured"]} and not program.host_nodes


def test_what_a_model_returns_beside_its_loss_takes_no_memory_for_its_gradient() -> None:
    """Nor does the program that was made before anybody knew that it has none."""

    class Scored(nn.Module):
        def __init__(self, shows: bool) -> None:
            super().__init__()
            self.head, self.shows = nn.Linear(64, 1 << 14), shows

        def forward(self, x: Tensor) -> Any:
            scores = self.head(x)
            loss = scores.square().mean()
            return (loss, scores) if self.shows else (loss,)

    reserved = []
    for shows in (False, True):
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        gravure.release_memory()
        before = torch.cuda.memory_reserved()
        model = Scored(shows).cuda()
        call = torch.compile(model, backend="gravure")
        for _ in range(10):
            call(torch.ones(2048, 64, device="cuda"))[0].backward()  # scores of 128 MiB
            model.zero_grad()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved() - before)
        del model, call
    assert reserved[1] <= reserved[0] + (160 << 20)  # the scores themselves, which are returned
