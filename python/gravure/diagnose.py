"""`gravure.diagnose(step, batch)`: runs some steps, and says what costs captures."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .calls.live_graphs import followed
from .calls.without_graph import without_graph
from .doctor.code_at import code_at
from .doctor.findings import Cause, causes
from .doctor.holders import holders_of
from .doctor.kept_state import kept_state
from .doctor.steps import Done, Programs, counted, strip
from .doctor.watch import Watch
from .given_arguments import arguments_of, refuse_misplaced
from .options import CompileOptions
from .torch_api.dispatch import not_traced
from .torch_api.left_frames import left_frames
from .torch_api.modules import uncompiled
from .torch_api.optimizers import can_be_fused

_FEWEST = 4  # steps: two to warm up, one to capture, one to replay


@dataclass
class Diagnosis:
    """What was seen. `str` of it is for reading."""

    name: str
    steps: list[Done] = field(repr=False)
    causes: list[Cause]  # of missed captures, worst first
    error: str = ""  # what a step raised

    @property
    def healthy(self) -> bool:
        """Whether nothing costs captures, and the last steps were replays."""
        return not self.causes and not self.error and self._replays

    @property
    def _replays(self) -> bool:
        return bool(self.steps) and self.steps[-1].kind == "replayed"

    def __str__(self) -> str:
        done = len(self.steps)
        lines = [f"{self.name}: {done} steps, {counted(self.steps, 'replayed')} of them replayed"]
        if self.steps:
            lines.append(f"  steps {strip(self.steps)}")
        if self.error:
            lines.append(f"  step {done + 1} failed: {self.error}")
        for number, cause in enumerate(self.causes, 1):
            since = f" (since step {cause.since})" if cause.since > 1 else ""
            at = f"{cause.where}: " if cause.where else ""
            lines.append(f"{number}. {at}{cause.what}{since}")
            if code := code_at(cause.where):
                lines.append(f"       {code}")
            lines.append(f"   instead: {cause.instead}")
        if not self.causes and not self.error:
            lines.append(self._verdict())
        return "\n".join(lines)

    def _verdict(self) -> str:
        if not any(step.runs for step in self.steps):
            return (
                "no program ran: nothing was compiled with Gravure, or nothing of it is called; "
                'torch.compile(model, backend="gravure"), or gravure.compile_step'
            )
        if self._replays:
            return "nothing costs captures"
        if len(self.steps) < _FEWEST:
            return f"too few steps to tell: two warm up and one captures; steps={2 * _FEWEST}"
        return (
            "the last step was not replayed, for a reason that is not known: gravure.report() and "
            "TORCH_LOGS=gravure have what the library says; please report it"
        )


@not_traced
def diagnose(
    step: Callable[..., Any],
    *batch: Any,
    batches: Iterable[Any] | None = None,
    steps: int = 12,
    options: Mapping[str, Any] | None = None,
    **misplaced: Any,
) -> Diagnosis:
    """Runs `step` some times, and says what costs captures and what to write instead: an input or a
    parameter that moves, a size or a number that changes, a thread, a result that is held, a graph
    break, what runs on the host.

    `step` is a function that trains for one step with compiled parts in it; a step of
    `compile_step`; a model, compiled or not, whose forward and backward are then run; or a function
    to be compiled. `batch` are its arguments in each step; `batches` gives others for each: tuples
    of arguments, mappings (one argument), or single values, from the beginning again where they are
    too few. A data loader shows what one batch cannot: a last batch that is smaller.

    These are real steps. Models and optimizers that `step` is, closes over or names are afterwards
    as they were, but for the settings of optimizers; what else it changes (a scheduler) is changed.
    Raises ValueError for fewer than 4 `steps`, for no batch at all in `batches` and for an option
    that there is not, TypeError for keywords of `step`'s.
    """
    if not callable(step):
        kind = type(step).__name__
        raise TypeError(f"diagnose takes a step, a model or a function, not a {kind}")
    refuse_misplaced(
        "diagnose",
        misplaced,
        "into a function: diagnose(lambda batch: model(**batch), {{{given}}})",
    )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < _FEWEST:
        raise ValueError(
            f"steps: expected a whole number of at least {_FEWEST} (two steps warm up, one "
            f"captures), found {steps!r}"
        )
    if batch and batches is not None:
        raise ValueError("diagnose takes arguments for each step, or batches, not both")
    CompileOptions.parse(options)
    given = (
        [batch] if batches is None else list(map(arguments_of, itertools.islice(batches, steps)))
    )
    if not given:
        raise ValueError("batches: there is none; a loader that is used up gives no more")
    modules, optimizers = _parts(step)
    with kept_state([module for _, module in modules], optimizers):
        return _Visit(step, modules, optimizers, options).run(given, steps)


class _Visit:
    """One run of the doctor's."""

    def __init__(
        self,
        step: Callable[..., Any],
        modules: list[tuple[str, nn.Module]],
        optimizers: list[Optimizer],
        options: Mapping[str, Any] | None,
    ) -> None:
        self._step = step
        self._name = getattr(step, "__name__", type(uncompiled(step)).__name__)
        self._modules, self._optimizers = modules, optimizers
        self._options = options
        self._names = _parameter_names(step)
        self._held: dict[str, tuple[int, str, list[str]]] = {}
        self._results: list[tuple[str, weakref.ref[Tensor]]] = []

    def run(self, given: Sequence[tuple[Any, ...]], count: int) -> Diagnosis:
        before = {graph.number for graph in followed()}
        skipped = left_frames()
        ran = {id(i.program): i.program.stats()["steps"] for i in _instances()}
        self._call = self._step
        made = getattr(self._step, "gravure_step", None)
        if uncompiled(self._step) is not self._step:  # what torch.compile returned
            self._call = self._trained(self._step)
        elif made is not None and made.optimizer is None:
            self._call = self._cleared(self._step)
        done, error, watch = self._steps(given, count)
        if done and not any(step.runs for step in done) and not _followed_since(before):
            # It runs no programs: it is to be compiled.
            compiled = torch.compile(self._step, backend="gravure", options=_own(self._options))
            self._call = self._trained(compiled)
            done, error, watch = self._steps(given, count)
        graphs = [
            graph
            for graph in followed()
            if graph.number not in before
            or any(
                i.program is not None and i.program.stats()["steps"] > ran.get(id(i.program), 0)
                for i in graph.all_instances()
            )
        ]
        graphs.sort(key=lambda graph: graph.number)
        changes = list(watch.changes.values())
        names = [type(each).__name__ for each in self._optimizers if can_be_fused(each)]
        held = list(self._held.values())
        left = left_frames() - skipped
        if not left and not _followed_since(before):
            modules = [module for _, module in self._modules]
            left = without_graph(uncompiled(self._step), modules)
            if not any(step.runs for step in done):
                left = left or left_frames()
        found = causes(graphs, done, changes, held, names if made else (), left)
        return Diagnosis(self._name, done, found, error)

    def _steps(self, given: Sequence[tuple[Any, ...]], count: int) -> tuple[list[Done], str, Watch]:
        """What was done, the error that ended it, and what differed. One step alone where that runs
        no program."""
        watch, programs = Watch(self._modules), Programs()
        done: list[Done] = []
        known = {graph.number for graph in followed()}
        for number in range(1, count + 1):
            arguments = given[(number - 1) % len(given)]
            self._look_at_results(number)
            watch.look(number, self._named(arguments) | self._settings())
            try:
                result = self._call(*arguments)
            except Exception as raised:
                error = f"{type(raised).__name__}: {str(raised).strip().partition(chr(10))[0]}"
                return done, error, watch
            done.append(programs.look(number))
            self._note_results(result)
            del result
            if number == 1 and not done[0].runs and not _followed_since(known):
                break
        return done, "", watch

    def _cleared(self, compiled: Any) -> Callable[..., Any]:
        """Without the gradients of the step before, as in a loop that calls it."""

        def call(*arguments: Any) -> Any:
            for _, module in self._modules:
                module.zero_grad(set_to_none=True)
            return compiled(*arguments)

        return call

    def _trained(self, compiled: Any) -> Callable[..., Any]:
        """A forward, and a backward where there is something to differentiate."""

        forward = self._cleared(compiled)

        def call(*arguments: Any) -> Any:
            result = forward(*arguments)
            loss = _loss_of(result)
            if loss is not None:
                loss.backward()
            return None

        return call

    # ---- what is looked at between steps

    def _named(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        names = [*self._names, *(str(i) for i in range(len(self._names), len(arguments)))]
        return {f'argument "{n}"': a for n, a in zip(names, arguments, strict=False)}

    def _settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for optimizer in self._optimizers:
            name = type(optimizer).__name__
            for i, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    if key != "params":
                        found[f'setting "{key}" of {name}\'s group {i}'] = value
        return found

    def _note_results(self, result: Any) -> None:
        named = [("the result", each) for each in _tensors_in(result)]
        for _, module in self._modules:
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    named.append((f'the gradient of "{name}"', parameter.grad))
        self._results = [(name, weakref.ref(tensor)) for name, tensor in named]

    def _look_at_results(self, number: int) -> None:
        for name, found in self._results:
            tensor = found()
            kind = name.partition('"')[0]
            if tensor is None or kind in self._held:
                continue
            holders = holders_of(tensor)
            if holders:
                self._held[kind] = (number, name, holders)
            del tensor
        self._results = []


def _own(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return dict(options) if options else None


def _followed_since(known: set[int]) -> bool:
    """Whether there are graphs besides those of these numbers."""
    return any(graph.number not in known for graph in followed())


def _instances() -> list[Any]:
    return [i for g in followed() for i in g.all_instances() if i.program is not None]


def _parameter_names(step: Any) -> list[str]:
    try:
        signature = inspect.signature(getattr(uncompiled(step), "forward", step))
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in signature.parameters.values() if p.kind in kinds]


def _reached(step: Any) -> list[tuple[str, Any]]:
    """What a step is, closes over, names, or is bound to, by name."""
    made = getattr(step, "gravure_step", None)
    if made is not None:
        found = _reached(made.fn)
        return [*found, ("", made.optimizer)]
    module = uncompiled(step)
    if isinstance(module, nn.Module):
        return [("", module)]
    found = []
    bound = getattr(step, "__self__", None)
    if bound is not None:
        found += list(getattr(bound, "__dict__", {}).items())
    try:
        variables = inspect.getclosurevars(inspect.unwrap(step))
    except (TypeError, ValueError):
        return found
    return [*found, *variables.nonlocals.items(), *variables.globals.items()]


def _parts(step: Any) -> tuple[list[tuple[str, nn.Module]], list[Optimizer]]:
    modules: dict[int, tuple[str, nn.Module]] = {}
    optimizers: dict[int, Optimizer] = {}
    for name, value in _reached(step):
        plain = uncompiled(value)
        if isinstance(plain, nn.Module):
            modules[id(plain)] = (name, plain)
        elif isinstance(value, Optimizer):
            optimizers[id(value)] = value
        elif hasattr(value, "gravure_step") or plain is not value:
            inner, more = _parts(plain)
            modules |= {id(module): (n, module) for n, module in inner}
            optimizers |= {id(each): each for each in more}
    return list(modules.values()), list(optimizers.values())


def _tensors_in(value: Any, depth: int = 3) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if not depth:
        return []
    if isinstance(value, Mapping):
        return [t for each in value.values() for t in _tensors_in(each, depth - 1)]
    if isinstance(value, (tuple, list)):
        return [t for each in value for t in _tensors_in(each, depth - 1)]
    return []


def _loss_of(result: Any) -> Tensor | None:
    """What to differentiate: a loss that is named so, else the sum of all that can be."""
    named = getattr(result, "loss", None)
    if named is None and isinstance(result, Mapping):
        named = result.get("loss")
    if isinstance(named, Tensor) and named.requires_grad:
        return named
    found = [t.float().mean() for t in _tensors_in(result) if t.requires_grad]
    return sum(found[1:], found[0]) if found else None
