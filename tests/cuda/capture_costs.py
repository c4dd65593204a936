"""What one more set of sizes, and one more call in flight, take: milliseconds and bytes a node.

    python3 tests/cuda/capture_costs.py [OUT.json] [--layers 2,12]

Synchronised calls of a stack of transformer layers, forward and backward, us a node of both. A
set of sizes: `made`, its first call, in which its program is written, planned and warms up;
`captured`, its second one. A call in flight: `instance`, in which a further instance is made and
captured. Each over the same step of a process that captures nothing. `bytes`: of the device, that
PyTorch does not have, in which there are executables alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # which a fork survives

import bench_in_flight as bench
import torch
from gravure.calls.live_graphs import followed

DEVICE = bench.DEVICE
FIRST, SIZES, INSTANCES = 32, 12, 8


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def outside() -> int:
    """Bytes of the device that PyTorch does not have."""
    if DEVICE != "cuda":
        return 0
    wait()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def step(call: Any, length: int, calls: int = 1) -> float:
    inputs = [bench.batch(i, length=length, rows=4) for i in range(calls)]
    wait()
    began = time.perf_counter()
    losses = [call(x).square().mean() for x in inputs]
    for loss in losses:
        loss.backward()
    wait()
    return time.perf_counter() - began


def measure(layers: int, capture: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = bench.Net(layers).to(DEVICE)
    options = {"uncaptured": not capture, "max_shapes": 64}
    call = torch.compile(model, backend="gravure", dynamic=True, options=options)

    def zero() -> None:
        for p in model.parameters():
            p.grad = None

    def run(length: int, calls: int = 1) -> float:
        zero()
        return step(call, length, calls)

    for length in (FIRST, FIRST, FIRST, FIRST, FIRST + 8, FIRST + 8, FIRST + 8):
        run(length)
    made, captured, replayed, before = [], [], [], outside()
    for i in range(SIZES):
        length = FIRST + 16 + 8 * i
        made.append(run(length))
        captured.append(run(length))
        run(length)
        replayed.append(run(length))
    sizes = (outside() - before) / SIZES
    one, before = [run(FIRST) for _ in range(5)], outside()
    first = run(FIRST, INSTANCES)
    instances = (outside() - before) / (INSTANCES - 1)
    second = run(FIRST, INSTANCES)
    run(FIRST, INSTANCES)
    all_replayed = run(FIRST, INSTANCES)
    found = {
        "layers": layers,
        "capture": capture,
        "made": statistics.median(made),
        "captured": statistics.median(captured),
        "replayed": statistics.median(replayed),
        "one": statistics.median(one),
        "first": first,
        "second": second,
        "all": all_replayed,
        "size_bytes": sizes,
        "instance_bytes": instances,
    }
    if capture:
        programs = [p for graph in followed() for p in graph.report(detailed=True).programs]
        found["nodes"] = len(programs[0].detail["calls"])
        found["programs"] = len(programs)
        found["captures"] = [p.stats["captures"] for p in programs]
    return found


def child(out: Any, *what: Any) -> None:
    try:
        out.send(measure(*what))
    except Exception as error:
        out.send({"error": f"{type(error).__name__}: {error}"[:300]})


def spawn(*what: Any) -> dict[str, Any]:
    forks = multiprocessing.get_context("fork")
    here, there = forks.Pipe(duplex=False)
    process = forks.Process(target=child, args=(there, *what))
    process.start()
    there.close()
    found = here.recv() if here.poll(100) else {"error": "it took too long"}
    process.kill()
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--layers", default="2,12")
    given = parser.parse_args()
    torch.set_num_threads(1)  # threads do not outlive a fork
    rows = []
    print("| layers | nodes | made | captured | instance | bytes, sizes | bytes, instance |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for layers in given.layers.split(","):
        ours, plain = spawn(int(layers), True), spawn(int(layers), False)
        rows += [ours, plain]
        if "error" in ours or "error" in plain:
            print(f"| {layers} | {ours.get('error')} | {plain.get('error')} |", flush=True)
            continue
        node = 1e6 / ours["nodes"]
        shown = [
            (ours["made"] - plain["replayed"]) * node,
            (ours["captured"] - plain["replayed"]) * node,
            (ours["first"] - plain["all"]) * node / (INSTANCES - 1),
        ]
        cells = [f"{each:.1f}" for each in shown]
        cells += [f"{ours[k] / ours['nodes']:.0f}" for k in ("size_bytes", "instance_bytes")]
        print(f"| {layers} | {ours['nodes']} | " + " | ".join(cells) + " |", flush=True)
    if given.out:
        with open(given.out, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
