"""Ways to run one training step, in turns, each in a process of its own: where their time goes.

    python3 tests/cuda/bench_turns.py [--config small] [--variants graphed,backend] [--one-thread]

Runs of one kind differ by a tenth on a shared host; here the ways take turns of 40 steps. Not in
one process: a way that runs kernels on a second stream slows the graphs of all (second_stream.py).
The variants are those of bench_h200.py that autograd differentiates (graphed, backend,
backend_inductor, reduce_overhead, eager). Microseconds of the host, medians, by turns: zero:
clearing the gradients; forward, backward: until the call returns; end: until the device is idle,
too; step: all of them. stream: steps back to back. --one-thread: the backward runs on the thread
that asks for it (torch.autograd.set_multithreading_enabled), not on one of autograd's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
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


def serve(name: str, config: str) -> None:
    """A line of figures for each line that comes."""
    torch._dynamo.config.capture_scalar_outputs = True
    way = Way(name, config)
    for _ in sys.stdin:
        print("RESULT " + json.dumps([*way.turn(), way.stream()]), flush=True)


class Process:
    """A way in a process of its own, which waits until it is its turn."""

    def __init__(self, name: str, options: list[str]) -> None:
        self.name = name
        command = [sys.executable, __file__, "--serve", name, *options]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def turn(self) -> list[float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise RuntimeError(f"{self.name} ended with {self._process.wait()}")

    def end(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="small", choices=list(bench_h200.CONFIGS))
    parser.add_argument("--variants", default="graphed,backend")
    parser.add_argument("--one-thread", action="store_true")
    parser.add_argument("--serve", metavar="VARIANT", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this machine has no GPU that PyTorch can use")
    torch.autograd.set_multithreading_enabled(not chosen.one_thread)
    if chosen.serve:
        serve(chosen.serve, chosen.config)
        return
    options = ["--config", chosen.config] + ["--one-thread"] * chosen.one_thread
    ways = [Process(name, options) for name in chosen.variants.split(",")]
    print("| config | variant | zero | forward | backward | end | step | stream |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for _ in range(TURNS):
        for way in ways:
            cells = " | ".join(f"{1e6 * figure:.0f}" for figure in way.turn())
            print(f"| {chosen.config} | {way.name} | {cells} |", flush=True)
    for way in ways:
        way.end()


if __name__ == "__main__":
    main()
