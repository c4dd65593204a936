"""An optimizer's step as the last statements of a program, behind those that clip gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import ExportError
from ..graphs.names import InputSpec
from ..graphs.update_recorder import conditions_of
from ..library.direct_calls import direct
from ..text.entries import StepEntry
from ..text.fx_import import EntryWriter
from ..torch_api.fake_tensors import unset_fake_temporarily
from ..torch_api.grad_scaler import scaler_settings, why_unknown
from ..torch_api.guard_checks import Check, never, unchanged
from ..torch_api.optimizers import has_step_hooks
from ..torch_api.whether_compiled import not_compiling
from .clip_programs import ClipPrograms
from .clipping import Clipping
from .loaded_update import write_number
from .own_optimizers import is_being_captured, is_replaced, scaling_of, stands_in_the_way
from .recorded_step import HeldTensor, MakesState, record_step, state_of
from .repeated_settings import RepeatedSettings
from .scaling import Scaling
from .settings import are_same, read_groups


class UpdateApart(Exception):
    """The update must run behind the step, for this once: nothing has run. With a reason where a
    user can change it."""


class OtherBranch(Exception):
    """The step's code branched on a number that is another one now. Nothing has run."""


class Ending:
    """What a step ends with: an optimizer, its settings as they are, what clips gradients."""

    def __init__(
        self,
        optimizer: Optimizer,
        clipping: Clipping | None = None,
        limit: float = 0.0,
        *,
        accumulates: bool = False,
    ) -> None:
        """`accumulates`: gradients are added to those of earlier calls, before all else."""
        self.optimizer = optimizer
        self.clipping = clipping
        self.accumulates = accumulates
        self.scaler: torch.amp.GradScaler | None = None  # of the next step
        self.norm: Tensor | None = None  # of the last step's gradients, before they were clipped
        self.numbers: list[float] = []  # that the next step is given
        self.tensors: list[Tensor] = []  # likewise, of its settings
        self._limit = [limit] if clipping is not None else []
        self._known: dict[Any, list[int]] = {}  # choices, by settings
        self._choices_made = 0
        self._key: Any = None
        self._choices: list[int] = []
        self._of_groups: tuple[Any, ...] = ()  # what a key says of parameters and settings
        self._settings: RepeatedSettings | None = None  # those that `_of_groups` is of

    def clip(self, parameters: list[Tensor], clips: ClipPrograms) -> None:
        """The gradients that these have."""
        (limit,) = self._limit
        if self.clipping is not None and self.clipping.by == "value":
            clips.by_value(parameters, limit)
        else:
            self.norm = clips.by_norm(parameters, limit)

    def read(self) -> str | None:
        """Reads the settings. Why no program can end with this optimizer's step now, or None."""
        optimizer = self.optimizer
        if self._settings is not None and not self._settings.are_same(optimizer):
            self._settings = None
        if self._settings is None:
            reason = stands_in_the_way(optimizer) or is_replaced(optimizer)
            if reason is not None:
                return reason
        if is_being_captured():
            return "its stream is being captured by other code"
        if scaling_of(optimizer):
            return "it has what GradScaler sets for one step"
        if has_step_hooks(optimizer):
            return "it has a step hook"
        of_scaler: tuple[Any, ...] = ()
        if self.scaler is not None:
            reason = why_unknown(self.scaler)
            if reason is not None:
                return reason
            of_scaler = ("scaler", *scaler_settings(self.scaler))
        numbers: list[float] = []
        if self._settings is not None:
            numbers = self._settings.numbers
        else:
            groups: list[Any] = [id(p) for g in optimizer.param_groups for p in g["params"]]
            tensors: list[Tensor] = []
            try:
                read_groups(optimizer, groups, numbers, tensors)
                hash(of_groups := tuple(groups))
            except TypeError as error:
                return f"its settings are of a kind that no program takes ({error})"
            self._of_groups, self.tensors = of_groups, tensors
            settings = RepeatedSettings(optimizer, numbers)
            self._settings = settings if settings.known else None
        self.numbers = numbers + self._limit
        found = (of_scaler, self._of_groups)
        if found != self._key:
            self._key = found
            if found not in self._known:
                self._known[found] = [self._new_choice()]
            self._choices = self._known[found]
        return None

    def key(self) -> Any:
        """The settings that a program is for, as read() found them."""
        return self._key

    def choices(self) -> list[int]:
        """Numbers by which Dynamo tells programs of these settings apart: one for each way that the
        step's code branched, that of the last step first."""
        return list(self._choices)

    def chosen(self, choice: int) -> None:
        """The step ran by this one."""
        if self._choices[0] != choice:
            self._choices.remove(choice)
            self._choices.insert(0, choice)

    def add_choice(self) -> int:
        """For a way that no program is for yet."""
        choice = self._new_choice()
        self._choices.append(choice)
        return choice

    def _new_choice(self) -> int:
        self._choices_made += 1
        return self._choices_made


class Update:
    """What one program updates: parameters and state stay the caller's tensors, and are inputs."""

    def __init__(self, ending: Ending, inputs: Sequence[Any], *, draws: bool) -> None:
        """`draws`: what stands before it draws random numbers."""
        self.ending = ending
        self._draws = draws
        self._at = {id(value): i for i, value in enumerate(inputs)}
        self._name = type(ending.optimizer).__name__
        self.parameters: list[Tensor] = []
        self.names: list[str] = []
        self.parameters_at: list[int] = []  # of `parameters`, among the entry's inputs
        self.positions: list[int] = []  # likewise, of what else the optimizer holds
        self.norm_at: int | None = None  # of the norm, among the entry's outputs but gradients
        self._others: list[Tensor] = []  # of the optimizer, and not updated
        self._held: list[HeldTensor] = []
        self._same: Check = never
        self._state: Any = None
        self._tensors: list[Tensor] = []
        self._numbers_at: list[int] = []
        self._bound: list[float] = []
        self._rebind: Callable[[list[float]], Any] | None = None  # of the program that has them
        self._scaling: Scaling | None = None
        if ending.scaler is not None:
            unscales = ending.clipping is not None
            self._scaling = Scaling(ending.scaler, unscales=unscales)
        self._tracker: Tensor | None = None  # of a scaler, as it is bound
        self._tracker_at = -1

    def bind(self, program: Any) -> None:
        """Binds state and settings, where they are others now.

        Raises UpdateApart for a gradient that the optimizer's own step would use, too, and for
        state that is missing; OtherBranch.
        """
        for other in self._others:
            if other.grad is not None:
                raise UpdateApart
        optimizer = self.ending.optimizer
        same = self._state is optimizer.state and self._same()
        if not same or not are_same(self.ending.tensors, self._tensors):
            held = state_of(optimizer, self.parameters)
            if [each.kind for each in held] != [each.kind for each in self._held]:
                raise UpdateApart  # its own step makes what is missing
            self._held = held
            self._holds = self._conditions()
            program.bind("step", self.positions, [each.tensor for each in held])
            self._watch()
        if self._scaling is not None:
            _, tracker = self._scaling.tensors()
            if tracker is not self._tracker:
                program.bind("step", [self._tracker_at], [tracker])
                self._tracker = tracker
        numbers = self.ending.numbers
        if self._holds is not None and not self._holds(numbers):
            raise OtherBranch
        given = [numbers[i] for i in self._update.numbers]
        if given != self._bound or 0.0 in given:  # which equals -0.0
            if self._rebind is None:
                program.bind("step", self._numbers_at, given)
                program.keep_numbers("step", self._numbers_at)
                self._rebind = direct(program, "bind_numbers", "step")
            else:
                self._rebind(given)
            self._bound = given

    def take_gradients(self) -> list[Tensor]:
        """The gradients of earlier calls, which the program is passed; nobody has them any more.

        Raises UpdateApart where one is missing, or of a kind that a program does not add to.
        """
        if not self.ending.accumulates:
            return []
        found = [p.grad for p in self.parameters]
        for p, grad in zip(self.parameters, found, strict=True):
            if grad is None or not _is_addable(grad, p):
                raise UpdateApart
        for p in self.parameters:
            p.grad = None
        return found  # type: ignore[return-value]

    def give_back(self, gradients: Sequence[Tensor]) -> None:
        """The program did not run."""
        if gradients:
            for p, grad in zip(self.parameters, gradients, strict=True):
                p.grad = grad

    def forget(self) -> None:
        """The next program has nothing bound."""
        self._same = never
        self._bound = []
        self._rebind = None
        self._tracker = None

    def refuse_others(self, found: dict[int, Any]) -> None:
        """Raises RuntimeError for another tensor where it updates a parameter.

        `found`: by position among the entry's inputs.
        """
        known = zip(self.parameters_at, self.parameters, self.names, strict=True)
        for i, parameter, name in known:
            if found.get(i, parameter) is not parameter:
                raise RuntimeError(
                    f'"{name}" was replaced, and the optimizer would go on with the old one; give '
                    "the new one to the optimizer, or change it in place"
                )

    def write(self, step: StepEntry, specs: Sequence[InputSpec]) -> set[int]:
        """Writes the update of each input that has a gradient; which ones these are."""
        writer = step.writer
        known = [p for group in self.ending.optimizer.param_groups for p in group["params"]]
        positions = [self._at.get(id(p), -1) for p in known]
        pairs = zip(known, positions, strict=True)
        taken = [(p, i, g) for p, i in pairs if i >= 0 and (g := step.gradients[i]) is not None]
        if not taken:
            raise ExportError(
                self._name, "the loss reaches none of its parameters", "give it others"
            )
        self.parameters = [p for p, _, _ in taken]
        updated = set(map(id, self.parameters))
        self._others = [p for p in known if id(p) not in updated]
        self.parameters_at = [i for _, i, _ in taken]
        self.names = [specs[i].name for i in self.parameters_at]
        with unset_fake_temporarily(), not_compiling():
            self._record()
        bound: list[Any] = [step.inputs[i] for i in self.parameters_at]
        for i, (p, _, (value, node)) in enumerate(taken):
            gradient = _of_strides(writer, value, node.meta["val"], p)
            if self.ending.accumulates:
                gradient = self._added(writer, gradient, node.meta["val"], p, self.names[i])
            bound.append(gradient)
        first = len(writer.inputs)
        for each in self._held:
            spec = InputSpec("buffer", f"{self._name}.{self._full_name(each)}", None)
            bound.append(writer.add_input(spec, writer.types.of(each.tensor)))
        self.positions = list(range(first, len(writer.inputs)))
        if self._scaling is not None:
            bound += self._write_scaler(step, self._scaling)
        first = len(writer.inputs)
        bound += [write_number(writer, i) for i in self._update.numbers]
        self._numbers_at = list(range(first, len(writer.inputs)))
        for result in writer.add_graph(self._update.graph, bound):
            self.norm_at = len(step.outputs)
            step.outputs.append(f'{writer.env[result]} {{output "norm of gradients"}}')
        return set(self.parameters_at)

    def _added(
        self, writer: EntryWriter, value: str, example: Tensor, parameter: Tensor, name: str
    ) -> str:
        """The sum of a gradient and those of earlier calls."""
        strides = torch.empty_like(parameter, device="meta").stride()  # which its gradient has
        if example.dtype != parameter.dtype or strides != parameter.stride():
            what = f'the gradient of "{name}" is of another kind than it'
            raise StepUnknown(self._name, what, "let its own step run")
        kind = writer.types.of(parameter.detach())
        # By the end of its name the library knows that its memory comes and goes.
        spec = InputSpec("buffer", f"sum of {name}.grad", None)
        total = writer.add_input(spec, kind)
        return writer.define("sum", kind, f"aten::add_.Tensor({total}, {value})")

    def _write_scaler(self, step: StepEntry, scaling: Scaling) -> list[Any]:
        """The scale, which is the first of what a step takes, and the scaler's count."""
        writer = step.writer
        scale, tracker = scaling.tensors()
        at = self._at.get(id(scale))
        if at is None:
            what = "the loss is not scaled by its GradScaler's scale"
            raise StepUnknown(self._name, what, "let its own step run")
        self._tracker_at = len(writer.inputs)
        spec = InputSpec("buffer", "GradScaler.growth_tracker", None)
        return [step.inputs[at], writer.add_input(spec, writer.types.of(tracker))]

    def _record(self) -> None:
        """On a parameter as an example of its gradient, which has the same layout."""
        ending = self.ending
        self._held = state_of(ending.optimizer, self.parameters)
        examples = [p.detach() for p in self.parameters]
        try:
            self._update = record_step(
                ending.optimizer,
                self.parameters,
                examples,
                self._held,
                ending.numbers,
                ending.clipping,
                scaler=self._scaling,
                apart=self._draws,
            )
        except Exception as error:
            reason = error.reason if isinstance(error, ExportError) else repr(error)
            kind = StateMissing if isinstance(error, MakesState) else StepUnknown
            raise kind(self._name, reason, "let its own step run") from error
        self._holds: Callable[[list[float]], bool] | None = self._conditions()

    def _conditions(self) -> Callable[[list[float]], bool] | None:
        held = [each.tensor for each in self._held]
        return conditions_of(self._update, [*self.parameters, *self.parameters, *held])

    def _watch(self) -> None:
        optimizer = self.ending.optimizer
        state = self._state = optimizer.state
        self._tensors = self.ending.tensors
        self._same = unchanged([state, *[state[p] for p in self.parameters if p in state]])

    def _full_name(self, held: HeldTensor) -> str:
        """With the parameter's own name for its number."""
        key, _, number = held.name.rpartition(".")
        return f"{key}.{self.names[int(number)]}" if number.isdigit() else held.name


class StepUnknown(ExportError):
    """The optimizer's step cannot be recorded."""


class StateMissing(StepUnknown):
    """The optimizer's own step makes it."""


def _is_addable(grad: Tensor, parameter: Tensor) -> bool:
    """Whether a program that was written for this parameter adds to it in place."""
    return (
        type(grad) is Tensor
        and grad.layout is torch.strided
        and grad.dtype == parameter.dtype
        and grad.device == parameter.device
        and grad.shape == parameter.shape
        and grad.stride() == parameter.stride()
        and not (grad.requires_grad or grad.is_conj() or grad.is_neg() or grad.is_inference())
    )


def _of_strides(writer: EntryWriter, value: str, example: Tensor, wanted: Tensor) -> str:
    """The gradient as `.grad` would hold it: laid out as its parameter."""
    if tuple(example.stride()) == wanted.stride():
        return value
    kind = writer.types.of(wanted.detach())
    sizes, strides = list(wanted.shape), list(wanted.stride())
    empty = writer.define("laid_out", kind, f"aten::new_empty_strided({value}, {sizes}, {strides})")
    return writer.define("laid_out", kind, f"aten::copy_({empty}, {value})")
