"""How long processes with captured collectives take to end: `exits.py TIMES RANKS [AT_ONCE]`.

Each of the four ways to end is taken TIMES times by RANKS processes, AT_ONCE such groups at a time.
With DEVICE=cuda each rank has a GPU, with NCCL. Exit status 0 only if each process ended with the
status that its way has, within five seconds.

Ranks are forked from this process, which has imported PyTorch and touched no device: they begin at
once, and end as any interpreter does that ran rank.py.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import ranks
import torch.distributed._functional_collectives  # noqa: F401

# By way: the status of its processes.
WAYS = {
    "end_destroyed": 0,
    "end_normally": 0,
    "end_raising": 3,
    "end_terminated": -signal.SIGTERM,
}
LONGEST = 5.0
_PATIENCE = 100.0
_SCRIPT = Path(__file__).parent / "rank.py"


class InChild(Exception):
    """Raised in a forked process alone, out of all that its parent was about."""


@dataclass
class Group:
    """Ranks that end in one way."""

    way: str
    count: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))
    processes: list[int] = field(default_factory=list)  # by rank
    ends: dict[int, float] = field(default_factory=dict)  # by rank
    statuses: dict[int, int] = field(default_factory=dict)
    told: float = 0.0  # when they were asked to end
    begun: float = field(default_factory=time.time)

    def start(self) -> None:
        """Raises InChild in each of the new processes."""
        sys.stdout.flush()
        for environment in ranks.environments(self.folder, self.count, timeout=60):
            process = os.fork()
            if process == 0:
                os.environ.update(environment)
                log = os.open(self._log(environment["RANK"]), os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                raise InChild(self.way)
            self.processes.append(process)

    def has_ended(self) -> bool:
        """Looks at all processes, which are ended where they take too long."""
        if self.way == "end_terminated" and not self.told and self._all_came():
            self.told = time.time()
            self._signal(signal.SIGTERM)
        for rank, process in enumerate(self.processes):
            if rank not in self.ends and (found := os.waitpid(process, os.WNOHANG))[0]:
                self.ends[rank] = time.time()
                self.statuses[rank] = os.waitstatus_to_exitcode(found[1])
        if time.time() > self.begun + _PATIENCE:
            self._signal(signal.SIGKILL)
        return len(self.ends) == self.count

    def seconds(self) -> float:
        """From the last line of the script to the end of the slowest rank; infinite if one failed.

        The group is gone afterwards.
        """
        came, seconds = self._all_came(), float("inf")
        if came and set(self.statuses.values()) == {WAYS[self.way]}:
            asked = [self.told or ranks.found_by(self.folder, r)["at"] for r in range(self.count)]
            seconds = max(self.ends[r] - asked[r] for r in range(self.count))
        else:
            logs = [Path(self._log(r)).read_text()[-3000:] for r in range(self.count)]
            print(self.way, "ended with", self.statuses, *logs, sep="\n", flush=True)
        shutil.rmtree(self.folder)
        return seconds

    def _signal(self, number: int) -> None:
        for rank, process in enumerate(self.processes):
            if rank not in self.ends:
                os.kill(process, number)

    def _all_came(self) -> bool:
        return all(ranks.out_of(self.folder, rank).exists() for rank in range(self.count))

    def _log(self, rank: int | str) -> str:
        return str(self.folder / f"log{rank}")


def ended(ways: list[str], count: int, at_once: int) -> Iterator[Group]:
    """Groups that end in these ways, as each has."""
    active: list[Group] = []
    while ways or active:
        while ways and len(active) < at_once:
            active.append(Group(ways.pop(0), count))
            active[-1].start()
        for group in active[:]:
            if group.has_ended():
                active.remove(group)
                yield group
        time.sleep(0.01)


def main() -> int:
    times, count = int(sys.argv[1]), int(sys.argv[2])
    at_once = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    begun, took = time.monotonic(), {way: [] for way in WAYS}
    total = times * len(WAYS)
    # The ways in turn, so that different ones meet on a machine.
    for done, group in enumerate(ended(list(WAYS) * times, count, at_once), start=1):
        took[group.way].append(group.seconds())
        if done % 10 == 0:
            worst = max(second for found in took.values() for second in found)
            spent = time.monotonic() - begun
            print(f"{done} groups, the slowest in {worst:.2f} s; {spent:.0f} s in all", flush=True)
    for way, found in took.items():
        found.sort()
        print(way, json.dumps({"times": times, "median": found[times // 2], "worst": found[-1]}))
    late = sum(second > LONGEST for found in took.values() for second in found)
    print(
        f"{total - late} of {total} groups of {count} ranks ended within {LONGEST} s, "
        f"{at_once} groups at a time, {time.monotonic() - begun:.0f} s in all"
    )
    return 0 if late == 0 else 1


if __name__ == "__main__":
    way = ""
    try:
        status = main()
    except InChild as child:
        way = str(child)
    if not way:
        sys.exit(status)
    sys.argv = [str(_SCRIPT), way]
    runpy.run_path(str(_SCRIPT), run_name="__main__")
