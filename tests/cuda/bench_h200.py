"""Times training steps on a GPU: eager, one hand-written graph of the whole step, and Gravure.

    python3 tests/cuda/bench_h200.py [--configs small,moe] [--variants eager,full_step,gravure]

Every variant runs in two processes of its own: one for the figures; one in deterministic mode, to
compare the bits of loss and gradients over three steps (--bits 0 leaves it out). cuBLAS wants
CUBLAS_WORKSPACE_CONFIG for that, and PyTorch reads that variable anew for every matrix product,
which took 30 us of the host each: the figures are measured without it. Prints a table, a row as it
is measured; writes bench.json into $OUT.

gravure hands out results as gravure.load does by default; gravure_static its own buffers each step,
as full_step does; backend is torch.compile(backend="gravure") with autograd's backward;
compile_step is gravure.compile_step. Only where asked for: backend_inductor is backend with
Inductor's kernels, reduce_overhead torch.compile's own, graphed
torch.cuda.make_graphed_callables of model and loss, graphed_model of the model alone,
graphed_by_dynamo of what Dynamo makes of both, behind torch.compile;
backend_broken lets Dynamo break the graph at each host read, as it does by default;
full_step_own_stream warms up on the stream that it replays on (second_stream.py says why).

--one-thread: backwards run on the thread that asks for them, by
torch.autograd.set_multithreading_enabled, not on one of autograd's.

step: median of synchronised steps. host: until the call returns, the device idle before it.
stream: steps back to back. alloc, reserved: peaks over the timed steps. ms and MiB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "examples")]

import moe_step  # noqa: E402

CONFIGS = {
    "tiny": (moe_step.Config(256, 4, 4, 704, 1024, 2, 128, dropout=0.0), False),
    "small": (moe_step.Config(ffn=1408, dropout=0.0), False),
    "small_dropout": (moe_step.Config(ffn=1408, dropout=0.1), False),
    "mid": (moe_step.Config(1024, 24, 16, 2816, 32000, 4, 512, dropout=0.0), False),
    "1b": (moe_step.Config(2048, 16, 32, 5632, 32000, 4, 2048, dropout=0.0), False),
    "moe": (moe_step.Config(dropout=0.0), True),
}
VARIANTS = ("eager", "full_step", "gravure", "gravure_static", "backend", "compile_step")
FULL_STEPS = ("full_step", "full_step_own_stream")
STEPS = 40
# Every step gets token counts of its own. For each size that it has not met, cuBLAS takes some
# 200 us to choose an algorithm, once: a training run has met them all.
WARM_STEPS = {"moe": 300}

Step = Callable[[Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


def make(name: str) -> tuple[moe_step.Step, list[tuple[Tensor, Tensor]]]:
    config, moe = CONFIGS[name]
    torch.manual_seed(0)
    step = moe_step.Step(moe_step.Moe(config, moe=moe)).to(device="cuda", dtype=torch.bfloat16)
    steps = WARM_STEPS.get(name, 8) + 2 * STEPS
    return step, [moe_step.batch(config, "cuda", seed) for seed in range(steps)]


def eager(step: moe_step.Step, call: Callable[[Tensor, Tensor], Tensor] | None = None) -> Step:
    """`call` stands for the step's forward, where it was compiled."""
    forward = step if call is None else call

    def run(ids: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        step.zero_grad(set_to_none=True)
        loss = forward(ids, targets)
        loss.backward()
        return loss.detach(), {name: p.grad for name, p in step.named_parameters()}

    return run


def full_step(
    step: moe_step.Step, ids: Tensor, targets: Tensor, *, own_stream: bool = False
) -> Step:
    """The limit for these kernels: everything in one graph, results in its own buffers.

    Warmed up on another stream, as PyTorch's documentation has it, or on the caller's own.
    """
    held = ids.clone(), targets.clone()
    side = torch.cuda.current_stream() if own_stream else torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            eager(step)(*held)
    torch.cuda.current_stream().wait_stream(side)
    step.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        loss = step(*held)
        loss.backward()
    gradients = {name: p.grad for name, p in step.named_parameters()}

    def run(ids: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        held[0].copy_(ids)
        held[1].copy_(targets)
        graph.replay()
        return loss.detach(), gradients

    return run


def engraved(
    step: moe_step.Step, data: tuple[Tensor, Tensor], notes: dict[str, Any], **options: Any
) -> Step:
    import gravure

    # Deterministic mode chooses other kernels, at export too.
    mode = str(int(torch.are_deterministic_algorithms_enabled()))
    folder = Path(os.environ["GRAVURE_BENCH_PROGRAM"]) / mode
    if not (folder / "program.gv").exists():
        begun = time.perf_counter()
        gravure.export_step(step, data, folder)
        notes["export_s"] = round(time.perf_counter() - begun, 1)
    begun = time.perf_counter()
    program = gravure.load(folder, "cuda", **options)
    notes["load_s"] = round(time.perf_counter() - begun, 2)
    program.bind_saved(roles=("constant", "rng_state"))
    held = dict(step.named_parameters(remove_duplicate=False)) | dict(step.named_buffers())
    names = [slot.name for slot in program.inputs() if slot.name in held]
    program.bind({name: held[name].detach() for name in names})
    outputs = program.outputs()
    loss_at = next(i for i, slot in enumerate(outputs) if slot.role == "loss")
    gradients_at = [(slot.name, i) for i, slot in enumerate(outputs) if slot.role == "gradient"]
    notes["program"] = program

    def run(ids: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        results = program.run((ids, targets))
        return results[loss_at], {name: results[i] for name, i in gradients_at}

    return run


def whole_step(step: moe_step.Step) -> Step:
    import gravure

    compiled = gravure.compile_step(step)

    def run(ids: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        step.zero_grad(set_to_none=True)
        loss = compiled(ids, targets)
        return loss, {name: p.grad for name, p in step.named_parameters()}

    return run


def by_gravure(step: moe_step.Step, **options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    import gravure  # noqa: F401

    return torch.compile(step, backend="gravure", options=options)


def graphed_model(step: moe_step.Step, batch: Any) -> moe_step.Step:
    """Graphs of the model alone, as PyTorch's documentation has it; its loss is eager's."""
    torch.cuda.make_graphed_callables(step.model, batch[:1])
    return step


def graphed_by_dynamo(step: moe_step.Step, _: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """`graphed` behind torch.compile: what Dynamo's own look at a call costs."""

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        samples = tuple(
            value if isinstance(value, torch.nn.Parameter) else value.detach().clone()
            for value in inputs
        )
        return torch.cuda.make_graphed_callables(module.forward, samples)

    return torch.compile(step, backend=backend)


# Ways to call a step's forward, whose backward autograd runs; given the step and a batch.
FORWARDS: dict[str, Callable[[moe_step.Step, Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "eager": lambda step, _: step,
    "graphed": lambda step, batch: torch.cuda.make_graphed_callables(step, batch),
    "graphed_model": graphed_model,
    "graphed_by_dynamo": graphed_by_dynamo,
    "reduce_overhead": lambda step, _: torch.compile(step, mode="reduce-overhead"),
    "backend": lambda step, _: by_gravure(step),
    "backend_broken": lambda step, _: by_gravure(step),
    "backend_inductor": lambda step, _: by_gravure(step, codegen="inductor"),
}


def build(variant: str, step: moe_step.Step, data: Any, notes: dict[str, Any]) -> Step:
    # A read on the host stays in Dynamo's graph, and the program is cut at it alone.
    torch._dynamo.config.capture_scalar_outputs = variant != "backend_broken"
    if variant in FORWARDS:
        return eager(step, FORWARDS[variant](step, data[0]))
    if variant in FULL_STEPS:
        return full_step(step, *data[0], own_stream=variant == "full_step_own_stream")
    if variant == "compile_step":
        return whole_step(step)
    options = {"results": "static"} if variant == "gravure_static" else {}
    return engraved(step, data[0], notes, **options)


def digest(loss: Tensor, gradients: dict[str, Tensor]) -> str:
    found = hashlib.sha256(loss.float().cpu().numpy().tobytes())
    for name in sorted(gradients):
        found.update(gradients[name].float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def check_bits(run: Step, data: Any) -> dict[str, Any]:
    """Digests of three steps from one seed, after as many as it takes to capture."""
    for i in range(8):
        run(*data[i])
    torch.manual_seed(123)
    return {"digests": [digest(*run(*data[i])) for i in range(3)]}


def measure(run: Step, data: Any) -> dict[str, Any]:
    for batch in data[: -2 * STEPS]:
        run(*batch)
    timed, streamed = data[-2 * STEPS : -STEPS], data[-STEPS:]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    whole, host = [], []
    for batch in timed:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        results = run(*batch)
        returned = time.perf_counter()
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - begun)
        host.append(returned - begun)
        del results
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for batch in streamed:
        results = run(*batch)
        del results
    torch.cuda.synchronize()
    stream = (time.perf_counter() - begun) / STEPS
    free, total = torch.cuda.mem_get_info()
    return {
        "step_ms": round(statistics.median(whole) * 1e3, 3),
        "host_ms": round(statistics.median(host) * 1e3, 3),
        "stream_ms": round(stream * 1e3, 3),
        "alloc_mib": torch.cuda.max_memory_allocated() >> 20,
        "reserved_mib": torch.cuda.max_memory_reserved() >> 20,
        "device_mib": (total - free) >> 20,
    }


def figures(variant: str, config: str) -> dict[str, Any]:
    step, data = make(config)
    before = [int(t.sum()) for pair in data for t in pair]
    notes: dict[str, Any] = {}
    run = build(variant, step, data, notes)
    found = measure(run, data)
    program = notes.pop("program", None)
    if program is not None:
        notes["stats"] = program.stats()
        notes["states"] = program.partition_states()
        notes["runtime_remarks"] = [r for r in program.remarks() if r["pass"] == "runtime"][:20]
    found["inputs_intact"] = before == [int(t.sum()) for pair in data for t in pair]
    return found | notes


def bits(variant: str, config: str) -> dict[str, Any]:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    step, data = make(config)
    return check_bits(build(variant, step, data, {}), data)


PARTS = {"figures": figures, "bits": bits}


def spawn(part: str, variant: str, config: str, folder: str, one_thread: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", part, variant, config]
    command += ["--one-thread"] if one_thread else []
    environment = {k: v for k, v in os.environ.items() if k != "CUBLAS_WORKSPACE_CONFIG"}
    environment["GRAVURE_BENCH_PROGRAM"] = folder
    if part == "bits":
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    begun = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    took = {f"{part}_took_s": round(time.perf_counter() - begun, 1)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1].removeprefix("RESULT ")) | took
    said = (done.stderr or done.stdout).strip().splitlines()
    return took | {
        "error": said[-1][:300] if said else f"exit status {done.returncode}",
        "said": said[-30:],
    }


def show(row: dict[str, Any]) -> None:
    figures = [row.get(k, "–") for k in ("step_ms", "host_ms", "stream_ms")]
    figures += [row.get(k, "–") for k in ("alloc_mib", "reserved_mib")]
    note = row.get("error", "")
    if "states" in row:
        captured = row["states"].count("captured")
        note = f"{captured} of {len(row['states'])} partitions captured {note}"
    cells = [row["config"], row["variant"], *map(str, figures), row["same_bits"], note.strip()]
    print("| " + " | ".join(cells) + " |", flush=True)


def compared(variant: str, digests: dict[str, Any]) -> str:
    if variant == "eager":
        return "reference"
    if digests.get("eager") is None or digests[variant] is None:
        return "not compared"
    return "yes" if digests[variant] == digests["eager"] else "NO"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default="small,small_dropout,moe")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--bits", type=int, choices=(0, 1), default=1)
    parser.add_argument("--one", nargs=3, metavar=("PART", "VARIANT", "CONFIG"))
    parser.add_argument("--one-thread", action="store_true")
    options = parser.parse_args()
    torch.autograd.set_multithreading_enabled(not options.one_thread)
    if options.one:
        part, *what = options.one
        print("RESULT " + json.dumps(PARTS[part](*what)), flush=True)
        return 0
    print("| config | variant | step | host | stream | alloc | reserved | bits of eager | note |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    for config in options.configs.split(","):
        digests: dict[str, Any] = {}
        folder = tempfile.mkdtemp()
        for variant in options.variants.split(","):
            if variant in FULL_STEPS and CONFIGS[config][1]:
                continue  # it reads on the host: no capture of the whole step
            row = {"config": config, "variant": variant}
            for part in ("figures", "bits")[: 1 + options.bits]:
                row |= spawn(part, variant, config, folder, options.one_thread)
            digests[variant] = row.get("digests")
            row["same_bits"] = compared(variant, digests)
            about["rows"].append(row)
            show(row)
            # After each: a run that is cut short keeps what it has measured.
            out = Path(os.environ.get("OUT", ".")) / "bench.json"
            out.write_text(json.dumps(about, indent=1))
    return 0 if all(r["same_bits"] != "NO" and "error" not in r for r in about["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
