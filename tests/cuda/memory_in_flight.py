"""Memory of d calls of one compiled graph in flight: d forwards, then their backwards.

    python3 tests/cuda/memory_in_flight.py [--configs small,mid] [--calls 1,2,4,8] [--device cuda]

A row each, in a process of its own, MiB. `held`: what d calls hold, as planned. `least`: that,
and the transients of one call, which is what the arenas must take. `arenas`: pages of all arenas,
each once. `reserved`: by PyTorch and by arenas in the last two steps, at most; `rest`: of it
besides parameters and arenas: workspaces, what captures took beside the plan, what the loop
holds. Executables are not in it (capture_costs.py). --jobs: so many processes at once. With
--device cpu: the host device, whose pages are smaller.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "examples")]

import gravure  # noqa: E402
import moe_step  # noqa: E402
from gravure.calls.live_graphs import followed  # noqa: E402

CONFIGS = {
    "host": moe_step.Config(64, 4, 4, 176, 512, 2, 64, dropout=0.0),
    "small": moe_step.Config(ffn=1408, dropout=0.0),
    "mid": moe_step.Config(1024, 24, 16, 2816, 32000, 4, 512, dropout=0.0),
}
STEPS = 8


def planned(program: Any) -> dict[str, int]:
    """Of one instance: what it holds between forward and backward, and its plan."""
    detail = program.detail
    forward = sum(1 for call in detail["calls"] if call[0] == 0)
    buffers = detail["measured"]["buffers"]
    held = [b for b in buffers if b[0] < forward < b[1]]
    return {
        "held": sum(b[2] for b in held),
        "held_end": max((b[3] + b[2] for b in held), default=0),
        "load": detail["measured"]["live_bytes"],
        "plan": detail["measured"]["bytes"],
    }


def one(config: str, calls: int, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    step = moe_step.Step(moe_step.Moe(CONFIGS[config], moe=False)).to(device=device, dtype=dtype)
    data = [moe_step.batch(CONFIGS[config], device, seed) for seed in range(calls)]
    compiled = torch.compile(step, backend="gravure")
    cuda = device == "cuda"
    for i in range(STEPS):
        step.zero_grad(set_to_none=True)
        if cuda and i == STEPS - 2:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        losses = [compiled(*each) for each in data]
        for loss in losses:
            loss.backward()
        del losses, loss
    found: dict[str, Any] = {"config": config, "calls": calls}
    found["parameters"] = sum(p.nbytes for p in step.parameters())
    if cuda:
        torch.cuda.synchronize()
        found["reserved"] = torch.cuda.max_memory_reserved()
    programs = [
        instance
        for graph in followed()
        for instance in graph.report(detailed=True).programs
        if "backward" in instance.partitions
    ]
    found |= planned(programs[0])
    found["arenas_sum"] = sum(p.stats["arena_bytes"] for p in programs)
    found["uncaptured"] = sum(p.stats["uncaptured_steps"] for p in programs)
    found["nodes"] = len(programs[0].detail["calls"])
    found["instances"] = len(programs)
    step.zero_grad(set_to_none=True)
    found["arenas"] = gravure.release_memory()
    found["least"] = (calls - 1) * found["held"] + found["load"]
    return found


def spawn(*words: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1].removeprefix("RESULT "))
    return {"error": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--configs", default="")
    parser.add_argument("--calls", default="1,2,4,8")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--one", nargs=3, metavar=("CONFIG", "CALLS", "DEVICE"))
    given = parser.parse_args()
    if given.one:
        config, calls, device = given.one
        print("RESULT " + json.dumps(one(config, int(calls), device)))
        return
    configs = given.configs or ("small,mid" if given.device == "cuda" else "host")
    print("| config | d | held | least | arenas | arenas / least | reserved | rest |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    asked = [(config, calls) for config in configs.split(",") for calls in given.calls.split(",")]
    rows = []
    with ThreadPoolExecutor(given.jobs) as jobs:
        for config, calls in asked:
            rows.append(jobs.submit(spawn, config, calls, given.device))
        for (config, calls), row in zip(asked, rows, strict=True):
            found = row.result()
            if "error" in found:
                print(f"| {config} | {calls} | {found['error']} |", flush=True)
                continue
            cells = [found["held"] * int(calls), found["least"], found["arenas"]]
            shown = [f"{cell / 2**20:.1f}" for cell in cells]
            shown.append(f"{found['arenas'] / found['least']:.3f}")
            if "reserved" in found:
                rest = found["reserved"] - found["parameters"] - found["arenas"]
                shown += [f"{found['reserved'] / 2**20:.1f}", f"{rest / 2**20:.1f}"]
            print(f"| {config} | {calls} | " + " | ".join(shown) + " |", flush=True)
    if given.out:
        Path(given.out).write_text(json.dumps([row.result() for row in rows]))


if __name__ == "__main__":
    main()
