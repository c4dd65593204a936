"""What marks for profilers cost: nobody looks, torch.profiler looks, NVTX is on.

    python3 tests/cuda/mark_costs.py [--device cuda] [--config tiny]

One step of `tiny`, an exported program, by turns in one process: as it is; while torch.profiler
watches user scopes (the marks); inside emit_nvtx. What a mark costs when nobody looks cannot be
switched off, so it is counted: marks a step, times what `gravure bench runtime` says of one.
One line of JSON, in microseconds of the thread that calls and as shares of a step; writes
mark_costs.json into $OUT. Wished for: off under 1 %, on under 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "examples"), str(ROOT / "tests/cuda")]

TURNS, STEPS = 12, 40


def step_of(config: str, device: str) -> Callable[[], Any]:
    import bench_h200
    import gravure
    import moe_step

    sizes, moe = bench_h200.CONFIGS[config] if device == "cuda" else (moe_step.SMALL, False)
    torch.manual_seed(0)
    step = moe_step.Step(moe_step.Moe(sizes, moe=moe)).to(device)
    if device == "cuda":
        step = step.to(torch.bfloat16)
    data = moe_step.batch(sizes, device, 0)
    folder = tempfile.mkdtemp()
    gravure.export_step(step, data, folder)
    program = gravure.load(folder, "cuda" if device == "cuda" else "host")
    program.bind_saved()
    for _ in range(8):
        program.run(data)
    return lambda: program.run(data)


def timed(run: Callable[[], Any], device: str) -> float:
    """Seconds of a step, from an idle device until it is idle again; the median."""
    times = []
    for _ in range(STEPS):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def marks_of(run: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as watch:
        run()
    return sum(event.key.startswith("gravure: ") * event.count for event in watch.key_averages())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--config", default="tiny")
    options = parser.parse_args()
    run = step_of(options.config, options.device)
    marks = marks_of(run)
    off, on, nvtx = [], [], []
    for _ in range(TURNS):
        off.append(timed(run, options.device))
        # User scopes alone: operators of the uncaptured path would be watched, too, and no step of
        # this program calls one.
        with profile(activities=[ProfilerActivity.CPU], acc_events=True):
            on.append(timed(run, options.device))
        if options.device == "cuda":
            with torch.autograd.profiler.emit_nvtx():
                nvtx.append(timed(run, options.device))
    base = statistics.median(off)
    row = {
        "config": options.config,
        "marks_a_step": marks,
        "off_us": round(base * 1e6, 2),
        "profiler_us": round(statistics.median(on) * 1e6, 2),
        "profiler_over_off": round(
            statistics.median(a / b for a, b in zip(on, off, strict=True)), 4
        ),
    }
    if nvtx:
        row["nvtx_over_off"] = round(
            statistics.median(a / b for a, b in zip(nvtx, off, strict=True)), 4
        )
    # What nobody looks at: marks a step by what one takes, of `gravure bench runtime`.
    print(json.dumps(row), flush=True)
    (Path(os.environ.get("OUT", ".")) / "mark_costs.json").write_text(json.dumps(row, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
