"""Memory in the first steps of a benchmark's variant: allocated, reserved, and whose it is.

    python3 tests/cuda/step_memory.py [--config 1b] [--variants gravure,backend_inductor]
    python3 tests/cuda/step_memory.py --model vit [--variants eager,gravure]

A row a step, MiB, each variant in a process of its own: allocated and reserved after the step and
at most during it; of what is reserved, pages of arenas, pages of ended warm-ups that nobody has
taken yet, and PyTorch's pools, each as reserved and in use: everybody's, (0, 0), and those of
warm-ups and captures. The parts make up what is reserved. Then what is left when gradients are
dropped, the cache is emptied, and programs give back theirs. `--model` takes one of
bench_models.py, whose ways are the variants. With $OUT set the rows are kept there as JSON, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import bench_h200
import bench_models
import torch

STEPS = 14


def parts() -> dict[str, list[int]]:
    """Bytes reserved and in use, of whom. They add up to what is reserved."""
    held: Counter[str] = Counter()
    used: Counter[str] = Counter()
    snapshot = torch.cuda.memory._snapshot()
    arenas = {
        int(each["address"])
        for each in snapshot.get("external_annotations", [])
        if each.get("name") == "gravure arena"
    }
    for segment in snapshot["segments"]:
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        name = "arenas" if segment["address"] in arenas else f"pool {pool}"
        held[name] += segment["total_size"]
        used[name] += segment["allocated_size"]
    held["ended warm-ups"] = torch.cuda.memory_reserved() - sum(held.values())
    return {name: [held[name], used[name]] for name in sorted(held) if held[name]}


ROWS: list[dict[str, Any]] = []


def row(name: str) -> None:
    figures = (
        torch.cuda.memory_allocated(),
        torch.cuda.memory_reserved(),
        torch.cuda.max_memory_allocated(),
        torch.cuda.max_memory_reserved(),
    )
    whose = {part: [size >> 20 for size in sizes] for part, sizes in parts().items()}
    ROWS.append({"step": name, "mib": [each >> 20 for each in figures], "parts": whose})
    cells = " | ".join(str(each >> 20) for each in figures)
    told = "; ".join(f"{part}: {sizes[0]}, {sizes[1]}" for part, sizes in whose.items())
    print(f"| {name} | {cells} | {told} |", flush=True)


def one(variant: str, config: str, model: str) -> None:
    import gravure

    os.environ["GRAVURE_BENCH_PROGRAM"] = tempfile.mkdtemp()
    if model:
        found, batches = bench_models.make(model, variant, "usual", "cuda")
        step, data = found.step, [(batches[i % len(batches)],) for i in range(STEPS)]
        run = found.train
    else:
        step, data = bench_h200.make(config)
        run = bench_h200.build(variant, step, data, {})
    print(f"\n{model or config}, {variant}\n")
    print("| step | allocated | reserved | allocated, most | reserved, most | whose |")
    print("|---|---:|---:|---:|---:|---|")
    row("before")
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
    if "OUT" in os.environ:
        path = Path(os.environ["OUT"]) / f"step_memory.{model or config}.{variant}.json"
        path.write_text(json.dumps(ROWS, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="1b")
    parser.add_argument("--model", default="", help="of bench_models.py")
    parser.add_argument("--variants", default="")
    parser.add_argument("--one", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.one:
        one(options.variants, options.config, options.model)
        return
    usual = "eager,gravure" if options.model else "gravure,backend_inductor"
    for variant in (options.variants or usual).split(","):
        command = [sys.executable, __file__, "--one", "--config", options.config]
        command += ["--model", options.model]
        subprocess.run([*command, "--variants", variant], check=True)


if __name__ == "__main__":
    main()
