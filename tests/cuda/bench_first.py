"""Time from the first call of a compiled step to its first replay, beside PyTorch's own parts.

    python3 tests/cuda/bench_first.py [--device cuda] [--configs tiny,small,mid] [--ways backend,…]

Each in a process of its own, after one eager step, which loads kernels and makes handles, and a
small function that was compiled, which loads the compiler. eager: two steps. compiler: the first
call of torch.compile(backend="aot_eager"), which traces and cuts the same graphs, less one eager
step. Ours: all calls until one was a replay, in seconds; over: what they take more than eager's two
steps and the compiler, in microseconds a node of the programs' text.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "examples"), str(Path(__file__).parent)]

import bench_h200  # noqa: E402
import moe_step  # noqa: E402

WAYS = ("backend", "compile_step")
MOST_STEPS = 12


def seconds(call: Callable[[], Any], device: str) -> float:
    begun = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def nodes_of(programs: list[Any]) -> int:
    """Nodes of all runs of the plans."""
    run = re.compile(r"^(?:partition \d+|host): (\d+) node", re.MULTILINE)
    return sum(int(count) for program in programs for count in run.findall(program.plan))


def first_replay(run: Callable[[], Any], device: str) -> dict[str, float]:
    import gravure

    total = 0.0
    for step in range(1, MOST_STEPS + 1):
        total += seconds(run, device)
        programs = [p for graph in gravure.report().graphs for p in graph.programs]
        if programs and all(p.stats["replays"] for p in programs):
            return {"seconds": total, "steps": step, "nodes": nodes_of(programs)}
    raise RuntimeError(f"no replay in {MOST_STEPS} steps:\n{gravure.report()}")


def one(way: str, config: str, device: str) -> dict[str, float]:
    sizes, moe = (moe_step.SMALL, False) if device == "cpu" else bench_h200.CONFIGS[config]
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    step = moe_step.Step(moe_step.Moe(sizes, moe=moe)).to(device=device, dtype=dtype)
    batch = moe_step.batch(sizes, device, 0)

    def with_autograd(call: Callable[..., Tensor]) -> Callable[[], None]:
        def run() -> None:
            step.zero_grad(set_to_none=True)
            call(*batch).backward()

        return run

    eager = with_autograd(step)
    seconds(eager, device)
    some = torch.ones(2, device=device, requires_grad=True)
    torch.compile(lambda x: x.sin().sum(), backend="aot_eager")(some).backward()
    if way == "eager":
        return {"seconds": min(seconds(eager, device) for _ in range(5))}
    if way == "aot_eager":
        return {"seconds": seconds(with_autograd(torch.compile(step, backend=way)), device)}
    import gravure

    if way == "backend":
        return first_replay(with_autograd(torch.compile(step, backend="gravure")), device)
    compiled = gravure.compile_step(step)

    def run() -> None:
        step.zero_grad(set_to_none=True)
        compiled(*batch)

    return first_replay(run, device)


def spawn(way: str, config: str, device: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--device", device, "--one", way, config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise SystemExit(f"{way} on {config} failed:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--configs", default="tiny,small,mid")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--one", nargs=2, metavar=("WAY", "CONFIG"))
    options = parser.parse_args()
    if options.one:
        print("RESULT " + json.dumps(one(*options.one, options.device)), flush=True)
        return
    print("| config | way | nodes | steps | s | two eager steps | compiler | over, us a node |")
    print("|---|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for config in options.configs.split(","):
        eager = spawn("eager", config, options.device)["seconds"]
        compiler = spawn("aot_eager", config, options.device)["seconds"] - eager
        for way in options.ways.split(","):
            found = spawn(way, config, options.device)
            over = (found["seconds"] - 2 * eager - compiler) * 1e6 / found["nodes"]
            cells = [f"{found['nodes']}", f"{found['steps']}", f"{found['seconds']:.2f}"]
            cells += [f"{2 * eager:.3f}", f"{compiler:.2f}", f"{over:.1f}"]
            print("| " + " | ".join([config, way, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
