"""Runs exported programs beside the functions they came from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import pytest
import reference
import torch
import torch.nn as nn
from gravure_native import library_path
from torch import Tensor

#: What a test runs on that runs on a GPU, too.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
#: And what runs on one of them alone.
DEVICE = DEVICES[-1]

#: The release, where behaviours of PyTorch's own differ.
TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])


def need_library() -> None:
    """Skips the module that calls it where the C++ library was not built."""
    try:
        library_path()
    except FileNotFoundError as missing:
        pytest.skip(str(missing), allow_module_level=True)


def bits(value: Any) -> Any:
    """Something that is equal only if every bit is."""
    if not isinstance(value, torch.Tensor):
        return value
    flat = value.detach().resolve_conj().resolve_neg().contiguous().cpu()
    return value.dtype, tuple(value.shape), flat.flatten().view(torch.uint8).numpy().tobytes()


class Results:
    """Outputs of one run by role."""

    def __init__(self) -> None:
        self.loss: Any = None
        self.gradients: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.aliases: dict[str, Any] = {}
        self.mutated: dict[str, Any] = {}
        self.saved: dict[str, Any] = {}

    def add(self, entry: reference.Entry, values: list[Any]) -> None:
        names = {value: name for value, _, _, name in entry.inputs}
        for value, (_, role, name) in zip(values, entry.outputs, strict=True):
            if role == "loss":
                self.loss = value
            elif role == "gradient":
                self.gradients[name] = value
            elif role == "output":
                self.outputs[name] = value
            elif role == "saved":
                self.saved[name] = value
            elif role == "alias":
                self.aliases[names[name]] = value
            elif role == "mutation":
                self.mutated[names[name]] = value
            else:
                raise AssertionError(role)


def load(folder: Path) -> tuple[dict[str, reference.Entry], dict[str, Any]]:
    """A program's entries, and a copy of its inputs' values."""
    entries = reference.read((folder / "program.gv").read_text())
    values = torch.load(folder / "inputs.pt")
    copied = {
        entry: {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in named.items()}
        for entry, named in values.items()
    }
    return entries, copied


def run(entries: dict[str, reference.Entry], state: dict[str, dict[str, Any]]) -> Results:
    """One step. Writes into `state` where the program writes into its inputs."""
    results = Results()
    first = "forward" if "forward" in entries else "step"
    results.add(entries[first], reference.run(entries[first], state[first]))
    if first == "forward":
        entry = entries["backward"]
        inputs = {n: results.saved[n] for _, _, role, n in entry.inputs if role == "saved"}
        results.add(entry, reference.run(entry, inputs | state["backward"]))
    return results


def exported(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    folder: Path,
    *,
    joint: bool = False,
    is_compiling: bool = False,
) -> tuple[dict[str, reference.Entry], dict[str, dict[str, Any]]]:
    export = gravure.export_joint if joint else gravure.export_step
    return load(export(fn, args, folder, is_compiling=is_compiling))


def statements(entry: reference.Entry, op: str) -> list[reference.Statement]:
    """The statements of that operator, nested ones too."""
    found = []
    pending = list(entry.body)
    while pending:
        statement = pending.pop(0)
        if statement.op == op:
            found.append(statement)
        for body, _ in statement.blocks:
            pending = body + pending
    return found


def step_of(fn: Any, args: tuple[Any, ...], folder: Path) -> Any:
    return exported(fn, args, folder)[0]["step"]


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def leaves(fn: Any, args: tuple[Any, ...]) -> dict[str, Tensor]:
    """Tensors that `fn` may differentiate, by the names that an export gives them."""
    if isinstance(fn, nn.Module):
        roots = dict(fn.named_parameters())
        names = list(inspect.signature(fn.forward).parameters)
    else:
        roots = dict(inspect.getclosurevars(fn).nonlocals)
        names = list(inspect.signature(fn).parameters)
    found: dict[str, Tensor] = {}
    for name, value in (roots | dict(zip(names, args, strict=False))).items():
        if isinstance(value, nn.Module):
            found |= dict(value.named_parameters(name))
        elif isinstance(value, Tensor) and value.requires_grad:
            found[name] = value
        elif inspect.isfunction(value):
            found |= {f"{name}.{n}": t for n, t in leaves(value, ()).items()}
    return found


def same_as_eager(fn: Any, args: tuple[Any, ...], folder: Path, *, joint: bool = False) -> Results:
    """Exports as a step and as a pair, runs both: loss, gradients and random state are eager's."""
    entries, state = exported(fn, args, folder / ("joint" if joint else "step"), joint=joint)
    torch.manual_seed(1)
    found = run(entries, state)
    after = torch.get_rng_state()
    named = leaves(fn, args)
    for tensor in named.values():
        tensor.grad = None
    torch.manual_seed(1)
    result = fn(*args)
    loss = result if isinstance(result, Tensor) else result[0]
    loss.backward()
    assert bits(found.loss) == bits(loss)
    assert torch.equal(after, torch.get_rng_state())
    assert set(found.gradients) == {n for n, t in named.items() if t.grad is not None}
    for name, gradient in found.gradients.items():
        assert bits(gradient) == bits(named[name].grad), name
    if not joint:
        same_as_eager(fn, args, folder, joint=True)
    return found
