"""Trains on each of PyTorch's operators, in steps of which a part is replayed.

    PYTHONPATH=python python tests/python/operator_steps.py [--device=cuda] [--jobs=N] [--seed=N]
    PYTHONPATH=python python tests/python/operator_steps.py --operators=svd,nn.functional.dropout

Results that are held have the forward run call by call, gradients that are held the backward: so
each of the two runs behind a replay and ahead of one. What a forward leaves for its backward must
serve both. The inputs are one of PyTorch's own samples (OpInfo), drawn by the seed. Each bit must
be eager's, or aot_eager's, which alone changes some. Prints what differs, and in the end how many
were compared.

A process may end of what goes wrong: another one goes on behind the operator that it ran.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

#: What is held while the next steps run.
STEPS = (*["nothing"] * 4, *["gradients"] * 3, *["nothing"] * 2, *["results"] * 3, "nothing")

Call = Callable[..., Any]


@dataclass(frozen=True)
class Found:
    operator: str
    outcome: str  # "equal", "held", "different", or why it was not compared
    text: str = ""

    def line(self) -> str:
        return "\t".join([self.operator, self.outcome, " ".join(self.text.split())[:400]])

    @staticmethod
    def of(line: str) -> Found:
        return Found(*line.rstrip("\n").split("\t"))


class OneOperator(nn.Module):
    """An operator and one sample: the tensors that have gradients are its parameters."""

    def __init__(self, info: Any, sample: Any) -> None:
        super().__init__()
        values, self._spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self._op = info.op
        self.weights = nn.ParameterList()
        self._values: list[Any] = []
        for value in values:
            learns = isinstance(value, Tensor) and value.requires_grad
            self._values.append(nn.Parameter(value.detach().clone()) if learns else value)
            self.weights.extend(self._values[-1:] if learns else [])

    def forward(self, scale: Tensor) -> tuple[Tensor, list[Tensor]]:
        scaled = iter([w * scale for w in self.weights])
        values = [next(scaled) if isinstance(v, nn.Parameter) else v for v in self._values]
        first, args, named = tree_unflatten(values, self._spec)
        results = tree_leaves(self._op(first, *args, **named))
        results = [t for t in results if isinstance(t, Tensor) and _is_continuous(t)]
        terms = [(t.abs() if t.is_complex() else t).square().sum() for t in results]
        return torch.stack([term.double() for term in terms]).sum(), results


def _is_learned(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _is_continuous(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu().flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def trained(model: OneOperator, call: Call, device: str) -> list[list[bytes]]:
    """Losses, results and gradients of each step."""
    found, kept = [], []
    for step, holds in enumerate(STEPS):
        if holds != "gradients":
            model.zero_grad()
        if holds != "results":
            kept.clear()
        torch.manual_seed(step)
        loss, results = call(torch.tensor(1 + step / 1024, device=device))
        loss.backward()
        gradients = [w.grad for w in model.weights if w.grad is not None]
        found.append([_bits(t) for t in (loss, *results, *gradients)])
        kept.append((loss.detach(), results))
        del loss, results, gradients
    return found


def compared(info: Any, sample: Any, device: str) -> Found:
    """Whether the operator trains as in eager."""
    import gravure

    name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")

    def run(backend: str | None) -> list[list[bytes]]:
        torch._dynamo.reset()
        model = OneOperator(info, sample)
        options = {"options": {"min_partition_size": 1}} if backend == "gravure" else {}
        call = torch.compile(model, backend=backend, **options) if backend else model
        return trained(model, call, device)

    try:
        expected = run(None)
    except Exception as failure:
        return Found(name, "eager cannot", str(failure))
    try:
        ours = run("gravure")
        report = gravure.report()
    except Exception as failure:
        try:
            run("aot_eager")
        except Exception:
            return Found(name, "cannot be traced", str(failure))
        return Found(name, "different", f"{type(failure).__name__}: {failure}")
    if ours == expected:
        return Found(name, "held" if "result-held" in str(report) else "equal")
    step = next(i for i, (a, b) in enumerate(zip(ours, expected, strict=True)) if a != b)
    if run(None) != expected:
        return Found(name, "eager differs from itself")
    if run("aot_eager") == ours:
        return Found(name, "as aot_eager")
    return Found(name, "different", f"in step {step}, with {STEPS[step]} held")


def operators() -> list[Any]:
    # Not at the top: PyTorch's tests forbid a process to change settings of kernels.
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def sample_of(info: Any, device: str, seed: int) -> Any:
    """One of its samples whose input has gradients, or None."""
    dtypes = info.supported_backward_dtypes(device)
    if not info.supports_autograd or not dtypes:
        return None
    dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
    torch.manual_seed(seed)
    some = [
        sample
        for sample in info.sample_inputs(device, dtype, requires_grad=True)
        if any(_is_learned(v) and v.numel() for v in tree_leaves([sample.input, sample.args]))
    ]
    drawn = Random(f"{seed} {info.name} {info.variant_test_name}")
    return drawn.choice(some) if some else None


def walk(device: str, seed: int, numbers: range, names: list[str]) -> None:
    """Prints a line ahead of each operator, and one behind."""
    infos = operators()
    for number in numbers:
        info = infos[number]
        if names and info.name not in names:
            continue
        print(f"{number}\t{info.name}", flush=True)
        sample = sample_of(info, device, seed)
        found = compared(info, sample, device) if sample else Found(info.name, "no gradients")
        print(found.line(), flush=True)


def walk_in_processes(device: str, jobs: int, seed: int, shares: int, some: range) -> list[Found]:
    """The shares `some` of `shares`."""

    def shared(share: int) -> list[Found]:
        found, first = [], share
        while True:
            command = [sys.executable, __file__, f"--device={device}", f"--seed={seed}"]
            command += [f"--numbers={first}:{shares}"]
            run = subprocess.run(command, capture_output=True, text=True)
            lines = run.stdout.splitlines()
            found += [Found.of(line) for line in lines[1::2]]
            if run.returncode == 0:
                return found
            if len(lines) % 2 == 0:
                raise RuntimeError(run.stderr[-4000:])
            number, name = lines[-1].split("\t")
            first = int(number) + shares
            found.append(Found(name, "different", f"the process ended: {run.stderr[-300:]}"))

    with ThreadPoolExecutor(jobs) as pool:
        return list(itertools.chain.from_iterable(pool.map(shared, some)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operators", default="")
    parser.add_argument("--numbers", default="", help="first:step among PyTorch's list")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.numbers or arguments.operators:
        warnings.simplefilter("ignore")
        first, step = map(int, (arguments.numbers or "0:1").split(":"))
        names = [name for name in arguments.operators.split(",") if name]
        walk(arguments.device, arguments.seed, range(first, len(operators()), step), names)
        return 0
    shares = 40
    found = walk_in_processes(
        arguments.device, arguments.jobs, arguments.seed, shares, range(shares)
    )
    for each in found:
        if each.outcome not in ("equal", "held", "no gradients"):
            print(each.line())
    print(dict(Counter(each.outcome for each in found)))
    return any(each.outcome == "different" for each in found)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
    sys.exit(main())
