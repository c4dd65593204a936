"""Which modules of one graph have programs, where modules come and go."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .weak_tensors import WeakTensors

_MOST = 8  # programs in a row whose module was gone before they were replayed
_PATIENCE = 4  # calls with the same module, before it has a program nevertheless


class ModuleChoice:
    """Parameters that are others in each step would have a program made for each, and no replay."""

    def __init__(self) -> None:
        self.unreplayed = 0  # programs in a row whose module was gone before a replay
        self._refused = WeakTensors()  # owners of the last call for which no program was made
        self._calls = 0  # such calls in a row, with the same owners

    def gone(self, *, replayed: bool) -> None:
        """A module is gone, whose program was replayed by then or not."""
        self.unreplayed = 0 if replayed else self.unreplayed + 1

    def admit(self, owners: Sequence[torch.Tensor]) -> bool:
        """Whether the module with these tensors may have a program. Beyond the limit it has to come
        some times in a row."""
        if self.unreplayed < _MOST:
            return True
        if self._refused.are(owners):
            self._calls += 1
        else:
            self._refused.exchange(owners)
            self._calls = 1
        return self._calls > _PATIENCE
