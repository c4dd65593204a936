"""Entries that take and return what AOTAutograd's graphs do, for `torch.compile`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..graphs.compiled_ops import CompiledCode
from ..graphs.functional import reinplace_custom_operators
from ..graphs.known_numbers import KnownNumbers
from ..graphs.names import InputSpec, Namer
from ..torch_api.operators import pytree
from .fx_import import EntryWriter
from .program_text import constant_text

# What AOTAutograd calls: all arguments as one list.
Run = Callable[[list[Any]], Any]


@dataclass
class Call:
    """How a call of a graph becomes one of its entry."""

    entry: str
    arguments: int  # that the graph takes
    taken: list[int] = field(default_factory=list)  # those that the entry takes, in order
    # For each of the graph's results, its position among the entry's, or -1 and the fixed value.
    results: list[tuple[int, Any]] = field(default_factory=list)
    values: list[str] = field(default_factory=list)  # each of the graph's results in the text
    kinds: dict[str, str] = field(default_factory=dict)  # and their types
    bound: dict[int, Any] = field(default_factory=dict)  # what inputs of the entry are, always
    owners: list[fx.Node | None] = field(default_factory=list)  # by statement: EntryWriter.owners
    held: list[CompiledCode] = field(default_factory=list)  # what the entry calls by name

    kept: list[int] = field(default_factory=list)  # of `taken`: parameters and buffers
    only_tensors: bool = True  # taken and returned

    def caller(self, run: Callable[[str, Any], list[Any]], *, keeps: bool) -> Run:
        """`run` with the graph's own arguments and results. With `keeps`, `kept` are bound."""
        entry, results = self.entry, self.results
        taken = [i for i in self.taken if not (keeps and i in self.kept)]
        as_is = [(i, None) for i in range(len(results))]
        pick = picker(taken)
        if results == as_is and taken == list(range(self.arguments)):
            return lambda args: run(entry, args)
        if results == as_is:
            return lambda args: run(entry, pick(args))

        def call(args: list[Any]) -> list[Any]:
            found = run(entry, pick(args))
            return [found[i] if i >= 0 else fixed for i, fixed in results]

        return call


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Takes the members at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: tuple([values[i] for i in positions])


def write_entry(
    name: str,
    graph: fx.GraphModule,
    specs: Sequence[InputSpec | int | None],
    roles: Callable[[int, str], str],
    namer: Namer,
    known: KnownNumbers,
    saved: Mapping[str, str] | None = None,
) -> tuple[str, Call]:
    """The entry of `graph`, whose placeholders are `specs`.

    A spec that is a number says: the same value as that placeholder; None: it holds nothing.
    `saved` is the type of each saved value, by name: what the forward says of it.
    `roles(i, value)` is the role of output `i`, for the value that it is.
    """
    reinplace_custom_operators(graph)
    writer = EntryWriter(namer, known)
    writer.carries_python = True
    placeholders = graph.graph.find_nodes(op="placeholder")
    call = Call(name, len(placeholders))
    bound = []
    for i, (node, spec) in enumerate(zip(placeholders, specs, strict=True)):
        value = node.meta.get("val")
        number = known.number(value)
        if spec is None or number is not None:
            bound.append(str(constant_text(number)))
            continue
        if isinstance(spec, int):
            bound.append(bound[spec])
            continue
        kind = "Generator" if spec.role == "rng_state" else writer.types.of(value)
        if spec.role == "saved" and saved:
            kind = saved[spec.name]
        bound.append(writer.add_input(spec, kind))
        call.taken.append(i)
        call.only_tensors &= isinstance(value, torch.Tensor)
        if spec.role in ("parameter", "buffer"):
            call.kept.append(i)
    outputs: dict[str, int] = {}
    for i, result in enumerate(writer.add_graph(graph, bound)):
        value = writer.env[result] if isinstance(result, fx.Node) else result
        if isinstance(value, str) and value.startswith("%"):
            output = f"{value} {{{roles(i, value)}}}"
            call.results.append((outputs.setdefault(output, len(outputs)), None))
            call.only_tensors &= isinstance(result.meta.get("val"), torch.Tensor)
            call.values.append(value)
            call.kinds[value[1:]] = writer.kinds[value]
        else:
            call.results.append((-1, _fixed(result, writer)))
            call.values.append("")
    call.bound = {
        i: spec.value for i, (spec, _, _) in enumerate(writer.inputs) if spec.role == "constant"
    }
    call.owners, call.held = writer.owners, writer.held
    return writer.text(name, list(outputs)), call


def _fixed(result: Any, writer: EntryWriter) -> Any:
    """A result that is the same in each call: None, or a number."""
    if not isinstance(result, fx.Node) or writer.env[result] == "None":
        return None if isinstance(result, fx.Node) else result
    number = writer.known.number(result.meta.get("val"))
    if number is None:
        raise writer.refusal(result, "the graph returns a list", "return its members")
    return number


def device_of(graphs: Sequence[fx.GraphModule], label: str) -> str:
    """The device that these graphs run on, as the library names it."""
    found: set[torch.device] = set()
    for graph in graphs:
        for node in graph.graph.nodes:
            for value in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(value, torch.Tensor):
                    found.add(value.device)
                    if value.layout is not torch.strided:
                        raise ExportError(
                            f"%{node.name}", f"its layout is {value.layout}", "use dense tensors"
                        )
    found.discard(torch.device("cpu"))
    if not found:
        return "host"
    if len(found) > 1 or next(iter(found)).type != "cuda":
        names = ", ".join(sorted(map(str, found)))
        raise ExportError(
            label, f"its tensors are on {names}", "keep one graph on one CUDA device, or on the CPU"
        )
    return str(found.pop())
