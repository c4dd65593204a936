"""Times a training step with ATen's and with Inductor's kernels, beside torch.compile's own modes.

    python3 tests/cuda/bench_codegen.py [--configs small,mid,tiny] [--variants eager,default,…]

All variants of a configuration run in one process, one after the other, on one model. Each is
timed, then run again in deterministic mode, where three steps from one seed are compared: Gravure's
captured steps with its uncaptured ones, bit by bit; every variant with `default`, by the largest
relative difference of loss and gradients (Inductor's kernels round otherwise than ATen's).

Prints a table in Markdown; writes bench_codegen.json into $OUT. Exit status 1 if bits differ where
they may not, or a variant failed. `--cpu` tries it out on the host device with a small model, whose
times mean nothing.

`one graph` and `one joint graph` are what Inductor's kernels can do in a CUDA graph captured by
hand (one_graph.py). `step inductor` takes the option `regions` as its third word.

step: median of synchronised steps; stream: steps back to back; ms. `of best` is the stream time
over the least of all variants that are not Gravure's. first: seconds from compilation to the eighth
step.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "examples"), str(Path(__file__).parent)]

import bench_h200  # noqa: E402
import moe_step  # noqa: E402
import one_graph  # noqa: E402

TRIED = moe_step.Config(16, 2, 2, 24, 32, 2, 4, experts=2, dropout=0.0)
VARIANTS = (
    "eager",
    "default",
    "reduce-overhead",
    "one graph",
    "one joint graph",
    "backend aten",
    "backend inductor",
    "step aten",
    "step inductor divided",
    "step inductor undivided",
)
OURS = ("backend", "step")
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
WARM = 8

Run = Callable[[Tensor, Tensor], Tensor]


class Bench:
    """One configuration: a model, its data, and where they are."""

    def __init__(self, config: str, device: str, steps: int) -> None:
        self.device = device
        self.steps = steps
        sizes, moe = (TRIED, config == "moe") if device == "cpu" else bench_h200.CONFIGS[config]
        torch.manual_seed(0)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.model = moe_step.Step(moe_step.Moe(sizes, moe=moe)).to(device=device, dtype=dtype)
        self.data = [moe_step.batch(sizes, device, seed) for seed in range(16)]

    def sync(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def build(self, variant: str, *, uncaptured: bool = False) -> Run:
        """One step: gradients are left in .grad."""
        model = self.model
        if variant.startswith("step"):
            import gravure

            words = zip(("codegen", "regions"), variant.split()[1:], strict=False)
            options = dict(words) | {"uncaptured": uncaptured}
            compiled = gravure.compile_step(model, options=options)

            def step(ids: Tensor, targets: Tensor) -> Tensor:
                model.zero_grad(set_to_none=True)
                return compiled(ids, targets)

            return step
        if variant in one_graph.WAYS:
            return one_graph.WAYS[variant](model, *self.data[0])
        forward: Any = model
        if variant.startswith("backend"):
            import gravure

            options = {"codegen": variant.split()[1], "uncaptured": uncaptured}
            options["on_missed"] = "raise"
            forward = torch.compile(model, backend="gravure", options=options)
        elif variant != "eager":
            forward = torch.compile(model, mode=None if variant == "default" else variant)

        def run(ids: Tensor, targets: Tensor) -> Tensor:
            model.zero_grad(set_to_none=True)
            loss = forward(ids, targets)
            loss.backward()
            return loss.detach()

        return run

    def figures(self, run: Run) -> dict[str, float]:
        begun = time.perf_counter()
        for i in range(WARM):
            run(*self.data[i % len(self.data)])
        self.sync()
        first = time.perf_counter() - begun
        whole = []
        for i in range(self.steps):
            self.sync()
            begun = time.perf_counter()
            run(*self.data[i % len(self.data)])
            self.sync()
            whole.append(time.perf_counter() - begun)
        streams = []
        for _ in range(3):
            begun = time.perf_counter()
            for i in range(self.steps):
                run(*self.data[i % len(self.data)])
            self.sync()
            streams.append((time.perf_counter() - begun) / self.steps)
        return {
            "step_ms": round(statistics.median(whole) * 1e3, 4),
            "stream_ms": round(min(streams) * 1e3, 4),
            "first_s": round(first, 1),
        }

    def results(self, run: Run) -> list[dict[str, Tensor]]:
        """Loss and gradients of three steps, after as many as it takes to capture."""
        for i in range(WARM):
            run(*self.data[i % len(self.data)])
        torch.manual_seed(123)
        kept = []
        for i in range(3):
            found = {"loss": run(*self.data[i]).clone()}
            for name, parameter in self.model.named_parameters():
                if parameter.grad is not None:
                    found[name] = parameter.grad.detach().clone()
            kept.append(found)
        return kept


def forget() -> None:
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def same_bits(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]]) -> bool:
    return all(
        x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x)
        for x, y in zip(a, b, strict=True)
    )


def distance(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]]) -> float:
    """The largest relative difference of any loss or gradient, by its norm."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.keys() != y.keys():
            return float("inf")
        for name, value in x.items():
            norm = y[name].double().norm().item()
            apart = (value.double() - y[name].double()).norm().item()
            worst = max(worst, apart / norm if norm else apart)
    return worst


def newest() -> int:
    import gravure

    return max((graph.number for graph in gravure.report().graphs), default=0)


def partitions(since: int) -> str:
    """What became of the graphs that were compiled after number `since`."""
    import gravure

    graphs = [graph for graph in gravure.report().graphs if graph.number > since]
    programs = [program for graph in graphs for program in graph.programs]
    states = [s for p in programs for several in p.partitions.values() for s in several]
    said = [g.failure for g in graphs if g.failure] + [m for p in programs for m in p.remarks]
    return f"{states.count('captured')}/{len(states)} captured " + "; ".join(said)


def one(bench: Bench, variant: str, kept: dict[str, Any], *, check: bool) -> dict[str, Any]:
    forget()
    ours = variant.startswith(OURS)
    since = newest() if ours else 0
    run = bench.build(variant)
    row: dict[str, Any] = {"variant": variant} | bench.figures(run)
    if ours:
        row["note"] = partitions(since)
    del run
    if not check:
        return row
    # For the comparison alone: PyTorch 2.11 parses it anew for every matrix product.
    os.environ[CUBLAS] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        forget()
        found = bench.results(bench.build(variant))
        if variant == "default":
            kept["default"] = found
        if "default" in kept:
            row["apart"] = distance(found, kept["default"])
            row["bits_of_default"] = same_bits(found, kept["default"])
        if ours:
            forget()
            row["same_bits"] = same_bits(
                found, bench.results(bench.build(variant, uncaptured=True))
            )
    finally:
        torch.use_deterministic_algorithms(False)
        del os.environ[CUBLAS]
    return row


def show(row: dict[str, Any], best: float) -> None:
    bits = {True: "yes", False: "NO", None: "–"}[row.get("same_bits")]
    ratio = f"{row['stream_ms'] / best:.3f}" if best and "stream_ms" in row else "–"
    apart = f"{row['apart']:.1e}" if "apart" in row else "–"
    if row.get("bits_of_default"):
        apart = "0, bits"
    figures = [str(row.get(k, "–")) for k in ("step_ms", "stream_ms")]
    cells = [row["config"], row["variant"], *figures, ratio, str(row.get("first_s", "–"))]
    note = row.get("error") or row.get("note", "")
    print("| " + " | ".join([*cells, bits, apart, note.replace("|", "/")]) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default="small,mid,tiny")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--no-check", action="store_true", help="times alone")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    name = "cpu" if options.cpu else torch.cuda.get_device_name()
    about: dict[str, Any] = {"device": name, "torch": torch.__version__, "rows": []}
    head = ["config", "variant", "step", "stream", "of best", "first s", "bits of uncaptured"]
    head += ["from default", "note"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for config in options.configs.split(","):
        bench = Bench(config, device, options.steps)
        kept: dict[str, Any] = {}
        best = 0.0
        for variant in options.variants.split(","):
            try:
                row = one(bench, variant, kept, check=not options.no_check)
            except Exception as error:
                traceback.print_exc()
                row = {"variant": variant, "error": f"{type(error).__name__}: {error}"[:300]}
            row["config"] = config
            if not variant.startswith(OURS) and "stream_ms" in row:
                best = min(best or row["stream_ms"], row["stream_ms"])
            about["rows"].append(row)
            show(row, best)
            out = Path(os.environ.get("OUT", ".")) / "bench_codegen.json"
            out.write_text(json.dumps(about, indent=1))
        del bench, kept
        forget()
    return 0 if all(r.get("same_bits", True) and "error" not in r for r in about["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
