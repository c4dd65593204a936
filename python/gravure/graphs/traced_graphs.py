"""What tracing gives, as one value: AOTAutograd's graphs, and what they take and return.

torch.compile, compile_step, export and torchtitan make programs of it: text/entries.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import fx

from ..torch_api.aot_metadata import (
    Kind,
    Metadata,
    Placeholder,
    backward_placeholders,
    forward_placeholders,
)
from ..torch_api.fake_tensors import is_sym_node
from .names import InputSpec, Namer, unique_names

Saved = TypeVar("Saved")


@dataclass(frozen=True)
class OutputSpec:
    """One thing the function returned: its name, and where it comes from."""

    name: str
    index: int = -1  # position among the graph's own outputs, the loss first
    input: int = -1  # or position of the input that was returned as it is


@dataclass(frozen=True)
class Tangent:
    """The gradient of a result, which the backward takes."""

    spec: InputSpec | None  # None: a token, which holds nothing, in such a gradient's place
    example: Any
    result: int  # which of the function's results; or -1
    base: int  # or the result, a view, whose base it is of; or -1
    what: str  # what it is of, in PyTorch's words


@dataclass(frozen=True)
class TracedGraphs:
    """AOTAutograd's graphs of one function.

    The forward returns `own_results`, then what it saves, numbers last. The backward takes what is
    saved, numbers first, then `tangents` and `generators`; it returns a gradient, or None, for each
    of `arguments`.
    """

    name: str  # of the function, or of Dynamo's graph
    namer: Namer  # of modules, too
    forward: fx.GraphModule  # or the whole of it, where nothing is differentiated
    backward: fx.GraphModule | None  # None also where `forward` goes on with it: undivided.py
    inputs: tuple[InputSpec | None, ...]  # of the forward; None for one that holds nothing
    tangents: tuple[Tangent, ...]
    generators: tuple[InputSpec, ...]  # of the backward, to draw again what the forward drew
    own_results: int
    metadata: Metadata | None  # None where another compiler hands the graphs over
    outputs: tuple[OutputSpec, ...] = ()  # by name, the loss first; () where they have none
    dynamo_arguments: int = -1  # of Dynamo's graph; -1 where AOTAutograd counts them otherwise
    in_autocast: bool = False  # the backward, when it was traced
    # Which results of the forward, and placeholders of the backward, autograd sees as one tensor: a
    # bundle, which is taken apart in these graphs (saved_bundle.py).
    bundled_results: range = range(0)
    bundled_inputs: range = range(0)
    # Arguments whose gradient is a sum, and of how many terms (gradient_terms.py).
    terms: Mapping[int, int] = field(default_factory=dict)
    apart: tuple[int, ...] = ()  # of each term behind the gradients, where there are some, whose

    @property
    def modules(self) -> list[fx.GraphModule]:
        return [self.forward] if self.backward is None else [self.forward, self.backward]

    @property
    def arguments(self) -> list[InputSpec]:
        """The function's own, but for random states."""
        return [spec for spec in self.inputs if spec is not None and spec.role != "rng_state"]

    @property
    def differentiated(self) -> list[str]:
        """The name of each argument that the backward returns a gradient or None for."""
        tokens = self.metadata.tokens if self.metadata is not None else 0
        specs = self.inputs[tokens:]
        return [spec.name if spec else "" for spec in specs if not spec or spec.role != "rng_state"]

    @property
    def saved(self) -> list[Any]:
        """What the forward saves, in its order: nodes, mostly."""
        return list(self.forward.graph.output_node().args[0][self.own_results :])

    @property
    def saved_numbers(self) -> int:
        """How many of them, at the end, are symbolic numbers."""
        return sum(isinstance(node, fx.Node) and is_sym_node(node) for node in self.saved)

    @property
    def saved_inputs(self) -> list[fx.Node]:
        """The backward's placeholders for what is saved, in its order."""
        assert self.backward is not None
        taken = self.backward.graph.find_nodes(op="placeholder")
        return taken[: len(taken) - len(self.tangents) - len(self.generators)]

    def as_backward_takes(self, saved: Sequence[Saved]) -> list[Saved]:
        """`saved`, one for each of those of the forward, in the order of the backward."""
        tensors = len(saved) - self.saved_numbers
        return [*saved[tensors:], *saved[:tensors]]


def input_specs(
    forward: fx.GraphModule,
    tokens: int,
    arguments: Sequence[InputSpec | None] = (),
    *,
    states: bool = False,
) -> tuple[InputSpec | None, ...]:
    """Role and name of each input of AOTAutograd's forward; None for one that holds nothing.

    `arguments` are those of Dynamo's graph; without one, or None, an input has the name that
    PyTorch gives it. With `states` random states have values.
    """
    specs: list[InputSpec | None] = []
    position = 0
    for each in forward_placeholders(forward, tokens):
        known = None
        if each.is_opaque:
            specs.append(None)
            position += 1
            continue
        if each.kind is Kind.ARGUMENT and arguments:
            known = arguments[each.argument]
        elif each.kind is Kind.OTHER and not each.what and arguments:
            known = arguments[position]  # PyTorch says nothing of it: they are in order
        position += each.kind not in (Kind.TOKEN, Kind.GENERATOR)
        specs.append(known or _plain_spec(each, states=states))
    return unique_names(specs)


def backward_inputs(
    backward: fx.GraphModule, *, states: bool = False
) -> tuple[tuple[Tangent, ...], tuple[InputSpec, ...]]:
    """Tangents and generators of AOTAutograd's backward, in order."""
    tangents, generators = [], []
    for each in backward_placeholders(backward):
        spec = _plain_spec(each, states=states)
        if each.kind in (Kind.TANGENT, Kind.TOKEN):
            tangents.append(Tangent(spec, each.example, each.result, each.base, each.what))
        elif each.kind is Kind.GENERATOR and spec is not None:
            generators.append(spec)
    return tuple(tangents), tuple(generators)


def _plain_spec(placeholder: Placeholder, *, states: bool) -> InputSpec | None:
    """Of an input that Dynamo does not know of."""
    if placeholder.kind in (Kind.TOKEN, Kind.SAVED):
        return None
    if placeholder.kind is Kind.GENERATOR:
        return _generator_spec(placeholder, states=states)
    if placeholder.kind is Kind.TANGENT:
        return InputSpec("tangent", placeholder.node_name, None)
    if not placeholder.is_tensor:
        return InputSpec("symint", placeholder.node_name, None)
    if placeholder.kind in (Kind.PARAMETER, Kind.BUFFER):
        return InputSpec(placeholder.kind.value, placeholder.name, None)
    return InputSpec("user_input", placeholder.node_name, None)


def _generator_spec(placeholder: Placeholder, *, states: bool) -> InputSpec:
    """A paired random state: `cuda:0#1` for the forward, `cuda:0#1/backward` for its repetition."""
    device, pair = placeholder.device, placeholder.pair
    state = None
    if states:
        seed = torch.initial_seed() % 2**31 + 1 + int(pair)
        state = torch.Generator(device).manual_seed(seed).get_state()
    suffix = "/backward" if placeholder.repeats else ""
    return InputSpec("rng_state", f"{device}#{pair}{suffix}", state)
