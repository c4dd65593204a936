"""From traced graphs to the text of entries, for all who make programs.

- `step_entry`: forward and backward as one entry, for compile_step and export_step;
- `joint_entries`: an entry each, whose roles are the function's own, for export_joint;
- `graph_entries`: entries that take and return what the graphs do, for torch.compile and
  torchtitan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..graphs.donated import given_to_operators
from ..graphs.functional import reinplace_custom_operators
from ..graphs.known_numbers import KnownNumbers
from ..graphs.names import InputSpec
from ..graphs.traced_graphs import OutputSpec, TracedGraphs
from ..graphs.undivided import refuse_backward_effects, refuse_other_tangent
from ..torch_api.aot_metadata import is_opaque
from .entry_call import Call, Passed
from .fx_import import EntryWriter
from .higher_order import Ref
from .program_text import HEADER, constant_text, quoted

_SAVED = "saved"  # a role, whose name is that of the value


# ---- one graph in an entry


def _bind_inputs(
    writer: EntryWriter,
    graph: fx.GraphModule,
    specs: Sequence[InputSpec | int | None],
    kinds: Mapping[str, str],
) -> list[Ref]:
    """The value of each placeholder of `graph`, as inputs of the entry.

    A spec is an int where the placeholder has the value of an earlier one, at that position; None
    where it holds nothing. `kinds`: by name, the type of each saved value, as the forward has it.
    """
    bound: list[Ref] = []
    for node, spec in zip(graph.graph.find_nodes(op="placeholder"), specs, strict=True):
        value = node.meta.get("val")
        number = writer.known.number(value)
        if spec is None or number is not None:
            bound.append(str(constant_text(number)))
        elif isinstance(spec, int):
            bound.append(bound[spec])
        elif spec.role == "rng_state":
            bound.append(writer.add_input(spec, "Generator"))
        else:
            found = kinds.get(spec.name) if spec.role == "saved" else None
            bound.append(writer.add_input(spec, found or writer.types.of(value)))
    return bound


def _ref(writer: EntryWriter, result: Any) -> Ref:
    return writer.env[result] if isinstance(result, fx.Node) else "None"


# ---- forward and backward by the function's own roles


@dataclass(frozen=True)
class StepEntry:
    """Forward and backward as statements of the entry `step`, which others may follow."""

    writer: EntryWriter
    arguments: list[InputSpec]
    inputs: list[str]  # the value of each of `arguments`
    gradients: list[tuple[str, fx.Node] | None]  # of each of them, where it has one
    outputs: list[str]  # as written behind `return`, but for gradients; the loss first
    positions: list[int]  # in `outputs`, of each of the function's; -1 for one that is None

    def text(self, used: Collection[int] = ()) -> str:
        """The whole entry. The gradients of the arguments `used` are not returned."""
        gradients = [None if i in used else g for i, g in enumerate(self.gradients)]
        named = _gradient_outputs(self.arguments, gradients)
        return self.writer.text("step", [*self.outputs[:1], *named, *self.outputs[1:]])


def step_entry(traced: TracedGraphs, *, carries_python: bool = False) -> StepEntry:
    """Forward and backward as one entry. `carries_python`: EntryWriter's."""
    writer = EntryWriter(traced.namer)
    writer.carries_python = carries_python
    forward = _write_forward(writer, traced)
    gradients = _write_backward(writer, traced, forward)
    pairs = _gradients(writer, traced, gradients)
    return StepEntry(
        writer, traced.arguments, forward.arguments, pairs, forward.outputs, forward.positions
    )


def joint_entries(traced: TracedGraphs) -> dict[str, tuple[str, EntryWriter]]:
    """The entries `forward` and `backward`."""
    writer, back = EntryWriter(traced.namer), EntryWriter(traced.namer)
    forward = _write_forward(writer, traced)
    assert traced.backward is not None
    specs: list[InputSpec | int | None] = []
    kept: dict[str, int] = {}  # what the forward keeps, and which placeholder has it
    values = traced.as_backward_takes(forward.saved)
    for i, (node, ref) in enumerate(zip(traced.saved_inputs, values, strict=True)):
        first = kept.setdefault(ref, i) if node.users else kept.get(ref)
        spec = InputSpec("saved", ref[1:], None) if first == i else first
        specs.append(spec if ref != "None" else None)
    specs += [*_named_tangents(traced), *traced.generators]
    kinds = {value[1:]: kind for value, kind in writer.kinds.items()}
    bound = _bind_inputs(back, traced.backward, specs, kinds)
    gradients = _gradients(back, traced, back.add_graph(traced.backward, bound))
    saved = [f"{ref} {{saved {quoted(ref[1:])}}}" for ref in kept if ref != "None"]
    return {
        "forward": (writer.text("forward", forward.outputs + saved), writer),
        "backward": (back.text("backward", _gradient_outputs(traced.arguments, gradients)), back),
    }


@dataclass(frozen=True)
class _Forward:
    """What the forward graph's statements left."""

    arguments: list[str]  # the value of each
    outputs: list[str]  # as written behind `return`, the loss first
    positions: list[int]  # in `outputs`, of each thing returned
    loss: Ref
    saved: list[Ref]
    rest: list[Any]  # the graph's results behind its own: gradients, where it is undivided


def _write_forward(writer: EntryWriter, traced: TracedGraphs) -> _Forward:
    """The forward's statements, with a `copy_` at its end for each argument that it writes."""
    metadata = traced.metadata
    assert metadata is not None
    for module in traced.modules:
        reinplace_custom_operators(module)
    bound = _bind_inputs(writer, traced.forward, traced.inputs, {})
    arguments = [
        value
        for value, spec in zip(bound, traced.inputs, strict=True)
        if spec is not None and spec.role != "rng_state"
    ]
    results = writer.add_graph(traced.forward, bound)
    refs = [_ref(writer, result) for result in results]
    # The graph's own results, in this order; what is saved comes behind them.
    written = metadata.tokens
    first = written + len(metadata.written)
    bases = first + len(metadata.results)
    writes = [
        _write_back(writer, traced, index, arguments[index], ref)
        for index, ref in zip(metadata.written, refs[written:first], strict=True)
    ]
    outputs: list[str] = []
    positions = []
    for spec in traced.outputs:
        output = _output(traced, spec, arguments, refs[first:bases], is_loss=not positions)
        positions.append(len(outputs) if output else -1)
        outputs += [output] if output else []
    for i, ref in enumerate(refs[bases : traced.own_results]):
        outputs.append(f"{ref} {{output {quoted(f'base{i}')}}}")
    saved, rest = refs[traced.own_results :], results[traced.own_results :]
    return _Forward(arguments, outputs + writes, positions, refs[first], saved, rest)


def _output(
    traced: TracedGraphs,
    spec: OutputSpec,
    arguments: list[str],
    results: list[Ref],
    *,
    is_loss: bool,
) -> str:
    """One thing that the function returns, with its role; "" for one that is None."""
    assert traced.metadata is not None
    if spec.input >= 0:
        return f"{arguments[spec.input]} {{alias {arguments[spec.input]}}}"
    value, alias_of = results[spec.index], traced.metadata.results[spec.index].alias_of
    if value == "None":
        return ""
    if is_loss:
        return f"{value} {{loss}}"
    if alias_of is not None:
        return f"{value} {{alias {arguments[alias_of]}}}"
    return f"{value} {{output {quoted(spec.name)}}}"


def _write_backward(writer: EntryWriter, traced: TracedGraphs, forward: _Forward) -> list[Any]:
    """The backward's statements. Returns the gradients, as its graph returns them."""
    backward = traced.backward
    if backward is None:
        return forward.rest
    refuse_backward_effects(traced)
    tangents = []
    for tangent in traced.tangents:
        # The gradient that the step starts from: one for the loss, as `loss.backward()` does.
        refuse_other_tangent(tangent)
        call = f"aten::ones_like({forward.loss}, memory_format=torch.preserve_format)"
        tangents.append(writer.define("d_loss", writer.types.of(tangent.example), call))
    generators = [writer.add_input(spec, "Generator") for spec in traced.generators]
    saved = traced.as_backward_takes(forward.saved)
    writer.given = given_to_operators(traced)
    return writer.add_graph(backward, saved + tangents + generators)


def _write_back(writer: EntryWriter, traced: TracedGraphs, index: int, value: str, new: Ref) -> str:
    assert traced.metadata is not None
    if traced.metadata.arguments[index].is_reshaped:
        raise ExportError(
            traced.arguments[index].name,
            "the function changes its shape, strides or storage in place",
            "make a new tensor instead (t(), transpose, and no set_() or resize_())",
        )
    kind = writer.kinds[value]
    copied = writer.define(f"{value[1:]}_new", kind, f"aten::copy_({value}, {new})")
    return f"{copied} {{mutation {value}}}"


def _named_tangents(traced: TracedGraphs) -> list[InputSpec]:
    """Specs of the tangents, named by the outputs that they are of, with values: ones for the loss,
    zeros for the others."""
    refuse_backward_effects(traced)
    names = {spec.index: spec.name for spec in reversed(traced.outputs)}
    found = []
    for tangent in traced.tangents:
        assert tangent.spec is not None
        name = names.get(tangent.result, tangent.spec.name) if tangent.result >= 0 else ""
        if tangent.base >= 0:
            name = f"base{tangent.base}"
        name = name or tangent.spec.name
        example, make = tangent.example, torch.ones if name == "loss" else torch.zeros
        sizes = [int(size) for size in example.shape]
        value = make(sizes, dtype=example.dtype, device=example.device)
        found.append(replace(tangent.spec, name=name, value=value))
    return found


def _gradients(
    writer: EntryWriter, traced: TracedGraphs, gradients: list[Any]
) -> list[tuple[str, fx.Node] | None]:
    """Value and node of the gradient of each argument; None where it has none."""
    own = gradients[: len(traced.arguments)]
    refs = [_ref(writer, gradient) for gradient in own]
    return [
        None if ref == "None" else (ref, gradient) for ref, gradient in zip(refs, own, strict=True)
    ]


def _gradient_outputs(
    arguments: Sequence[InputSpec], gradients: Sequence[tuple[str, fx.Node] | None]
) -> list[str]:
    """One output for each argument that has a gradient."""
    pairs = zip(arguments, gradients, strict=True)
    return [f"{found[0]} {{gradient {quoted(spec.name)}}}" for spec, found in pairs if found]


# ---- the graphs as they are


def graph_entries(
    traced: TracedGraphs, known: KnownNumbers, absent: Collection[int] = ()
) -> tuple[str, list[Call]]:
    """The program of entries `forward` and `backward`, or `step`, and how they are called.

    `known` numbers are constants in it. The backward goes without the tangents that are `absent`,
    which nobody reads.
    """
    own = traced.own_results
    roles = [f'output "{i}"' for i in range(own)] + [_SAVED] * len(traced.saved)
    name = "step" if traced.backward is None else "forward"
    forward_writer, writer = EntryWriter(traced.namer, known), EntryWriter(traced.namer, known)
    text, forward = _graph_entry(name, forward_writer, traced.forward, traced.inputs, roles, {})
    if traced.backward is None:
        return f"{HEADER}\n{text}", [forward]

    saved = _saved_specs(traced.as_backward_takes(forward.values[own:]))
    for i, node in enumerate(traced.saved_inputs):
        if i in traced.bundled_inputs and not node.users:
            saved[i] = None  # saved to be watched, not read
    tangents = [None if i in absent else t.spec for i, t in enumerate(traced.tangents)]
    specs = [*saved, *tangents, *traced.generators]
    names = traced.differentiated
    count = len(traced.backward.graph.output_node().args[0])
    roles = [f"gradient {quoted(name)}" for name in names[:count]]
    if traced.apart:
        ends = [f"{names[of]} {i}" for i, of in enumerate(traced.apart, 1)]
        roles += [f"gradient {quoted(name)}" for name in ends]
    roles += [f'output "{i}"' for i in range(len(roles), count)]
    if traced.metadata is not None:  # else another compiler keeps its graphs as it likes
        writer.given = given_to_operators(traced, traced.bundled_inputs)
    back, backward = _graph_entry("backward", writer, traced.backward, specs, roles, forward.kinds)
    return f"{HEADER}\n{text}\n{back}", [forward, backward]


def _saved_specs(values: Sequence[str]) -> list[InputSpec | int | None]:
    """Of what the forward saves, by its values: one that comes twice is taken once."""
    first: dict[str, int] = {}
    specs: list[InputSpec | int | None] = []
    for i, value in enumerate(values):
        at = first.setdefault(value, i)
        spec = InputSpec("saved", value[1:], None) if at == i else at
        specs.append(spec if value else None)
    return specs


def _graph_entry(
    name: str,
    writer: EntryWriter,
    graph: fx.GraphModule,
    specs: Sequence[InputSpec | int | None],
    roles: Sequence[str],
    kinds: Mapping[str, str],
) -> tuple[str, Call]:
    """An entry that takes and returns what its graph does. `roles`: of each of its results."""
    reinplace_custom_operators(graph)
    writer.carries_python = True
    bound = _bind_inputs(writer, graph, specs, kinds)
    placeholders = graph.graph.find_nodes(op="placeholder")
    call = Call(name, len(placeholders))
    for i, (node, spec) in enumerate(zip(placeholders, specs, strict=True)):
        if not isinstance(spec, InputSpec) or writer.known.number(node.meta.get("val")) is not None:
            continue
        call.taken.append(i)
        call.only_tensors &= isinstance(node.meta.get("val"), torch.Tensor)
        if spec.role in ("parameter", "buffer"):
            call.kept.append(i)
    outputs: dict[str, int] = {}
    for result, role in zip(writer.add_graph(graph, bound), roles, strict=True):
        value = writer.env[result] if isinstance(result, fx.Node) else result
        if not isinstance(value, str) or not value.startswith("%"):
            call.results.append((-1, _fixed(result, writer, placeholders)))
            call.values.append("")
            continue
        output = f"{value} {{{role if role is not _SAVED else f'saved {quoted(value[1:])}'}}}"
        call.results.append((outputs.setdefault(output, len(outputs)), None))
        call.only_tensors &= isinstance(result.meta.get("val"), torch.Tensor)
        call.values.append(value)
        call.kinds[value[1:]] = writer.kinds[value]
    call.bound = {
        i: spec.value for i, (spec, _, _) in enumerate(writer.inputs) if spec.role == "constant"
    }
    call.owners, call.held = writer.owners, writer.held
    return writer.text(name, list(outputs)), call


def _fixed(result: Any, writer: EntryWriter, placeholders: Sequence[fx.Node]) -> Any:
    """A result that no operator makes: None, a number, or what is passed through."""
    if not isinstance(result, fx.Node):
        return result
    if is_opaque(result.meta.get("val")):
        return Passed(placeholders.index(result))
    if writer.env[result] == "None":
        return None
    number = writer.known.number(result.meta.get("val"))
    if number is None:
        raise writer.refusal(result, "the graph returns a list", "return its members")
    return number
