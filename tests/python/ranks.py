"""Starts rank.py on several processes, and reads what each rank found."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gravure
from gravure_native import library_path

_HERE = Path(__file__).parent
#: What each rank found, by scenario.
Found = dict[str, list[dict[str, Any]]]
#: How each rank's process ends, and with what status.
ENDS = [("end_destroyed", 0), ("end_normally", 0), ("end_raising", 3)]


# Below those that the system gives to connections: one of these would be taken before the ranks
# come to listen there.
_ports = iter(random.SystemRandom().sample(range(12000, 32000), 20000))
_giving = threading.Lock()


def free_port() -> int:
    """Free at this moment, and given once only."""
    while True:
        with _giving, socket.socket() as listening:
            port = next(_ports)
            try:
                listening.bind(("localhost", port))
                return port
            except OSError:
                continue


def out_of(folder: Path, rank: int) -> Path:
    """Where a rank writes what it found."""
    return folder / f"rank{rank}.json"


def found_by(folder: Path, rank: int) -> dict[str, Any]:
    """In its only scenario."""
    return next(iter(json.loads(out_of(folder, rank).read_text()).values()))


def environments(folder: Path, count: int, timeout: float) -> list[dict[str, str]]:
    """What each of `count` ranks finds in its environment, beside what is there."""
    paths = [str(Path(gravure.__file__).parents[1]), str(_HERE), os.environ.get("PYTHONPATH")]
    common = {
        "GRAVURE_LIBRARY": str(library_path()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "STORE": f"tcp://localhost:{free_port()}",
        "STORE_ANEW": f"tcp://localhost:{free_port()}",
        "TIMEOUT": str(timeout),
        "WORLD_SIZE": str(count),
    }
    return [common | {"RANK": str(r), "OUT": str(out_of(folder, r))} for r in range(count)]


class Ranks:
    """Scenarios of `script`, one after another, on `count` processes."""

    def __init__(
        self,
        folder: Path,
        *scenarios: str,
        count: int = 2,
        timeout: float = 60,
        script: Path = _HERE / "rank.py",
    ) -> None:
        self.folder, self.count = folder, count
        command = [sys.executable, "-W", "ignore", str(script), *scenarios]
        self.processes = []
        for own in environments(folder, count, timeout):
            with (folder / f"log{own['RANK']}").open("w") as log:
                process = subprocess.Popen(
                    command, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT
                )
            self.processes.append(process)

    def out(self, rank: int) -> Path:
        return out_of(self.folder, rank)

    def found(self, rank: int) -> dict[str, Any]:
        return found_by(self.folder, rank)

    def wait(self, seconds: float = 120) -> list[int]:
        """Exit statuses. Ends what is still there, which then has the status -9."""
        end = time.monotonic() + seconds
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [process.returncode for process in self.processes]

    def logs(self) -> str:
        return "\n".join((self.folder / f"log{r}").read_text()[-3000:] for r in range(self.count))


def run(
    folder: Path,
    *scenarios: str,
    count: int = 2,
    timeout: float = 60,
    script: Path = _HERE / "rank.py",
) -> Found:
    """Runs the scenarios; all ranks must end well."""
    ranks = Ranks(folder, *scenarios, count=count, timeout=timeout, script=script)
    assert ranks.wait() == [0] * count, ranks.logs()
    found = [json.loads(ranks.out(rank).read_text()) for rank in range(count)]
    return {name: [results[name] for results in found] for name in scenarios}
