"""A step of an optimizer that is as the last one was, but for numbers: found out at C's speed.

Settings and the dictionaries of its state are compared by identity. What lies behind the tensors
the library compares, and asks each parameter for its gradient.
"""

from __future__ import annotations

from itertools import chain

from torch import Tensor
from torch.optim import Optimizer

from ..torch_api.guard_checks import Check
from .repeated_settings import RepeatedSettings
from .update_program import UpdateProgram


class RepeatedStep:
    """Of one program, for as long as all is as it was."""

    def __init__(
        self, optimizer: Optimizer, program: UpdateProgram, numbers: list[float], same: Check
    ) -> None:
        """`numbers`: those of read_groups(). `same`: whether the state's dictionaries are as they
        were."""
        self.program = program
        self.settings = RepeatedSettings(optimizer, numbers)
        self._same_state = same

    def is_same(self, optimizer: Optimizer) -> bool:
        return self.settings.are_same(optimizer) and self._same_state()

    def runs(self, optimizer: Optimizer) -> bool | None:
        """Whether it ran as a program. None: it is not as it was; nothing has run."""
        if not self.is_same(optimizer):
            return None
        return self.program.repeat(self.settings.numbers)


def parameters_without(optimizer: Optimizer, parameters: list[Tensor]) -> list[Tensor]:
    """The parameters of its groups that are not among `parameters`."""
    among = set(map(id, parameters))
    every = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return [p for p in every if id(p) not in among]
