"""An optimizer's step as the last statements of a program: the in-place operators that it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.optim import Optimizer

from ..errors import ExportError
from ..graphs.names import InputSpec
from ..text.fx_import import EntryWriter
from ..torch_api.fake_tensors import (
    DataDependentOutputException,
    FakeTensorMode,
    make_fx,
    unset_fake_temporarily,
)
from ..torch_api.guard_checks import Check, never, unchanged
from ..torch_api.optimizers import chooses_foreach
from ..torch_api.whether_compiled import not_compiling
from .own_optimizers import refuse_hooks, refuse_others
from .twin import python_side

_CONSTANT = (type(None), bool, int, float, complex, str, Tensor)


class StateMissing(ExportError):
    """The optimizer's own step makes it."""


class Settings:
    """An optimizer's settings as a number, by which Dynamo tells programs apart."""

    def __init__(self, optimizer: Optimizer, name: str) -> None:
        """Raises ExportError for an optimizer that a step cannot end with."""
        refuse_others(optimizer, name)
        self._optimizer = optimizer
        self._name = name
        self._step = type(optimizer).step
        self._known: dict[Any, int] = {}
        self._number = 0
        self._same: Check = never

    def number(self) -> int:
        """That of the settings as they are. Raises ExportError if the optimizer has become one that
        a step cannot end with."""
        refuse_hooks(self._optimizer, self._name)
        if not self._same() or type(self._optimizer).step is not self._step:
            refuse_others(self._optimizer, self._name)
            settings = settings_of(self._optimizer)
            self._number = self._known.setdefault(settings, len(self._known))
            self._same = self._watch()
        return self._number

    def _watch(self) -> Check:
        groups = self._optimizer.param_groups
        values = [v for group in groups for key, v in group.items() if key != "params"]
        members = [m for v in values for m in (v if isinstance(v, tuple) else (v,))]
        if not all(isinstance(member, _CONSTANT) for member in members):
            return never  # what can change inside
        lists = [groups, *(group["params"] for group in groups)]
        return unchanged([vars(self._optimizer), *groups], lists)


def settings_of(optimizer: Optimizer) -> tuple[Any, ...]:
    """What a program holds as constants: which parameters, and every setting that is no tensor."""
    return tuple([tuple(sorted(map(_setting, group.items()))) for group in optimizer.param_groups])


def _setting(item: tuple[str, Any]) -> tuple[str, str]:
    key, value = item
    if key == "params":
        return key, str(list(map(id, value)))
    return key, "" if isinstance(value, Tensor) else repr(value)


class Update:
    """What one program updates: parameters and state stay the caller's tensors, and are inputs."""

    def __init__(self, optimizer: Optimizer, inputs: Sequence[Any]) -> None:
        self._optimizer = optimizer
        self._at = {id(value): i for i, value in enumerate(inputs)}
        self._name = type(optimizer).__name__
        self.parameters: list[Tensor] = []
        self._others: list[Tensor] = []  # of the optimizer, and not updated
        self.names: list[str] = []
        self.positions: list[int] = []  # of the state, among the entry's inputs
        self._state: list[tuple[Tensor, str]] = []
        self.parameters_at: list[int] = []  # likewise, of `parameters`
        self._settings: list[tuple[int, str]] = []
        self._same: Check = never

    def bind(self, program: Any) -> None:
        """Binds the state, and the tensors among the settings, where they are others now.

        Raises RuntimeError for a gradient that the optimizer's own step would use, too.
        """
        if any(other.grad is not None for other in self._others):
            raise RuntimeError(
                f"a parameter of {self._name} that this step does not update has a gradient, which "
                "optimizer.step() would use, and clear; give it an optimizer of its own, or call "
                "zero_grad(set_to_none=True) before"
            )
        if self._same():
            return
        optimizer = self._optimizer
        program.bind("step", self.positions, self._tensors())
        holders = {id(h): h for h in (optimizer.state[p] for p, _ in self._state)}
        groups = [optimizer.param_groups[i] for i, _ in self._settings]
        watched = [vars(optimizer), optimizer.state, *holders.values(), *groups]
        self._same = unchanged(watched, [optimizer.param_groups])

    def forget(self) -> None:
        """The next program has nothing bound."""
        self._same = never

    def refuse_others(self, found: dict[int, Any]) -> None:
        """Raises RuntimeError for another tensor in the place of a parameter that it updates.

        `found`: by position among the entry's inputs.
        """
        known = zip(self.parameters_at, self.parameters, self.names, strict=True)
        for i, parameter, name in known:
            if found.get(i, parameter) is not parameter:
                raise RuntimeError(
                    f'"{name}" was replaced, and the optimizer would go on with the old one; give '
                    "the new one to the optimizer, or change it in place"
                )

    def _tensors(self) -> list[Tensor]:
        state, groups = self._optimizer.state, self._optimizer.param_groups
        try:
            found = [state.get(parameter, {})[key] for parameter, key in self._state]
        except KeyError as error:
            raise self._missing("its state was cleared") from error
        return found + [groups[i][key] for i, key in self._settings]

    def write(
        self,
        writer: EntryWriter,
        specs: Sequence[InputSpec],
        values: Sequence[str],
        gradients: Sequence[tuple[str, fx.Node] | None],
    ) -> set[int]:
        """Writes the update of each input that has a gradient; which ones these are."""
        known = [p for group in self._optimizer.param_groups for p in group["params"]]
        places = [self._at.get(id(p), -1) for p in known]
        taken = [(p, i) for p, i in zip(known, places, strict=True) if i >= 0 and gradients[i]]
        if not taken:
            raise ExportError(
                self._name, "the loss reaches none of its parameters", "give it others"
            )
        self.parameters = [p for p, _ in taken]
        updated = set(map(id, self.parameters))
        self._others = [p for p in known if id(p) not in updated]
        self.names = [specs[i].name for _, i in taken]
        self.parameters_at = [i for _, i in taken]
        self._collect()
        bound: list[Any] = [values[i] for _, i in taken]
        for p, i in taken:
            found = gradients[i]
            assert found is not None
            bound.append(_of_strides(writer, found[0], found[1].meta["val"], p))
        first = len(writer.inputs)
        with unset_fake_temporarily():
            module = self._trace()
        nodes = module.graph.find_nodes(op="placeholder")[len(bound) :]
        for node, name in zip(nodes, self._state_names(), strict=True):
            kind = writer.types.of(node.meta["val"])
            bound.append(writer.add_input(InputSpec("buffer", name, None), kind))
        self.positions = list(range(first, len(writer.inputs)))
        writer.add_graph(module, bound)
        return {i for _, i in taken}

    def _collect(self) -> None:
        state = self._optimizer.state
        with_state = [p for p in self.parameters if state.get(p)]
        if with_state and len(with_state) < len(self.parameters):
            missing = next(n for n, p in zip(self.names, self.parameters, strict=True)
                           if not state.get(p))  # fmt: skip
            raise StateMissing(
                missing,
                f"{self._name} has no state for it yet, though it has for others",
                "let the first step give every parameter a gradient",
            )
        self._state = [
            (p, key)
            for p in with_state
            for key, value in state[p].items()
            if isinstance(value, Tensor)
        ]
        self._settings = [
            (i, key)
            for i, group in enumerate(self._optimizer.param_groups)
            for key, value in group.items()
            if isinstance(value, Tensor)
        ]

    def _missing(self, reason: str) -> StateMissing:
        return StateMissing(self._name, reason, "let its own step make the state")

    def _state_names(self) -> list[str]:
        names = {id(p): name for p, name in zip(self.parameters, self.names, strict=True)}
        own = [f"{self._name}.{key}.{names[id(p)]}" for p, key in self._state]
        return own + [f"{self._name}.{key}.{i}" for i, key in self._settings]

    def _trace(self) -> fx.GraphModule:
        mode = FakeTensorMode()
        real = [*(p.detach() for p in self.parameters), *self._tensors()]
        fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in real]
        count = len(self.parameters)
        with mode:
            fakes[count:count] = [torch.empty_like(fake) for fake in fakes[:count]]
        try:
            with not_compiling():
                module = make_fx(self._run, tracing_mode="fake")(*fakes)
        except ExportError:
            raise
        except Exception as error:
            reads = isinstance(error, DataDependentOutputException)
            raise ExportError(
                self._name,
                "its step reads a number on the host" if reads else f"its step fails: {error}",
                "make it with capturable=True or fused=True, or leave it outside of the step",
            ) from error
        for node in reversed(list(module.graph.nodes)):
            if getattr(node.target, "namespace", "") == "profiler":
                module.graph.erase_node(node)
        return module

    def _run(self, *args: Tensor) -> list[Any]:
        """The step of a twin that has these tensors instead of the optimizer's."""
        rest = iter(args)
        parameters = {id(p): next(rest) for p in self.parameters}
        for p in self.parameters:
            parameters[id(p)].grad = next(rest)
        twin = object.__new__(type(self._optimizer))
        twin.__dict__.update(self._optimizer.__dict__)
        twin.state = defaultdict(dict)
        for p in self.parameters:
            if p in self._optimizer.state:
                twin.state[parameters[id(p)]] = dict(self._optimizer.state[p])
        for p, key in self._state:
            twin.state[parameters[id(p)]][key] = next(rest)
        twin.param_groups = []
        for group in self._optimizer.param_groups:
            own = [parameters[id(p)] for p in group["params"] if id(p) in parameters]
            twin.param_groups.append(dict(group, params=own, **_choice(group)))
        for i, key in self._settings:
            twin.param_groups[i][key] = next(rest)
        before = python_side(twin)
        type(self._optimizer).step(twin)
        after = python_side(twin)
        had_state = any(map(self._optimizer.state.get, self.parameters))
        if before.keys() < after.keys() and not had_state:
            raise self._missing("it has no state yet")
        if before.keys() != after.keys() or any(before[k] is not after[k] for k in before):
            raise ExportError(
                self._name,
                "its step changes Python values, or puts other tensors into its state",
                "let it change tensors in place, or leave it outside of the step",
            )
        return []


def _choice(group: dict[str, Any]) -> dict[str, Any]:
    """What eager chooses by the types of the real parameters."""
    if group.get("foreach", True) is not None or group.get("fused") is not None:
        return {}
    return {"foreach": chooses_foreach(group)}


def _of_strides(writer: EntryWriter, value: str, example: Tensor, wanted: Tensor) -> str:
    """The gradient as `.grad` would hold it: laid out as its parameter."""
    if tuple(example.stride()) == wanted.stride():
        return value
    kind = writer.types.of(wanted.detach())
    sizes, strides = list(wanted.shape), list(wanted.stride())
    place = writer.define("laid_out", kind, f"aten::new_empty_strided({value}, {sizes}, {strides})")
    return writer.define("laid_out", kind, f"aten::copy_({place}, {value})")
