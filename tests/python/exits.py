"""How long processes with captured collectives take to end: `exits.py TIMES RANKS [AT_ONCE]`.

Each of the four ways to end is taken TIMES times by RANKS processes, AT_ONCE such groups at a time.
With DEVICE=cuda each rank has a GPU, with NCCL. Exit status 0 only if each process ended with the
status that its way has, within five seconds.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ranks import Ranks

# By way: the status of its processes.
WAYS = {
    "end_destroyed": 0,
    "end_normally": 0,
    "end_raising": 3,
    "end_terminated": -signal.SIGTERM,
}
LONGEST = 5.0
_PATIENCE = 120.0


def seconds(way: str, count: int) -> float:
    """From the last line of the script to the end of the slowest rank; infinite if one failed."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(Path(folder), way, count=count)
        limit = time.time() + _PATIENCE
        ends: dict[int, float] = {}
        told = 0.0
        while len(ends) < count and time.time() < limit:
            if way == "end_terminated" and not told and _all_came(ranks):
                told = time.time()
                for process in ranks.processes:
                    process.send_signal(signal.SIGTERM)
            for rank, process in enumerate(ranks.processes):
                if rank not in ends and process.poll() is not None:
                    ends[rank] = time.time()
            time.sleep(0.01)
        statuses = ranks.wait(0)
        if statuses != [WAYS[way]] * count or not _all_came(ranks):
            print(way, "ended with", statuses, ranks.logs(), flush=True)
            return float("inf")
        return max(ends[r] - (told or ranks.found(r)["at"]) for r in range(count))


def _all_came(ranks: Ranks) -> bool:
    return all(ranks.out(rank).exists() for rank in range(ranks.count))


def main() -> int:
    times, count = int(sys.argv[1]), int(sys.argv[2])
    at_once = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    begun, took = time.monotonic(), {}
    with ThreadPoolExecutor(at_once) as pool:
        # The ways in turn, so that different ones meet on a machine.
        calls = [(way, pool.submit(seconds, way, count)) for _ in range(times) for way in WAYS]
        for done, (way, call) in enumerate(calls, start=1):
            took.setdefault(way, []).append(call.result())
            if done % 10 == 0:
                worst = max(second for found in took.values() for second in found)
                print(f"{done} groups, the slowest in {worst:.2f} s", flush=True)
    for way, found in took.items():
        found.sort()
        print(way, json.dumps({"times": times, "median": found[times // 2], "worst": found[-1]}))
    late = sum(second > LONGEST for found in took.values() for second in found)
    total = times * len(WAYS)
    print(
        f"{total - late} of {total} groups of {count} ranks ended within {LONGEST} s, "
        f"{at_once} groups at a time, {time.monotonic() - begun:.0f} s in all"
    )
    return 0 if late == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
