"""The program of an optimizer's step: parameters and state bound, gradients and numbers passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..graphs.devices import device_of
from ..graphs.names import InputSpec, Namer
from ..graphs.recorded_numbers import Unrecorded
from ..graphs.update_recorder import record, rounded
from ..library.load import program_class
from ..options import CompileOptions
from ..text.fx_import import EntryWriter
from ..text.program_text import HEADER
from ..torch_api.dispatch import without_modes
from .twin import run_step, twin_of

_ENTRY = "step"


class Held(NamedTuple):
    """A tensor of an optimizer that is no parameter, and where it is found."""

    holder: dict[Any, Any]
    key: Any
    tensor: Tensor
    name: str


class Changing(Unrecorded):
    """The step makes state: the next one may not."""


def state_of(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[Held]:
    """State of these parameters, and settings that are tensors, each once."""
    found: list[Held] = []
    for i, parameter in enumerate(parameters):
        state = optimizer.state.get(parameter, {})
        found += [Held(state, k, v, f"{k}.{i}") for k, v in state.items() if isinstance(v, Tensor)]
    for i, group in enumerate(optimizer.param_groups):
        found += [
            Held(group, k, v, f"{k}.group{i}") for k, v in group.items() if isinstance(v, Tensor)
        ]
    return list({id(held.tensor): held for held in reversed(found)}.values())[::-1]


class UpdateProgram:
    """Right for as long as `holds`, for these parameters and this state."""

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: list[Tensor],
        numbers: list[float],
        options: CompileOptions,
    ) -> None:
        """Raises Unrecorded, and ExportError, with what stands in the way."""
        self.held = state_of(optimizer, parameters)
        others = [held.tensor for held in self.held]
        count = len(parameters)
        gradients = [p.grad for p in parameters]
        tensors: list[Any] = [*parameters, *gradients, *others]
        for tensor in tensors:
            if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.is_nested:
                raise Unrecorded(
                    "its step", f"takes a {type(tensor).__name__}", "its own step runs"
                )
            if tensor.layout is not torch.strided:
                raise Unrecorded("its step", f"takes a {tensor.layout} tensor", "its own step runs")
            if tensor.is_inference():
                raise Unrecorded("its step", "takes an inference tensor", "its own step runs")

        def run(fakes: list[Tensor], values: list[float]) -> None:
            known = [*parameters, *others]
            stand_ins = {id(t): f for t, f in zip(known, fakes[:count] + fakes[2 * count :],
                                                  strict=True)}  # fmt: skip
            grads = {id(p): fakes[count + i] for i, p in enumerate(parameters)}
            if not run_step(twin_of(optimizer, stand_ins, grads, values)):
                what = "changes values of Python's in its state"
                raise Changing("its step", what, "its own step runs")

        self._update = record(run, tensors, numbers)
        self.uses = self._update.numbers
        self._holds = self._conditions(tensors)
        with without_modes():
            self._program = self._load(type(optimizer).__name__, tensors, count, options)
        self._run: Callable[..., Any] = self._program.run
        self._bind(parameters)

    def holds(self, numbers: list[float]) -> bool:
        """Whether all that its code branched on is as it was."""
        return self._holds is None or self._holds(numbers)

    def same_state(self, held: list[Held], parameters: list[Tensor]) -> bool:
        """Whether this state can take the place of its own; it does then."""
        if [_kind(h) for h in held] != [_kind(h) for h in self.held]:
            return False
        self.held = held
        self._holds = self._conditions([*parameters, *parameters, *[h.tensor for h in held]])
        self._bind(parameters)
        return True

    def run(self, gradients: list[Tensor], numbers: list[float]) -> None:
        self._run(_ENTRY, [*gradients, *[numbers[i] for i in self.uses]])

    def stats(self) -> dict[str, int]:
        return dict(self._program.stats())

    def text(self) -> str:
        return str(self._program.text())

    def _bind(self, parameters: list[Tensor]) -> None:
        values = [*parameters, *[held.tensor for held in self.held]]
        self._program.bind(_ENTRY, self._bound, values)

    def _conditions(self, tensors: list[Tensor]) -> Callable[[list[float]], bool] | None:
        if not self._update.conditions:
            return None
        known: dict[str, Any] = {"rounded": rounded}
        read = {i: tensors[i] for i in self._update.counters}
        text = " and ".join(self._update.conditions)
        code = compile(f"lambda n, c: {text}", "<conditions>", "eval")
        holds = eval(code, known)
        if not read:
            return lambda numbers: holds(numbers, None)
        return lambda numbers: holds(numbers, {i: t.item() for i, t in read.items()})

    def _load(
        self,
        name: str,
        tensors: list[Tensor],
        count: int,
        options: CompileOptions,
    ) -> Any:
        writer = EntryWriter(Namer(run_step, ()))
        bound: list[Any] = []
        for i, tensor in enumerate(tensors):
            if i < count:
                spec = InputSpec("parameter", f"p{i}", None)
            elif i < 2 * count:
                spec = InputSpec("user_input", f"gradient.p{i - count}", None)
            else:
                spec = InputSpec("buffer", f"{name}.{self.held[i - 2 * count].name}", None)
            bound.append(writer.add_input(spec, writer.types.of(tensor.detach())))
        for i in self.uses:
            bound.append(writer.add_input(InputSpec("symint", f"number{i}", None), "float"))
        self._bound = [*range(count), *range(2 * count, len(tensors))]
        writer.add_graph(self._update.graph, bound)
        text = f"{HEADER}\n{writer.text(_ENTRY, [])}"
        device = device_of([self._update.graph], f"the step of {name}")
        # A foreach call is many kernels.
        library = {"min_partition_size": "1", "write_numbers": "1"} | options.for_library()
        program = program_class().of_text(text, device, library)
        constants = {
            i: spec.value for i, (spec, _, _) in enumerate(writer.inputs) if spec.role == "constant"
        }
        program.bind(_ENTRY, list(constants), list(constants.values()))
        return program


def _kind(held: Held) -> tuple[Any, ...]:
    t = held.tensor
    return held.name, t.dtype, t.device, t.shape, t.stride(), type(t)
