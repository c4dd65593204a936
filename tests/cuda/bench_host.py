"""Host time of a step, by way in and number of parameters: what Python takes, and what it grows by.

    python3 tests/cuda/bench_host.py [--device cuda] [--parameters 20,100,400] [--ways plain,sgd]

plain is gravure.compile_step(fn), sgd and adamw the same with an optimizer, backend is
torch.compile(backend="gravure") with autograd's backward, wrapped the same in AOTAutograd's wrapper
(what falls back to it), graphed what torch.cuda.make_graphed_callables adds to its graphs, without
any code of a model's, eager the same loss and backward as they are. Layers are tiny: on a GPU the
device is idle; on the host device kernels count, too.

call: until it returns, microseconds, median. python: the same with the library's runs returning
what they returned before, so that Python and Dynamo's guards are left (and, in backend, autograd);
the least of 40 batches, on the host device in processor time. Clearing the gradients is in neither.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

WAYS = ("plain", "sgd", "adamw", "backend", "wrapped", "graphed", "eager")


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight + self.bias).tanh()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Part(), Part()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


class Recorded:
    """A program whose steps can be replaced by what the last one returned."""

    replaced = False

    def __init__(self, program: Any) -> None:
        self._program = program
        self._last: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._program, name)
        if name != "run_step_tensors":
            return found

        def run(*args: Any) -> list[Tensor]:
            if not Recorded.replaced:
                self._last = found(*args)
            return self._last

        return run


class Made:
    """The class of programs, which keeps those that it makes."""

    def __init__(self, actual: Any) -> None:
        self._actual = actual
        self.programs: list[Recorded] = []

    def of_text(self, *args: Any) -> Any:
        self.programs.append(Recorded(self._actual.of_text(*args)))
        return self.programs[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actual, name)


class Graphed(torch.autograd.Function):
    """What make_graphed_callables has beside its graphs."""

    results: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple([t.detach() for t in Graphed.results])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        return tuple([t if t is None else t.detach() for t in Graphed.gradients])


def timed(call: Callable[[], Any], before: Callable[[], Any], device: str) -> float:
    """Microseconds until `call` returns."""
    for _ in range(20):
        before()
        call()
    found = []
    for _ in range(400):
        before()
        if device == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - begun)
    return statistics.median(found) / 1e3


def undisturbed(call: Callable[[], Any], before: Callable[[], Any], device: str) -> float:
    """Microseconds of `call` in the batch that took least."""
    # A backward on a GPU has a thread of its own.
    clock = time.thread_time_ns if device == "cpu" else time.perf_counter_ns
    found = []
    for _ in range(40):
        total = 0
        for _ in range(50):
            before()
            begun = clock()
            call()
            total += clock() - begun
        found.append(total / 50)
    return min(found) / 1e3


def optimizer_of(way: str, model: nn.Module) -> torch.optim.Optimizer | None:
    if way == "sgd":
        return torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), 1e-4, fused=True) if way == "adamw" else None


def one(way: str, count: int, device: str) -> tuple[float, float]:
    """Of the call, and of Python's part of it (0 in eager)."""
    import gravure
    from gravure.calls import native_node, program_maker
    from gravure.library.load import program_class
    from gravure.steps import step_compiler

    made = Made(program_class())
    for module in (program_maker, step_compiler):
        module.program_class = lambda: made
    program_maker.native_call = (lambda *_: None) if way == "wrapped" else native_node.native_call
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(count // 4)]).to(device)
    parameters = list(model.parameters())
    x = torch.randn(4, device=device)

    def loss(x: Tensor) -> Tensor:
        return model(x).sum()

    def clear() -> None:
        for parameter in parameters:
            parameter.grad = None

    if way == "graphed":
        Graphed.results = (torch.zeros(4, device=device),)
        Graphed.gradients = (None, *[torch.zeros_like(p) for p in parameters])
        run: Callable[[], Any] = lambda: Graphed.apply(x, *parameters)[0].sum().backward()  # noqa: E731
        return 0.0, undisturbed(run, clear, device)
    if way in ("backend", "wrapped", "eager"):
        inner = torch.compile(loss, backend="gravure") if way != "eager" else loss
        run = lambda: inner(x).backward()  # noqa: E731
    else:
        step = gravure.compile_step(loss, optimizer=optimizer_of(way, model))
        run = lambda: step(x)  # noqa: E731
    call = timed(run, clear, device)
    if way == "eager":
        return call, 0.0
    states = gravure.report().graphs[-1].programs[0].partitions.values()
    assert {state for entry in states for state in entry} == {"captured"}
    Recorded.replaced = True
    for program in made.programs if way in ("backend", "wrapped") else []:
        program.repeat_results(True)
    python = undisturbed(run, clear, device)
    Recorded.replaced = False
    return call, python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parameters", default="20,100,400")
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    print("| way | parameters | call | python | python, each more |")
    print("|---|---:|---:|---:|---:|", flush=True)
    for way in options.ways.split(","):
        last: tuple[int, float] | None = None
        for count in map(int, options.parameters.split(",")):
            call, python = one(way, count, options.device)
            more = f"{(python - last[1]) / (count - last[0]):.3f}" if last and python else "–"
            cells = [f"{call:.1f}", f"{python:.1f}" if python else "–", more]
            print("| " + " | ".join([way, str(count), *cells]) + " |", flush=True)
            last = count, python
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
