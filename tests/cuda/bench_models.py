"""Trains real models at usual sizes, each way in a process of its own: time, memory and bits.

    python3 tests/cuda/bench_models.py [--models gpt2,llama_1b] [--ways eager,gravure] [--rounds 3]
    python3 tests/cuda/bench_models.py --short       three models, three ways
    python3 tests/cuda/bench_models.py --show        the table of what is there

Weights are random; attention, dropout and losses are the libraries' defaults. Gradients are
clipped and fused AdamW steps, outside of the compiled code. Results are kept in $OUT/models, a
file a model, way and round; one that is there is not measured again: what was cut short goes on.
`--device cpu --size tiny` tries the script without a GPU.

Ways: eager; gravure, gravure_inductor: torch.compile(backend="gravure"), ATen's kernels and
Inductor's; gravure_autotune: in the mode max-autotune; step, step_inductor: gravure.compile_step;
optimizer: gravure.compile_step(optimizer=), which does not clip; compile, reduce_overhead,
max_autotune (without graphs): torch.compile's own modes; graph: forward, backward and optimizer in
one hand-written graph.

Columns: step: median of synchronised steps; host: until the call returns, the device idle before;
stream: steps back to back; first: the first call with its backward. ms. Memory in MiB: peak,
reserved over the whole run, and reserved after ten steps. idle: the share of a step in which no
kernel runs, from a trace. bits: losses and parameters after eight steps in deterministic mode are
eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from train_models import digest

STEPS, BIT_STEPS, LIMIT_S = 20, 8, 280
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


# A step is one graph: without it, transformers looks whether a mask is all ones. Bits are eager's
# where the other way has them, which the digests show.
_ONE_GRAPH = {"is_compiling": True}


def _whole(run: Run, **options: Any) -> Callable[[Batch], Tensor]:
    import gravure

    compiled = gravure.compile_step(run.step, options=_ONE_GRAPH | options)

    def train(batch: Batch) -> Tensor:
        loss = compiled(batch)
        _clipped(run)
        return loss

    return train


def _with_optimizer(run: Run) -> Callable[[Batch], Tensor]:
    import gravure

    return gravure.compile_step(run.step, optimizer=run.optimizer, options=_ONE_GRAPH)


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


WAYS: dict[str, Callable[[Run], Callable[[Batch], Tensor]]] = {
    "eager": lambda run: _by_autograd(run, run.step),
    "gravure": _gravure,
    "gravure_inductor": lambda run: _gravure(run, codegen="inductor"),
    "gravure_autotune": lambda run: _gravure(run, mode="max-autotune"),
    "step": _whole,
    "step_inductor": lambda run: _whole(run, codegen="inductor"),
    "optimizer": _with_optimizer,
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
    work = MODELS[model](size == "tiny")
    layout = torch.channels_last if work.channels_last else torch.preserve_format
    dtype = torch.float32 if work.autocast else torch.bfloat16
    step = Step(work, device).to(device, dtype, memory_format=layout).train()
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


def figures(model: str, way: str, size: str, where: str) -> dict[str, Any]:
    device = Device(where)
    run, batches = make(model, way, size, where)
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in run.step.parameters())}
    device.wait()
    begun = time.perf_counter()
    run.train(batches[0])
    device.wait()
    found["first_s"] = round(time.perf_counter() - begun, 2)
    for i in range(1, 10):
        run.train(batches[i % len(batches)])
    device.wait()
    found |= {f"{name}_after_ten": value for name, value in device.memory().items()}
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
    if "gravure" in sys.modules:
        import gravure

        found["report"] = str(gravure.report())[-4000:]
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


PARTS = {"figures": figures, "digests": digests}

# ---- processes, files and the table


def folder() -> Path:
    found = Path(os.environ.get("OUT", ".")) / "models"
    found.mkdir(parents=True, exist_ok=True)
    return found


def spawn(part: str, model: str, way: str, size: str, device: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", part, model, way]
    command += ["--size", size, "--device", device]
    environment = {k: v for k, v in os.environ.items() if k != "CUBLAS_WORKSPACE_CONFIG"}
    if part == "digests":
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {LIMIT_S} s"}
    took = {"took_s": round(time.perf_counter() - begun, 1)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1].removeprefix("RESULT ")) | took
    said = (done.stderr or done.stdout).strip().splitlines()
    error = said[-1][:300] if said else f"exit status {done.returncode}"
    return took | {"error": error, "said": said[-30:]}


def measured(part: str, model: str, way: str, number: int, size: str, device: str) -> None:
    """Measures what is not kept yet. What failed is measured again."""
    path = folder() / f"{model}.{way}.{part}.{number}.json"
    if path.exists() and "error" not in json.loads(path.read_text()):
        return
    found = spawn(part, model, way, size, device)
    path.write_text(json.dumps(found, indent=1))
    said = found.get("error") or found.get("step_ms") or found.get("digest")
    print(f"{path.stem}: {said} ({found.get('took_s', '–')} s)", flush=True)


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
            cells = [_median(right, name) for name in names]
            shown = [str(step), ratio, *("–" if c is None else f"{c:g}" for c in cells)]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--size", choices=("usual", "tiny"), default="usual")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--one", nargs=3, metavar=("PART", "MODEL", "WAY"))
    options = parser.parse_args()
    if options.one:
        part, *what = options.one
        found = PARTS[part](*what, options.size, options.device)
        print("RESULT " + json.dumps(found), flush=True)
        return 0
    if options.short:
        options.models, options.ways = SHORT
        options.rounds = 1
    if not options.show:
        ways = options.ways.split(",")
        for model in options.models.split(","):
            for number in range(options.rounds):  # the ways take turns
                for way in ways:
                    measured("figures", model, way, number, options.size, options.device)
            if options.short:
                continue
            for number, way in enumerate(["eager", *ways]):
                if way in (*OF_EAGERS_BITS, "eager"):
                    index = 0 if way != "eager" or number == 0 else 1
                    measured("digests", model, way, index, options.size, options.device)
    show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
