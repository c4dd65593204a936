"""What tools/demo shows: a step with host reads is cut, captured and replayed, with eager's bits.

    python3 docs/examples/demo.py [--device auto|cpu|cuda] [--steps N]

Exits with an error if one bit of the loss or of a gradient differs from PyTorch's own eager step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import gravure_native
import moe_step
import torch
from torch import Tensor

TIMED_STEPS = 20


def say(text: str = "") -> None:
    print(text, flush=True)


def show_plan(path: Path) -> None:
    """How the program is cut, and the remarks by reason: both from the command-line tool."""
    tool = gravure_native.tool_path()
    remarks_file = path / "remarks.json"
    command = [tool, "plan", path, "--json", f"--remarks-file={remarks_file}"]
    environment = gravure_native.tool_environment()  # it finds the libraries of torch there
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    plan = json.loads(ran.stdout)
    for entry in plan["entries"]:
        say(
            f"  {entry['calls']} operator calls: {entry['program_order_partitions']} partitions in "
            f"program order, {entry['level_partitions']} by levels; taken: {entry['order']}"
        )
    say("  partition  calls  inputs  outputs  static  staged  rng")
    for row in plan["partitions"]:
        say(
            f"  {row['index']:9}  {row['calls']:5}  {row['inputs']:6}  {row['outputs']:7}  "
            f"{row['static']:6}  {row['staged']:6}  {row['rng']:3}"
        )
    reasons: Counter[str] = Counter()
    for section in plan["host_sections"]:
        reasons.update(section["reasons"])
    numbers = reasons.pop("numbers", 0)
    said = ", ".join(f"{count} {name}" for name, count in reasons.most_common())
    say(f"  between them, on the host: {said or 'nothing'}; {numbers} on numbers alone")
    say(
        f"  arena {plan['arena_bytes'] / 2**20:.2f} MiB for {plan['live_bytes'] / 2**20:.2f} MiB "
        f"of live values (ratio {plan['ratio']:.3f}); {plan['staged_bytes']} bytes staged a step"
    )
    show_remarks(json.loads(remarks_file.read_text()))


def show_remarks(remarks: list[dict[str, str]]) -> None:
    """One line for each reason and source line."""
    missed = [r for r in remarks if r["kind"] == "missed"]
    groups = Counter((r["name"], r["source"]) for r in missed)
    say(f"\nRemarks: {len(missed)} of {len(remarks)} say what is not captured, and why")
    for (name, source), count in groups.most_common(8):
        example = next(r for r in missed if (r["name"], r["source"]) == (name, source))
        place = f" at {source}" if source else ""
        say(f"  {count:4} × [{name}]{place}: {example['message']}")
    if len(groups) > 8:
        say(f"       and {len(groups) - 8} more places")


class Eager:
    """PyTorch's own step."""

    def __init__(self, step: torch.nn.Module) -> None:
        self.step = step

    def __call__(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.step.zero_grad(set_to_none=True)
        loss = self.step(ids, targets)
        loss.backward()
        named = self.step.named_parameters()
        return loss.detach(), {name: p.grad for name, p in named if p.grad is not None}


class Engraved:
    """The exported program: parameters are bound once, as the model holds them."""

    def __init__(self, step: torch.nn.Module, path: Path, device: str) -> None:
        self.program = gravure.load(path, device)
        self.program.bind_saved()  # constants, and random states that the program pairs
        held = dict(step.named_parameters(remove_duplicate=False)) | dict(step.named_buffers())
        slots = [slot.name for slot in self.program.inputs() if slot.name in held]
        self.program.bind({name: held[name].detach() for name in slots})
        self.outputs = self.program.outputs()

    def __call__(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        results = self.program.run({"ids": ids, "targets": targets})
        named = list(zip(self.outputs, results, strict=True))
        loss = next(value for slot, value in named if slot.role == "loss")
        return loss, {slot.name: value for slot, value in named if slot.role == "gradient"}


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return False
    left, right = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(left, right)


def compare(eager: Eager, engraved: Engraved, batches: Callable[[int], Any], steps: int) -> bool:
    """Runs both from the same state, step by step; parameters take a step of SGD in between."""
    right = True
    for i in range(steps):
        data = batches(i)
        torch.manual_seed(1000 + i)
        loss, gradients = eager(*data)
        before = engraved.program.stats()["uncaptured_steps"]
        torch.manual_seed(1000 + i)
        found_loss, found = engraved(*data)
        wrong = [n for n in gradients if n not in found or not same_bits(gradients[n], found[n])]
        wrong += [n for n in found if n not in gradients]
        if not same_bits(loss, found_loss):
            wrong.insert(0, "the loss")
        warming = engraved.program.stats()["uncaptured_steps"] > before
        verdict = (
            f"{len(gradients)} gradients equal in bits" if not wrong else f"DIFFERS: {wrong[0]}"
        )
        kind = "warm-up" if warming else "captured"
        say(f"  step {i:2}  {kind:8}  loss {loss.item():.6f}  {verdict}")
        right = right and not wrong
        with torch.no_grad():
            for name, parameter in eager.step.named_parameters():
                if name in gradients:
                    parameter.sub_(gradients[name], alpha=0.05)
        found.clear()  # as zero_grad does: gradients that are held would be copied from here on
    return right


def median_ms(step: Callable[..., Any], batches: Callable[[int], Any]) -> float:
    times = []
    for i in range(TIMED_STEPS):
        data = batches(100 + i)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(*data)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    found = "cuda" if torch.cuda.is_available() else "cpu"
    device = found if options.device == "auto" else options.device
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False

    config = moe_step.Config() if device == "cuda" else moe_step.SMALL
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU, capture is emulated"
    say(
        f"A mixture of experts: {config.layers} layers, every second one with {config.experts} "
        f"experts whose token counts are read on the host; dropout {config.dropout}; on {where}"
    )
    step, *example = moe_step.make(config, device)

    def batches(i: int) -> tuple[Tensor, Tensor]:
        return moe_step.batch(config, device, 1 + i)

    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        path = gravure.export_step(step, tuple(example), Path(folder) / "moe")
        say(
            f"\nExported forward and backward as one program in {time.perf_counter() - begin:.1f} s"
        )
        show_plan(path)
        say(f"\n{options.steps} steps beside PyTorch's eager ones, each with new tokens and counts")
        eager = Eager(step)
        engraved = Engraved(step, path, "cuda" if device == "cuda" else "host")
        right = compare(eager, engraved, batches, options.steps)
        stats, states = engraved.program.stats(), Counter(engraved.program.partition_states())
        said = ", ".join(f"{count} {name}" for name, count in states.items())
        say(
            f"\nPartitions: {said}; {stats['captures']} captures, {stats['replays']} replays, "
            f"{stats['uncaptured_steps']} of {stats['steps']} steps uncaptured (warm-up)"
        )
        if device == "cuda":
            torch.use_deterministic_algorithms(False)
            # PyTorch reads it anew for each matrix product: 30 us of the host
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG")
            ours, theirs = median_ms(engraved, batches), median_ms(eager, batches)
            say(f"Median of {TIMED_STEPS} steps: eager {theirs:.2f} ms, engraved {ours:.2f} ms")
        if right and not states.get("captured"):
            say("Nothing was captured: the program ran node by node")
            right = False
        say("Every bit of the loss and of every gradient agrees" if right else "Bits DIFFER")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
