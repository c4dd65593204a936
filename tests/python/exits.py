"""Prints how long processes with captured collectives take to end: `python exits.py TIMES RANKS`.

With DEVICE=cuda each rank has a GPU, with NCCL. Each way to end is taken TIMES times.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from ranks import Ranks

WAYS = ("end_destroyed", "end_normally", "end_raising", "end_terminated")


def seconds(way: str, count: int) -> float:
    """From the last line of the slowest rank's script to its end."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(Path(folder), way, count=count)
        if way == "end_terminated":
            while not all(ranks.out(rank).exists() for rank in range(count)):
                time.sleep(0.01)
            started = time.time()
            for process in ranks.processes:
                process.send_signal(signal.SIGTERM)
            ranks.wait()
            return time.time() - started
        ends: dict[int, float] = {}
        limit = time.time() + 120
        while len(ends) < count and time.time() < limit:
            for rank, process in enumerate(ranks.processes):
                if rank not in ends and process.poll() is not None:
                    ends[rank] = time.time()
            time.sleep(0.01)
        if statuses := {process.poll() for process in ranks.processes} - {0, 3}:
            print(statuses, ranks.logs())
        ranks.wait(0)
        return max(ends.get(r, limit) - ranks.found(r)["at"] for r in range(count))


def main() -> None:
    times, count = int(sys.argv[1]), int(sys.argv[2])
    result = {}
    for way in WAYS:
        taken = sorted(seconds(way, count) for _ in range(times))
        result[way] = {"times": times, "median": taken[times // 2], "worst": taken[-1]}
        print(way, json.dumps(result[way]), flush=True)


if __name__ == "__main__":
    main()
