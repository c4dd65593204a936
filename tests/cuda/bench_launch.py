"""What the runtime adds to a graph launch on a GPU, in microseconds of the host, in one run.

    python3 tests/cuda/bench_launch.py

replay: until the call returns, the device idle before it, beside `CUDAGraph.replay` of the
same operators. wait: the same, the device busy for so long before. partition: what one more
partition adds to a step, the host node before it apart.
capture: the step that captures, over a step that runs the same operators one by one.
"""

from __future__ import annotations

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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import gravure  # noqa: E402

ELEMENTS = 256
TYPE = f"Float({ELEMENTS}, strides=[1], device=cuda:0)"
HOST = "aten::neg"  # kept on the host by request
ROUNDS = 200
CYCLES_A_US = 1_700  # about: a GPU's clock


def program(runs: list[list[str]], **options: Any) -> gravure.runtime.Program:
    """Operators one after another on one value, as a program."""
    names = [name for run in runs for name in run]
    lines = [f'gravure 1\ngraph step(%v0 : {TYPE} {{parameter "x"}}):']
    lines += [f"  %v{i + 1} : {TYPE} = {name}(%v{i})" for i, name in enumerate(names)]
    lines.append(f'  return (%v{len(names)} {{output "y"}})\n')
    path = Path(tempfile.mkdtemp()) / "program.gv"
    path.write_text("\n".join(lines))
    options = {"results": "static", "min_partition_size": 1} | options
    return gravure.load(path, "cuda", host=[HOST], **options)


def host_us(call: Callable[[], Any], rounds: int = ROUNDS, busy_us: float = 0) -> float:
    """`busy_us`: for how long the GPU is waited for before each call."""
    took = []
    for _ in range(rounds):
        if busy_us:
            torch.cuda._sleep(int(busy_us * CYCLES_A_US))
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1e6


def stepper(runs: list[list[str]], **options: Any) -> tuple[Callable[[], Any], Any]:
    loaded = program(runs, **options)
    loaded.bind({"x": torch.ones(ELEMENTS, device="cuda")})
    return (lambda: loaded.run(())), loaded


def replay_row(nodes: int, busy_us: float = 0) -> dict[str, float]:
    step, loaded = stepper([["aten::abs"] * nodes], require_capture=True)
    for _ in range(4):
        step()
    assert loaded.partition_states() == ["captured"]
    x = torch.ones(ELEMENTS, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(nodes):
            y = y.abs()
    # In turns: the host's speed drifts.
    ours, theirs = [], []
    for _ in range(5):
        ours.append(host_us(step, busy_us=busy_us))
        theirs.append(host_us(graph.replay, busy_us=busy_us))
    row = {"nodes": nodes, "gravure": min(ours), "CUDAGraph.replay": min(theirs)}
    return row | {"over": row["gravure"] - row["CUDAGraph.replay"]}


def wait_row(nodes: int, busy_us: float) -> dict[str, float]:
    """The same launch after a longer wait: what it costs more is the host's caches gone cold."""
    return {"waited us": busy_us} | replay_row(nodes, busy_us)


def partition_row(count: int) -> dict[str, float]:
    """`count` times one captured operator and one on the host, beside the host operators alone."""
    whole, loaded = stepper([["aten::abs", HOST]] * count, require_capture=True)
    host, _ = stepper([[HOST]] * count)
    for _ in range(4):
        whole(), host()
    assert loaded.partition_states() == ["captured"] * count
    x = torch.ones(ELEMENTS, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.abs()

    def launches() -> None:
        for _ in range(count):
            graph.replay()

    both, alone, bare = [], [], []
    for _ in range(5):
        both.append(host_us(whole, 50))
        alone.append(host_us(host, 50))
        bare.append(host_us(launches, 50))
    partition = (min(both) - min(alone)) / count
    launch = min(bare) / count
    return {
        "partitions": count,
        "a partition": partition,
        "a CUDAGraph.replay": launch,
        "over": partition - launch,
    }


def capture_row(nodes: int) -> dict[str, float]:
    step, loaded = stepper([["aten::abs"] * nodes], require_capture=True)
    took = []
    for _ in range(4):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - begun) * 1e3)
    assert loaded.partition_states() == ["captured"]
    plain, _ = stepper([["aten::abs"] * nodes], uncaptured=True)
    plain()
    run = host_us(plain, 20) / 1e3
    row = {"nodes": nodes, "capturing step ms": took[2], "plain step ms": run}
    return row | {"over ms": took[2] - run}


def show(title: str, rows: list[dict[str, float]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(rows[0])} |\n|{'---:|' * len(rows[0])}")
    for row in rows:
        cells = [str(v) if isinstance(v, int) else f"{v:.1f}" for v in row.values()]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> int:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds of the host")
    found = {
        "replay": [replay_row(nodes) for nodes in (1, 100, 1000)],
        "wait": [wait_row(nodes, wait) for nodes in (1, 1000) for wait in (100, 1000, 3000)],
        "partition": [partition_row(count) for count in (10, 100)],
        "capture": [capture_row(nodes) for nodes in (1000,)],
    }
    for title, rows in found.items():
        show(title, rows)
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "launch.json").write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
