"""Trains real models at usual sizes, each way in a process of its own: time, memory and bits.

    python3 tests/cuda/bench_models.py [--models gpt2,llama_1b] [--ways eager,gravure] [--rounds 3]
    python3 tests/cuda/bench_models.py --short       three models, three ways
    python3 tests/cuda/bench_models.py --seconds 500 ends by then, and says what is left
    python3 tests/cuda/bench_models.py --show        the table of what is there

Weights are random; attention, dropout and losses are the libraries' defaults. Gradients are
clipped and fused AdamW steps, outside of the compiled code. Results are kept in $OUT/models, a
file a model, way and round; one that is there is not measured again: what was cut short goes on.
Figures of every model come first, then bits. Caches of compiled kernels are empty for each process;
`--warm` keeps one for all, and the first call's seconds bear a star. A process is a fork of one
that has imported the libraries and not touched the GPU; where that cannot be, a new one.
`--jobs 4`: so many processes at once; each stops the others while its steps are timed, and none
says how long its first call took. `--device cpu --size tiny` tries the script without a GPU.

Ways: eager; gravure, gravure_inductor: torch.compile(backend="gravure"), ATen's kernels and
Inductor's; gravure_fused: with Inductor's random numbers; gravure_autotune: in the mode
max-autotune; step, step_inductor: gravure.compile_step;
optimizer, optimizer_inductor: gravure.compile_step(optimizer=), which does not clip; aot_eager:
what a first call is compared with; aot_eager_told_eager: of the code that runs eagerly, where
transformers asks whether it is compiled; compile, reduce_overhead, max_autotune (without graphs):
torch.compile's own modes; graph: forward, backward and optimizer in one hand-written graph.

`--one memory MODEL WAY` says what ten steps take and times nothing: several may run at once.

Columns: step: median of synchronised steps; host: until the call returns, the device idle before;
stream: steps back to back; first: the first call with its backward. ms. Memory in MiB: peak,
reserved over the whole run, and reserved after ten steps. idle: the share of a step in which no
kernel runs, from a trace. bits: losses and parameters after eight steps in deterministic mode are
eager's.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from train_models import digest

STEPS, BIT_STEPS = 20, 8
LIMIT_S, LEAST_S = 280, 10  # a process may take; it is not begun with less
SHORT = ("gpt2,bert,resnet50", "eager,gravure,compile")

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model with its loss, and a batch of it. `autocast`: float weights, else all is bfloat16."""

    model: nn.Module
    draw: Callable[[torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor] = lambda model, batch: model(**batch).loss
    autocast: bool = False
    channels_last: bool = False


class Step(nn.Module):
    """What is compiled: a model with its loss."""

    def __init__(self, work: Workload, device: str) -> None:
        super().__init__()
        self.model, self.loss = work.model, work.loss
        self.autocast, self.kind = work.autocast, device

    def forward(self, batch: Batch) -> Tensor:
        with torch.autocast(self.kind, torch.bfloat16, enabled=self.autocast):
            return self.loss(self.model, batch)


def _ids(generator: torch.Generator, vocab: int, *shape: int) -> Tensor:
    return torch.randint(vocab, shape, generator=generator)


def _padding(generator: torch.Generator, rows: int, length: int) -> Tensor:
    """An attention mask as collators pass one: rows of several lengths."""
    lengths = torch.randint(length // 2, length + 1, (rows, 1), generator=generator)
    return (torch.arange(length) < lengths).long()


def _language(
    config: str, model: str, rows: int, length: int, masked: bool = False, **sizes: Any
) -> Workload:
    import transformers

    made = getattr(transformers, config)(**sizes)
    vocab = made.vocab_size

    def draw(generator: torch.Generator) -> Batch:
        ids = _ids(generator, vocab, rows, length)
        batch = {"input_ids": ids, "labels": ids}
        if masked:
            batch["attention_mask"] = _padding(generator, rows, length)
            batch["labels"] = ids.masked_fill(batch["attention_mask"] == 0, -100)
        return batch

    return Workload(getattr(transformers, model)(made), draw)


def gpt2(tiny: bool) -> Workload:
    rows, length = (2, 32) if tiny else (8, 1024)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 500} if tiny else {}
    return _language("GPT2Config", "GPT2LMHeadModel", rows, length, use_cache=False, **sizes)


def _llama(tiny: bool, rows: int, width: int, layers: int, heads: int) -> Workload:
    sizes = {
        "vocab_size": 128256,
        "hidden_size": width,
        "intermediate_size": 8192,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
        "use_cache": False,
    }
    if tiny:
        sizes |= {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 128}
        sizes |= {"num_hidden_layers": 2, "num_attention_heads": 8}
    rows, length = (2, 32) if tiny else (rows, 2048)
    return _language("LlamaConfig", "LlamaForCausalLM", rows, length, **sizes)


def bert(tiny: bool) -> Workload:
    rows, length = (2, 32) if tiny else (32, 512)
    sizes: dict[str, Any] = {}
    if tiny:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"intermediate_size": 128, "vocab_size": 500}
    return _language("BertConfig", "BertForMaskedLM", rows, length, masked=True, **sizes)


def t5(tiny: bool) -> Workload:
    rows, length = (2, 32) if tiny else (32, 512)
    sizes: dict[str, Any] = {"decoder_start_token_id": 0, "use_cache": False}
    if tiny:
        sizes |= {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
        sizes |= {"vocab_size": 500}
    return _language("T5Config", "T5ForConditionalGeneration", rows, length, masked=True, **sizes)


def moe(tiny: bool) -> Workload:
    rows, length = (2, 32) if tiny else (4, 1024)
    sizes = {
        "vocab_size": 500 if tiny else 32000,
        "hidden_size": 64 if tiny else 1024,
        "intermediate_size": 128 if tiny else 3584,
        "num_hidden_layers": 2 if tiny else 8,
        "num_attention_heads": 4 if tiny else 16,
        "num_key_value_heads": 2 if tiny else 8,
        "num_local_experts": 4 if tiny else 8,
        "use_cache": False,
    }
    return _language("MixtralConfig", "MixtralForCausalLM", rows, length, **sizes)


def mamba(tiny: bool) -> Workload:
    rows, length = (2, 16) if tiny else (8, 64)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 500} if tiny else {}
    if not tiny:
        sizes = {"hidden_size": 768, "num_hidden_layers": 24}
    return _language("MambaConfig", "MambaForCausalLM", rows, length, use_cache=False, **sizes)


def vit(tiny: bool) -> Workload:
    import transformers

    sizes: dict[str, Any] = {"num_labels": 1000}
    if tiny:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"intermediate_size": 128, "image_size": 32, "num_labels": 10}
    made = transformers.ViTConfig(**sizes)
    rows, size, labels = 2 if tiny else 64, made.image_size, made.num_labels

    def draw(generator: torch.Generator) -> Batch:
        pixels = torch.randn(rows, 3, size, size, generator=generator)
        return {"pixel_values": pixels, "labels": _ids(generator, labels, rows)}

    return Workload(transformers.ViTForImageClassification(made), draw)


def resnet50(tiny: bool) -> Workload:
    import torchvision.models

    rows, size = (2, 32) if tiny else (128, 224)
    made = (torchvision.models.resnet18 if tiny else torchvision.models.resnet50)()

    def draw(generator: torch.Generator) -> Batch:
        images = torch.randn(rows, 3, size, size, generator=generator)
        return {"x": images, "y": _ids(generator, 1000, rows)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"])

    return Workload(made, draw, loss, autocast=True, channels_last=True)


def unet(tiny: bool) -> Workload:
    """Noise that a model of diffusers predicts; not part of PyTorch's images: install its wheel."""
    import diffusers

    rows, size = (2, 16) if tiny else (32, 64)
    widths = (32, 32) if tiny else (128, 256, 512)
    made = diffusers.UNet2DModel(
        sample_size=size,
        layers_per_block=1 if tiny else 2,
        block_out_channels=widths,
        down_block_types=("DownBlock2D",) * (len(widths) - 1) + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * (len(widths) - 1),
    )

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(2, rows, 3, size, size, generator=generator)
        return {"x": x[0], "noise": x[1], "t": _ids(generator, 1000, rows)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch["x"] + batch["noise"], batch["t"]).sample, batch["noise"])

    return Workload(made, draw, loss)


def wav2vec2(tiny: bool) -> Workload:
    import transformers

    sizes: dict[str, Any] = {"ctc_zero_infinity": True}
    if tiny:
        sizes |= {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"intermediate_size": 128, "num_conv_pos_embedding_groups": 4}
        sizes |= {"conv_dim": (32,) * 7}
    made = transformers.Wav2Vec2Config(**sizes)
    rows, samples = (2, 8000) if tiny else (8, 64000)

    def draw(generator: torch.Generator) -> Batch:
        sound = torch.randn(rows, samples, generator=generator)
        return {"input_values": sound, "labels": 1 + _ids(generator, 30, rows, 12)}

    return Workload(transformers.Wav2Vec2ForCTC(made), draw, autocast=True)


class _Words(nn.Module):
    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.cells = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cells(self.table(ids))[0])


def lstm(tiny: bool) -> Workload:
    vocab, width, rows, length = (500, 64, 2, 16) if tiny else (32000, 1024, 64, 128)

    def draw(generator: torch.Generator) -> Batch:
        return {"ids": _ids(generator, vocab, rows, length)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch["ids"])[:, :-1].flatten(0, 1)
        return F.cross_entropy(scores.float(), batch["ids"][:, 1:].flatten())

    return Workload(_Words(vocab, width), draw, loss)


MODELS: dict[str, Callable[[bool], Workload]] = {
    "gpt2": gpt2,
    "llama_1b": lambda tiny: _llama(tiny, rows=4, width=2048, layers=16, heads=32),
    "llama_3b": lambda tiny: _llama(tiny, rows=2, width=3072, layers=28, heads=24),
    "bert": bert,
    "t5": t5,
    "vit": vit,
    "resnet50": resnet50,
    "unet": unet,
    "wav2vec2": wav2vec2,
    "mamba": mamba,
    "moe": moe,
    "lstm": lstm,
}

# ---- ways to run a step


@dataclass
class Run:
    """One training step after another. `train` returns the loss, detached."""

    step: Step
    optimizer: torch.optim.Optimizer
    train: Callable[[Batch], Tensor] = field(init=False)
    facts: dict[str, Any] = field(default_factory=dict)  # of the way, kept with the figures


def _clipped(run: Run) -> None:
    nn.utils.clip_grad_norm_(run.step.parameters(), 1.0)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)


def _by_autograd(run: Run, call: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
    def train(batch: Batch) -> Tensor:
        loss = call(batch)
        loss.backward()
        _clipped(run)
        return loss.detach()

    return train


def _gravure(run: Run, **options: Any) -> Callable[[Batch], Tensor]:
    import gravure  # noqa: F401

    return _by_autograd(run, torch.compile(run.step, backend="gravure", options=options))


def _one_graph(run: Run, **arguments: Any) -> Callable[[Batch], Tensor]:
    """A compiled step that takes eager's way, with its kernels.

    Where that way looks at data (whether a padding mask is all ones) it is no one graph: there the
    model is told that it is compiled. It then makes masks that eager does without, and attention
    cannot be flash, so nobody is told who need not be.
    """
    import gravure

    options = arguments.pop("options", {})
    compiled = gravure.compile_step(run.step, options=options, **arguments)

    def call(batch: Batch) -> Tensor:
        nonlocal compiled
        if "is_compiling" in run.facts:
            return compiled(batch)
        try:
            loss = compiled(batch)
            run.facts["is_compiling"] = False
        except gravure.ExportError as error:  # before anything has run
            run.facts |= {"is_compiling": True, "refused": str(error)[:400]}
            told = options | {"is_compiling": True}
            compiled = gravure.compile_step(run.step, options=told, **arguments)
            loss = compiled(batch)
        return loss

    return call


def _whole(run: Run, **options: Any) -> Callable[[Batch], Tensor]:
    compiled = _one_graph(run, options=options)

    def train(batch: Batch) -> Tensor:
        loss = compiled(batch)
        _clipped(run)
        return loss

    return train


def _with_optimizer(run: Run, **options: Any) -> Callable[[Batch], Tensor]:
    return _one_graph(run, optimizer=run.optimizer, options=options)


def _graph(run: Run) -> Callable[[Batch], Tensor]:
    """As PyTorch's documentation has it. The optimizer's step is in the graph: it is capturable."""
    for group in run.optimizer.param_groups:
        group["capturable"] = True
    held: Batch = {}
    graph, loss = torch.cuda.CUDAGraph(), torch.empty(0)

    def plain() -> Tensor:
        found = run.step(held)
        found.backward()
        nn.utils.clip_grad_norm_(run.step.parameters(), 1.0)
        run.optimizer.step()
        return found

    def train(batch: Batch) -> Tensor:
        nonlocal loss
        if held:
            for name, value in batch.items():
                held[name].copy_(value)
        else:
            held.update({name: value.clone() for name, value in batch.items()})
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    run.optimizer.zero_grad(set_to_none=True)
                    plain()
            torch.cuda.current_stream().wait_stream(side)
            run.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph):
                loss = plain()
        graph.replay()
        return loss.detach()

    return train


def _told_eager(run: Run) -> Callable[[Batch], Tensor]:
    """The code of models that Gravure compiles. Mamba's loop, if told so, is one operator."""
    asked = "is_torchdynamo_compiling"
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and asked in vars(module):
            setattr(module, asked, lambda: False)
    return _by_autograd(run, torch.compile(run.step, backend="aot_eager"))


WAYS: dict[str, Callable[[Run], Callable[[Batch], Tensor]]] = {
    "eager": lambda run: _by_autograd(run, run.step),
    "gravure": _gravure,
    "gravure_inductor": lambda run: _gravure(run, codegen="inductor"),
    "gravure_fused": lambda run: _gravure(run, codegen="inductor", fused_random=True),
    "gravure_autotune": lambda run: _gravure(run, mode="max-autotune"),
    "step": _whole,
    "step_inductor": lambda run: _whole(run, codegen="inductor"),
    "optimizer": _with_optimizer,
    "optimizer_inductor": lambda run: _with_optimizer(run, codegen="inductor"),
    "aot_eager": lambda run: _by_autograd(run, torch.compile(run.step, backend="aot_eager")),
    "aot_eager_told_eager": _told_eager,
    "compile": lambda run: _by_autograd(run, torch.compile(run.step)),
    "reduce_overhead": lambda run: _by_autograd(
        run, torch.compile(run.step, mode="reduce-overhead")
    ),
    "max_autotune": lambda run: _by_autograd(
        run, torch.compile(run.step, mode="max-autotune-no-cudagraphs")
    ),
    "graph": _graph,
}
# These promise eager's bits. A step without clipping, or with other steps before it, has others.
OF_EAGERS_BITS = ("gravure", "step")


def make(model: str, way: str, size: str, device: str) -> tuple[Run, list[Batch]]:
    torch.manual_seed(0)
    with torch.device(device):  # drawn there: a billion weights take a CPU half a minute
        work = MODELS[model](size == "tiny")
    layout = torch.channels_last if work.channels_last else torch.preserve_format
    dtype = torch.float32 if work.autocast else torch.bfloat16
    step = Step(work, device).to("cpu", dtype, memory_format=layout)
    if device == "cuda":  # nothing of the drawing counts
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = step.to(device).train()
    run = Run(step, torch.optim.AdamW(step.parameters(), lr=1e-4, fused=True))
    run.train = WAYS[way](run)

    def on_device(value: Tensor) -> Tensor:
        kind = dtype if value.is_floating_point() else value.dtype
        images = work.channels_last and value.dim() == 4
        return value.to(device, kind, memory_format=layout if images else torch.preserve_format)

    batches = []
    for seed in range(8):
        batch = work.draw(torch.Generator().manual_seed(seed))
        batches.append({name: on_device(value) for name, value in batch.items()})
    return run, batches


# ---- what is measured


class Device:
    """What a GPU tells; nothing of it on the CPU."""

    def __init__(self, name: str) -> None:
        self.cuda = name == "cuda"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def memory(self) -> dict[str, int]:
        if not self.cuda:
            return {}
        return {
            "peak_mib": torch.cuda.max_memory_allocated() >> 20,
            "peak_reserved_mib": torch.cuda.max_memory_reserved() >> 20,
            "reserved_mib": torch.cuda.memory_reserved() >> 20,
        }

    def pools(self) -> dict[str, list[int]]:
        """MiB of PyTorch's cache a pool: reserved, in use. (0, 0) is everybody's."""
        found: dict[str, list[int]] = {}
        for segment in torch.cuda.memory_snapshot() if self.cuda else ():
            sizes = found.setdefault(str(segment.get("segment_pool_id")), [0, 0])
            sizes[0] += segment["total_size"]
            sizes[1] += segment["active_size"]
        return {pool: [size >> 20 for size in sizes] for pool, sizes in found.items()}


def idle_share(run: Run, batches: list[Batch], device: Device) -> float | None:
    """Of three steps back to back: the share in which no kernel and no copy runs."""
    if not device.cuda:
        return None
    device.wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for batch in batches[:3]:
            run.train(batch)
        device.wait()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    if not spans:
        return None
    busy, until = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return round(1 - busy / (until - spans[0][0]), 3)


def _ten_steps(run: Run, batches: list[Batch], device: Device) -> dict[str, Any]:
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in run.step.parameters())}
    device.wait()
    begun = time.perf_counter()
    run.train(batches[0])
    device.wait()
    found["first_s"] = round(time.perf_counter() - begun, 2)
    found |= {f"{name}_after_first": value for name, value in device.memory().items()}
    for i in range(1, 10):
        run.train(batches[i % len(batches)])
    device.wait()
    found |= {f"{name}_after_ten": value for name, value in device.memory().items()}
    found["pools_after_ten"] = device.pools()
    return found


def _said(run: Run) -> dict[str, Any]:
    found = dict(run.facts)
    if "gravure" in sys.modules:
        import gravure

        found["report"] = str(gravure.report())[-4000:]
        stats = [p.stats for graph in gravure.report().graphs for p in graph.programs]
        found["arenas_mib"] = [each["arena_bytes"] >> 20 for each in stats]
        found["arena_loads_mib"] = [each["arena_load"] >> 20 for each in stats]
        found["copied_mib"] = [each["copied_result_bytes"] >> 20 for each in stats]
        found["staged_mib"] = [each["staged_bytes"] >> 20 for each in stats]
        found["captures"] = [each["captures"] for each in stats]
        found["uncaptured"] = [each["uncaptured_steps"] for each in stats]
    return found


def memory(model: str, way: str, size: str, where: str) -> dict[str, Any]:
    device = Device(where)
    run, batches = make(model, way, size, where)
    found = _ten_steps(run, batches, device) | device.memory() | _said(run)
    if "gravure" in sys.modules:
        import gravure

        found["released_mib"] = gravure.release_memory() >> 20  # what lies on pages, held by nobody
    return found


def figures(model: str, way: str, size: str, where: str) -> dict[str, Any]:
    device = Device(where)
    run, batches = make(model, way, size, where)
    found = _ten_steps(run, batches, device)
    if TURNS in os.environ:  # others compiled meanwhile
        del found["first_s"]
    with alone():
        found |= _times(run, batches, device)
    return found | _said(run)


def _times(run: Run, batches: list[Batch], device: Device) -> dict[str, Any]:
    found: dict[str, Any] = {}
    whole, host = [], []
    for i in range(STEPS):
        device.wait()
        begun = time.perf_counter()
        run.train(batches[i % len(batches)])
        returned = time.perf_counter()
        device.wait()
        whole.append(time.perf_counter() - begun)
        host.append(returned - begun)
    begun = time.perf_counter()
    for i in range(STEPS):
        run.train(batches[i % len(batches)])
    device.wait()
    found["stream_ms"] = round((time.perf_counter() - begun) / STEPS * 1e3, 3)
    found["step_ms"] = round(statistics.median(whole) * 1e3, 3)
    found["host_ms"] = round(statistics.median(host) * 1e3, 3)
    found |= device.memory()
    found["idle"] = idle_share(run, batches, device)
    return found


def digests(model: str, way: str, size: str, where: str) -> dict[str, Any]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    run, batches = make(model, way, size, where)
    torch.manual_seed(1)
    numpy.random.seed(1)  # Wav2Vec2 draws its masks there
    losses = [run.train(batches[i % len(batches)]).clone() for i in range(BIT_STEPS)]
    state = [*run.step.parameters(), *run.step.buffers()]
    return {"digest": digest([*losses, *state]), "loss": float(losses[-1])}


PARTS = {"figures": figures, "memory": memory, "digests": digests}

# ---- several processes: one is timed, the others stand still

TURNS = "GRAVURE_BENCH_TURNS"  # a folder: a lock, and a file a process that runs, named by its id


def _to_others(turns: Path, word: signal.Signals) -> None:
    for path in turns.glob("[0-9]*"):
        if int(path.name) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(path.name), word)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """All other processes of this run stand still, and what they had launched has ended."""
    if TURNS not in os.environ:
        yield
        return
    turns = Path(os.environ[TURNS])
    with open(turns / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _to_others(turns, signal.SIGSTOP)
        time.sleep(0.5)
        try:
            yield
        finally:
            _to_others(turns, signal.SIGCONT)


# ---- processes, files and the table


def folder() -> Path:
    found = Path(os.environ.get("OUT", ".")) / "models"
    found.mkdir(parents=True, exist_ok=True)
    return found


@dataclass
class Process:
    """A process that measures, until it ends or `until`. It leads a group of its own."""

    path: Path  # of the result
    id: int
    said: IO[str]
    caches: str
    begun: float
    until: float
    whole: bool  # had all the time that a process may take

    def status(self) -> int | None:
        """Its exit status; -1: it was killed, late; None: it runs."""
        ended, word = os.waitpid(self.id, os.WNOHANG)
        if not ended and time.perf_counter() < self.until:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.id, signal.SIGKILL)  # compiling processes outlive their parent
        if ended:
            return os.waitstatus_to_exitcode(word)
        os.waitpid(self.id, 0)
        return -1

    def result(self, status: int) -> dict[str, Any]:
        """What it found, or its error. "cut": its time did not do."""
        self.said.seek(0)
        lines = self.said.read().strip().splitlines()
        self.said.close()
        shutil.rmtree(self.caches, ignore_errors=True)
        took = {"took_s": round(time.perf_counter() - self.begun, 1)}
        if status == -1:
            limit = self.until - self.begun
            return took | {"error": f"more than {limit:.0f} s", "cut": True, "said": lines[-30:]}
        results = [line for line in lines if line.startswith("RESULT ")]
        if status == 0 and results:
            return json.loads(results[-1].removeprefix("RESULT ")) | took
        error = lines[-1][:300] if lines else f"exit status {status}"
        return took | {"error": error, "said": lines[-30:]}


def start(
    path: Path, part: str, model: str, way: str, options: argparse.Namespace, left: float
) -> Process:
    environment = {}
    if part == "digests":
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    caches = tempfile.mkdtemp(prefix="caches")
    if not options.warm:
        environment["TORCHINDUCTOR_CACHE_DIR"] = caches
        environment["TRITON_CACHE_DIR"] = caches + "/triton"
    limit = LIMIT_S * options.jobs  # it may stand still while others are timed
    begun = time.perf_counter()
    said = tempfile.TemporaryFile("w+")
    begin = _forked if options.forked else _started
    process = begin(part, model, way, options, environment, said)
    return Process(path, process, said, caches, begun, begun + min(limit, left), left >= limit)


def _started(
    part: str,
    model: str,
    way: str,
    options: argparse.Namespace,
    environment: dict[str, str],
    said: IO[str],
) -> int:
    command = [sys.executable, __file__, "--one", part, model, way]
    command += ["--size", options.size, "--device", options.device]
    return subprocess.Popen(
        command, env=os.environ | environment, stdout=said, stderr=said, start_new_session=True
    ).pid


def _forked(
    part: str,
    model: str,
    way: str,
    options: argparse.Namespace,
    environment: dict[str, str],
    said: IO[str],
) -> int:
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.setsid()
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        os.environ.update(environment)
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        found = PARTS[part](model, way, options.size, options.device)
        print("RESULT " + json.dumps(found), flush=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def imports_once(models: list[str], device: str) -> bool:
    """Imports what `models` need. False: a fork of this process cannot use the GPU."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # to ask for a GPU does not touch it
    torch.set_num_threads(1)  # threads do not outlive a fork
    for model in models:
        try:
            MODELS[model](True)
        except ImportError:
            continue  # its own process says so
    process = os.fork()
    if not process:
        try:
            torch.zeros(1, device=device)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(process, 0)[1] == 0


def _is_free(turns: Path) -> bool:
    """Nobody is timed."""
    with open(turns / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def measure(wanted: list[tuple[str, str, str, int]], options: argparse.Namespace) -> list[str]:
    """Measures what is not kept yet. What failed is measured again. Returns what had no time."""
    until = time.perf_counter() + options.seconds
    runs: list[Process] = []
    waiting, left = [], []
    for part, model, way, number in wanted:
        path = folder() / f"{model}.{way}.{part}.{number}.json"
        if not path.exists() or "error" in json.loads(path.read_text()):
            waiting.append((path, part, model, way))
    with tempfile.TemporaryDirectory() as name:
        turns = Path(name)
        if options.jobs > 1:
            os.environ[TURNS] = name
        while waiting or runs:
            rest = until - time.perf_counter()
            if waiting and rest < LEAST_S:
                left += [path.stem for path, *_ in waiting]
                waiting = []
            if waiting and len(runs) < options.jobs and _is_free(turns):
                path, *task = waiting.pop(0)
                runs.append(start(path, *task, options, rest))
                (turns / str(runs[-1].id)).touch()
            for run in list(runs):
                status = run.status()
                if status is None:
                    continue
                runs.remove(run)
                (turns / str(run.id)).unlink()
                if _is_free(turns):  # it may have been killed while others stood still
                    _to_others(turns, signal.SIGCONT)
                found = run.result(status) | {"warm": options.warm, "jobs": options.jobs}
                if "cut" in found and not run.whole:
                    left.append(run.path.stem)
                    continue
                run.path.write_text(json.dumps(found, indent=1))
                said = found.get("error") or found.get("step_ms") or found.get("digest")
                print(f"{run.path.stem}: {said} ({found['took_s']} s)", flush=True)
            time.sleep(0.05)
    return left


def kept(part: str, model: str, way: str) -> list[dict[str, Any]]:
    paths = sorted(folder().glob(f"{model}.{way}.{part}.*.json"))
    return [json.loads(path.read_text()) for path in paths]


def show() -> None:
    print(
        "| model | way | step | of eager's | stream | host | first, s | peak | reserved | "
        "after ten | idle | bits |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    for model in MODELS:
        base = _median(kept("figures", model, "eager"), "step_ms")
        for way in WAYS:
            rows = kept("figures", model, way)
            if not rows:
                continue
            right = [row for row in rows if "error" not in row]
            if not right:
                print(f"| {model} | {way} | {rows[-1]['error'][:120]} |" + " |" * 9)
                continue
            step = _median(right, "step_ms")
            ratio = f"{step / base:.3f}" if step and base else "–"
            names = ["stream_ms", "host_ms", "first_s", "peak_mib", "peak_reserved_mib"]
            names += ["reserved_mib_after_ten", "idle"]
            cells = ["–" if (c := _median(right, name)) is None else f"{c:g}" for name in names]
            cells[2] += "*" if any(row.get("warm") for row in right) else ""
            shown = [str(step), ratio, *cells]
            print(f"| {model} | {way} | " + " | ".join([*shown, _bits(model, way)]) + " |")


def _median(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.median(values) if values else None


def _bits(model: str, way: str) -> str:
    found, expected = kept("digests", model, way), kept("digests", model, "eager")
    if way == "eager":
        same = len({row.get("digest") for row in expected}) == 1
        return "its own" if len(expected) > 1 and same else "–"
    if way not in OF_EAGERS_BITS or not found or not expected:
        return "–"
    return "eager's" if found[0].get("digest") == expected[0].get("digest") else "OTHERS"


def tasks(
    models: list[str], ways: list[str], rounds: int, parts: list[str]
) -> list[tuple[str, str, str, int]]:
    """Part, model, way and number of each process, in order; in a round the ways take turns."""
    found = []
    for part in parts:
        for model in models:
            if part == "figures":
                found += [(part, model, way, number) for number in range(rounds) for way in ways]
                continue
            exact = [way for way in ways if way in OF_EAGERS_BITS]
            found += [(part, model, way, 0) for way in ("eager", *exact)]
            found.append((part, model, "eager", 1))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--size", choices=("usual", "tiny"), default="usual")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--parts", default="figures,digests")
    parser.add_argument("--one", nargs=3, metavar=("PART", "MODEL", "WAY"))
    options = parser.parse_args()
    if options.one:
        part, *what = options.one
        found = PARTS[part](*what, options.size, options.device)
        print("RESULT " + json.dumps(found), flush=True)
        return 0
    if options.short:
        options.models, options.ways, options.parts = *SHORT, "figures"
        options.rounds = 1
    if not options.show:
        models, ways = options.models.split(","), options.ways.split(",")
        options.forked = imports_once(models, options.device)
        print("each process is", "a fork" if options.forked else "new", flush=True)
        parts = options.parts.split(",")
        left = measure(tasks(models, ways, options.rounds, parts), options)
        if left:
            print("left:", *left, flush=True)
    show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
