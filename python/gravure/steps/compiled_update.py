"""An optimizer's steps: which program is right for each, or the optimizer's own step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer, SparseAdam

from ..errors import ExportError
from ..options import CompileOptions
from ..torch_api.dispatch import in_autocast
from ..torch_api.dtensors import layout_of, locals_of
from ..torch_api.guard_checks import Check, never, unchanged
from ..torch_api.optimizers import has_step_hooks, note_step, plain_step, step_name
from .foreign_step import ForeignStep, foreign_step
from .loaded_update import SharedMemory
from .own_optimizers import OWN, is_being_captured, scaling_of, stands_in_the_way
from .recorded_step import MOST_TRIES, MakesState, state_of
from .repeated_step import RepeatedStep, parameters_without
from .said_once import SaidOnce
from .settings import are_same, counted_in, read_groups, read_state, surroundings
from .twin import ChangesNumbers
from .update_program import UpdateProgram

_MOST_PROGRAMS = 16  # at a time
_MOST_MADE = 256
_MOST_KINDS = 64
_MOST_REPEATED = 4
_MOST_FAILED = 5  # steps of a foreign class, one behind the other
_KEYWORD = (
    "compile_optimizer(optimizer, foreign=True) captures a step that does nothing but compute with "
    "tensors, and whose code reads parameters, gradients, state, settings and plain values alone"
)


class _Kind:
    """Steps of the same parameters and the same settings, but for numbers."""

    def __init__(self) -> None:
        self.programs: list[UpdateProgram] = []
        self.parameters: frozenset[int] = frozenset()  # their ids
        self.tries = 0
        self.own = False  # its own step runs, for good
        self.state: Any = None  # the optimizer's, which a loaded one replaces
        self.settings: list[Tensor] = []  # those of its settings that are tensors
        self.same: Check = never


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
    """Whether a step is given no more than a closure, and that. It is None where there is none:
    Accelerate passes a None on in each step."""
    if not args and not kwargs:
        return True, None
    known = len(args) + len(kwargs) == 1 and kwargs.keys() <= {"closure"}
    return known, [*args, *kwargs.values()][0] if known else None


class CompiledUpdate:
    """What runs an optimizer's step."""

    def __init__(self, options: CompileOptions, *, foreign: bool = False) -> None:
        """`foreign`: the caller vouches for a class that is not torch.optim's."""
        self.options = options
        self._vouched = foreign
        self.programs = 0  # made so far
        self.own_steps = 0  # that the optimizer's own code ran
        self.repeated_steps = 0  # in which nothing but numbers was another
        self.function: Any = None  # what compile_optimizer put in the place of its step
        self._kinds: dict[Any, _Kind] = {}
        self._repeated: list[RepeatedStep] = []  # the last one first
        self._said = SaidOnce()
        self._foreign: ForeignStep | None = None  # what is known of a class of somebody's
        self._counted: frozenset[str] = frozenset()  # Python's numbers that its step changes
        self._failed = 0  # steps of it in a row that became no program, each of a kind of its own
        self._refused: tuple[Any, str] | None = None  # a step's code, and why it is refused

    def knows(self, optimizer: Optimizer) -> bool:
        """Whether its step can be a program, by what its class is."""
        return type(optimizer) in OWN or self._in_the_way(optimizer) is None

    def _in_the_way(self, optimizer: Optimizer) -> str | None:
        kind = type(optimizer)
        if kind in (*OWN, LBFGS, SparseAdam):
            return stands_in_the_way(optimizer)
        if not self._vouched:
            return f"{kind.__name__} is not one of torch.optim's own; {_KEYWORD}"
        if self._foreign is None or not self._foreign.is_same():
            code = getattr(plain_step(kind), "__code__", None)
            if self._refused is not None and self._refused[0] is code:
                return self._refused[1]
            self._kinds.clear()
            self._failed = 0
            self._foreign, why = foreign_step(optimizer)
            self._refused = None
            if self._foreign is None:
                self._refused = code, why
                return why
        return stands_in_the_way(optimizer, known=True)

    def repeats(self, optimizer: Optimizer) -> bool:
        """The whole step, where it is as it was but for numbers. False, and nothing has run or is
        changed, where that is not so, or not known."""
        if has_step_hooks(optimizer) or not self._repeats_between_hooks(optimizer):
            return False
        note_step(optimizer)
        return True

    def _repeats_between_hooks(self, optimizer: Optimizer) -> bool:
        """As repeats(), of what lies between a step's hooks."""
        if not self._repeated or in_autocast():
            return False
        for i, repeated in enumerate(self._repeated):
            ran = repeated.runs(optimizer)
            if ran:
                self.repeated_steps += 1
                if i > 0:
                    self._repeated.insert(0, self._repeated.pop(i))
                return True
            if ran is None:
                self._repeated.remove(repeated)
                return False
        return False

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Called as the optimizer's own, which is called like that where it runs."""
        note_step(optimizer)
        reason = self._in_the_way(optimizer)
        known, closure = closure_of(args, kwargs)
        if reason is None and not known:
            reason = "it is called with more than a closure"
        if reason is None and is_being_captured():
            reason = "its stream is being captured by other code"
        if reason is None and closure is not None and self._foreign is not None:
            reason = "a closure is called within the step"
        if reason is not None:
            self._say(optimizer, reason)
            self.own_steps += 1
            return plain_step(type(optimizer))(optimizer, *args, **kwargs)
        loss = None
        if closure is not None:  # torch.optim's own steps call it before they do anything
            with torch.enable_grad():
                loss = closure()
            args, kwargs = (None,), {}
        looked = closure is None and not has_step_hooks(optimizer)  # repeats() did, before
        if not looked and self._repeats_between_hooks(optimizer):
            return loss
        if self._runs_program(optimizer):
            return loss
        self.own_steps += 1
        result = plain_step(type(optimizer))(optimizer, *args, **kwargs)
        return result if closure is None else loss

    def leave(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Somebody replaced the class' step, with hooks or without: it runs."""
        self._say(optimizer, f"somebody replaced {type(optimizer).__name__}.step")
        self.own_steps += 1
        return type(optimizer).step(optimizer, *args, **kwargs)

    def refuse(self, optimizer: Optimizer) -> None:
        """Says why its steps run as they are."""
        reason = self._in_the_way(optimizer)
        inner = getattr(optimizer, "optimizer", None)
        if isinstance(inner, Optimizer):
            reason = f"{reason}; compile the {type(inner).__name__} that it wraps"
        self._say(optimizer, str(reason))

    def _runs_program(self, optimizer: Optimizer) -> bool:
        """False where nothing has run."""
        numbers: list[float] = []
        key: list[Any] = [surroundings()]
        parameters: list[Tensor] = []
        gradients: list[Tensor] = []
        settings: list[Tensor] = []
        scaling = scaling_of(optimizer)
        without = False
        if self._failed >= _MOST_FAILED and self._foreign is not None:
            return False
        try:
            read_groups(optimizer, key, numbers, settings, self._counted)
            for group in optimizer.param_groups:
                for p in group["params"]:
                    grad = p.grad
                    if grad is None:
                        without = True
                        continue
                    parameters.append(p)
                    gradients.append(grad)
                    key += (id(p), p.dtype, p.device, layout_of(p), grad.dtype)
                    key += (type(grad), grad.device, layout_of(grad))
            key += ((name, t.dtype, t.device) for name, t in scaling.items())
            if self._foreign is not None:
                self._foreign.read(optimizer, key)
                read_state(optimizer, parameters, key, numbers, self._counted)
            found = self._kinds.get(tuple(key))
        except (TypeError, RuntimeError) as error:  # no key; or a sparse gradient has no strides
            self._say(optimizer, f"no program takes its settings or gradients ({error})")
            return False
        if not parameters:
            return False  # nothing to do, but for the step's own words
        if without and self._foreign is not None:
            self._say(optimizer, "not all of its parameters have a gradient")
            return False
        if self._foreign is not None and _share_memory(parameters, gradients):
            self._say(optimizer, "a gradient shares its memory with another one or a parameter")
            return False
        if found is None:
            found = self._add_kind(optimizer, tuple(key), parameters)
            if found is None:
                return False
        if found.own:
            return False
        same = found.state is optimizer.state and found.same()
        same = same and all(program.holds_tensors() for program in found.programs)
        if not are_same(settings, found.settings):
            found.settings, same = settings, False
        if not same and not self._rebind(optimizer, found, parameters):
            found.programs.clear()
        for program in found.programs:
            if program.holds(numbers):
                break
        else:
            made = self._make(optimizer, found, parameters, numbers)
            if made is None:
                return False
            program = made
        try:
            program.run([*gradients, *scaling.values()], numbers)
        except SharedMemory as shared:
            self._say(optimizer, shared.reason)
            return False
        except Exception:
            # Tensors whose contents were moved (`.data =`) are refused before anything runs.
            if program.has_state(state_of(optimizer, parameters)):
                raise
            found.programs.clear()
            found.same = never
            return False
        if self._foreign is None:
            self._expect_repeats(optimizer, found, program, parameters, numbers)
        elif program.numbers_after is not None:
            holders = counted_in(optimizer, parameters, self._counted)
            for (holder, name), value in zip(holders, program.numbers_after(numbers), strict=True):
                holder[name] = value
        return True

    def _add_kind(
        self, optimizer: Optimizer, key: tuple[Any, ...], parameters: list[Tensor]
    ) -> _Kind | None:
        """Another one; None where it could not have a program."""
        now = {id(p) for group in optimizer.param_groups for p in group["params"]}
        gone = [known for known, kind in self._kinds.items() if not kind.parameters <= now]
        for known in gone:
            self._drop_kind(known)
        if not self._has_room(optimizer):
            return None
        if len(self._kinds) >= _MOST_KINDS:
            idle = (known for known, kind in self._kinds.items() if not kind.programs)
            self._drop_kind(next(idle))
        kind = self._kinds[key] = _Kind()
        kind.parameters = frozenset(map(id, parameters))
        return kind

    def _drop_kind(self, key: tuple[Any, ...]) -> None:
        kind = self._kinds.pop(key)
        self._repeated = [each for each in self._repeated if each.program not in kind.programs]

    def _has_room(self, optimizer: Optimizer) -> bool:
        """For a program more."""
        alive = sum(len(kind.programs) for kind in self._kinds.values())
        if alive < _MOST_PROGRAMS and self.programs < _MOST_MADE:
            return True
        count = f"{alive} programs" if alive >= _MOST_PROGRAMS else f"had {self.programs} programs"
        self._say(
            optimizer,
            f"it has {count} already: its settings, or which parameters have a gradient, change "
            "in too many ways",
        )
        return False

    def _expect_repeats(
        self,
        optimizer: Optimizer,
        kind: _Kind,
        program: UpdateProgram,
        parameters: list[Tensor],
        numbers: list[float],
    ) -> None:
        """Has the next step look whether it is as this one."""
        if in_autocast() or not program.can_repeat:
            return
        if any(repeated.program is program for repeated in self._repeated):
            return
        repeated = RepeatedStep(optimizer, program, numbers, kind.same)
        without = parameters_without(optimizer, parameters)
        if repeated.settings.known and program.keep(without, step_name(optimizer)):
            self._repeated.insert(0, repeated)
            del self._repeated[_MOST_REPEATED:]

    def _rebind(self, optimizer: Optimizer, kind: _Kind, parameters: list[Tensor]) -> bool:
        held = state_of(optimizer, parameters)
        if not all(program.same_state(held, parameters) for program in kind.programs):
            return False
        self._watch(optimizer, kind, parameters)
        return True

    def _watch(self, optimizer: Optimizer, kind: _Kind, parameters: list[Tensor]) -> None:
        kind.state = state = optimizer.state
        holders = [state[p] for p in parameters if p in state]
        kind.same = unchanged([state, *holders])

    def _make(
        self, optimizer: Optimizer, kind: _Kind, parameters: list[Tensor], numbers: list[float]
    ) -> UpdateProgram | None:
        if not self._has_room(optimizer):
            return None
        try:
            counted = None if self._foreign is None else self._counted
            program = UpdateProgram(optimizer, parameters, numbers, self.options, counted)
        except Exception as error:
            self._failed += 1
            reason = error.reason if isinstance(error, ExportError) else repr(error)
            if isinstance(error, ChangesNumbers):
                # With the next step; they are part of what a kind is.
                self._counted |= error.names
                reason = "other numbers of Python's change in each step"
            kind.tries += 1
            passing = isinstance(error, (MakesState, ChangesNumbers, torch.OutOfMemoryError))
            kind.own = not passing or kind.tries >= MOST_TRIES
            # What changes may be part of what a kind is, so that each step has a kind of its own.
            if kind.own or (self._foreign is not None and self._failed >= _MOST_FAILED):
                self._say(optimizer, reason)
            return None
        self._failed = kind.tries = 0
        kind.programs.append(program)
        self._watch(optimizer, kind, parameters)
        self.programs += 1
        return program

    def _say(self, optimizer: Optimizer, reason: str) -> None:
        message = "compile_optimizer: %s.step() runs as it is, in eager's kernels: %s"
        self._said(reason, message, type(optimizer).__name__)


def _share_memory(parameters: list[Tensor], gradients: list[Tensor]) -> bool:
    """Whether a gradient begins where another one, or a parameter, does. Programs may read copies
    of gradients, and a step may write into one."""
    addresses = [grad.data_ptr() for grad in locals_of(gradients) if grad.numel() > 0]
    found = set(addresses)
    own = (p.data_ptr() for p in locals_of(parameters))
    return len(found) < len(addresses) or not found.isdisjoint(own)
