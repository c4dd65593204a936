"""A traced function as entries: `step`, or `forward` and `backward`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..graphs.backward_inputs import (
    generator_nodes,
    in_backward_order,
    refuse_other_tangent,
    saved_nodes,
    tangent_nodes,
    tangent_of,
)
from ..graphs.functional import reinplace_custom_operators
from ..graphs.names import InputSpec
from ..graphs.trace import Traced
from .fx_import import EntryWriter, Ref
from .program_text import quoted


@dataclass
class StepEntry:
    """Forward and backward as statements of the entry `step`, which others may follow."""

    writer: EntryWriter
    traced: Traced
    inputs: list[str]  # the value of each of `traced.inputs`
    gradients: list[tuple[str, fx.Node] | None]  # of each of them, where it has one
    outputs: list[str]  # as written behind `return`, but for gradients; the loss first
    places: list[int]  # in `outputs`, of each of `traced.outputs`; -1 for one that is None

    def text(self, used: Collection[int] = ()) -> str:
        """The whole entry. The gradients of the inputs `used` are not returned."""
        named = zip(self.traced.inputs, self.gradients, strict=True)
        gradients = [
            f"{gradient[0]} {{gradient {quoted(spec.name)}}}"
            for i, (spec, gradient) in enumerate(named)
            if gradient is not None and i not in used
        ]
        return self.writer.text("step", [*self.outputs[:1], *gradients, *self.outputs[1:]])


def write_step(traced: Traced, *, carries_python: bool = False) -> StepEntry:
    """Forward and backward as one entry. `carries_python`: EntryWriter's."""
    writer = EntryWriter(traced.namer)
    writer.carries_python = carries_python
    forward = _write_forward(writer, traced)
    gradients = _write_backward(writer, traced, forward)
    pairs = _gradients(writer, traced, gradients)
    return StepEntry(writer, traced, forward.inputs, pairs, forward.outputs, forward.places)


def joint_entries(traced: Traced) -> dict[str, tuple[str, EntryWriter]]:
    """The entries `forward` and `backward`."""
    writer = EntryWriter(traced.namer)
    forward = _write_forward(writer, traced)
    back = EntryWriter(traced.namer)
    bound: list[Ref] = []
    saved: dict[str, str] = {}  # what forward keeps, and what backward calls it
    nodes = saved_nodes(traced.backward)
    values = in_backward_order(traced.backward, forward.saved, forward.symbols)
    for node, ref in zip(nodes, values, strict=True):
        if node.users and ref not in saved:
            saved[ref] = back.add_input(InputSpec("saved", ref[1:], None), writer.kinds[ref])
        bound.append(saved.get(ref, "None"))
    names = _tangent_names(traced)
    for node in tangent_nodes(traced.backward):
        example = node.meta["val"]
        name = names.get(tangent_of(node), node.name)
        value = _ones_or_zeros(example, name == "loss")
        bound.append(back.add_input(InputSpec("tangent", name, value), back.types.of(example)))
    bound += _backward_generators(back, traced.backward)
    gradients = back.add_graph(traced.backward, bound)
    kept = [f"{ref} {{saved {quoted(ref[1:])}}}" for ref in saved]
    return {
        "forward": (writer.text("forward", forward.outputs + kept), writer),
        "backward": (
            back.text("backward", _gradient_outputs(back, traced, gradients)),
            back,
        ),
    }


@dataclass
class _Forward:
    """What the forward graph's statements left."""

    outputs: list[str] = field(default_factory=list)  # as written behind `return`, the loss first
    values: list[Ref] = field(default_factory=list)  # of AOTAutograd's own outputs, in order
    places: list[int] = field(default_factory=list)  # in `outputs`, of each thing returned
    saved: list[Ref] = field(default_factory=list)
    rest: list[Any] = field(default_factory=list)  # AOTAutograd's results behind its own outputs
    inputs: list[str] = field(default_factory=list)  # one a `Traced.inputs`
    symbols: int = 0  # how many of `saved`, at its end, are numbers


def _write_forward(writer: EntryWriter, traced: Traced) -> _Forward:
    """The forward's statements, with a `copy_` at its end for each input that it mutates."""
    metadata = traced.metadata
    graph = traced.forward
    for half in (graph, traced.backward):
        if half is not None:
            reinplace_custom_operators(half)
    tokens = metadata.tokens
    bound: list[Ref] = ["None"] * tokens
    specs = iter(traced.inputs)
    for node in graph.graph.find_nodes(op="placeholder")[tokens:]:
        if node.name.startswith(("fwd_rng_state", "bwd_rng_state")):
            suffix = "/backward" if node.name.startswith("bwd") else ""
            bound.append(writer.add_input(_generator(node, suffix), "Generator"))
            continue
        if type(node.meta.get("desc")).__name__ not in ("PlainAOTInput", "NoneType"):
            raise ExportError(
                node.name,
                "two of its inputs share memory, and one of them is written",
                "pass tensors that do not overlap",
            )
        bound.append(writer.add_input(next(specs), writer.types.of(node.meta["val"])))
    results = writer.add_graph(graph, bound)[tokens:]
    refs = [_ref(writer, r) for r in results]
    mutated = metadata.written
    writes = []
    for index, ref in zip(mutated, refs, strict=False):
        writes.append(_write_back(writer, traced, index, bound[tokens + index], ref))
    first = len(mutated)
    bases = first + len(metadata.results)
    end = bases + metadata.bases
    state = _Forward(values=refs[first:end], saved=refs[end:], rest=results[end:])
    state.inputs = bound[tokens : tokens + len(traced.inputs)]
    state.symbols = metadata.saved_numbers
    for i, spec in enumerate(traced.outputs):
        state.places.append(len(state.outputs))
        if spec.input >= 0:
            value = bound[tokens + spec.input]
            state.outputs.append(f"{value} {{alias {value}}}")
            continue
        value = refs[first + spec.index]
        alias_of = metadata.results[spec.index].alias_of
        if value == "None":
            state.places[-1] = -1
            continue
        if i == 0:
            state.outputs.append(f"{value} {{loss}}")
        elif alias_of is not None:
            state.outputs.append(f"{value} {{alias {bound[tokens + alias_of]}}}")
        else:
            state.outputs.append(f"{value} {{output {quoted(spec.name)}}}")
    for i, ref in enumerate(refs[bases:end]):
        state.outputs.append(f"{ref} {{output {quoted(f'base{i}')}}}")
    state.outputs += writes
    return state


def _write_backward(writer: EntryWriter, traced: Traced, forward: _Forward) -> list[Any]:
    """The backward's statements. Returns the gradients, as its graph returns them."""
    backward = traced.backward
    if backward is None:
        return forward.rest
    tangents = [_tangent(writer, forward, node) for node in tangent_nodes(backward)]
    rng = _backward_generators(writer, backward)
    saved = in_backward_order(backward, forward.saved, forward.symbols)
    return writer.add_graph(backward, saved + tangents + rng)


def _ref(writer: EntryWriter, result: Any) -> Ref:
    return writer.env[result] if isinstance(result, fx.Node) else "None"


def _write_back(writer: EntryWriter, traced: Traced, index: int, value: str, new: Ref) -> str:
    spec = traced.inputs[index]
    if traced.metadata.arguments[index].is_reshaped:
        raise ExportError(
            spec.name,
            "the function changes its shape, strides or storage in place",
            "make a new tensor instead (t(), transpose, and no set_() or resize_())",
        )
    kind = writer.kinds[value]
    copied = writer.define(f"{value[1:]}_new", kind, f"aten::copy_({value}, {new})")
    return f"{copied} {{mutation {value}}}"


def _tangent_names(traced: Traced) -> dict[str, str]:
    names = {f"PlainAOTOutput(idx={s.index})": s.name for s in reversed(traced.outputs)}
    for i in range(traced.metadata.bases):
        names[f"IntermediateBaseAOTOutput(base_of=PlainAOTOutput(idx={i}))"] = f"base{i}"
    return names


def _tangent(writer: EntryWriter, forward: _Forward, node: fx.Node) -> str:
    """The gradient that the step starts from: one for the loss, as `loss.backward()` does."""
    refuse_other_tangent(node)
    call = f"aten::ones_like({forward.values[0]}, memory_format=torch.preserve_format)"
    return writer.define("d_loss", writer.types.of(node.meta["val"]), call)


def _ones_or_zeros(example: Any, one: bool) -> torch.Tensor:
    make = torch.ones if one else torch.zeros
    return make([int(s) for s in example.shape], dtype=example.dtype, device=example.device)


def _generator(node: fx.Node, suffix: str) -> InputSpec:
    """A paired random state: `cuda:0#1` for the forward, `cuda:0#1/backward` for its repetition."""
    device = node.meta["val"].device
    pair = node.name.rsplit("_", 1)[-1]
    generator = torch.Generator(device).manual_seed(torch.initial_seed() % 2**31 + 1 + int(pair))
    return InputSpec("rng_state", f"{device}#{pair}{suffix}", generator.get_state())


def _backward_generators(writer: EntryWriter, backward: fx.GraphModule) -> list[Ref]:
    states = generator_nodes(backward)
    return [writer.add_input(_generator(n, "/backward"), "Generator") for n in states]


def _gradients(
    writer: EntryWriter, traced: Traced, gradients: list[Any]
) -> list[tuple[str, fx.Node] | None]:
    """Value and node of the gradient of each input; None where it has none."""
    if traced.metadata.backward_tokens:
        raise ExportError(
            traced.name,
            "an operator with ordered effects runs in its backward",
            "leave such operators (printing, logging) out of the step",
        )
    refs = [_ref(writer, gradient) for gradient in gradients[: len(traced.inputs)]]
    return [
        None if ref == "None" else (ref, gradient)
        for ref, gradient in zip(refs, gradients, strict=False)
    ]


def _gradient_outputs(writer: EntryWriter, traced: Traced, gradients: list[Any]) -> list[str]:
    """One output for each input that has a gradient."""
    pairs = zip(traced.inputs, _gradients(writer, traced, gradients), strict=True)
    return [f"{found[0]} {{gradient {quoted(spec.name)}}}" for spec, found in pairs if found]
