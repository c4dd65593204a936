"""Shows what warm-up leaves behind for a capture: memory reserved, by where warm-up ran.

    python3 tests/cuda/fragmentation.py [CONFIG]

A block of the caching allocator belongs to a stream and to a pool. What warm-up cached on the
caller's stream serves no capture on another; what it cached in the capture's pool is cut up as
warm-up needed it. Each line is one process: MiB reserved before, after warm-up, and after capture
of the whole step.
"""

from __future__ import annotations

import subprocess
import sys

import bench_h200 as bench
import torch

WAYS = {
    "caller's stream, default pool": (False, False),
    "capture's stream, default pool": (True, False),
    "caller's stream, the graph's pool": (False, True),
    "capture's stream, the graph's pool": (True, True),
}


def one(config: str, same_stream: bool, same_pool: bool) -> tuple[int, int, int]:
    step, data = bench.make(config)
    train = bench.eager(step)
    ids, targets = data[0]
    side = torch.cuda.Stream()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
    before = torch.cuda.memory_reserved()
    warm = side if same_stream else torch.cuda.current_stream()
    with torch.cuda.stream(warm):
        for _ in range(3):
            if same_pool:
                with torch.cuda.use_mem_pool(pool):
                    train(ids, targets)
            else:
                train(ids, targets)
    step.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    warmed = torch.cuda.memory_reserved()
    with torch.cuda.graph(graph, pool=pool.id, stream=side, capture_error_mode="thread_local"):
        loss = step(ids, targets)
        loss.backward()
    return before >> 20, warmed >> 20, torch.cuda.memory_reserved() >> 20


def main() -> None:
    config = sys.argv[1] if len(sys.argv) > 1 else "mid"
    if len(sys.argv) > 2:
        print(*one(config, *WAYS[sys.argv[2]]))
        return
    print("| warm-up on | before | after warm-up | after capture |\n|---|---|---|---|")
    for way in WAYS:
        done = subprocess.run(
            [sys.executable, __file__, config, way], capture_output=True, text=True
        )
        said = done.stdout.split() or [(done.stderr.strip().splitlines() or ["?"])[-1]]
        print(f"| {way} | " + " | ".join(said) + " |", flush=True)


if __name__ == "__main__":
    main()
