"""Memory in the first steps of a benchmark's variant: allocated, reserved, and in which pool.

    python3 tests/cuda/step_memory.py [--config 1b] [--variants gravure,backend_inductor]

A row a step, MiB, each variant in a process of its own: allocated and reserved after the step and
at most during it, and what PyTorch's pools hold, by pool: of its segments, of that in use. Then
what is left when gradients are dropped, the cache is emptied, and programs give back theirs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter

import bench_h200
import torch

STEPS = 14


def pools() -> str:
    """Of each pool: MiB of segments, MiB in use."""
    held: Counter[tuple[int, int]] = Counter()
    used: Counter[tuple[int, int]] = Counter()
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        held[pool] += segment["total_size"]
        used[pool] += segment["allocated_size"]
    rows = [f"{pool}: {held[pool] >> 20}, {used[pool] >> 20}" for pool in sorted(held)]
    return "; ".join(rows)


def row(name: str) -> None:
    figures = (
        torch.cuda.memory_allocated(),
        torch.cuda.memory_reserved(),
        torch.cuda.max_memory_allocated(),
        torch.cuda.max_memory_reserved(),
    )
    cells = " | ".join(str(each >> 20) for each in figures)
    print(f"| {name} | {cells} | {pools()} |", flush=True)


def one(variant: str, config: str) -> None:
    import gravure

    os.environ["GRAVURE_BENCH_PROGRAM"] = tempfile.mkdtemp()
    step, data = bench_h200.make(config)
    run = bench_h200.build(variant, step, data, {})
    print(f"\n{config}, {variant}\n")
    print("| step | allocated | reserved | allocated, most | reserved, most | pools |")
    print("|---|---:|---:|---:|---:|---|")
    for number in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        run(*data[number])
        torch.cuda.synchronize()
        row(str(number))
    step.zero_grad(set_to_none=True)
    row("no gradients")
    torch.cuda.empty_cache()
    row("cache emptied")
    gravure.release_memory()
    row("given back")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="1b")
    parser.add_argument("--variants", default="gravure,backend_inductor")
    parser.add_argument("--one", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.one:
        one(options.variants, options.config)
        return
    for variant in options.variants.split(","):
        command = [sys.executable, __file__, "--one", "--config", options.config]
        subprocess.run([*command, "--variants", variant], check=True)


if __name__ == "__main__":
    main()
