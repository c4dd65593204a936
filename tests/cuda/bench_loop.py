"""What a whole training loop costs on a GPU, each way in turns, in one process.

    python3 tests/cuda/bench_loop.py [--parts bits,loop,dropout,scaler,host,trainer] [--json FILE]

bits: compile_step with scaler, accumulation and clipping beside the plain loop: every bit, which
steps are replays, and whether one waits for the device. loop: the model of moe_step's `small` with
clipping, AdamW and a cosine schedule: eager, model and optimizer compiled apart, compile_step, and
one graph captured by hand, whose numbers are frozen. scaler: likewise with a GradScaler. dropout:
with random numbers. host: the parts of a compiled optimizer's step(). trainer: transformers'
Trainer on a GPT-2.

step: median of synchronised steps. stream: steps back to back. ms. `--device cpu --tiny` tries the
script itself, without the graph and without times that mean anything.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import logging
import statistics
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor, optim

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / p) for p in ("python", "docs/examples", "docs/examples/trainers")]

import gravure  # noqa: E402
import moe_step  # noqa: E402
from gravure.steps import step_compiler  # noqa: E402

LINES: list[dict[str, Any]] = []
DEVICE = "cuda"
TINY = False


def say(**line: Any) -> None:
    LINES.append(line)
    print(json.dumps(line), flush=True)


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x.flatten().view(torch.uint8), y.flatten().view(torch.uint8))
               for x, y in pairs)  # fmt: skip


def replays(step: Any) -> list[list[int]]:
    """(steps, uncaptured ones) of the whole step's programs and of those of gradients alone."""
    found = []
    for compiler in step.gravure_step.compilers():
        programs = [p for graph in compiler.graphs for p in graph.report().programs]
        names = ("steps", "uncaptured_steps")
        found.append([sum(p.stats[name] for p in programs) for name in names])
    return found


# ---- bits


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).float().square().mean()


MAKES: dict[str, Callable[[nn.Module], optim.Optimizer]] = {
    "sgd": lambda m: optim.SGD(m.parameters(), 0.1, momentum=0.9),
    "adamw": lambda m: optim.AdamW(m.parameters(), 0.01),
    "adamw fused": lambda m: optim.AdamW(m.parameters(), 0.01, fused=True),
}


def bits() -> None:
    for name, make in MAKES.items():
        for scaled in (False, True):
            for accumulate in (1, 3):
                for max_norm in (None, 0.05):
                    if (scaled or accumulate > 1) and not (
                        TINY and (accumulate, max_norm) != (3, 0.05)
                    ):
                        _bits(name, make, scaled, accumulate, max_norm)


def _bits(name: str, make: Any, scaled: bool, accumulate: int, max_norm: float | None) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager = Net().to(DEVICE)
    ours = copy.deepcopy(eager)
    optimizers = [make(eager), make(ours)]
    scalers = [
        torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=5, enabled=scaled)
        for _ in range(2)
    ]
    schedulers = [optim.lr_scheduler.CosineAnnealingLR(o, 100) for o in optimizers]

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.float16, enabled=scaled and DEVICE == "cuda"):
            return model(x)

    how = {"scaler": scalers[1]} if scaled else {}
    step: Any = gravure.compile_step(
        lambda x: loss_of(ours, x), optimizer=optimizers[1], scheduler=schedulers[1],
        max_norm=max_norm, accumulate=accumulate, **how,
    )  # fmt: skip
    right, waits, count = True, 0, 36
    for i in range(1, count + 1):
        x = torch.randn(16, 64, device=DEVICE) * (1e6 if scaled and i in (20, 21) else 1.0)
        scalers[0].scale(loss_of(eager, x)).backward()
        if i % accumulate == 0:
            if max_norm is not None:
                scalers[0].unscale_(optimizers[0])
                nn.utils.clip_grad_norm_(eager.parameters(), max_norm)
            scalers[0].step(optimizers[0])
            scalers[0].update()
            optimizers[0].zero_grad()
            schedulers[0].step()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if DEVICE == "cuda" and i > count - 12:
                torch.cuda.set_sync_debug_mode("warn")
            step(x)
            if DEVICE == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        waits += sum("synchroniz" in str(w.message) for w in caught)
        right &= same_bits(eager, ours)
    states = [str(s.state_dict()) for s in scalers]
    say(part="bits", optimizer=name, scaled=scaled, accumulate=accumulate, max_norm=max_norm,
        same_bits=right, same_scaler=states[0] == states[1], scale=scalers[1].get_scale(),
        runs_uncaptured=replays(step), waits_in_last_12=waits)  # fmt: skip


# ---- loops

Run = Callable[[Tensor, Tensor], Tensor]


class Loop:
    """A model of its own with optimizer, schedule and, where it is asked for, a scaler."""

    def __init__(self, config: Any, *, fused: bool, scaled: bool) -> None:
        torch.manual_seed(0)
        dtype = torch.float32 if scaled else torch.bfloat16
        model = moe_step.Step(moe_step.Moe(config, moe=False))
        self.model: Any = model.to(device=DEVICE, dtype=dtype)
        self.optimizer = optim.AdamW(
            self.model.parameters(), 1e-4, **({"fused": True} if fused else {})
        )
        self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10_000)
        self.scaler = torch.amp.GradScaler(DEVICE, enabled=scaled)
        self.scaled = scaled
        self.step: Any = None

    def loss(self, ids: Tensor, targets: Tensor, model: Any = None) -> Tensor:
        with torch.autocast(DEVICE, torch.float16, enabled=self.scaled and DEVICE == "cuda"):
            return (self.model if model is None else model)(ids, targets)

    def plain(self, model: Any, clip: Callable[..., Any]) -> Run:
        def run(ids: Tensor, targets: Tensor) -> Tensor:
            loss = self.loss(ids, targets, model)
            self.scaler.scale(loss).backward()
            if self.scaled:
                self.scaler.unscale_(self.optimizer)
            clip(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.schedule.step()
            return loss.detach()

        return run

    def eager(self, _: Any) -> Run:
        return self.plain(self.model, nn.utils.clip_grad_norm_)

    def apart(self, _: Any) -> Run:
        gravure.compile_optimizer(self.optimizer)
        compiled = torch.compile(self.model, backend="gravure")
        return self.plain(compiled, gravure.clip_grad_norm_)

    def whole(self, _: Any) -> Run:
        how = {"scaler": self.scaler} if self.scaled else {}
        self.step = gravure.compile_step(
            self.loss, optimizer=self.optimizer, scheduler=self.schedule, max_norm=1.0, **how
        )
        return self.step

    def host_numbers(self, _: Any) -> Run:
        """compile_step, its operators that take what is computed of a step count uncaptured."""
        step_compiler.FOR_UPDATES.clear()
        return self.whole(_)

    def graph(self, batch: Any) -> Run:
        """Everything in one, its rate and step count frozen."""
        if DEVICE != "cuda":
            return self.eager(batch)
        held = [t.clone() for t in batch]
        # It refuses captures of optimizers that are not capturable, whose numbers would be frozen.
        self.optimizer._accelerator_graph_capture_health_check = (  # type: ignore[attr-defined]
            lambda: None
        )
        once = self.eager(None)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                once(*held)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loss = once(*held)

        def run(ids: Tensor, targets: Tensor) -> Tensor:
            held[0].copy_(ids)
            held[1].copy_(targets)
            graph.replay()
            return loss

        return run


def _loops(
    part: str, ways: list[str], *, fused: bool, scaled: bool, rounds: int, dropout: float = 0.0
) -> None:
    small = moe_step.Config(dim=32, layers=1, heads=4, ffn=44, vocab=128, batch=2, seq=16)
    config = replace(small if TINY else moe_step.Config(ffn=1408), dropout=dropout)
    warm, steps = (12, 3) if TINY else (14, 30)
    batches = [moe_step.batch(config, DEVICE, i) for i in range(warm + steps)]
    loops, runs, first = {}, {}, {}
    torch._dynamo.reset()
    for way in ways:
        loops[way] = Loop(config, fused=fused, scaled=scaled)
        try:
            runs[way] = getattr(loops[way], way)(batches[0])
            for batch in batches[:warm]:
                runs[way](*batch)
            wait()
        except Exception as error:
            say(part=part, way=way, error=repr(error)[:300])
            runs.pop(way, None)
        step_compiler.FOR_UPDATES["write_numbers"] = "1"
    found: dict[str, dict[str, list[float]]] = {w: {"step": [], "stream": []} for w in runs}
    for _ in range(rounds):
        for way, run in runs.items():
            for batch in batches[warm:]:
                wait()
                begun = time.perf_counter()
                run(*batch)
                wait()
                found[way]["step"].append((time.perf_counter() - begun) * 1e3)
            begun = time.perf_counter()
            for batch in batches[warm:]:
                run(*batch)
            wait()
            found[way]["stream"].append((time.perf_counter() - begun) * 1e3 / steps)
    for way, times in found.items():
        median = statistics.median(times["step"])
        slowest = max(times["step"])
        over = sum(t > 1.5 * median for t in times["step"])
        first = {"same_bits_as_eager": same_bits(loops["eager"].model, loops[way].model)}
        first |= {"dropout": dropout} if dropout else {}
        if loops[way].step is not None:
            first["runs_uncaptured"] = replays(loops[way].step)
        say(part=part, way=way, fused=fused, scaled=scaled, step_ms=round(median, 3),
            stream_ms=round(statistics.median(times["stream"]), 3), slowest_ms=round(slowest, 3),
            steps_over_half_more=over, steps=len(times["step"]), **first)  # fmt: skip
    whole = found.get("whole")
    for way in ("apart", "graph", "host_numbers", "eager"):
        if whole and way in found:
            ratio = {k: round(statistics.median(found[way][k]) / statistics.median(whole[k]), 3)
                     for k in ("step", "stream")}  # fmt: skip
            say(part=part, ratio=f"{way} / whole", **ratio)


def loop() -> None:
    ways = ["eager", "apart", "whole", "graph", "host_numbers"]
    _loops("loop", ways, fused=False, scaled=False, rounds=3)
    _loops("loop", ways[:-1], fused=True, scaled=False, rounds=2)


def dropout() -> None:
    """Each way draws other numbers: times alone, and whether its steps are replays."""
    _loops("dropout", ["eager", "apart", "whole"], fused=False, scaled=False, rounds=1, dropout=0.1)


def scaler() -> None:
    _loops("scaler", ["eager", "apart", "whole"], fused=True, scaled=True, rounds=2)


# ---- the host's parts of a compiled optimizer's step


def host() -> None:
    for count in (6,) if TINY else (113, 400):
        for way in ("foreach", "fused"):
            _host(count, way)


def _host(count: int, way: str) -> None:
    torch.manual_seed(0)
    shapes = [(64,) if i % 3 else (96, 32) for i in range(count)]
    parameters = [torch.randn(s, device=DEVICE, requires_grad=True) for s in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p) * 0.1
    optimizer: Any = optim.AdamW(parameters, 1e-3, **{way: True})
    gravure.compile_optimizer(optimizer)

    def change() -> None:
        optimizer.param_groups[0]["lr"] *= 0.999

    for _ in range(12):
        change()
        optimizer.step()
    update = optimizer.step.gravure_update
    if not update._repeated:
        say(part="host", way=way, parameters=count, error="no straight step")
        return
    repeated = update._repeated[0]
    loaded, settings = repeated.program._program, repeated.settings

    def parts() -> dict[str, Callable[[], Any]]:
        given = [settings.numbers[i] for i in loaded._update.numbers]
        holds = loaded._holds_of_counts
        return {
            "whole step()": optimizer.step,
            "is the optimizer as it was": lambda: settings.are_same(optimizer),
            "its dictionaries of state": repeated._same_state,
            "conditions": lambda: holds(settings.numbers, loaded._counts),
            "numbers passed": lambda: [settings.numbers[i] for i in loaded._update.numbers],
            "native: inputs, numbers, launches": lambda: loaded._repeat(given, loaded._counts),
        }

    took: dict[str, list[float]] = {name: [] for name in parts()}
    for _ in range(4 if TINY else 60):
        change()
        for name, run in parts().items():
            wait()
            begun = time.perf_counter()
            run()
            took[name].append((time.perf_counter() - begun) * 1e6)
    stats = repeated.program.stats()
    say(part="host", way=way, parameters=count, kernels=stats.get("written_kernels"),
        numbers=stats.get("written_numbers"),
        us={name: round(statistics.median(t), 1) for name, t in took.items()})  # fmt: skip


# ---- transformers' Trainer


def trainer() -> None:
    import hf_trainer
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    layers, width, heads, seq, steps = (2, 32, 2, 16, 16) if TINY else (12, 384, 6, 128, 120)
    config = GPT2Config(n_layer=layers,
                        n_embd=width, n_head=heads, n_positions=seq, vocab_size=8192,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip

    class Tokens(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __init__(self) -> None:
            self.rows = torch.randint(
                8192, (4 * steps, seq), generator=torch.Generator().manual_seed(0)
            )

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> dict[str, Tensor]:
            return {"input_ids": self.rows[i], "labels": self.rows[i]}

    class Clock(TrainerCallback):
        """Times of steps, without a wait of its own."""

        def __init__(self) -> None:
            self.begun = 0.0
            self.ms = 0.0

        def on_step_end(self, arguments: Any, state: Any, *_: Any, **kwargs: Any) -> None:
            if state.global_step == steps // 2:
                wait()
                self.begun = time.perf_counter()
            elif state.global_step == steps:
                wait()
                self.ms = (time.perf_counter() - self.begun) * 2e3 / steps

    data, models, ms = Tokens(), {}, {}
    for way in ("eager", "model alone", "captured", "captured, losses not filtered"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
        captured = way.startswith("captured")
        if way != "eager":
            model.compile(backend="gravure")
        with tempfile.TemporaryDirectory() as folder:
            settings: dict[str, Any] = {
                "per_device_train_batch_size": 4, "learning_rate": 1e-4, "bf16": DEVICE == "cuda",
                "lr_scheduler_type": "cosine", "max_steps": steps, "save_strategy": "no",
                "logging_steps": 10_000, "report_to": [], "disable_tqdm": True,
            }  # fmt: skip
            settings |= {"use_cpu": True} if DEVICE == "cpu" else {}
            # A filter of losses that are not finite waits for the device in each step.
            settings["logging_nan_inf_filter"] = "not filtered" not in way
            clock = Clock()
            kind: Any = hf_trainer.Captured if captured else Trainer
            arguments = TrainingArguments(folder, max_grad_norm=1.0, **settings)
            made = kind(model, arguments, train_dataset=data, callbacks=[clock])
            host = HostOf(made, model) if captured else None
            made.train()
        models[way], ms[way] = model, clock.ms
        say(part="trainer", way=way, step_ms=round(clock.ms, 3),
            of_eager=round(clock.ms / ms["eager"], 3),
            of_model_alone=round(clock.ms / ms["model alone"], 3) if "model alone" in ms else None,
            same_bits_as_eager=same_bits(models["eager"], model),
            host_ms=host.medians() if host else None)  # fmt: skip
    say(part="trainer", way="the same model, loop and batches without the Trainer",
        step_ms=round(_plain_gpt2(GPT2LMHeadModel(config), data.rows, steps), 3))  # fmt: skip


class HostOf:
    """What the host takes for the parts of a Trainer's step. The rest is Python's between them, and
    a wait for the device where losses are filtered."""

    PARTS = (
        "get_batch_samples", "_prepare_inputs", "compute_loss", "_clip_grad_norm",
        "floating_point_ops", "training_step",
    )  # fmt: skip

    def __init__(self, trainer: Any, model: Any) -> None:
        self.took: dict[str, list[float]] = {}
        for name in self.PARTS:
            self._time(trainer, name)
        for name in ("train", "zero_grad"):
            self._time(model, name)
        self._time(trainer.accelerator, "backward")
        create = trainer.create_optimizer

        def create_optimizer(*args: Any, **kwargs: Any) -> Any:
            optimizer = create(*args, **kwargs)
            took = self.took.setdefault("optimizer.step", [])
            step = optimizer.step

            @functools.wraps(step)
            def timed(_: Any, *given: Any, **named: Any) -> Any:
                begun = time.perf_counter()
                result = step(*given, **named)
                took.append(time.perf_counter() - begun)
                return result

            optimizer.step = types.MethodType(timed, optimizer)
            return optimizer

        trainer.create_optimizer = create_optimizer

    def _time(self, owner: Any, name: str) -> None:
        call, took = getattr(owner, name), self.took.setdefault(name, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            result = call(*args, **kwargs)
            took.append(time.perf_counter() - begun)
            return result

        object.__setattr__(owner, name, functools.wraps(call)(timed))

    def medians(self) -> dict[str, float]:
        """ms of one call, in the second half of the run."""
        return {
            name: round(statistics.median(took[len(took) // 2 :]) * 1e3, 3)
            for name, took in self.took.items()
            if took
        }


def _plain_gpt2(model: Any, rows: Tensor, steps: int) -> float:
    """What the Trainer's step would take without the Trainer."""
    torch._dynamo.reset()
    model.to(DEVICE).train()
    model.compile(backend="gravure")
    optimizer = optim.AdamW(model.parameters(), 1e-4, fused=True)
    gravure.compile_optimizer(optimizer)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    begun = 0.0
    for i in range(steps):
        if i == steps // 2:
            wait()
            begun = time.perf_counter()
        ids = rows[4 * i : 4 * i + 4].to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        gravure.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    wait()
    return (time.perf_counter() - begun) * 2e3 / steps


PARTS = {
    "bits": bits,
    "loop": loop,
    "dropout": dropout,
    "scaler": scaler,
    "host": host,
    "trainer": trainer,
}


def main() -> None:
    global DEVICE, TINY
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", help="a file for all lines")
    chosen = parser.parse_args()
    DEVICE, TINY = chosen.device, chosen.tiny
    logging.basicConfig(level=logging.WARNING, format="%(message).200s")
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    print(f"torch {torch.__version__}, {name}")
    for part in chosen.parts.split(","):
        begun = time.perf_counter()
        try:
            PARTS[part]()
        except Exception as error:
            say(part=part, error=repr(error)[:500])
        say(part=part, took_s=round(time.perf_counter() - begun, 1))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(LINES, indent=1))


if __name__ == "__main__":
    main()
