"""What `optimizer.step()` costs, compiled and in eager, on a GPU, in one run and in turns.

    python3 tests/cuda/bench_optimizer.py [--counts 113,400] [--rounds 40] [--json FILE]

host: microseconds until `step()` returns, the device idle before it. gpu: of the device's work,
between two events around fifteen steps, which are enqueued behind a long kernel. The learning rate
is another one in each step. "anew": gradients are dropped and allocated again before each step, out
of the time. "moved": those of the last steps are kept, so that they lie elsewhere in each step.
"straight": the part of the steps in which nothing but numbers was another.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import optim

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import gravure  # noqa: E402

STEPS = 15


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Side:
    """An optimizer on parameters of its own, with a learning rate that changes."""

    def __init__(
        self,
        count: int,
        make: Callable[[Any], optim.Optimizer],
        compiled: bool,
        anew: bool = False,
        moved: bool = False,
    ) -> None:
        self.anew = anew or moved
        self.kept: list[list[Any]] = []
        self.most_kept = 3 if moved else 0
        torch.manual_seed(0)
        shapes = [(64,) if i % 3 else (96, 32) for i in range(count)]
        self.parameters = [torch.randn(s, device=device(), requires_grad=True) for s in shapes]
        for p in self.parameters:
            p.grad = torch.randn_like(p) * 0.1
        self.optimizer = make(self.parameters)
        if compiled:
            gravure.compile_optimizer(self.optimizer)
        self.steps = 0

    def gradients(self) -> None:
        if not self.anew:
            return
        if self.most_kept:
            self.kept = [*self.kept[-self.most_kept :], [p.grad for p in self.parameters]]
        for p in self.parameters:
            p.grad = None
        for p in self.parameters:
            p.grad = torch.full_like(p, 0.1)

    def step(self) -> None:
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = 1e-3 / self.steps
        self.optimizer.step()

    def host_us(self, rounds: int) -> float:
        took = []
        for _ in range(rounds):
            self.gradients()
            wait()
            begun = time.perf_counter()
            self.step()
            took.append(time.perf_counter() - begun)
        wait()
        return statistics.median(took) * 1e6

    def gpu_us(self) -> float:
        if not torch.cuda.is_available():
            return 0.0
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        wait()
        torch.cuda._sleep(800_000_000)  # the host enqueues all steps meanwhile
        begin.record()
        for _ in range(STEPS):
            self.step()
        end.record()
        wait()
        return begin.elapsed_time(end) * 1e3 / STEPS

    def straight(self) -> float:
        return round(self.update.repeated_steps / self.steps, 3)

    @property
    def update(self) -> Any:
        return self.optimizer.step.gravure_update  # type: ignore[attr-defined]

    def stats(self) -> dict[str, int]:
        update = self.update
        programs = [p for kind in update._kinds.values() for p in kind.programs]
        return programs[-1].stats() if programs else {}


def bare_replay_us(kernels: int, rounds: int) -> float:
    if not torch.cuda.is_available():
        return 0.0
    x = torch.zeros(8, device=device())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            x.add_(1.0)
    return best_us(graph.replay, rounds)


def best_us(call: Callable[[], Any], rounds: int) -> float:
    """Of one call, the device idle: the median."""
    took = []
    for _ in range(rounds):
        wait()
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    return round(statistics.median(took) * 1e6, 2)


def parts(side: Side, rounds: int) -> dict[str, Any]:
    """Changes nothing but parameters and state."""
    if not side.update._repeated:
        return {}
    repeated = side.update._repeated[0]
    program = repeated.program._program
    kernels = side.stats().get("written_kernels", 0)
    found: dict[str, Any] = {"look": best_us(lambda: repeated.is_same(side.optimizer), rounds)}
    numbers = repeated.settings.numbers
    found["conditions"] = best_us(
        lambda: program._holds_of_counts(numbers, program._counts), rounds
    )
    others = [[*numbers], [*numbers]]
    others[1][0] *= 0.5  # the learning rate: the first number is the rate
    turn = itertools.cycle(others)
    found["one rate"] = best_us(lambda: repeated.program.repeat(numbers), rounds)
    found["rates in turns"] = best_us(lambda: repeated.program.repeat(next(turn)), rounds)
    found["bare replay"] = bare_replay_us(max(kernels, 1), rounds)
    found["kernels"] = kernels
    return found


def sides(count: int) -> dict[str, Side]:
    def make(**way: Any) -> Callable[[Any], optim.Optimizer]:
        return lambda p: optim.AdamW(p, 1e-3, **way)

    return {
        "eager foreach": Side(count, make(foreach=True), False),
        "eager fused": Side(count, make(fused=True), False),
        "compiled foreach": Side(count, make(foreach=True), True),
        "compiled fused": Side(count, make(fused=True), True),
        "compiled sgd": Side(count, lambda p: optim.SGD(p, 1e-3, momentum=0.9, foreach=True), True),
        "compiled foreach, anew": Side(count, make(foreach=True), True, anew=True),
        "compiled foreach, moved": Side(count, make(foreach=True), True, moved=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", default="113,400")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", help="a file for all lines")
    chosen = parser.parse_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "the host device"
    print(f"torch {torch.__version__}, {where}")
    lines: list[dict[str, Any]] = []
    for count in map(int, chosen.counts.split(",")):
        all_sides = sides(count)
        for side in all_sides.values():
            for _ in range(12):
                side.gradients()
                side.step()
        host: dict[str, list[float]] = {name: [] for name in all_sides}
        gpu: dict[str, list[float]] = {name: [] for name in all_sides}
        for _ in range(3):
            for name, side in all_sides.items():
                host[name].append(side.host_us(chosen.rounds))
                gpu[name].append(side.gpu_us())
        same = all(
            torch.equal(a, b)
            for a, b in zip(
                all_sides["eager foreach"].parameters,
                all_sides["compiled foreach"].parameters,
                strict=True,
            )
        )
        lines.append({"parameters": count, "same_bits": same})
        print(f"bits of {count} parameters after all steps, foreach: {'same' if same else 'OTHER'}")
        for name, side in all_sides.items():
            compiled = name.startswith("compiled")
            found = side.stats() if compiled else {}
            line = {
                "parameters": count,
                "side": name,
                "host_us": round(statistics.median(host[name]), 1),
                "gpu_us": round(statistics.median(gpu[name]), 1),
                "numbers": found.get("written_numbers"),
                "kernels": found.get("written_kernels"),
                "uncaptured": found.get("uncaptured_steps"),
                "straight": side.straight() if compiled else None,
                "most_us": 40 + 0.8 * found["written_kernels"] if found else None,
                "parts": parts(side, chosen.rounds) if compiled else None,
            }
            lines.append(line)
            print(json.dumps(line), flush=True)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
