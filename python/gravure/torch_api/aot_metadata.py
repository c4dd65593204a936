"""What AOTAutograd found out about a function, and what its graphs take, decoded here alone.

PyTorch has it in a value of many fields (ViewAndMutationMeta, with an OutputType a result and a
PlainTensorMeta for each tensor that is of no subclass), which a TracingContext holds; in a
descriptor a placeholder or result (`meta["desc"]`), and in names of placeholders (`tangents_`,
`bwd_rng_state`). Without it nobody would know which input is which: no program.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from .private_names import OutputType, PlainTensorMeta, TracingContext

FORMATS = {  # as c10::MemoryFormat numbers them
    torch.contiguous_format: 0,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


_KNOWN_VALUES = (
    torch.Tensor,
    torch.Generator,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
    int,
    float,
    complex,
)


@dataclass(frozen=True)
class Argument:
    """What becomes of one argument of the function."""

    requires_grad: bool
    is_reshaped: bool  # its shape, strides or storage are changed in place


@dataclass(frozen=True)
class Result:
    """One thing that the function returns."""

    requires_grad: bool
    is_new: bool  # in memory of its own
    alias_of: int | None  # the argument that it is, or is a view of


@dataclass(frozen=True)
class Metadata:
    """What a function does with its arguments, and in which order its forward returns what.

    The forward returns its tokens, the new values of the arguments that it writes, its results, the
    bases of results that are views, and then what it saves: tensors first, symbolic numbers last.
    The backward takes what is saved with the numbers first, a tangent for each result and base that
    requires a gradient, and its generators.
    """

    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    tokens: int  # each orders operators with effects: the first inputs, and results
    written: tuple[int, ...]  # arguments whose new values the forward returns
    bases: int
    tangent_formats: tuple[int | None, ...]  # as c10::MemoryFormat; None where it is strides
    may_vary: bool  # it was traced where deterministic algorithms were off
    is_ordinary: bool  # no wrapper has anything to do before its graphs run, or after
    are_plain: bool  # arguments, results and tangents: no subclasses

    @property
    def before_results(self) -> int:
        """Results of the forward ahead of the function's own."""
        return self.tokens + len(self.written)

    @property
    def own_results(self) -> int:
        """Results of the forward ahead of what it saves."""
        return self.before_results + len(self.results) + self.bases


def metadata_of(meta: Any) -> Metadata:
    """Of AOTAutograd's own value, once both graphs are there."""
    aliases = (OutputType.alias_of_input, OutputType.is_input)
    return Metadata(
        arguments=tuple(
            Argument(info.requires_grad, info.mutates_metadata or info.mutates_storage_metadata)
            for info in meta.input_info
        ),
        results=tuple(
            Result(
                info.requires_grad,
                info.output_type is OutputType.non_alias,
                info.base_idx if info.output_type in aliases else None,
            )
            for info in meta.output_info
        ),
        tokens=len(meta.tokens),
        written=tuple(meta.mutated_inp_runtime_indices),
        bases=meta.num_intermediate_bases,
        tangent_formats=tuple(map(_format, meta.subclass_tangent_meta)),
        may_vary=meta.deterministic is False,
        is_ordinary=_is_ordinary(meta),
        are_plain=all(map(is_plain, _kinds(meta))),
    )


def _kinds(meta: Any) -> Any:
    """What kinds of tensors the function takes and returns, and its backward takes."""
    return itertools.chain(
        meta.subclass_inp_meta, meta.subclass_fw_graph_out_meta, meta.subclass_tangent_meta
    )


def _is_ordinary(meta: Any) -> bool:
    """Whether AOTAutograd's wrapper does nothing before the graphs run, or after, but what the
    runtime does, too: it counts writes into arguments, and leaves autocast out."""
    return (
        not meta.num_mutated_inp_runtime_indices
        and not meta.num_outputs_aliased
        and not meta.num_intermediate_bases
        and not meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        and not meta.tokens
        and not meta.num_backward_tokens
        and not meta.num_graphsafe_rng_states
        and not meta.is_rng_op_functionalized
        and not meta.num_tensors_saved_with_no_vc_check
        and not meta.num_opaque_objects_saved_for_bw
        and not meta.dynamic_outputs
        and meta.grad_enabled_mutation is None
    )


def written_results(meta: Any) -> int:
    """How many results of a forward come before those of the function: tokens, and the new values
    of arguments that it writes."""
    return len(meta.tokens) + len(meta.mutated_inp_runtime_indices)


def is_computed_again(node: fx.Node) -> bool:
    """Whether a node of AOTAutograd's graph stands in a part that torch.utils.checkpoint runs once
    more. Without it nobody would know of writes that eager makes twice."""
    again = CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE
    return node.meta.get("recompute") in again


def written_arguments(meta: Any) -> list[int]:
    """Which arguments the function writes into, inside of the graph or behind it."""
    return [i for i, info in enumerate(meta.input_info) if info.mutates_data]


def is_ordinary(meta: Any, is_known: Callable[[Any], bool]) -> bool:
    """`Metadata.is_ordinary` of AOTAutograd's own value, all of whose kinds of tensors are known:
    `is_known` says of a kind whether the caller takes it apart and makes it himself.
    """
    return _is_ordinary(meta) and all(map(is_known, _kinds(meta)))


def is_plain(kind: Any) -> bool:
    """Whether this kind is that of a tensor that is of no subclass."""
    return isinstance(kind, PlainTensorMeta)


def _format(tangent: Any) -> int | None:
    """The memory format that a gradient is brought into; None where it is strides."""
    wanted = getattr(tangent, "memory_format", None)
    return FORMATS.get(wanted.memory_format) if wanted is not None else None


def current_metadata() -> Any:
    """AOTAutograd's own value for what is compiled; None outside, and before it has one."""
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def current_tokens() -> int:
    """How many tokens the graph that is compiled takes first."""
    meta = current_metadata()
    return len(meta.tokens) if meta is not None else 0


def allow_retain_graph() -> None:
    """For the backward that is compiled: with donated inputs, or None, retain_graph is refused."""
    meta = current_metadata()
    if meta is not None:
        meta.bw_donated_idxs = []


class Kind(enum.Enum):
    """What a placeholder of one of AOTAutograd's graphs stands for."""

    TOKEN = "token"  # holds nothing
    ARGUMENT = "argument"  # of Dynamo's graph, as it is
    PARAMETER = "parameter"  # of the module that was traced
    BUFFER = "buffer"
    GENERATOR = "generator"
    OTHER = "other"  # a tensor that stands for several arguments, or inside of one
    SAVED = "saved"  # by the forward
    TANGENT = "tangent"


@dataclass(frozen=True)
class Placeholder:
    """A placeholder of one of AOTAutograd's graphs, decoded."""

    node_name: str
    example: Any  # what it is given while tracing
    kind: Kind
    argument: int = -1  # its position, of an ARGUMENT
    name: str = ""  # in its module, of a PARAMETER or BUFFER
    pair: str = ""  # which generator: forward and backward have one of the same number
    repeats: bool = False  # the backward's of a pair, which draws again what the forward drew
    result: int = -1  # of the function, whose gradient this TANGENT is
    base: int = -1  # or the base of which of its results
    what: str = ""  # what a TANGENT is of, or an OTHER is, in PyTorch's words, if it has any

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.example, torch.Tensor)

    @property
    def is_opaque(self) -> bool:
        return is_opaque(self.example)

    @property
    def device(self) -> torch.device:
        return self.example.device


def is_opaque(example: Any) -> bool:
    """Whether a value is neither None nor tensor, number or generator: the mesh of a DTensor, from
    2.15 on. No operator of a program reads it; it passes from arguments to results."""
    return example is not None and not isinstance(example, _KNOWN_VALUES)


def _placeholder(node: fx.Node, kind: Kind, **details: Any) -> Placeholder:
    return Placeholder(node.name, node.meta.get("val"), kind, **details)


def forward_placeholders(module: fx.GraphModule, tokens: int) -> list[Placeholder]:
    """What a forward takes, or a graph that was not differentiated, in order."""
    nodes = module.graph.find_nodes(op="placeholder")
    return [_placeholder(n, Kind.TOKEN) for n in nodes[:tokens]] + list(
        map(_forward_placeholder, nodes[tokens:])
    )


def _forward_placeholder(node: fx.Node) -> Placeholder:
    if (generator := _generator(node)) is not None:
        return generator
    desc = node.meta.get("desc")
    if type(desc).__name__ == "PlainAOTInput":
        return _placeholder(node, Kind.ARGUMENT, argument=desc.idx)
    while hasattr(desc, "base"):  # the plain tensor inside a DTensor, a view's base
        desc = desc.base
    kinds = {"ParamAOTInput": Kind.PARAMETER, "BufferAOTInput": Kind.BUFFER}
    kind = kinds.get(type(desc).__name__, Kind.OTHER)
    if kind is Kind.OTHER:
        return _placeholder(node, kind, what="" if desc is None else type(desc).__name__)
    return _placeholder(node, kind, name=desc.target)


def _generator(node: fx.Node) -> Placeholder | None:
    repeats = node.name.startswith("bwd_rng_state")
    named = repeats or node.name.startswith("fwd_rng_state")
    if not named and not isinstance(node.meta.get("val"), torch.Generator):
        return None
    return _placeholder(node, Kind.GENERATOR, pair=node.name.rsplit("_", 1)[-1], repeats=repeats)


def backward_placeholders(module: fx.GraphModule) -> list[Placeholder]:
    """What a backward takes, in order: what is saved, tangents, generators."""
    return list(map(_backward_placeholder, module.graph.find_nodes(op="placeholder")))


def _backward_placeholder(node: fx.Node) -> Placeholder:
    if node.name.startswith("tangents_token"):
        return _placeholder(node, Kind.TOKEN)
    if node.name.startswith("tangents_"):
        result, base = -1, -1
        output = getattr(node.meta.get("desc"), "output", None)
        if type(output).__name__ == "PlainAOTOutput":
            result = output.idx
        elif type(output).__name__ == "IntermediateBaseAOTOutput":
            base = getattr(output.base_of, "idx", -1)
        what = "" if output is None else str(output)
        return _placeholder(node, Kind.TANGENT, result=result, base=base, what=what)
    if node.name.startswith("bwd_rng_state"):
        found = _generator(node)
        assert found is not None
        return found
    return _placeholder(node, Kind.SAVED)


def own_results(module: fx.GraphModule) -> int:
    """How many results of a forward come before what it saves, by their descriptors."""
    end = module.graph.output_node()
    for i, desc in enumerate(end.meta.get("desc") or ()):
        if type(desc).__name__.startswith("SavedForBackwards"):
            return i
    return len(end.args[0])
