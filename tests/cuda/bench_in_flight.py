"""Loops that call a compiled graph before its backward, with other sizes, or without gradients.

    python3 tests/cuda/bench_in_flight.py [OUT.json] [--rows layer,siamese] [--steps 80]

Each row and way runs in a process of its own, synchronised and back to back; ms a step are the
median of five runs of STEPS. `floor` is the row without its models: loss, optimizer, data. Prints a
line a row, and writes all as JSON. At most four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # which a fork survives

import gravure
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

WAYS = ("floor", "eager", "gravure", "inductor", "reduce-overhead")
WIDTH, ROWS, WARM = 256, 32, 12
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIMIT = 240  # seconds for everything

Call = Callable[[Tensor], Tensor]
Step = Callable[[dict[str, Call], int], Tensor | None]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Net(nn.Module):
    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def batch(seed: int, length: int = 32, rows: int = ROWS) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(rows, length, WIDTH, device=DEVICE, generator=generator)


def layer(calls: dict[str, Call], i: int) -> Tensor:
    x = batch(i)
    for _ in range(6):
        x = calls["a"](x)
    loss = x.square().mean()
    loss.backward()
    return loss


def preference(calls: dict[str, Call], i: int) -> Tensor:
    good, bad = batch(i), batch(i + 10_000)
    chosen, rejected = calls["a"](good).mean((1, 2)), calls["a"](bad).mean((1, 2))
    with torch.no_grad():
        margin = calls["b"](good).mean((1, 2)) - calls["b"](bad).mean((1, 2))
    loss = -F.logsigmoid(chosen - rejected - margin).mean()
    loss.backward()
    return loss


def siamese(calls: dict[str, Call], i: int) -> Tensor:
    one, two = calls["a"](batch(i)), calls["a"](batch(i + 10_000))
    loss = F.mse_loss(one, two) - F.cosine_similarity(one, two).mean()
    loss.backward()
    return loss


def gan(calls: dict[str, Call], i: int) -> Tensor:
    fake = calls["b"](batch(i))
    loss = F.softplus(-calls["a"](batch(i + 10_000))).mean()
    loss = loss + F.softplus(calls["a"](fake.detach())).mean()
    loss.backward()
    generated = F.softplus(-calls["a"](fake)).mean()
    generated.backward()
    return loss


def one_forward_one_backward(calls: dict[str, Call], i: int) -> Tensor | None:
    held: list[tuple[Tensor, Tensor, Tensor]] = []

    def forward(j: int) -> None:
        x = calls["a"](batch(10 * i + j, rows=8))
        y = x.detach().requires_grad_()
        held.append((x, y, calls["b"](y).square().mean()))

    def backward() -> None:
        x, y, loss = held.pop(0)
        loss.backward()
        if x.requires_grad:
            x.backward(y.grad)

    for j in range(3):
        forward(j)
    for j in range(3, 6):
        backward()
        forward(j)
    while held:
        backward()
    return None


def lengths(calls: dict[str, Call], i: int) -> Tensor:
    loss = calls["a"](batch(i, length=(16, 24, 32, 40, 48, 64)[(7 * i) % 6])).square().mean()
    loss.backward()
    return loss


def rollout(calls: dict[str, Call], i: int) -> Tensor:
    x, seen, given = batch(i), [], []
    with torch.no_grad():
        for _ in range(8):
            given.append(x)
            seen.append(calls["a"](x))
            x = x + 0.1 * seen[-1]
    target = torch.stack(seen).mean(0)
    for j in range(3):
        loss = F.mse_loss(calls["a"](given[j]), target)
        loss.backward()
    return loss


ROWS_OF: dict[str, tuple[Step, int]] = {  # and how many layers a model has
    "layer": (layer, 1),
    "preference": (preference, 6),
    "siamese": (siamese, 2),
    "gan": (gan, 2),
    "1f1b": (one_forward_one_backward, 2),
    "lengths": (lengths, 4),
    "rollout": (rollout, 2),
}


def measure(row: str, way: str, steps: int) -> dict[str, Any]:
    step, layers = ROWS_OF[row]
    torch.manual_seed(0)
    models = nn.ModuleDict({name: Net(layers) for name in "ab"}).to(DEVICE)
    models["b"].requires_grad_(row != "preference")
    optimizer = torch.optim.AdamW([p for p in models.parameters() if p.requires_grad], fused=True)
    scale = nn.Parameter(torch.ones((), device=DEVICE))

    def call_of(model: nn.Module) -> Call:
        dynamic = True if row == "lengths" else None
        if way == "floor":
            return lambda x: x * scale
        if way == "eager":
            return model
        if way == "reduce-overhead":
            return torch.compile(model, mode=way, dynamic=dynamic)
        options = {} if way == "gravure" else {"codegen": "inductor"}
        return torch.compile(model, backend="gravure", dynamic=dynamic, options=options)

    calls = {name: call_of(model) for name, model in models.items()}

    def run(i: int) -> None:
        if way == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        step(calls, i)
        if way == "floor":  # the same gradients, of nothing
            for p in models.parameters():
                p.grad = torch.zeros_like(p) if p.requires_grad else None
        optimizer.step()
        optimizer.zero_grad()

    def wait() -> None:
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    def uncaptured() -> tuple[int, int]:
        stats = [p.stats for graph in gravure.report().graphs for p in graph.programs]
        return sum(s["steps"] for s in stats), sum(s["uncaptured_steps"] for s in stats)

    for i in range(WARM + 6 * (row == "lengths")):
        run(i)
    wait()
    found: dict[str, Any] = {"row": row, "way": way}
    before = uncaptured() if way in ("gravure", "inductor") else (0, 0)
    times = []
    for k in range(5):
        began = time.perf_counter()
        for i in range(steps // 5):
            run(1000 + k * steps + i)
        wait()
        times.append((time.perf_counter() - began) * 1e3 / (steps // 5))
    found["ms"] = statistics.median(times)
    if way in ("gravure", "inductor"):
        after = uncaptured()
        found["runs"], found["uncaptured"] = after[0] - before[0], after[1] - before[1]
        found["programs"] = sum(len(graph.programs) for graph in gravure.report().graphs)
    if DEVICE == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["reserved_mib"] = torch.cuda.memory_reserved() >> 20
        free, total = torch.cuda.mem_get_info()
        found["used_mib"] = (total - free) >> 20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", default="in_flight.json")
    parser.add_argument("--rows", default=",".join(ROWS_OF))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--one", nargs=2, metavar=("ROW", "WAY"))
    given = parser.parse_args()
    if given.one:
        print("RESULT " + json.dumps(measure(*given.one, given.steps)))
        return
    torch.set_num_threads(1)  # threads do not outlive a fork
    began, results = time.monotonic(), []
    for row in given.rows.split(","):
        line = f"{row:12}"
        for way in given.ways.split(","):
            found = _in_process(row, way, given.steps, LIMIT - (time.monotonic() - began))
            results.append(found)
            shown = f"{found['ms']:.2f}" if "ms" in found else "error"
            if found.get("uncaptured"):
                shown += f" ({found['uncaptured']} of {found['runs']} uncaptured)"
            line += f"  {way} {shown}"
        print(line, flush=True)
    with open(given.out, "w") as file:
        json.dump({"torch": torch.__version__, "results": results}, file)


def _in_process(row: str, way: str, steps: int, left: float) -> dict[str, Any]:
    """In a fork of this process, which has imported the libraries and not touched the device."""
    if left < 5:
        return {"row": row, "way": way, "error": "no time was left"}
    forks = multiprocessing.get_context("fork")
    here, there = forks.Pipe(duplex=False)
    child = forks.Process(target=_child, args=(there, row, way, steps))
    child.start()
    there.close()
    found: dict[str, Any] = {"row": row, "way": way, "error": "it took too long, or ended"}
    if here.poll(min(left, 60)):
        with contextlib.suppress(EOFError):
            found = here.recv()
    child.kill()
    child.join()
    return found


def _child(out: Any, row: str, way: str, steps: int) -> None:
    try:
        out.send(measure(row, way, steps))
    except Exception as error:
        out.send({"row": row, "way": way, "error": f"{type(error).__name__}: {error}"[:200]})


if __name__ == "__main__":
    main()
