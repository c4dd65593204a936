"""torchtitan 0.2.2's compiler toolkit on GPUs: its own `cudagraph` pass, ours, and none.

    python3 tests/cuda/titan_on_gpus.py [RUN...]

A RUN is MODEL-PASSES, with `llama3`, `bucketed` (llama3 with transformer_block_bucketing),
`llama3_8B`, `deepseek_v3` (EP 2) or `deepseek_v3_bucketed`, and `none`, `own` or `ours`; a further
`-bits` has every rank digest its gradients in each step, which takes time. With `turns` instead our
pass and `OTHER` (`own`, or `none`) take turns of `TURN` (20) steps in one process. `RANKS` (4)
processes: FSDP 2 beside TP 2 with four; with two TP 2, where buckets are made FSDP 2. torchtitan
and what it imports must be on the Python path. Prints losses and gradient norms side by side, then
speed, memory and what was captured. `STEPS` (14), `LIMIT` (100 seconds a run) and `ARGUMENTS` (more
for torchtitan) are read from the environment. Without a GPU it tries itself: on the CPU, where it
says nothing of speed.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

_ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests/python"))

from titan_assets import write_assets  # noqa: E402

STEPS, LIMIT, RANKS = (
    int(os.environ.get(name, n)) for name, n in (("STEPS", 14), ("LIMIT", 100), ("RANKS", 4))
)
_SMALL = ["--training.local_batch_size=4", "--training.seq_len=512"]
_DEEPSEEK = [
    *_SMALL,
    "--model.name=compiler_toolkit.deepseek_v3",
    "--parallelism.expert_parallel_degree=2",
]
_ARGUMENTS = {
    "llama3": _SMALL,
    "bucketed": _SMALL,
    "llama3_8B": ["--model.flavor=8B", "--training.local_batch_size=1", "--training.seq_len=2048"],
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v3_bucketed": _DEEPSEEK,
}
_RUNS = (
    "llama3-own llama3-ours bucketed-own bucketed-ours "
    "deepseek_v3-none deepseek_v3-own deepseek_v3-ours"
).split()
_STEP = re.compile(
    r"step: *(\d+) +loss: *(\S+) +grad_norm: *(\S+) +memory: *([\d.]+)GiB\S* +tps: *([\d,]+)"
)


@dataclass
class Run:
    """What one run printed."""

    name: str
    status: str = ""
    seconds: float = 0
    steps: dict[int, tuple[str, str]] = field(default_factory=dict)  # loss and gradient norm
    speed: dict[int, int] = field(default_factory=dict)
    memory: float = 0
    report: str = ""
    log: str = ""
    digests: list[str] = field(default_factory=list)  # by rank
    turns: list[list[float]] = field(default_factory=list)  # microseconds of rank 0's steps

    def read(self, log: str) -> None:
        self.log = log
        for number, loss, norm, memory, speed in _STEP.findall(log):
            self.steps[int(number)] = loss, norm
            self.speed[int(number)] = int(speed.replace(",", ""))
            self.memory = max(self.memory, float(memory))

    def median_speed(self) -> int:
        """Of the second half, where everything that can be is captured."""
        late = [speed for step, speed in self.speed.items() if step > STEPS // 2]
        return int(statistics.median(late)) if late else 0


def passes_of(model: str, passes: str) -> list[str]:
    passes = "ours" if passes == "turns" else passes
    before = ["transformer_block_bucketing"] if model.endswith("bucketed") else []
    toolkit = "torchtitan.experiments.compiler_toolkit.job_config"
    module = "gravure.torchtitan" if passes == "ours" else toolkit
    names = before + (["cudagraph"] if passes != "none" else [])
    chosen = ["--compile.passes", ",".join(names)] if names else []
    return [f"--job.custom_config_module={module}", *chosen]


def arguments_of(model: str, with_bits: bool, in_turns: bool) -> list[str]:
    alone = RANKS == 2  # one of the two meshes that torchtitan asks for has a single rank then
    degree = 1 if alone and model.endswith("bucketed") else 2
    found = [*_ARGUMENTS[model], f"--parallelism.tensor_parallel_degree={degree}"]
    module = "titan_meshes_of_one" if alone else "titan_on_cores"
    module = "titan_digests" if with_bits else "titan_in_turns" if in_turns else module
    return [*found, f"--experimental.custom_import={module}"]


def train(name: str, folder: Path) -> Run:
    model, passes, *bits = name.split("-")
    run, begun = Run(name), time.monotonic()
    report, digests = folder / f"{name}.json", folder / f"{name}.bits"
    turns = folder / f"{name}.turns"
    paths = [_ROOT / "python", _ROOT / "tests/python", os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "DIGESTS": str(digests),
        "GRAVURE_REPORT": str(report),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "LOSSES": str(folder / "losses.json"),  # titan_on_cpu's
        "MESHES_OF_ONE": "1" if RANKS == 2 else "",
        "NCCL_GRAPH_REGISTER": "0",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "TURNS": str(turns),
    }
    launch = f"-m torch.distributed.run --nproc_per_node={RANKS} --rdzv_backend=c10d"
    launch += " --rdzv_endpoint=localhost:0 --local-ranks-filter 0 --role rank --tee 3"
    trainer = ["-m", "torchtitan.experiments.compiler_toolkit.train"]
    if not torch.cuda.is_available():
        trainer = [str(_ROOT / "tests/python/titan_on_cpu.py")]
    command = [sys.executable, *launch.split(), *trainer, "--job.config_file=debug.toml"]
    command += [f"--training.steps={STEPS}", *arguments_of(model, bool(bits), passes == "turns")]
    command += [*passes_of(model, passes), *os.environ.get("ARGUMENTS", "").split()]
    with (folder / f"{name}.log").open("w+") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            run.status = str(process.wait(LIMIT))
        except subprocess.TimeoutExpired:
            run.status = "too long"
            os.killpg(process.pid, 9)
            process.wait()
        log.seek(0)
        run.read(log.read())
    run.seconds = time.monotonic() - begun
    if passes in ("ours", "turns") and report.exists():
        run.report = report.read_text()
    if passes == "turns" and Path(f"{turns}.0").exists():
        run.turns = json.loads(Path(f"{turns}.0").read_text())
    if bits:
        files = [Path(f"{digests}.{rank}") for rank in range(RANKS)]
        run.digests = [file.read_text() if file.exists() else "" for file in files]
    return run


def captured(run: Run) -> str:
    """`forward 11/11, backward 11/11`: partitions captured."""
    try:  # every rank writes the report
        graphs = json.loads(run.report)["graphs"]
    except json.JSONDecodeError:
        return ""
    programs = [p for graph in graphs for p in graph["programs"]]
    return "; ".join(
        ", ".join(f"{e} {s.count('captured')}/{len(s)}" for e, s in p["partitions"].items())
        for p in programs
    )


def show_bits(runs: list[Run]) -> None:
    """In how many steps all gradients of all ranks have the first run's bits."""
    for run in runs[1:]:
        pairs = list(zip(runs[0].digests, run.digests, strict=True))
        ranks = [zip(a.splitlines(), b.splitlines(), strict=True) for a, b in pairs]
        steps = list(zip(*ranks, strict=True))
        equal = sum(all(a == b for a, b in step) for step in steps)
        count = sum(len(step[0][0].split()) for step in steps[:1])
        print(
            f"gradients of {run.name} and {runs[0].name}: {equal} of {len(steps)} steps equal in "
            f"every bit, {count} gradients on each of {RANKS} ranks"
        )


def show_turns(run: Run) -> None:
    """What a step takes in each turn of the two, and how much longer the other's take.

    Both are captured in their first turns, which do not count.
    """
    whole = [turn for turn in run.turns if len(turn) == len(run.turns[0])][2:]
    means = [statistics.mean(turn) for turn in whole]
    pairs = list(zip(means[::2], means[1::2], strict=False))
    if not pairs:
        print(f"{run.name}: too few steps for two turns of each after the first ones")
        return
    ratios = sorted(other / ours for ours, other in pairs)
    print(f"{run.name}, milliseconds a step, ours and the other's by turns of {len(whole[0])}:")
    print(" ".join(f"{ours / 1e3:.1f}|{other / 1e3:.1f}" for ours, other in pairs))
    totals = [statistics.mean(each) for each in zip(*pairs, strict=True)]
    print(
        f"tokens a second: {totals[1] / totals[0]:.3f} times the other's; by turns: "
        f"median {statistics.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}"
    )


def show(runs: list[Run]) -> None:
    for model in dict.fromkeys(run.name.split("-")[0] for run in runs):
        alike = [run for run in runs if run.name.split("-")[0] == model]
        print(f"\n{model}: loss and gradient norm of rank 0")
        print("step " + "".join(f"{run.name.removeprefix(model + '-'):>24}" for run in alike))
        for step in range(1, STEPS + 1):
            row = [" ".join(run.steps.get(step, ("-", "-"))) for run in alike]
            print(f"{step:4} " + "".join(f"{text:>24}" for text in row))
        whole = [run for run in alike if len(run.steps) == STEPS]
        equal = all(run.steps == whole[0].steps for run in whole)
        if len(whole) > 1:
            print(f"the {len(whole)} that ended {'are equal' if equal else 'DIFFER'}")
        show_bits([run for run in whole if run.digests])
    for run in runs:
        if run.turns:
            show_turns(run)
    print("\nrun                 exit       s  tokens/s a GPU   GiB  captured")
    for run in runs:
        print(
            f"{run.name:18} {run.status:>5} {run.seconds:7.0f} {run.median_speed():15,}"
            f" {run.memory:5.2f}  {captured(run)}"
        )


def main() -> None:
    out = Path(os.environ.get("OUT", tempfile.mkdtemp()))
    folder = Path(tempfile.mkdtemp())
    write_assets(folder, 600)
    runs = []
    for name in sys.argv[1:] or _RUNS:
        run = train(name, folder)
        runs.append(run)
        (out / f"{name}.log").write_text(run.log)
        if run.report:
            (out / f"{name}.json").write_text(run.report)
        print(f"{name}: exit {run.status}, {len(run.steps)} steps, {run.seconds:.0f} s", flush=True)
        if run.status != "0":
            errors = [line for line in run.log.splitlines() if "Error" in line]
            print("\n".join(line[:240] for line in errors[-4:]), flush=True)
    show(runs)


if __name__ == "__main__":
    main()
