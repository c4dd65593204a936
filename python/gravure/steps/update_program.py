"""The program of an optimizer's step: parameters and state bound, gradients and numbers passed."""

from __future__ import annotations

from operator import is_

from torch import Tensor
from torch.optim import Optimizer

from ..graphs.update_recorder import numbers_after
from ..options import CompileOptions
from ..torch_api.dtensors import is_dtensor, locals_of
from .loaded_update import LoadedUpdate
from .own_optimizers import scaling_of
from .recorded_step import HeldTensor, record_step, state_of


class UpdateProgram:
    """Right for as long as `holds`, for these parameters and this state."""

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: list[Tensor],
        numbers: list[float],
        options: CompileOptions,
        counted: frozenset[str] | None = None,
    ) -> None:
        """Raises Unrecorded, and ExportError, with what stands in the way; ChangesNumbers."""
        self.held = state_of(optimizer, parameters)
        gradients = [p.grad for p in parameters]
        scaling = scaling_of(optimizer)
        update = record_step(
            optimizer,
            parameters,
            gradients,
            self.held,
            numbers,
            scaling=scaling,
            counted=counted,
        )
        # Python's numbers as it leaves them, of all numbers; None: it changes none.
        self.numbers_after = numbers_after(update)
        name = type(optimizer).__name__
        count = len(parameters)
        inputs = [("parameter", f"p{i}", p) for i, p in enumerate(parameters)]
        # By this name the library knows that their memory comes and goes.
        inputs += [("buffer", f"p{i}.grad", g) for i, g in enumerate(gradients)]  # type: ignore[misc]
        inputs += [("buffer", f"{name}.{each.name}", each.tensor) for each in self.held]
        last = len(inputs)
        inputs += [("user_input", name, tensor) for name, tensor in scaling.items()]
        self._scaling = list(scaling.values())
        self._program = LoadedUpdate(f"the step of {name}", update, inputs, options)
        self._owners, self._gradients = range(count), range(count, 2 * count)
        self._bound = [*range(count), *range(2 * count, last)]
        self._has_dtensors = any(map(is_dtensor, (*parameters, *gradients)))
        # The library can ask a parameter for its gradient, but none that holds another tensor.
        self.can_repeat = not self._scaling and not self._has_dtensors
        self._bind(parameters)
        self.holds = self._program.holds
        # With gradients, and what a scaler has set, and all numbers.
        self.run = self._program.run
        # Where nothing but numbers differs from the step before; all of them.
        self.repeat = self._program.repeat
        self.stats, self.text = self._program.stats, self._program.text

    def same_state(self, held: list[HeldTensor], parameters: list[Tensor]) -> bool:
        """Whether this state can be used instead of its own; it is then."""
        if not self.has_state(held):
            return False
        self.held = held
        tensors = [*parameters, *parameters, *[each.tensor for each in held], *self._scaling]
        self._program.watch(tensors)
        self._bind(parameters)
        return True

    def has_state(self, held: list[HeldTensor]) -> bool:
        """Whether this is state of the kind that it was made for."""
        return [each.kind for each in held] == [each.kind for each in self.held]

    def holds_tensors(self) -> bool:
        """Whether its DTensors still hold what is bound: FSDP2 gives a parameter another one."""
        return not self._has_dtensors or all(map(is_, locals_of(self._of_bound), self._locals))

    def keep(self, without: list[Tensor], label: str) -> bool:
        """Has repeat() know what comes in each step; False where it cannot."""
        return self._program.keep(self._gradients, self._owners, without, label)

    def _bind(self, parameters: list[Tensor]) -> None:
        self._of_bound = [*parameters, *[each.tensor for each in self.held]]
        self._locals = locals_of(self._of_bound)
        self._program.bind(self._bound, self._locals)
