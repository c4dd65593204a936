#!/usr/bin/env python3
"""Makes docs/benchmarks.md, and its pictures, from the JSON in docs/figures.

tools/draw_benchmarks.py          writes page and pictures anew
tools/draw_benchmarks.py --check  exit status 1 if one is not what the JSON says

A file of docs/figures is one object with `runs`: of each its `command`, `machine`, `date`, a `note`
where one is needed, and `rows` as the command prints them (`rows` of bench_h200.py's bench.json,
the list of `gravure bench passes --json`, …; what the page does not show may be left out). Of two
runs with the same row the later one in the file holds. docs/benchmarks-log.md says what else was
seen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FIGURES, DOCS = ROOT / "docs" / "figures", ROOT / "docs"
PAGE = DOCS / "benchmarks.md"

Row = dict[str, Any]
WAYS = {
    "eager": "eager",
    "full_step": "one hand-written CUDA graph",
    "gravure": "Gravure, the exported step",
    "compile_step": "`compile_step`",
    "backend": '`backend="gravure"`',
    "backend_inductor": '`backend="gravure"`, Inductor\'s kernels',
    "graphed": "`make_graphed_callables`",
    "reduce_overhead": "`reduce-overhead`",
}
MODEL_WAYS = WAYS | {
    "gravure": '`backend="gravure"`',
    "gravure_inductor": "the same, Inductor's kernels",
    "compile": "`torch.compile`",
}
MODEL_ORDER = ["eager", "gravure", "gravure_inductor", "compile", "reduce_overhead"]
OURS = {"gravure", "compile_step", "backend", "backend_inductor", "gravure_inductor"}
MODELS = {
    "gpt2": "GPT-2 124M, 8 × 1,024 tokens",
    "llama_1b": "Llama 1.2 B, 4 × 2,048 tokens",
    "llama_3b": "Llama 3 B, 2 × 2,048 tokens",
    "bert": "BERT-base, 32 × 512 tokens",
    "t5": "T5-small, 32 × 512 tokens",
    "resnet50": "ResNet-50, channels_last",
    "vit": "ViT-B/16, 64 pictures",
    "moe": "a mixture of eight experts (Mixtral's), 4 × 1,024 tokens",
    "mamba": "Mamba 130M, 8 × 64 tokens, by its plain loop",
    "unet": "a U-Net of diffusers, 32 × 64 × 64",
    "wav2vec2": "Wav2Vec2 with CTC, 8 × 4 s",
    "lstm": "a language model of two LSTMs, 64 × 128 tokens",
}
LOOPS = {
    "layer": "one transformer layer, called six times a step",
    "preference": "preference optimization: policy and frozen reference, twice each",
    "siamese": "siamese, two views",
    "gan": "GAN, the discriminator called three times",
    "1f1b": "pipeline schedule 1F1B by hand, three microbatches in flight",
    "lengths": "batches of six lengths",
    "rollout": "rollout of eight calls, then three updates",
}
LOOP_WAYS = {
    "eager": "eager",
    "apart": "`torch.compile`, `clip_grad_norm_` and `compile_optimizer`",
    "whole": "`compile_step` with all of it",
    "graph": "one hand-written CUDA graph, its numbers frozen: other bits",
}
SHAPES = {"host": "host nodes in between"}
STEPS_LOG = "training-steps-on-an-h200"
STEPS_PICTURE = "Milliseconds a step, by way"
MODELS_PICTURE = "Share of eager's step, by model and way"


def runs_of(name: str) -> list[Row]:
    return json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))["runs"]


def rows_of(name: str, *keys: str) -> list[Row]:
    """Of all runs; `keys` say which rows are the same."""
    found: dict[tuple[Any, ...], Row] = {}
    for run in runs_of(name):
        for row in run["rows"]:
            found[tuple(row[key] for key in keys)] = row
    return list(found.values())


def groups_of(name: str, group: str, way: str) -> dict[str, list[Row]]:
    """Those rows by `group`, in each a row for each `way`."""
    groups: dict[str, list[Row]] = {}
    for row in rows_of(name, group, way):
        groups.setdefault(row[group], []).append(row)
    return groups


def eager_ms(group: Sequence[Row], way: str) -> float:
    return next(row["step_ms"] for row in group if row[way] == "eager")


class Table(NamedTuple):
    """A table of the page, with where its figures are from."""

    figures: str  # a file of docs/figures
    log: str  # a section of the log
    head: Sequence[str]
    numbers: int  # so many of the last columns are set to the right
    picture: str = ""  # what its picture shows, if it has one

    def lines(self, rows: Sequence[Sequence[str]]) -> Iterator[str]:
        yield "| " + " | ".join(self.head) + " |"
        yield "|" + "---|" * (len(self.head) - self.numbers) + "---:|" * self.numbers
        yield from ("| " + " | ".join(row) + " |" for row in rows)
        yield ""
        if self.picture:
            yield f"![{self.picture}](pictures/{self.figures}.svg)"
            yield ""
        yield _source(self.figures, self.log)


def _source(name: str, log: str) -> str:
    """What was run, on which machine and when."""
    said = []
    for run in runs_of(name):
        note = f" ({run['note']})" if run.get("note") else ""
        said.append(f"`{run['command']}`, {run['machine']}, {run['date']}{note}")
    return f"*{'; '.join(said)}. [In the log](benchmarks-log.md#{log}).*"


def bold(row: Sequence[str], ours: bool) -> list[str]:
    return [f"**{cell}**" if ours and cell else cell for cell in row]


# ---- the sections


def steps() -> Iterator[str]:
    names = {"small": "`small`, 113 gradients", "moe": "`moe`, with host reads, one thread"}
    rows = []
    for config, group in groups_of("steps", "config", "variant").items():
        eager = eager_ms(group, "variant")
        for i, row in enumerate(group):
            ms = row["step_ms"]
            cells = [WAYS[row["variant"]], f"{ms:.2f}", f"{ms / eager:.2f}"]
            cells.append(f"{row['reserved_mib']:,}")
            first = names.get(config, f"`{config}`") if i == 0 else ""
            rows.append([first, *bold(cells, row["variant"] in OURS)])
            if config == "moe" and row["variant"] == "eager":
                no = "cannot hold the reads"
                rows.append(["", "one CUDA graph, `reduce-overhead`", no, "", ""])
    yield "## Where the host is what is waited for"
    yield (
        "A step of a transformer in bf16 with forward, loss and backward; milliseconds a step, and "
        "MiB that PyTorch reserved."
    )
    yield ""
    head = ["step", "way", "ms", "of eager's", "reserved"]
    yield from Table("steps", STEPS_LOG, head, 3, STEPS_PICTURE).lines(rows)
    yield ""
    yield (
        "The hand-written graph is warmed up as PyTorch's documentation has it, on a stream of its "
        "own; warmed up on the caller's it takes 0.44 ms on `tiny` and 1.77 on `small`, where the "
        "exported step takes 0.45 and 1.78 ([a second stream](benchmarks-log.md#a-second-stream))."
    )
    yield ""
    ways = ["graphed", "backend", "reduce_overhead", "backend_inductor"]
    rows = []
    for config, group in groups_of("autograd", "config", "variant").items():
        found = {row["variant"]: f"{row['step_ms']:.2f}" for row in group}
        rows.append([f"`{config}`", *(found.get(way, "–") for way in ways)])
    yield "With autograd driving the backward, the same machine throughout, milliseconds a step:"
    yield ""
    head = ["step", *(WAYS[way] for way in ways)]
    yield from Table("autograd", STEPS_LOG, head, 4).lines(rows)
    yield ""
    yield (
        "On a later machine, with the backward on the caller's thread (run 19): 0.60 to 0.62 and "
        "0.62 to 1.21 on `tiny`, 2.17 to 2.19 and 2.10 on `small`."
    )


def models() -> Iterator[str]:
    rows = []
    for model, group in groups_of("models", "model", "way").items():
        eager = eager_ms(group, "way")
        for i, row in enumerate(sorted(group, key=lambda row: MODEL_ORDER.index(row["way"]))):
            star = "\\*" if row.get("warm") else ""
            cells = [MODEL_WAYS[row["way"]], f"{row['step_ms']:.1f}"]
            cells += [f"{row['step_ms'] / eager:.2f}", f"{row['host_ms']:.1f}"]
            first = f"{row['first_s']:.1f}{star}" if "first_s" in row else "–"
            cells += [f"{row['reserved_mib_after_ten']:,}", first]
            rows.append([MODELS[model] if i == 0 else "", *bold(cells, row["way"] in OURS)])
    yield "## Models that people train"
    yield "Each way a process of its own. A star: caches of compiled kernels were warm."
    yield ""
    head = ["model", "way", "ms a step", "of eager's", "ms of the host"]
    head += ["MiB reserved after ten steps", "first call, s"]
    yield from Table("models", "real-models", head, 5, MODELS_PICTURE).lines(rows)
    yield ""
    yield (
        "Where the GPU is full (GPT-2, Llama, BERT, T5, ResNet-50) capture alone saves the host "
        "and little time: [when to use what](when-to-use.md). By default ResNet-50 takes 1.002 of "
        "eager's step on torch 2.15 (one H200, medians of five processes in turns, "
        "`tests/cuda/bench_models.py --models resnet50 --ways eager,gravure --parts figures --warm "
        "--rounds 5`). With Inductor's kernels a step "
        "takes 0.95 to 1.01 of the better one of PyTorch's two ways, GPT-2's 0.61, the Llamas' "
        "0.87 and 0.89, the LSTMs' 0.48; memory after ten steps 0.69 to 1.02. "
        "Since then BERT has 6,944 MiB and T5 6,046, on an H100, where the better ones have "
        "7,664 and 6,520. On torch 2.15 the first steps of eleven of twelve models reserve 0.96 "
        "to 1.05 of eager's at most, Wav2Vec2's 1.11, and all twelve 0.81 to 0.98 after ten steps: "
        "by default BERT 8,860 MiB, T5 10,970, Mamba 5,768, Wav2Vec2 2,994 (one H200, "
        "`tests/cuda/bench_models.py --one memory MODEL WAY`). In PyTorch's mode of more kernels "
        "(`max-autotune`) ViT and BERT take 0.97 and 0.98 of the best of PyTorch's three, and of "
        "PyTorch's in that mode ResNet-50 0.71, GPT-2 0.56, experts and the Llama of 1.2 B 0.87, "
        "LSTMs 0.53, the U-Net 0.95 and T5 0.98 (H200s, "
        "`tests/cuda/bench_models.py --one figures MODEL WAY`). "
        "There the Llama of 1.2 B takes 0.985 of eager's step, and with "
        "Inductor's kernels 0.859 of `torch.compile`'s (one H200, `tests/cuda/bench_models.py "
        "--models llama_1b --ways eager,gravure,gravure_inductor,compile --parts figures --rounds "
        "1`). "
        "([Log](benchmarks-log.md#real-models).)"
    )


def first_calls() -> Iterator[str]:
    ways = ["gravure", "aot_eager", "gravure_inductor", "compile"]
    rows = []
    for row in rows_of("first_calls", "model"):
        cells = [f"{row[way]:.1f}" if way in row else "–" for way in ways]
        ours, theirs = row.get("gravure_inductor"), row.get("compile")
        cells.append(f"**{ours / theirs:.2f}**" if ours and theirs else "–")
        rows.append([MODELS[row["model"]], *cells])
    yield "### First calls"
    yield (
        "Seconds of the first call and its backward. `aot_eager` is PyTorch's tracing, without any "
        "compiler behind it."
    )
    yield ""
    head = ["model", '`backend="gravure"`', "`aot_eager`", "Inductor's kernels"]
    head += ["`torch.compile`", "of that"]
    yield from Table("first_calls", "real-models", head, 5).lines(rows)
    yield ""
    yield (
        "Mamba's plain loop is 64 points of time in each of 24 layers (13,333 operators in 6 of "
        "them, counted on the CPU), and PyTorch's tracing of these is what takes so long: of the "
        "same loop `aot_eager` takes 107.8 s where Gravure takes 106.4 (two H200s of one machine, "
        "the way `aot_eager_told_eager` of `tests/cuda/bench_models.py`). Code "
        "that asks whether it is compiled is told so by `aot_eager`: this model then takes "
        "PyTorch's `associative_scan` in place of the loop, with other bits. `is_compiling=True` "
        "has Gravure tell it so, too. `torch.compile` leaves LSTMs out of what it compiles."
    )


def in_flight() -> Iterator[str]:
    ways = ["floor", "eager", "gravure", "inductor", "reduce-overhead"]
    found = groups_of("in_flight", "row", "way")
    rows = []
    for name, loop in LOOPS.items():
        by_way = {row["way"]: row for row in found[name]}
        cells = [_loop_cell(by_way.get(way, {})) for way in ways]
        rows.append([loop, *cells])
    yield "## Several calls before a backward, other sizes, no gradients"
    yield (
        "Small models, milliseconds a step. The floor is what is nobody's graph: loss, optimizer, "
        "data. Every run of Gravure's after the warm-up is a replay, and has eager's bits with "
        "ATen's kernels."
    )
    yield ""
    head = ["loop", "floor", "eager", '`backend="gravure"`', "Inductor's kernels"]
    head.append("`reduce-overhead`")
    yield from Table("in_flight", "calls-in-flight", head, 5).lines(rows)
    yield ""
    yield (
        "Preference optimization is at the limit of its kernels: of 6.1 ms a step ATen's take 5.9, "
        "of 5.0 ms Inductor's take 5.0."
    )


def _loop_cell(row: Row) -> str:
    return f"{row['ms']:.2f}" if "ms" in row else row.get("error", "–")


def whole_loop() -> Iterator[str]:
    found = groups_of("loop", "way", "optimizer")
    rows = []
    for way, group in found.items():
        by = {row["optimizer"]: row for row in group}
        cells = [f"{by[o][k]:.2f}" for o in ("foreach", "fused") for k in ("step_ms", "stream_ms")]
        rows.append(bold([LOOP_WAYS[way], *cells], way in ("apart", "whole")))
    yield "## The loop, the optimizer, a launch"
    yield (
        "`small` with clipping, AdamW and a cosine; milliseconds a step, waited for and back to "
        "back. Gravure's ways have eager's bits."
    )
    yield ""
    head = ["way", "foreach", "back to back", "fused", "back to back"]
    yield from Table("loop", "a-compiled-optimizers-step", head, 4).lines(rows)
    yield ""
    yield (
        "A compiled optimizer's `step()`, its rate another one in each step; of 113 parameters "
        "where no number is said:"
    )
    yield ""
    rows = [
        [row["side"], f"{row['host_us']:.1f}", f"{row['gpu_us']:.1f}", f"{row['wished_us']:.1f}"]
        for row in rows_of("optimizer", "side")
    ]
    head = ["optimizer", "µs of the host", "µs of the GPU", "wished for, host"]
    yield from Table("optimizer", "a-compiled-optimizers-step", head, 3).lines(rows)
    yield ""
    yield (
        "On torch 2.15 a step of 113 parameters takes 54 to 69 µs of the host (foreach) and 36 "
        "(fused), of 400 parameters 129 to 236 and 84 to 152, by host (two H200s, "
        "`tests/cuda/bench_optimizer.py --rounds 20`). In transformers' Trainer a GPT-2, "
        "model, clipping and optimizer captured, takes 0.164 of eager's step where two of the "
        "Trainer's walks through all modules are made once, as in "
        "[the example](examples/trainers/hf_trainer.py) (`tests/cuda/bench_loop.py --parts "
        "trainer`), and 0.15 to 0.25 with them, by process (H200s, the same in a script). "
        "([Log](benchmarks-log.md#a-compiled-optimizers-step).)"
    )
    yield ""
    yield (
        "`program.run` of a captured program from Python, beside a bare `CUDAGraph.replay()`, "
        "behind a wait for a GPU that was busy for so long with something else:"
    )
    yield ""
    shown = {"nodes": ",", "waited_us": ",", "gravure_us": ".2f", "replay_us": ".2f"}
    rows = [
        [format(row[name], how) for name, how in shown.items()]
        for row in rows_of("launch", "nodes", "waited_us")
    ]
    head = ["nodes", "busy before, about, µs", "`program.run`, µs", "bare replay, µs"]
    yield from Table("launch", "what-the-runtime-adds-to-a-launch", head, 4).lines(rows)
    yield ""
    yield (
        "What a launch costs more with more nodes is that wait, in which the host's caches go "
        "cold: behind the same wait one node costs as much."
    )


def torchtitan() -> Iterator[str]:
    def cell(value: Any) -> str:
        if isinstance(value, list):
            return " to ".join(f"{each:.2f}" for each in value)
        if value is None or isinstance(value, str):
            return value or "–"
        return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"

    rows = []
    for row in rows_of("torchtitan", "model"):
        said = [cell(row[key]) for key in ("without", "titan")]
        rows.append([f"{row['model']}, {row['unit']}", *said, f"**{cell(row['gravure'])}**"])
    yield "## torchtitan"
    head = ["model", "without the pass", "torchtitan's own pass", "Gravure"]
    yield from Table("torchtitan", "torchtitan-on-four-h200s", head, 3).lines(rows)
    yield ""
    yield (
        "deepseek_v3's failure was seen on [two H200s](benchmarks-log.md#torchtitan-on-two-h200s)."
    )


def bits() -> Iterator[str]:
    rows = [
        [row["models"], row["backend"], row["compile_step"]] for row in rows_of("bits", "models")
    ]
    yield "## Bits"
    yield (
        "20 steps with SGD in deterministic mode: losses, parameters and buffers compared as bits "
        "with eager."
    )
    yield ""
    head = ["models", '`backend="gravure"`', "`compile_step`"]
    yield from Table("bits", "bits-of-models", head, 0).lines(rows)


def passes() -> Iterator[str]:
    rows = []
    for row in rows_of("passes", "shape", "nodes"):
        ms, nodes = row["passes_ms"], row["nodes"]
        each = f"{row['read_ms'] * 1000 / nodes:.2f}"
        shown = f"{ms:.1f}" if ms < 100 else f"{ms:.0f}"
        rows.append([SHAPES.get(row["shape"], row["shape"]), f"{nodes:,}", shown, each])
    yield "## The compiler"
    head = ["program", "nodes", "all passes, ms", "reading, µs a node"]
    yield from Table("passes", "passes", head, 3).lines(rows)


SECTIONS: list[Callable[[], Iterator[str]]] = [
    steps,
    models,
    first_calls,
    in_flight,
    whole_loop,
    torchtitan,
    bits,
    passes,
]


# ---- pictures

_WIDTH, _BAR, _LEFT = 860, 22, 330


class Bar(NamedTuple):
    name: str
    length: float  # 1: all of the width
    said: str  # behind it
    ours: bool


def bars(title: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """A picture of groups of bars, each group with its title."""
    body, y = [], 44
    for group, members in groups:
        body.append(f'<text x="16" y="{y}" fill="#222" font-weight="600">{escape(group)}</text>')
        y += 10
        for name, length, said, ours in members:
            width = max(2, round(length * (_WIDTH - _LEFT - 90)))
            colour = "#0f766e" if ours else "#94a3b8"
            middle = y + _BAR - 7
            body.append(f'<text x="28" y="{middle}" fill="#222">{escape(name)}</text>')
            body.append(
                f'<rect x="{_LEFT}" y="{y + 3}" width="{width}" height="{_BAR - 6}" rx="3" '
                f'fill="{colour}"/>'
            )
            x = _LEFT + width + 8
            body.append(f'<text x="{x}" y="{middle}" fill="#222">{escape(said)}</text>')
            y += _BAR
        y += 26
    height = y - 10
    said = "; ".join(f"{g}: " + ", ".join(f"{b.name} {b.said}" for b in m) for g, m in groups)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t d">\n'
        f'<title id="t">{escape(title)}</title>\n<desc id="d">{escape(said)}</desc>\n'
        f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def draw_steps() -> str:
    groups = []
    for config, group in groups_of("steps", "config", "variant").items():
        most = max(row["step_ms"] for row in group)
        groups.append((config, [_step_bar(row, most) for row in group]))
    return bars(STEPS_PICTURE, groups)


def _step_bar(row: Row, most: float) -> Bar:
    way, ms = row["variant"], row["step_ms"]
    return Bar(_plain(WAYS[way]), ms / most, f"{ms:.2f} ms", way in OURS)


def draw_models() -> str:
    groups = []
    for model, group in groups_of("models", "model", "way").items():
        eager = eager_ms(group, "way")
        groups.append((MODELS[model], [_model_bar(row, eager) for row in group]))
    return bars(MODELS_PICTURE, groups)


def _model_bar(row: Row, eager: float) -> Bar:
    way, share = row["way"], row["step_ms"] / eager
    return Bar(_plain(MODEL_WAYS[way]), share, f"{share:.2f}", way in OURS)


def _plain(name: str) -> str:
    return name.replace("`", "")


def made() -> dict[Path, str]:
    """Every file that is made, with what it holds."""
    lines = [
        "<!-- Made from docs/figures by tools/draw_benchmarks.py; change these. -->",
        "# Figures",
        "",
        "What was measured, by the command below each table, on one machine a table. Nothing is "
        "estimated. The JSON that this page is made from is in [figures](figures); all runs, with "
        "what else was seen in them, are in the [log](benchmarks-log.md).",
    ]
    for section in SECTIONS:
        lines += ["", *section()]
    return {
        PAGE: "\n".join(lines) + "\n",
        DOCS / "pictures" / "steps.svg": draw_steps(),
        DOCS / "pictures" / "models.svg": draw_models(),
    }


def main(arguments: Sequence[str]) -> int:
    files = made()
    old = [p for p in files if not p.exists() or p.read_text(encoding="utf-8") != files[p]]
    if "--check" in arguments:
        for path in old:
            name = path.relative_to(ROOT)
            print(f"{name} is not what docs/figures says: tools/draw_benchmarks.py")
        return 1 if old else 0
    for path in old:
        path.write_text(files[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
