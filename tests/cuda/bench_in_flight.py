"""Loops that call a compiled graph before its backward, with other sizes, or without gradients.

    python3 tests/cuda/bench_in_flight.py [OUT.json] [--rows layer,siamese] [--steps 80]

Each row and way runs in a process of its own, synchronised and back to back; ms a step are the
median of five runs of STEPS / 5. `floor` is the row without its models: loss, optimizer, data.
Prints a line a row, with what is left above the floor as a part of `reduce-overhead`'s, and
writes all as JSON as it comes. `--compile-only`: all at once and no figures, so that Inductor's
caches have what a run for figures needs. `--trace`: what the device does in a step, by kernel, in
place of times.
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


def busy(run: Callable[[int], None], steps: int) -> dict[str, Any]:
    """What the device does in a step: us of each kind of kernel, and in all."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        began = time.perf_counter()
        for i in range(steps):
            run(5000 + i)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        wall = (time.perf_counter() - began) * 1e6 / steps
    kernels = [
        event
        for event in profile.events()
        if event.device_type == torch.profiler.DeviceType.CUDA
        and not event.name.startswith(("gravure: ", "Optimizer."))  # spans over what they launch
    ]
    by_name: dict[str, list[float]] = {}
    for event in kernels:
        found = by_name.setdefault(event.name[:90], [0.0, 0.0])
        found[0] += event.time_range.elapsed_us() / steps
        found[1] += 1 / steps
    most = sorted(by_name.items(), key=lambda each: -each[1][0])[:14]
    spans = sorted((e.time_range.start, e.time_range.end) for e in kernels)
    union, end = 0.0, 0.0
    for start, stop in spans:
        union += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return {
        "wall_us": round(wall),
        "kernels": round(len(kernels) / steps, 1),
        "kernel_us": round(sum(each[0] for each in by_name.values())),
        "busy_us": round(union / steps),
        "most": [[name, round(us, 1), round(count, 1)] for name, (us, count) in most],
    }


def measure(row: str, way: str, steps: int, *, trace: bool = False) -> dict[str, Any]:
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
    if trace:
        return found | busy(run, 5)
    if steps < 5:  # --compile-only
        return found
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
    parser.add_argument("--limit", type=float, default=240, help="seconds for everything")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)  # threads do not outlive a fork
    rows, ways = given.rows.split(","), given.ways.split(",")
    until, results = time.monotonic() + given.limit, []
    if given.compile_only:
        runs = [_Run(row, way, 1) for row in rows for way in ways]
        results = [each.result(until) for each in runs]
        print(f"{sum('error' not in each for each in results)} of {len(results)} compiled")
        for each in results:
            if "error" in each:
                print(each)
        return
    for row in rows:
        found: dict[str, dict[str, Any]] = {}
        for way in ways:
            found[way] = _Run(row, way, given.steps, trace=given.trace).result(until)
            results.append(found[way])
        print(_traced(row, found) if given.trace else _line(row, found), flush=True)
        with open(given.out, "w") as file:
            json.dump({"torch": torch.__version__, "results": results}, file)


def _line(row: str, found: dict[str, dict[str, Any]]) -> str:
    line = f"{row:11}"
    for way, each in found.items():
        shown = f"{each['ms']:.2f}" if "ms" in each else "error"
        if each.get("uncaptured"):
            shown += f" ({each['uncaptured']} of {each['runs']} uncaptured)"
        line += f"  {way} {shown}"
    floor, other = (found.get(way, {}).get("ms") for way in ("floor", "reduce-overhead"))
    eager = found.get("eager", {}).get("ms")
    for way in ("gravure", "inductor"):
        ours = found.get(way, {}).get("ms")
        if ours and floor and other and other > floor:
            line += f"  {way}/overhead {(ours - floor) / (other - floor):.2f}"
        elif ours and eager:
            line += f"  {way}/eager {ours / eager:.2f}"
    return line


def _traced(row: str, found: dict[str, dict[str, Any]]) -> str:
    lines = []
    for way, each in found.items():
        if "error" in each:
            lines.append(f"{row} {way}: {each['error']}")
            continue
        lines.append(
            f"{row} {way}: {each['wall_us']} us a step, device busy {each['busy_us']}, "
            f"{each['kernels']} kernels of {each['kernel_us']} us"
        )
        lines += [f"    {us:8.1f} us in {n:6.1f}: {name}" for name, us, n in each["most"]]
    return "\n".join(lines)


class _Run:
    """In a fork of this process, which has imported the libraries and not touched the device."""

    def __init__(self, row: str, way: str, steps: int, *, trace: bool = False) -> None:
        self._name = {"row": row, "way": way}
        forks = multiprocessing.get_context("fork")
        self._here, there = forks.Pipe(duplex=False)
        self._child = forks.Process(target=_child, args=(there, row, way, steps, trace))
        self._child.start()
        there.close()

    def result(self, until: float) -> dict[str, Any]:
        found: dict[str, Any] = self._name | {"error": "it took too long, or ended"}
        if self._here.poll(max(0.0, min(until - time.monotonic(), 60))):
            with contextlib.suppress(EOFError):
                found = self._here.recv()
        self._child.kill()
        self._child.join()
        return found


def _child(out: Any, row: str, way: str, steps: int, trace: bool) -> None:
    try:
        out.send(measure(row, way, steps, trace=trace))
    except Exception as error:
        out.send({"row": row, "way": way, "error": f"{type(error).__name__}: {error}"[:200]})


if __name__ == "__main__":
    main()
