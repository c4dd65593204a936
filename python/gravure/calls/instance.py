"""One program of a graph, for the tensors of one module; or the graph itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import torch

from ..graphs.given_gradients import Forms
from ..text.entry_call import Call, Run, picker
from .native_node import NativeCall
from .programs_beside import ProgramsBeside
from .weak_tensors import WeakTensors
from .written_program import LoadedFrom


class Instance:
    """One loaded program, or the graphs themselves where there is none.

    The program knows the parameters and buffers of one module, so that a call passes only the rest.
    It does not keep them alive.
    """

    def __init__(
        self,
        forward: Run,
        backward: Run | None,
        made: LoadedFrom | None = None,
        call: Call | None = None,
        sizes: tuple[int, ...] = (),
        missed: list[str] | None = None,
        native: NativeCall | None = None,
        captures: bool = True,
        beside: ProgramsBeside | None = None,
    ) -> None:
        """`call`: how its first entry is called, with what a module keeps; None for no module's."""
        self.captures = captures  # or each of its calls runs uncaptured
        self.forward = forward
        self.backward = backward
        self.native = native  # both, as one node of autograd's graph
        # The program that runs; where it is for gradients of some `forms` (it is fitted), also the
        # one that was made first, for any: `whole`, with its `_own_native`.
        self.program: Any = made.program if made is not None else None
        self.whole: Any = None
        self._own_native = native
        self._own_beside = beside
        self.forms: Forms = ()  # of the gradients that the backward of `program` is for
        self.made = made  # what was made first
        self.made_fitted: LoadedFrom | None = None
        # Terms of gradients: whether the program gives them one by one; else the one beside it that
        # does, if there are any, and whether that was asked for.
        self.apart = made is not None and bool(made.written.traced.apart)
        self.wants_apart = False
        self._follow_beside(beside)
        # For calls while what an earlier one saved is held; of the first instance.
        self.further: list[Instance] = []
        self.number = 0  # among those, from 1; 0: the first
        self.defers = False  # such calls are for a further one
        self.unrepeatable = ""  # why there can be no further one
        self.sizes = sizes
        self.missed = missed or []  # remarks on how it was made
        self._entry = call.entry if call else ""
        self._kept_at = call.kept if call else []  # among a call's arguments
        self._positions = [call.taken.index(i) for i in self._kept_at]  # among the entry's inputs
        self._pick = picker(self._kept_at)
        self._owners: frozenset[int] = frozenset()
        self._ended: Callable[[Instance], None] | None = None
        self._kept = WeakTensors(_weakly(self))
        self._kinds: list[Any] = []

    def let_go(self) -> None:
        """Nobody will call it any more: for what else one of compile_step's must let go of."""

    def defer(self, defers: bool) -> None:
        """Whether a call while saved values are held is another instance's."""
        self.defers = defers
        self.program.set_defers(defers)

    def holds_saved(self) -> bool:
        """Whether what an earlier call saved lies in its arena still."""
        return self.program.holds_saved()

    def belong(self, owners: Iterable[int], ended: Callable[[Instance], None]) -> None:
        """`ended` is called when one of the tensors at `owners`, among a call's arguments, dies."""
        self._owners, self._ended = frozenset(owners), ended

    def holds(self, args: Sequence[Any]) -> bool:
        """True if the parameters and buffers among `args` are those that the program knows."""
        return self._kept.are(self._pick(args))

    def may_hold(self, args: Sequence[Any]) -> bool:
        """The same, but that any tensor may stand where one is gone."""
        return self._kept.may_be(self._pick(args))

    def keep(self, args: Sequence[Any]) -> None:
        """From now on it is for the parameters and buffers among `args`."""
        kept = self._pick(args)
        changed = self._kept.exchange(kept)
        if changed:
            self._kinds = [_kind(tensor) for tensor in kept]
            self._bind(self.program, kept, changed)
            if self.whole is not None:
                self._bind(self.whole, kept, changed)

    def _bind(self, program: Any, kept: Sequence[Any], which: Iterable[int]) -> None:
        positions = [self._positions[i] for i in which]
        program.bind_weakly(self._entry, positions, [kept[i] for i in which])

    def take_fitted(self, fitted: Instance, args: Sequence[Any], forms: Forms) -> None:
        """Autograd's node is `fitted`'s from now on, whose backward is for such gradients."""
        fitted.program.set_whole(self.program)
        fitted.program.set_defers(self.defers)
        kept = self._pick(args)
        self._bind(fitted.program, kept, range(len(kept)))
        self._own_native, self.native = self.native, fitted.native
        self._own_beside = self.beside
        self._follow_beside(fitted.beside)
        self.whole, self.program, self.forms = self.program, fitted.program, forms
        self.made_fitted = fitted.made

    def take_apart(self, made: Instance, args: Sequence[Any]) -> None:
        """Its program is `made`'s from now on, which gives terms of gradients one by one."""
        made.program.set_defers(self.defers)
        kept = self._pick(args)
        self._bind(made.program, kept, range(len(kept)))
        self.forward, self.backward = made.forward, made.backward
        self.native = self._own_native = made.native
        self.program, self.whole, self.made = made.program, None, made.made
        self.forms, self.made_fitted = (), None
        self.apart = True
        self._follow_beside(None)

    def _follow_beside(self, beside: ProgramsBeside | None) -> None:
        """`beside` is that of its program from now on."""
        self.beside, self.wants_apart = beside, False
        if beside is not None:
            beside.tell(_wanting(weakref.ref(self)))

    def leave_fitted(self) -> None:
        """Gradients come otherwise after all."""
        self.native, self.program, self.whole = self._own_native, self.whole, None
        self._follow_beside(self._own_beside)
        self.forms, self.made_fitted = (), None

    def knows(self, tensors: Set[int]) -> bool:
        """Whether it is for one of these, by `id`."""
        return any(id(tensor) in tensors for tensor in self._kept.living() if tensor is not None)

    def was_converted(self) -> bool:
        """Whether its module is on another device since, or of another dtype, for which the program
        is not."""
        pairs = zip(self._kept.living(), self._kinds, strict=True)
        return any(tensor is not None and _kind(tensor) != kind for tensor, kind in pairs)

    def _died(self, i: int) -> None:
        if self._kept_at[i] in self._owners and self._ended is not None:
            self._ended(self)


def _kind(tensor: torch.Tensor) -> tuple[torch.device, torch.dtype]:
    return tensor.device, tensor.dtype


def _wanting(found: weakref.ref[Instance]) -> Callable[[], None]:
    """The instance's next call finds that it wants another program."""

    def wants() -> None:
        alive = found()
        if alive is not None:
            alive.wants_apart, alive.native = True, _runs_nothing

    return wants


def _runs_nothing(_: Sequence[Any]) -> None:
    return None


def _weakly(instance: Instance) -> Callable[[int], None]:
    """Instance._died, which does not keep the instance alive."""
    found = weakref.ref(instance)

    def died(i: int) -> None:
        alive = found()
        if alive is not None:
            alive._died(i)

    return died
