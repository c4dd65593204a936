"""The program of a step: what stays the same from call to call is bound, not passed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..calls.instance import Instance
from ..calls.program_maker import bind_fixed
from ..errors import ExportError, reason_and_cure
from ..library.direct_calls import direct
from ..library.load import program_class
from ..text.entry_call import picker
from ..text.fx_import import EntryWriter
from ..torch_api.autograd import has_gradient_hooks
from ..torch_api.guard_checks import LookedUp, Scope
from .optimizer_step import Update, UpdateApart

ENTRY = "step"


# The library's words for why it refused a step: LoadedProgram::refusal.
_FROZEN_OR_NOT, _HOOK, _SETTINGS, _MEMORY = "training", "hook", "settings", "memory"


class OtherState(RuntimeError):
    """Since the program was made, parameters were frozen, tied or converted, or are no longer, or
    settings by which operators choose kernels have changed. Nothing has run."""

    def __init__(
        self, state: tuple[Any, ...], message: str, former: tuple[Any, ...] | None = None
    ) -> None:
        """`state`: by input, its name and whether it requires a gradient now, the settings, and
        the kinds of what is kept; or which inputs are the same. `former`: what the program that
        refused was made for, where that is known."""
        super().__init__(message)
        self.state = state
        self.former = former


def _kind(tensor: Any) -> tuple[Any, ...]:
    """What a program is for, of a tensor that it keeps: `model.to(…)` has others in its place."""
    return tensor.dtype, tensor.device, tuple(tensor.shape)


class Kept:
    """Parameters and buffers of a step, bound to its program, and bound anew when they are others.

    Those that Dynamo finds by itself in every call are looked up: nobody passes them.
    """

    def __init__(
        self,
        scope: Scope,
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        kept: list[int],
        update: Update | None,
    ) -> None:
        """`kept`: positions of parameters and buffers among `inputs`, those of Dynamo's graph."""
        self.update = update
        sources = scope.sources(graph, inputs, kept)
        self.looked_up = list(sources)
        self._found = LookedUp(scope, list(sources.values()))
        # All others are passed. Positions among the entry's inputs, and among what is passed:
        self._others = [i for i in range(len(inputs)) if i not in sources]
        self._passed = [i for i in kept if i not in sources]
        self._pick = picker([self._others.index(i) for i in self._passed])
        rest = [k for k, i in enumerate(self._others) if i not in self._passed]
        self._pick_rest = picker(rest)
        self._kept = kept
        # Graphs of other arguments have other names, and programs of their own.
        self._names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        self._first_requiring = self._requiring(inputs)
        self._first_kinds = tuple([_kind(inputs[i]) for i in kept])
        self._held: tuple[Any, ...] = ()
        self._ids: dict[int, int] = {}  # of what is bound, by position

    def forget(self) -> None:
        """The next call binds all of it, to another program: nothing is held until then."""
        self._found.forget()
        self._held = ()
        self._ids = {}
        if self.update is not None:
            self.update.forget()

    def rest_of(self, program: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Of what is passed to a call, what is not kept. All else is bound when it returns."""
        if self._found.changed():
            try:
                self._bind(program, self.looked_up, self._found.values)
            except RuntimeError:
                self._found.forget()
                raise
        if self.update is not None:
            self.update.bind(program)
        if not self._passed:
            return args
        held = self._pick(args)
        if not self._held or not all(map(operator.is_, held, self._held)):
            self._bind(program, self._passed, list(held))
            self._held = held
        return self._pick_rest(args)

    def _refuse_tied(self, positions: list[int], values: list[Any]) -> None:
        """Two that are one now: Dynamo passes it once, and its gradients are added in the graph."""
        ids = self._ids | dict(zip(positions, map(id, values), strict=True))
        if len(set(ids.values())) < len(ids):
            all_of = list(ids.values())
            raise OtherState(
                tuple([all_of.index(each) for each in all_of]),
                "two parameters or buffers of a step are one tensor since it was compiled; call "
                "torch._dynamo.reset() after they are tied",
            )
        self._ids = ids

    def named(self, program: Any, args: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Every input of a call, with its name."""
        names = [name for _, name in program.inputs(ENTRY)]
        pairs = zip([*self.looked_up, *self._others], [*self._found.values, *args], strict=True)
        return [(names[i], value) for i, value in pairs]

    def state(self, args: tuple[Any, ...], settings: int) -> tuple[Any, ...]:
        """What decides, in a call with these settings, which program it takes (OtherState)."""
        pairs = zip([*self.looked_up, *self._others], [*self._found.look(), *args], strict=True)
        values = dict(pairs)
        requiring = self._requiring([values[i] for i in sorted(values)])
        return requiring, settings, tuple([_kind(values[i]) for i in self._kept])

    def _requiring(self, values: Sequence[Any]) -> tuple[tuple[str, bool], ...]:
        pairs = zip(self._names, values, strict=True)
        return tuple([(name, getattr(v, "requires_grad", False)) for name, v in pairs])

    def first_state(self, settings: int) -> tuple[Any, ...]:
        """The state of the call that it was compiled in."""
        return self._first_requiring, settings, self._first_kinds

    def _bind(self, program: Any, positions: list[int], values: list[Any]) -> None:
        self._refuse_tied(positions, values)
        if self.update is not None:
            self.update.refuse_others(dict(zip(positions, values, strict=True)))
        program.bind(ENTRY, positions, values)


class StepProgram(Instance):
    """The program of a step, loaded when it is called, and again when it was let go of."""

    def __init__(
        self,
        load: Callable[[], Any],
        positions: list[int],
        kept: Kept,
        missed: list[str],
        made_for: int,
        *,
        only_tensors: bool,
    ) -> None:
        """`positions`: of Dynamo's outputs, among those of the entry that are no gradients.
        `made_for`: the settings of kernels that it was traced under."""
        super().__init__(self.run, None, missed=missed)
        self._load = load
        self._positions = positions
        self._kept = kept
        self._made_for = made_for
        self._only_tensors = only_tensors
        self._hooked = False  # something was, once: the library still sees where
        self._opened: tuple[Any, Callable[..., Any]] | None = None  # and how it is run

    def let_go(self) -> None:
        self.program = self._opened = None
        self._kept.forget()

    def open(self) -> tuple[Any, Callable[..., Any]]:
        program = self._load()
        program.set_made_for(self._made_for)
        self._kept.forget()
        if self._kept.update is not None:
            program.set_updated(ENTRY, self._kept.update.parameters_at)
        run = direct(program, "run_step", ENTRY, only_tensors=self._only_tensors)
        self.program, self._opened = program, (program, run)
        return self._opened

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The graph's inputs in, but those looked up; its former outputs."""
        try:
            return self._run(args)
        except OtherState:
            raise
        except RuntimeError as error:  # of what is kept the library looks at dtypes and the like
            first = self._kept.first_state(self._made_for)
            now = self._kept.state(tuple(args), program_class().kernel_settings())
            if now[2] == first[2]:
                raise
            raise OtherState(now, str(error), first) from error

    def _run(self, args: Sequence[Any]) -> list[Any]:
        program, run = self._opened or self.open()
        kept = self._kept
        rest = kept.rest_of(program, args)
        if self._hooked:
            _refuse_hooks(kept.named(program, args))
        update = kept.update
        if update is None:
            results = self._results(program, run, args, rest)
            return [results[i] if i >= 0 else None for i in self._positions]
        gradients = update.take_gradients()
        try:
            results = self._results(program, run, args, (*rest, *gradients))
        except BaseException:
            update.give_back(gradients)
            raise
        if update.norm_at is not None:
            update.ending.norm = results[update.norm_at]
        return [results[i] if i >= 0 else None for i in self._positions]

    def _results(
        self, program: Any, run: Callable[..., Any], args: Sequence[Any], given: tuple[Any, ...]
    ) -> Sequence[Any]:
        """The results of a run with what is `given`, or an error that says why there was none."""
        kept = self._kept
        # Nothing: then nothing has run.
        while not (results := run(given, not self._hooked)):
            refusal, message = program.refusal(ENTRY, given, not self._hooked)
            if refusal in (_FROZEN_OR_NOT, _SETTINGS):
                now = kept.state(tuple(args), program_class().kernel_settings())
                former = (now[0], self._made_for, now[2]) if refusal == _SETTINGS else None
                raise OtherState(now, message, former)
            if refusal == _MEMORY:
                if kept.update is not None:  # the optimizer's own step may be what writes
                    raise UpdateApart(message)
                raise ExportError(ENTRY, *reason_and_cure(message))
            if refusal == _HOOK:
                _refuse_hooks(kept.named(program, args))
                self._hooked = True
        return results  # type: ignore[no-any-return]


def _refuse_hooks(named: Sequence[tuple[str, Any]]) -> None:
    """The library sees a hook that was removed, too."""
    for name, tensor in named:
        if has_gradient_hooks(tensor):
            raise RuntimeError(
                f'"{name}" has a hook on its gradient, and a step runs without autograd; remove '
                'the hook, or use torch.compile(backend="gravure"), which runs it'
            )


def bind_constants(program: Any, writer: EntryWriter) -> None:
    """Constants and random states, which are the same in each call."""
    values: dict[int, Any] = {}
    for i, (spec, _, _) in enumerate(writer.inputs):
        if spec.role == "constant":
            values[i] = spec.value
        elif spec.role == "rng_state":
            values[i] = torch.Generator(spec.name.partition("#")[0])
            values[i].set_state(spec.value)
    bind_fixed(program, ENTRY, values, len(writer.inputs))


def leave_out(graph: fx.GraphModule, inputs: Sequence[int]) -> None:
    """Dynamo's code will not pass these: it reads in the graph which ones there are."""
    nodes = graph.graph.find_nodes(op="placeholder")
    gone = {nodes[i] for i in inputs}
    for node in reversed(list(graph.graph.nodes)):
        if node.op != "placeholder" or node in gone:
            graph.graph.erase_node(node)
