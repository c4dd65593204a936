"""Times the whole loop: forward, loss, backward, clipping, AdamW and a cosine schedule.

    python3 tests/cuda/bench_whole_loop.py [--parts loop,schedule,trainer] [--config small]
        [--rounds 8]

loop: the ways below on bench_h200's `small`, in one process and in turns; what they have trained is
compared in bits.
  eager     the loop as people write it
  parts     the same lines; model by torch.compile(backend="gravure"), compile_optimizer, gravure's
            clipping
  one       compile_step with everything inside
  graph     one hand-written CUDA graph of the same loop, its numbers frozen as they were captured
schedule: each step of `one` by itself, waited for; how many are slower than half over the median.
trainer: transformers' Trainer on a GPT-2 of twelve layers, whose host is what is waited for: as it
is; model alone compiled; all of docs/examples/trainers. And what the host's time of a step goes to,
between the Trainer's callbacks.

--device cpu tries it on the host device, with a small model. ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "examples")]
sys.path.append(str(ROOT / "docs" / "examples" / "trainers"))

import gravure  # noqa: E402
import moe_step  # noqa: E402

CONFIGS = {
    "little": dataclasses.replace(moe_step.SMALL, layers=2, dropout=0.0),
    "tiny": moe_step.Config(256, 4, 4, 704, 1024, 2, 128, dropout=0.0),
    "small": moe_step.Config(ffn=1408, dropout=0.0),
}
HORIZON = 10_000  # steps of the schedule: each has another rate
Train = Callable[[Tensor, Tensor], Tensor]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Way:
    def __init__(self, config: moe_step.Config, device: str) -> None:
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model = moe_step.Moe(config, moe=False)
        self.step = moe_step.Step(model).to(device=device, dtype=dtype)
        self.parameters = list(self.step.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, 1e-3)
        self.schedule = lr_scheduler.CosineAnnealingLR(self.optimizer, HORIZON)

    def ended(self, clip: Callable[..., Any]) -> None:
        clip(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()


def eager(way: Way) -> Train:
    def train(ids: Tensor, targets: Tensor) -> Tensor:
        loss = way.step(ids, targets)
        loss.backward()
        way.ended(nn.utils.clip_grad_norm_)
        return loss.detach()

    return train


def parts(way: Way) -> Train:
    compiled = torch.compile(way.step, backend="gravure")
    gravure.compile_optimizer(way.optimizer)

    def train(ids: Tensor, targets: Tensor) -> Tensor:
        loss = compiled(ids, targets)
        loss.backward()
        way.ended(gravure.clip_grad_norm_)
        return loss.detach()

    return train


def one(way: Way) -> Train:
    return gravure.compile_step(
        way.step, optimizer=way.optimizer, scheduler=way.schedule, max_norm=1.0
    )


def graph(way: Way) -> Train:
    """Of eager's kernels, with the numbers of the step that was captured."""
    # torch.optim refuses a capture by this, since its numbers freeze; here they may.
    for name in ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check"):
        setattr(way.optimizer, name, lambda: None)
    held: list[Tensor] = []
    captured, loss = torch.cuda.CUDAGraph(), torch.empty(0)
    plain = eager(way)

    def train(ids: Tensor, targets: Tensor) -> Tensor:
        nonlocal loss
        if held:
            held[0].copy_(ids)
            held[1].copy_(targets)
        else:
            held.extend((ids.clone(), targets.clone()))
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    plain(*held)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                found = way.step(*held)
                found.backward()
                nn.utils.clip_grad_norm_(way.parameters, 1.0)
                way.optimizer.step()
                way.optimizer.zero_grad()
                loss = found.detach()
        captured.replay()
        return loss

    return train


WAYS: dict[str, Callable[[Way], Train]] = {
    "eager": eager, "parts": parts, "one": one, "graph": graph,
}  # fmt: skip
OF_EAGERS_BITS = ("parts", "one")


def loop(config: moe_step.Config, device: str, rounds: int, steps: int) -> list[dict[str, Any]]:
    batches = [moe_step.batch(config, device, seed) for seed in range(16)]
    ways: dict[str, tuple[Way, Train]] = {}
    for name, make in WAYS.items():
        if name == "graph" and device != "cuda":
            continue
        way = Way(config, device)
        ways[name] = way, make(way)
        for i in range(20):
            ways[name][1](*batches[i % 16])
        wait(device)
    stream: dict[str, list[float]] = {name: [] for name in ways}
    alone: dict[str, list[float]] = {name: [] for name in ways}
    host: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (_, train) in ways.items():
            wait(device)
            begun = time.perf_counter()
            for i in range(steps):
                train(*batches[i % 16])
            wait(device)
            stream[name].append((time.perf_counter() - begun) / steps * 1e3)
            for i in range(steps // 2):
                begun = time.perf_counter()
                train(*batches[i % 16])
                host[name].append((time.perf_counter() - begun) * 1e3)
                wait(device)
                alone[name].append((time.perf_counter() - begun) * 1e3)
    rows = []
    for name, (way, _) in ways.items():
        same = None
        if name in OF_EAGERS_BITS:
            pairs = zip(way.parameters, ways["eager"][0].parameters, strict=True)
            same = all(torch.equal(a, b) for a, b in pairs)
        rows.append({
            "part": "loop",
            "way": name,
            "stream_ms": round(statistics.median(stream[name]), 3),
            "step_ms": round(statistics.median(alone[name]), 3),
            "host_ms": round(statistics.median(host[name]), 3),
            "eagers_bits": same,
        })  # fmt: skip
    by = {row["way"]: row for row in rows}
    for row in rows:
        row["of_one"] = round(row["stream_ms"] / by["one"]["stream_ms"], 3)
        if "graph" in by:
            row["of_graph"] = round(row["stream_ms"] / by["graph"]["stream_ms"], 3)
    return rows


def schedule(config: moe_step.Config, device: str, steps: int) -> list[dict[str, Any]]:
    """`graph` beside it: what the machine itself does to a step."""
    batches = [moe_step.batch(config, device, seed) for seed in range(16)]
    rows = []
    for name in ("one", "parts", "graph") if device == "cuda" else ("one", "parts"):
        train = WAYS[name](Way(config, device))
        took = []
        gc.collect()
        for i in range(steps):
            wait(device)
            begun = time.perf_counter()
            train(*batches[i % 16])
            wait(device)
            took.append((time.perf_counter() - begun) * 1e3)
        late = took[10:]
        middle = statistics.median(late)
        slow = [(i + 10, round(ms, 3)) for i, ms in enumerate(late) if ms > 1.5 * middle]
        rows.append({
            "part": "schedule",
            "way": name,
            "steps": len(late),
            "median_ms": round(middle, 3),
            "slowest_ms": round(max(late), 3),
            "slow": slow[:12],
            "count_slow": len(slow),
        })  # fmt: skip
    return rows


def trainer(device: str, steps: int) -> Iterator[dict[str, Any]]:
    import hf_trainer
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback

    class Clock(TrainerCallback):
        """Of the host, between callbacks; the device is waited for at the end of each tenth."""

        def __init__(self) -> None:
            self.marks: list[tuple[str, float]] = []
            self.began = 0.0
            self.ended = 0.0

        def mark(self, name: str) -> None:
            self.marks.append((name, time.perf_counter()))

        def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step == WARM:
                wait(device)
                self.began = time.perf_counter()
            self.mark("between steps: data")

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.mark("forward, backward")

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.mark("clipping, optimizer")

        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            self.mark("schedule, zero_grad")
            if state.global_step == WARM + steps:
                wait(device)
                self.ended = time.perf_counter()

        def parts(self) -> dict[str, float]:
            found: dict[str, list[float]] = {}
            late = self.marks[4 * WARM :]
            for (_, before), (name, now) in zip(late, late[1:], strict=False):
                found.setdefault(name, []).append((now - before) * 1e3)
            return {name: round(statistics.median(ms), 3) for name, ms in found.items()}

    WARM = 12  # noqa: N806
    tiny = device != "cuda"
    layers, width = (2, 32) if tiny else (12, 256)
    ends = {}
    for name in ("eager", "model", "all"):
        torch.manual_seed(0)
        config = GPT2Config(n_layer=layers, n_embd=width, n_head=4, vocab_size=64, n_positions=64)
        model = GPT2LMHeadModel(config)
        clock = Clock()
        settings: dict[str, Any] = {
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 2,
            "max_steps": WARM + steps,
            "logging_steps": 10_000,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "max_grad_norm": 0.0 if name == "all" else 1.0,
        }
        settings |= {"use_cpu": True} if tiny else {}
        if name != "eager":
            model.compile(backend="gravure")
        kind = hf_trainer.Captured if name == "all" else Trainer
        callbacks: list[Any] = [hf_trainer.Clip(1.0)] if name == "all" else []
        with tempfile.TemporaryDirectory() as folder:
            arguments = hf_trainer.TrainingArguments(folder, **settings)
            data = hf_trainer.Tokens()
            kind(model, arguments, train_dataset=data, callbacks=[*callbacks, clock]).train()
        ends[name] = [p.detach().clone() for p in model.parameters()]
        yield {
            "part": "trainer",
            "way": name,
            "step_ms": round((clock.ended - clock.began) / steps * 1e3, 3),
            "parameters": len(ends[name]),
            "host": clock.parts(),
            "eagers_bits": all(map(torch.equal, ends[name], ends["eager"])),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="loop,schedule,trainer")
    parser.add_argument("--config", default="small", choices=CONFIGS)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", help="a file for all rows")
    chosen = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    where = torch.cuda.get_device_name() if chosen.device == "cuda" else "the host device"
    print(f"torch {torch.__version__}, {where}", flush=True)
    config = CONFIGS[chosen.config]
    rows: list[dict[str, Any]] = []
    found: Iterable[dict[str, Any]]
    for part in chosen.parts.split(","):
        if part == "loop":
            found = loop(config, chosen.device, chosen.rounds, chosen.steps)
        elif part == "schedule":
            found = schedule(config, chosen.device, 5 * chosen.steps + 10)
        else:
            found = trainer(chosen.device, 2 * chosen.steps)
        for row in found:
            rows.append(row)
            print(json.dumps(row), flush=True)
        if chosen.json:
            Path(chosen.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
