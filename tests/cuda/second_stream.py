"""What kernels on a second stream do to the graphs of a process, whoever made these.

    python3 tests/cuda/second_stream.py [--config small] [--variant full_step_own_stream] [--copies]

After some five kernels on a second stream every graph of the process is slower, until another
process uses the GPU. Prints how long a step of one of bench_h200.py's variants takes, back to back,
after so many kernels; with --copies after so many copies from pinned memory, which do no harm.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import bench_h200 as bench
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="small", choices=list(bench.CONFIGS))
    parser.add_argument("--variant", default="full_step_own_stream")
    parser.add_argument("--copies", action="store_true")
    options = parser.parse_args()
    os.environ["GRAVURE_BENCH_PROGRAM"] = tempfile.mkdtemp()
    step, data = bench.make(options.config)
    run = bench.build(options.variant, step, data, {})
    for batch in data[:12]:
        run(*batch)

    def measured() -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for batch in data[-bench.STEPS :]:
            run(*batch)
        torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - begun) / bench.STEPS

    side = torch.cuda.Stream()
    there, here = torch.ones(1 << 10, device="cuda"), torch.ones(1 << 10).pin_memory()
    print(f"| {'copies' if options.copies else 'kernels'} | us a step |\n|---:|---:|")
    done = 0
    for count in (0, 1, 1, 1, 1, 1, 1, 1, 1, 8, 100, 1000):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(count):
                there.copy_(here, non_blocking=True) if options.copies else there.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        done += count
        print(f"| {done} | {min(measured() for _ in range(3)):.0f} |", flush=True)


if __name__ == "__main__":
    main()
