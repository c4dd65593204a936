"""Compares a step's time as the page predicts it with the replay that is measured.

    python3 tests/cuda/predict_time.py [--configs tiny,small,mid,moe] [--device cuda]

Each config in a process of its own, by torch.compile(backend="gravure") with the option `times`:
one line of JSON each, in milliseconds (uncaptured, replayed, predicted, and how far the last two
are apart), and the pace of the GPU that predictions use. Writes predict_time.json into $OUT, and
for each config the page and what it was made of.
`apart` is to be within 10 %. `--device cpu` tries it with a small model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "examples"), str(ROOT / "tests/cuda")]

STEPS = {"moe": 120}  # each has token counts of its own, for which cuBLAS chooses once


def one(config: str, device: str) -> dict[str, Any]:
    import bench_h200
    import gravure
    import moe_step
    from gravure.calls.device_pace import device_pace
    from gravure.page.costs import costs_of
    from gravure.page.step_data import read_step

    sizes, moe = bench_h200.CONFIGS[config] if device == "cuda" else (moe_step.SMALL, True)
    torch._dynamo.config.capture_scalar_outputs = True
    torch.autograd.set_multithreading_enabled(False)
    torch.manual_seed(0)
    model = moe_step.Step(moe_step.Moe(sizes, moe=moe)).to(device)
    if device == "cuda":
        model = model.to(torch.bfloat16)
    compiled = torch.compile(model, backend="gravure", options={"times": True})
    for i in range(STEPS.get(config, 20)):
        compiled(*moe_step.batch(sizes, device, i)).backward()
        model.zero_grad(set_to_none=True)
    folder = Path(os.environ.get("OUT", "."))
    found = gravure.report(html=folder / f"predict_{config}.html")
    programs = [p for graph in found.graphs for p in graph.programs if p.stats["captures"]]
    program = max(programs, key=lambda each: each.stats["replays"])
    assert program.detail is not None
    pace = device_pace()
    kept = {"detail": program.detail, "call_times": program.call_times, "pace": pace}
    (folder / f"predict_{config}.json").write_text(json.dumps(kept))
    step = read_step(program.detail)
    costs = costs_of(step, program.call_times, pace)
    rows = [row for entry in program.call_times.values() for row in entry["calls"]]
    apart = costs.predicted / costs.replayed - 1 if costs.replayed else 0.0
    return {
        "config": config,
        "uncaptured_ms": round(costs.uncaptured / 1e6, 4),
        "replayed_ms": round(costs.replayed / 1e6, 4),
        "predicted_ms": round(costs.predicted / 1e6, 4),
        "apart_percent": round(100 * apart, 1),
        "kernels": sum(row[3] for row in rows),
        "kernel_ms": round(sum(row[2] for row in rows) / 1e6, 4),
        "calls": len(rows),
        "share": round(costs.share, 4),
        "host_ms": round(_of_host(rows, step) / 1e6, 4),
        "waits": sum(call.waits for call in step.calls),
        "why": costs.why,
        "pace_ns": {name: round(value) for name, value in pace.items()},
        "worst": sorted(((round(v / 1e3, 1), *k) for k, v in costs.missed.items()), reverse=True)[
            :3
        ],
        "stats": {k: program.stats[k] for k in ("steps", "uncaptured_steps", "replays")},
    }


def _of_host(rows: list[list[int]], step: Any) -> float:
    """Nanoseconds of the thread for calls outside of graphs that do not wait."""
    calls = step.calls
    return sum(r[1] for r in rows if calls[r[0]].partition < 0 and not calls[r[0]].waits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default="tiny,small,mid,moe")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        print("RESULT " + json.dumps(one(options.one, options.device)), flush=True)
        return 0
    rows = []
    for config in options.configs.split(","):
        command = [sys.executable, __file__, "--one", config, "--device", options.device]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        error = {"config": config, "error": (done.stderr or done.stdout)[-1500:]}
        rows.append(json.loads(lines[-1].removeprefix("RESULT ")) if lines else error)
        print(json.dumps(rows[-1]), flush=True)
        about = {"torch": torch.__version__, "rows": rows}
        (Path(os.environ.get("OUT", ".")) / "predict_time.json").write_text(
            json.dumps(about, indent=1)
        )
    return int(any("error" in row or abs(row["apart_percent"]) > 10 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
