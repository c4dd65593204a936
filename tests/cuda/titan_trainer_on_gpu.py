"""torchtitan 0.3's graph trainer on one GPU or several: its own `cudagraph_pass`, ours, and none.

    python3 tests/cuda/titan_trainer_on_gpu.py --seconds 240 --out FOLDER [RUN...]

torchtitan 0.3.0 and what it imports must be on the Python path, and `GRAVURE_LIBRARY` set where the
library is not in the package. Each run is a process, with its JSON and its log in FOLDER: one that
ended well is not run again, so the same call goes on where time was up. A RUN is a part of a name:
`bits-CASE-PASSES` (six deterministic steps, several runs at once) or `speed-CASE-PASSES` (alone on
the GPU; `ours,own` are turns in one process). `--list` names all. Without a GPU the program tries
itself on the CPU: there own passes fail, and speeds say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
sys.path.insert(0, str(_ROOT / "tests/python"))

from titan_assets import write_assets  # noqa: E402

_ERROR = re.compile(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception|Failed|Interrupt)\b")
ON_GPU = torch.cuda.is_available()
PROCESS = _HERE / "titan_trainer_process.py"
PRECOMPILE = "torchtitan.experiments.graph_trainer.precompile_main"
OURS, MORE = "gravure.torchtitan", "titan_more_configs"
SDPA = "graph_trainer_llama3_debugmodel_sdpa"
LLAMA, DEEPSEEK = "graph_trainer.llama3", "graph_trainer.deepseek_v3"


@dataclass(frozen=True)
class Case:
    """`module`: torchtitan's, or of configurations that its registries lack."""

    module: str
    config: str
    arguments: tuple[str, ...] = ()
    needs_gpu: bool = False
    ranks: int = 1  # more need as many GPUs


def with_sdpa(*arguments: str) -> Case:
    return Case(LLAMA, SDPA, arguments)


def on_ranks(ranks: int, *arguments: str) -> Case:
    return Case(LLAMA, SDPA, arguments, needs_gpu=True, ranks=ranks)


TENSOR_2 = "--parallelism.tensor_parallel_degree=2"
FLEX = Case(LLAMA, "graph_trainer_llama3_debugmodel", (), needs_gpu=True)
# What has no deterministic kernel warns; whether runs repeat, "again" tells.
WARN = "--debug.deterministic_warn_only"
DEEPSEEK_SDPA = Case(MORE, "graph_trainer_deepseek_v3_debugmodel_sdpa", (WARN,))
ARTIFACT = "--compile.precompile_artifact_dir=ARTIFACT"
WHOLE = "--compile.inductor_compilation=full"
ONE = "--parallelism.data_parallel_shard_degree=1"
BITS = {
    "llama3": with_sdpa(),
    "llama3_flex": FLEX,
    "deepseek_v3": DEEPSEEK_SDPA,
    "deepseek_v3_flex": Case(
        DEEPSEEK, "graph_trainer_deepseek_v3_debugmodel", (WARN,), needs_gpu=True
    ),
    "llama3_tied": Case(MORE, "graph_trainer_llama3_debugmodel_sdpa_tied"),
    "policy_full": with_sdpa("--compile.memory_policy=full"),
    "policy_eager": with_sdpa("--compile.memory_policy=eager"),
    "offload": Case(LLAMA, SDPA, ("--compile.memory_policy=sac_and_offload",), needs_gpu=True),
    "microbatches": with_sdpa("--training.global_batch_size=TWICE"),
    "gradients_none": with_sdpa("--training.disable_cuda_graphs"),
    "inductor": with_sdpa("--compile.inductor_compilation=full"),
    "precompiled": with_sdpa(ONE, ARTIFACT),
    # From an artifact that was made without Gravure. (With flex attention torchtitan's own run from
    # one ends in an AssertionError, without a pass, too.)
    "precompiled_elsewhere": with_sdpa(ONE, f"{ARTIFACT}_whole", WHOLE),
    # Its trace, in the run's folder below work/outputs, names the kernels of replays.
    "profiled": with_sdpa("--profiler.enable_profiling", "--profiler.profile_freq=6"),
    "fsdp_2": on_ranks(2),
    "fsdp_2_inductor": on_ranks(2, "--compile.inductor_compilation=full"),
    "fsdp_2_offload": on_ranks(2, "--compile.memory_policy=sac_and_offload"),
    "tensor_2": on_ranks(2, TENSOR_2),
    "tensor_2_async": on_ranks(2, TENSOR_2, "--compile.enable_async_tensor_parallel"),
    "fsdp_2_tensor_2": on_ranks(4, TENSOR_2),
    "fsdp_2_tensor_2_inductor": on_ranks(4, TENSOR_2, "--compile.inductor_compilation=full"),
}
# Batch size, length of a sequence, and steps a turn.
SPEED = {
    "llama3": (with_sdpa(), 8, 2048, 10),
    "llama3_1b": (Case(MORE, "graph_trainer_llama3_1b_sdpa"), 2, 2048, 6),
    "llama3_small": (with_sdpa(), 2, 256, 20),
    "offload": (with_sdpa("--compile.memory_policy=sac_and_offload"), 8, 2048, 10),
    "llama3_flex": (FLEX, 8, 2048, 10),
    "deepseek_v3": (DEEPSEEK_SDPA, 8, 2048, 10),
    "llama3_8b_four_layers": (Case(MORE, "graph_trainer_llama3_8b_sdpa_four_layers"), 2, 2048, 6),
}
PASSES = ("none", "own", "ours")
KINDS = ("losses", "gradients", "parameters")  # what is compared, in bits
FIRST = ("llama3", "llama3_flex", "deepseek_v3")  # these run twice without a pass


@dataclass
class Run:
    name: str
    case: Case
    # Of PASSES, "again" (none once more), "artifact" (made by ours), "artifact_elsewhere" (by
    # torchtitan alone), or turns of several.
    passes: str
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    needs: float = 25  # seconds; where fewer are left, it is not begun
    limit: float = 150

    def command(self, folder: Path, port: int) -> list[str]:
        if self.passes.startswith("artifact"):
            program = ["-m", PRECOMPILE]
            # Of a whole graph the code insists on what it was traced with.
            if not ON_GPU or WHOLE in self.case.arguments:
                program = [str(_ROOT / "tests/python/titan_precompile.py")]
        else:
            program = [str(PROCESS)]
        registered = self.case.module != MORE
        ours = self.passes.split(",")[0] in ("ours", "artifact")  # they look for a hook of ours
        module = OURS if ours and registered else self.case.module
        given = [*program, f"--module={module}", f"--config={self.case.config}"]
        if ours and not registered:
            given += ["--compile.pass_pipeline=cudagraph"]
        if self.passes in ("none", "again"):
            given += ["--compile.disable_passes=cudagraph_pass"]
        given += [
            "--hf_assets_path=tests/assets/tokenizer",
            "--dataloader.dataset_path=tests/assets/c4_test",
            f"--dump_folder=outputs/{self.name.replace(',', '-')}",
            "--debug.seed=0",
            *self.arguments,
            *self.case.arguments,
        ]
        artifact = str(folder / "artifact")
        ranks = ["-m", "torch.distributed.run", f"--nproc_per_node={self.case.ranks}"]
        ranks += [f"--master_port={port}"] if self.case.ranks > 1 else []
        given = (ranks if self.case.ranks > 1 else []) + given
        return [sys.executable, *(each.replace("ARTIFACT", artifact) for each in given)]


def bits_run(name: str, passes: str) -> Run:
    batch, length = (4, 512) if ON_GPU else (2, 32)
    case = BITS[name]
    twice = [each.replace("TWICE", str(2 * batch)) for each in case.arguments]
    case = dataclasses.replace(case, arguments=tuple(twice))
    arguments = ["--debug.deterministic", "--training.steps=6"]
    arguments += [f"--training.local_batch_size={batch}", f"--training.seq_len={length}"]
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return Run(f"bits-{name}-{passes}", case, passes, arguments, environment)


def speed_run(name: str, passes: str) -> Run:
    case, batch, length, turn = SPEED[name]
    seconds = 15 if "," in passes else 5
    if not ON_GPU:
        batch, length, turn, seconds = 2, 32, 3, 2
    arguments = ["--training.steps=100000", "--metrics.log_freq=100000"]
    arguments += [f"--training.local_batch_size={batch}", f"--training.seq_len={length}"]
    environment = {"TURNS": passes, "TURN": str(turn), "TURNS_SECONDS": str(seconds)}
    return Run(f"speed-{name}-{passes}", case, passes, arguments, environment, 30 + seconds)


def bits_runs(names: Sequence[str]) -> list[Run]:
    found = []
    for name in names:
        again = ["again"] if name in FIRST else []
        found += [bits_run(name, passes) for passes in (*PASSES, *again)]
    return found


def stages() -> list[list[Run]]:
    """Runs of one stage may run at once; those of speed stand alone."""
    both, all_three = ("ours,own", "ours,own,none") if ON_GPU else ("ours,none", "ours,none")
    first = bits_runs(FIRST)
    first.append(bits_run("precompiled", "artifact"))
    first.append(bits_run("precompiled_elsewhere", "artifact_elsewhere"))
    found = [first]
    found += [[speed_run("llama3", all_three)], [speed_run("llama3_1b", both)]]
    found += [bits_runs([name for name in BITS if name not in FIRST])]
    found += [[speed_run(name, all_three)] for name in ("llama3_small", "deepseek_v3", "offload")]
    found += [[speed_run("llama3_1b", passes)] for passes in ("own", "ours")]
    found += [[speed_run("llama3", passes)] for passes in ("own", "ours")]
    found += [[speed_run("llama3_flex", both)], [speed_run("llama3_8b_four_layers", both)]]
    found += [[speed_run(name, "none")] for name in ("llama3_1b", "llama3")]
    gpus = torch.cuda.device_count()
    found = [[r for r in stage if r.case.ranks <= max(1, gpus)] for stage in found]
    if not ON_GPU:
        large = ("llama3_1b", "llama3_8b_four_layers")
        found = [[r for r in s if not any(f"-{n}-" in r.name for n in large)] for s in found]
        found = [[r for r in s if not r.case.needs_gpu] for s in found]
    return [stage for stage in found if stage]


class Runner:
    def __init__(self, out: Path, seconds: float, together: int) -> None:
        self._out, self._together = out, together
        self._deadline = time.monotonic() + seconds
        self._folder = out / "work"
        if not (self._folder / "tests").exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            write_assets(self._folder, 600)

    def left(self) -> float:
        return self._deadline - time.monotonic()

    def run(self, stage: Sequence[Run]) -> None:
        waiting = list(stage)
        running: list[tuple[Run, subprocess.Popen[bytes], float]] = []
        while waiting or running:
            waiting = [run for run in waiting if self.left() > run.needs]
            while waiting and len(running) < self._together:
                run = waiting.pop(0)
                running.append((run, self._start(run), time.monotonic()))
            for each in list(running):
                run, process, begun = each
                took = time.monotonic() - begun
                status = process.poll()
                if status is None and self.left() > 2 and took < run.limit:
                    continue
                running.remove(each)
                if status is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                self._note(run, status, took)
            time.sleep(0.2)

    def path(self, run: Run, what: str) -> Path:
        return self._out / f"{run.name.replace(',', '+')}.{what}"

    def _start(self, run: Run) -> subprocess.Popen[bytes]:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = [_ROOT / "python", _ROOT / "tests/python", *filter(None, given)]
        environment = os.environ | {
            "FOUND": str(self.path(run, "found")),
            "HF_DATASETS_OFFLINE": "1",
            "HF_HOME": str(self._folder / "outputs" / run.name.replace(",", "-")),
            "HF_HUB_OFFLINE": "1",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "NCCL_GRAPH_REGISTER": "0",
            "OMP_NUM_THREADS": "4" if ON_GPU else "1",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "RANK": "0",
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
            "WORLD_SIZE": "1",
        }
        self.path(run, "found").unlink(missing_ok=True)
        with self.path(run, "log").open("wb") as log:
            return subprocess.Popen(
                run.command(self._out, port),
                cwd=self._folder,
                env=environment | run.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _note(self, run: Run, status: int | None, took: float) -> None:
        found: dict[str, Any] = {}
        if self.path(run, "found").exists():
            found = json.loads(self.path(run, "found").read_text())
            self.path(run, "found").unlink()
        for rank in range(1, run.case.ranks):
            path = self.path(run, f"found.{rank}")
            if path.exists():
                others = json.loads(path.read_text())
                path.unlink()
                found["others"] = [*found.get("others", []), {k: others.get(k) for k in KINDS}]
        found |= {"status": "too long" if status is None else status, "took": round(took, 1)}
        if status != 0:
            found["log_end"] = self.path(run, "log").read_text(errors="replace")[-4000:]
        self.path(run, "json").write_text(json.dumps(found, indent=1))
        print(f"{run.name}: exit {found['status']}, {took:.0f} s", flush=True)
        if status != 0:
            print("    " + last_error(found["log_end"])[:300], flush=True)

    def read(self, run: Run) -> dict[str, Any]:
        path = self.path(run, "json")
        return dict(json.loads(path.read_text())) if path.exists() else {}


def last_error(log: str) -> str:
    """The line with which the traceback ends, or the log's own end where there is none."""
    lines = [line for line in log.splitlines() if _ERROR.match(line)]
    return lines[-1].strip() if lines else log[-200:].strip().replace("\n", " | ")


def what_ran(found: dict[str, Any]) -> str:
    """Partitions, replays, what stayed on the host, and torchtitan's own captures."""
    told = []
    for program in found.get("programs", []):
        if program["failure"]:
            told.append(f"FAILURE {program['failure'][:160]}")
        if "stats" in program:
            states = [
                f"{n} {s}" for each in program["partitions"].values() for s, n in each.items()
            ]
            told.append(f"{', '.join(states)}, {program['stats'].get('replays', 0)} replays")
            told += [f"host {n}x {name[:80]}" for name, n in program["host_nodes"].items()]
            told += [f"remark {n}x {name[:160]}" for name, n in program["remarks"].items()]
    captured = found.get("own_captured") or []
    if captured:
        told.append(f"own: {sum(captured)} of {len(captured)} captured")
    if found.get("own_refused"):
        refused = list(found["own_refused"].items())
        more = f" and {len(refused) - 3} more operators" if len(refused) > 3 else ""
        told.append(f"own refused {', '.join(f'{n}x {name}' for name, n in refused[:3])}{more}")
    return "; ".join(told)


def show_bits(read: Callable[[Run], dict[str, Any]], runs: Sequence[Run]) -> None:
    print("\nbits, against the run without a pass")
    for run in runs:
        found = read(run)
        if not found:
            continue
        wanted = read(Run(run.name.rsplit("-", 1)[0] + "-none", run.case, "none"))
        if found["status"] != 0:
            told = f"exit {found['status']}: {last_error(found.get('log_end', ''))[:200]}"
        elif run.passes not in (*PASSES[1:], "again") or wanted.get("status") != 0:
            compared = run.passes in (*PASSES[1:], "again")
            told = "ended; nothing to compare" if compared else "ended"
        else:
            unequal = [kind for kind in (*KINDS, "others") if found.get(kind) != wanted.get(kind)]
            told = f"DIFFERS in {', '.join(unequal)}" if unequal else "equal in every bit"
        count = len(found.get("gradients", []))
        print(f"{run.name:32} {found['took']:5.0f} s {count:2} steps  {told}  {what_ran(found)}")
        usual = wanted.get("warnings", {})  # torchtitan's, of any run
        for name, said in found.get("warnings", {}).items():
            for each in said:
                if run.passes in PASSES[1:] and each not in usual.get(name, ()):
                    print(f"{'':34}{name}: {each[:220]}")


def show_speed(read: Callable[[Run], dict[str, Any]], runs: Sequence[Run]) -> None:
    head = "tokens/s  step ms  launched  graph: device   host ms | MiB: allocated reserved device"
    print(f"\nspeed: medians of turns, without the first of each\n{'':46}{head}")
    for run in runs:
        found = read(run)
        if not found:
            continue
        names = run.passes.split(",")
        turns = [t for t in found.get("turns", [])][len(names) :]
        if found["status"] != 0 or len(turns) < len(names):
            error = last_error(found.get("log_end", ""))[:200]
            print(f"{run.name}: exit {found['status']}, {len(turns)} turns: {error}")
            continue
        for name in names:
            alike = [turn for turn in turns if turn["name"] == name]
            keys = ("step_ms", "launched_ms", "graph_device_ms", "graph_host_ms")
            cells = [statistics.median(turn[key] for turn in alike) for key in keys]
            speed = statistics.median(turn["tokens_a_second"] for turn in alike)
            held = found.get("memory", {}) if len(names) == 1 else {}
            print(
                f"{run.name + ': ' + name:40} {len(alike):3}x {speed:10,.0f} "
                + " ".join(f"{cell:9.2f}" for cell in cells)
                + "  |  "
                + " ".join(f"{size:,}" for size in held.values())
            )
        by_round = [turns[i : i + len(names)] for i in range(0, len(turns), len(names))]
        for i, name in enumerate(names[1:], 1):
            whole = [r for r in by_round if len(r) == len(names)]
            ratios = sorted(r[0]["tokens_a_second"] / r[i]["tokens_a_second"] for r in whole)
            print(
                f"    {names[0]} has {statistics.median(ratios):.3f} times the tokens a second of "
                f"{name}; by rounds {ratios[0]:.3f} to {ratios[-1]:.3f}"
            )
        print(f"    {what_ran(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--out", type=Path, default=Path("out/titan_trainer"))
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--together", type=int, default=max(1, min(8, cores // 2)))
    parser.add_argument("--list", action="store_true", help="names all runs, and runs none")
    parser.add_argument("runs", nargs="*", help="parts of names; all, where there is none")
    given = parser.parse_args()
    parts = given.runs or [""]
    chosen = [[r for r in s if any(part in r.name for part in parts)] for s in stages()]
    everything = [run for stage in chosen for run in stage]
    if given.list:
        print("\n".join(run.name for run in everything))
        return
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    runner = Runner(out, given.seconds, given.together)
    known = {run.name: runner.read(run).get("status") for run in everything}
    for failed in (False, True):  # those that failed before come last
        for stage in chosen:
            runner.run(
                [r for r in stage if known[r.name] != 0 and failed is (known[r.name] is not None)]
            )
    show_bits(runner.read, [run for run in everything if run.name.startswith("bits-")])
    show_speed(runner.read, [run for run in everything if run.name.startswith("speed-")])


if __name__ == "__main__":
    main()
