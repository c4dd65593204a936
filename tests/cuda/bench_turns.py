"""Ways to run one training step, in turns in one process: where their time goes.

    python3 tests/cuda/bench_turns.py [--config small] [--variants graphed,backend] [--one-thread]

Processes of one kind differ by a tenth on a shared host; here each way has a model of its own, and
40 steps at a time. The variants are those of bench_h200.py that autograd differentiates (graphed,
backend, backend_inductor, reduce_overhead, eager). Microseconds of the host, medians, by turns:
zero: clearing the gradients; forward, backward: until the call returns; end: until the device is
idle, too; step: all of them. stream: steps back to back. --one-thread: the backward runs on the
thread that asks for it (torch.autograd.set_multithreading_enabled), not on one of autograd's.
"""

from __future__ import annotations

import argparse
import statistics
import time

import bench_h200
import torch
from torch import Tensor

STEPS, TURNS = bench_h200.STEPS, 3


class Way:
    def __init__(self, name: str, config: str) -> None:
        self.name = name
        self.model, self.data = bench_h200.make(config)
        self.call = bench_h200.FORWARDS[name](self.model, self.data[0])
        for batch in self.data[: -2 * STEPS]:
            self.timed(batch)

    def timed(self, batch: tuple[Tensor, Tensor]) -> tuple[float, ...]:
        torch.cuda.synchronize()
        times = [time.perf_counter()]
        self.model.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
        loss = self.call(*batch)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        parts = [after - before for before, after in zip(times, times[1:], strict=False)]
        return (*parts, times[-1] - times[0])

    def turn(self) -> list[float]:
        rows = [self.timed(batch) for batch in self.data[-2 * STEPS : -STEPS]]
        return [statistics.median(part) for part in zip(*rows, strict=True)]

    def stream(self) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for batch in self.data[-STEPS:]:
            self.model.zero_grad(set_to_none=True)
            self.call(*batch).backward()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="small", choices=list(bench_h200.CONFIGS))
    parser.add_argument("--variants", default="graphed,backend")
    parser.add_argument("--one-thread", action="store_true")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this machine has no GPU that PyTorch can use")
    torch._dynamo.config.capture_scalar_outputs = True
    torch.autograd.set_multithreading_enabled(not chosen.one_thread)
    ways = [Way(name, chosen.config) for name in chosen.variants.split(",")]
    print("| config | variant | zero | forward | backward | end | step | stream |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for _ in range(TURNS):
        for way in ways:
            figures = [*way.turn(), way.stream()]
            cells = " | ".join(f"{1e6 * figure:.0f}" for figure in figures)
            print(f"| {chosen.config} | {way.name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
