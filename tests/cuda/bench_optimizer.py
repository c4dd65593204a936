"""What `optimizer.step()` costs, compiled and in eager, on a GPU, in one run and in turns.

    python3 tests/cuda/bench_optimizer.py [--counts 113,400] [--rounds 40] [--json FILE]

host: microseconds until `step()` returns, the device idle before it. gpu: of the device's work,
between two events around fifteen steps, which are enqueued behind a long kernel. The learning rate
is another one in each step. "anew": gradients are dropped and allocated again before each step, out
of the time. "straight": the part of the steps in which nothing but numbers was another.
"""

from __future__ import annotations

import argparse
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


class Side:
    """An optimizer on parameters of its own, with a learning rate that changes."""

    def __init__(
        self,
        count: int,
        make: Callable[[Any], optim.Optimizer],
        compiled: bool,
        anew: bool = False,
    ) -> None:
        self.anew = anew
        torch.manual_seed(0)
        shapes = [(64,) if i % 3 else (96, 32) for i in range(count)]
        self.parameters = [torch.randn(s, device="cuda", requires_grad=True) for s in shapes]
        for p in self.parameters:
            p.grad = torch.randn_like(p) * 0.1
        self.optimizer = make(self.parameters)
        if compiled:
            gravure.compile_optimizer(self.optimizer)
        self.steps = 0

    def gradients(self) -> None:
        if not self.anew:
            return
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
            torch.cuda.synchronize()
            begun = time.perf_counter()
            self.step()
            took.append(time.perf_counter() - begun)
        torch.cuda.synchronize()
        return statistics.median(took) * 1e6

    def gpu_us(self) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(800_000_000)  # the host enqueues all steps meanwhile
        begin.record()
        for _ in range(STEPS):
            self.step()
        end.record()
        torch.cuda.synchronize()
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


def sides(count: int) -> dict[str, Side]:
    def make(**way: Any) -> Callable[[Any], optim.Optimizer]:
        return lambda p: optim.AdamW(p, 1e-3, **way)

    return {
        "eager foreach": Side(count, make(foreach=True), False),
        "eager fused": Side(count, make(fused=True), False),
        "compiled foreach": Side(count, make(foreach=True), True),
        "compiled fused": Side(count, make(fused=True), True),
        "compiled foreach, anew": Side(count, make(foreach=True), True, anew=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", default="113,400")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", help="a file for all lines")
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
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
            }
            lines.append(line)
            print(json.dumps(line), flush=True)
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
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
