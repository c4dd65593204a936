"""Counts what the host waits for in warm-up, capture and replay of a step that reads nothing.

    python3 tests/cuda/count_waits.py [CONFIG]

Prints every synchronising call of the CUDA runtime that a profile of the first eight steps holds, a
row each. Exit status 0 only if there is none but the profiler's own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter

import bench_h200 as bench
import torch
from torch.profiler import ProfilerActivity, profile

WAITS = ("Synchronize", "cudaFree", "cudaMemcpy")  # cudaMemcpyAsync does not wait


def main() -> int:
    config = sys.argv[1] if len(sys.argv) > 1 else "small"
    os.environ["GRAVURE_BENCH_PROGRAM"] = tempfile.mkdtemp()
    step, data = bench.make(config)
    bench.eager(step)(*data[0])  # a library that is used for the first time calls cudaFree(0)
    step.zero_grad(set_to_none=True)
    run = bench.build("gravure", step, data, {})
    torch.cuda.synchronize()
    results = None
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for i in range(8):
            results = None
            results = run(*data[i])
    del results
    found = Counter(
        event.name
        for event in seen.events()
        if any(name in event.name for name in WAITS) and not event.name.endswith("Async")
    )
    found.subtract({"cudaDeviceSynchronize": 1})  # the profiler's, when it stops
    for name, count in sorted(found.items()):
        print(f"{name}: {count}")
    waits = sum(count for count in found.values() if count > 0)
    print(f"{config}: {waits} waits in two warm-ups, a capture and five replays")
    return 0 if waits == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
