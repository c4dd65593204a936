"""Do collectives overlap computation in a replay as they did uncaptured? Read from traces.

    python3 tests/cuda/overlap_trace.py            two GPUs, with NCCL
    python3 tests/cuda/overlap_trace.py TRACE...   reads traces that are there

A program starts an all-gather, an all-reduce and a reduce-scatter, multiplies matrices that need
none of them, and waits. Each rank traces STEPS uncaptured steps and as many replays with
torch.profiler, and the same program with each wait right behind its start, where nothing can
overlap. A row a trace: microseconds a step in which NCCL's kernels run, other kernels run, and both
do. Exit status 0 only if each rank captured, the bits are equal, and of the time of NCCL's kernels
as great a share (at least 0.8 of it) overlaps in a replay as uncaptured: their time itself differs,
since they wait for the other rank. Traces go to $OUT.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Span = tuple[float, float]
WORLD, PRODUCTS, STEPS = 2, 6, 5
SIZE = int(os.environ.get("SIZE", "4096"))


# ---- traces


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time, as spans that lie apart, in order."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def common(a: list[Span], b: list[Span]) -> float:
    """How long both run. Each lies apart and in order."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def times(trace: dict[str, Any]) -> dict[str, float]:
    """Microseconds of a chrome trace: `nccl` and `other` kernels, and `both` at once."""
    spans: dict[bool, list[Span]] = {True: [], False: []}
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            begin = float(event["ts"])
            spans["nccl" in event["name"].lower()].append((begin, begin + float(event["dur"])))
    nccl, other = union(spans[True]), union(spans[False])
    length = [sum(end - begin for begin, end in found) for found in (nccl, other)]
    return {"nccl": length[0], "other": length[1], "both": common(nccl, other)}


def trace_path(out: Path, name: str, rank: int) -> Path:
    return out / f"{name.replace(',', '').replace(' ', '_')}_{rank}.json"


def share(found: dict[str, float]) -> float:
    """Of the time of NCCL's kernels, how much has computation beside it."""
    return found["both"] / found["nccl"] if found["nccl"] else 0.0


def row(name: str, found: dict[str, float], steps: int) -> str:
    nccl, other, both = (found[kind] / steps for kind in ("nccl", "other", "both"))
    return f"{name:34} {nccl:9.1f} {other:9.1f} {both:9.1f} {share(found):8.2f}"


HEAD = f"{'us a step':34} {'nccl':>9} {'other':>9} {'both':>9} {'of nccl':>8}"


# ---- one rank


def program(device: str, *, at_once: bool) -> str:
    """`at_once`: each wait right behind its start."""
    square, whole, half = (
        f"BFloat16({rows}, {SIZE}, strides=[{SIZE}, 1], device={device})"
        for rows in (SIZE, SIZE * WORLD, SIZE // WORLD)
    )
    space = "_c10d_functional"
    starts = [
        f'%a : {whole} = {space}::all_gather_into_tensor(%x, {WORLD}, "0")',
        f'%b : {square} = {space}::all_reduce(%x, "sum", "0")',
        f'%c : {half} = {space}::reduce_scatter_tensor(%x, "sum", {WORLD}, "0")',
    ]
    waits = [
        f"%{name}w : {kind} = {space}::wait_tensor(%{name})"
        for name, kind in (("a", whole), ("b", square), ("c", half))
    ]
    products = ["%p0 : %s = aten::mm(%w, %w)".replace("%s", square)]
    products += [f"%p{i} : {square} = aten::mm(%p{i - 1}, %w)" for i in range(1, PRODUCTS)]
    if at_once:
        lines = [line for pair in zip(starts, waits, strict=True) for line in pair] + products
    else:
        lines = starts + products + waits
    lines.append(f"%y : {square} = aten::add.Tensor(%p{PRODUCTS - 1}, %bw)")
    head = f'graph step(%w : {square} {{parameter "w"}}, %x : {square} {{user_input "x"}}):'
    body = "\n".join(f"  {line}" for line in lines)
    outputs = '%y {output "y"}, %aw {output "a"}, %cw {output "c"}'
    return f"gravure 1\n{head}\n{body}\n  return ({outputs})\n"


def rank_main(out: Path) -> None:
    import gravure
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    rank = int(os.environ["RANK"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=os.environ["STORE"],
        rank=rank,
        world_size=WORLD,
    )
    generator = torch.Generator().manual_seed(rank)
    w, x = (
        (torch.randn(SIZE, SIZE, generator=generator) / SIZE**0.5).bfloat16().to(device)
        for _ in range(2)
    )
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    found: dict[str, Any] = {"equal": True, "states": {}}
    for at_once in (False, True):
        path = out / f"program{rank}.gv"
        path.write_text(program(str(device), at_once=at_once))
        results = {}
        for way in ("uncaptured", "replayed"):
            loaded = gravure.load(
                path, str(device) if cuda else "host", uncaptured=way == "uncaptured"
            )
            for _ in range(5):
                results[way] = loaded.run([w, x])
            wait()
            dist.barrier()
            wait()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                for _ in range(STEPS):
                    results[way] = loaded.run([w, x])
                wait()
            name = f"{way}{', waits at once' if at_once else ''}"
            seen.export_chrome_trace(str(trace_path(out, name, rank)))
            found["states"][name] = loaded.partition_states()
        pairs = zip(results["uncaptured"], results["replayed"], strict=True)
        found["equal"] &= all(torch.equal(a, b) for a, b in pairs)
    (out / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


# ---- all ranks


def start(out: Path) -> bool:
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "python"), str(root / "tests/python")]
    from ranks import free_port

    environment = os.environ | {
        "OUT": str(out),
        "PYTHONPATH": f"{root / 'python'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "STORE": f"tcp://localhost:{free_port()}",
    }
    command = [sys.executable, "-W", "ignore", __file__]
    ranks = [subprocess.Popen(command, env=environment | {"RANK": str(r)}) for r in range(WORLD)]
    return [process.wait(240) for process in ranks] == [0] * WORLD


def judge(out: Path) -> bool:
    print(HEAD)
    good = True
    for rank in range(WORLD):
        shares = {}
        for way in ("uncaptured", "replayed"):
            for suffix in ("", ", waits at once"):
                name = f"{way}{suffix}"
                found = times(json.loads(trace_path(out, name, rank).read_text()))
                shares[name] = share(found)
                print(row(f"rank {rank}: {name}", found, STEPS))
        said = json.loads((out / f"rank{rank}.json").read_text())
        states = {name: s for name, s in said["states"].items() if name.startswith("replayed")}
        captured = all(set(s) == {"captured"} for s in states.values())
        enough = shares["replayed"] >= 0.8 * shares["uncaptured"] > 0
        good &= said["equal"] and captured and enough
        print(f"rank {rank}: captured {captured}, bits equal {said['equal']}, overlap {enough}")
    return good


def main() -> int:
    if "RANK" in os.environ:
        rank_main(Path(os.environ["OUT"]))
        return 0
    if sys.argv[1:]:
        print(HEAD)
        for path in sys.argv[1:]:
            print(row(Path(path).stem, times(json.loads(Path(path).read_text())), 1))
        return 0
    out = Path(os.environ.get("OUT") or tempfile.mkdtemp())
    return 0 if start(out) and judge(out) else 1


if __name__ == "__main__":
    sys.exit(main())
