"""What is known of a node of AOTAutograd's graphs."""

from __future__ import annotations

import functools
import json
import operator
from typing import Any

import torch
from torch import Tensor, fx

from ..library.load import program_class
from ..torch_api.cudnn_recurrent import RECURRENT, RECURRENT_BACKWARD
from ..torch_api.operators import higher_order_name, pytree, schema_of
from .known_numbers import KnownNumbers

# As ir/facts/op_table.cpp has them: all operators of some namespaces, and one of DTensor's own.
_COLLECTIVES = (
    "_c10d_functional.",
    "c10d_functional.",
    "_c10d_functional_autograd.",
    "c10d.",
    "symm_mem.",
    "_dtensor.shard_dim_alltoall",
)
# Of operators that may wait for values of the device.
READS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
# In meta, also of files: what code that Inductor compiled communicates (region_collectives.py).
COMMUNICATES = "gravure_communicates"
_INDUCTORS_OWN = ("flex_attention", "flex_attention_backward", "triton_kernel_wrapper_functional")
_RECURRENT = (
    "aten::mkldnn_rnn_layer",
    "aten::mkldnn_rnn_layer_backward",
    RECURRENT,
    RECURRENT_BACKWARD,
)
_HIDDEN_VIEWS = (torch.ops.aten._unsafe_view.default,)  # whose schemas do not say so
_PAIRED_DRAWS = ("graphsafe_run_with_rng_state", "run_and_save_rng_state", "run_with_rng_state")


def is_collective(node: fx.Node) -> bool:
    if COMMUNICATES in node.meta:
        return True
    return hasattr(node.target, "namespace") and str(node.target).startswith(_COLLECTIVES)


def is_recurrent(node: fx.Node) -> bool:
    """Whether it is an LSTM, GRU or RNN in one operator, or the backward of one.

    In Inductor's code oneDNN's keeps nothing for its backward, and the runtime would not see that
    cuDNN's has dropout.
    """
    found = schema(node)
    return found is not None and found.name in _RECURRENT


def has_effects(node: fx.Node) -> bool:
    """Whether it calls an operator that does something outside of the graph, in an order."""
    return higher_order_name(node.target) == "with_effects"


def schema(node: fx.Node) -> Any:
    """The schema of what it calls; None for what is no operator."""
    return schema_of(node.target)


@functools.cache
def facts(operator_name: str, overload: str) -> dict[str, Any] | None:
    """What ir/facts knows of an operator; None where PyTorch has not registered it."""
    found = program_class().operator_facts(operator_name, overload)
    return json.loads(found) if found else None


def is_inductors_own(node: fx.Node) -> bool:
    """Whether it runs other graphs or kernels, without writing, in a way that Inductor compiles."""
    return higher_order_name(node.target) in _INDUCTORS_OWN


def is_random(node: fx.Node) -> bool:
    """Whether its operator is one that draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    found = schema(node)
    known = facts(found.name, found.overload_name) if found is not None else None
    return known is None or "random" in known["flags"]


def repeats_draws(node: fx.Node) -> bool:
    """Whether it draws with a random state that another node keeps, or keeps it: what is computed
    again in the backward draws the same numbers so."""
    return higher_order_name(node.target) in _PAIRED_DRAWS


def draws(node: fx.Node) -> bool:
    """Whether this call draws random numbers, or may: as drawsRandom of ir/facts/op_facts.cpp."""
    if not is_random(node):
        return False
    rates = [argument(node, name) for name in ("dropout_p", "dropout")]
    return 0 not in rates and argument(node, "train") is not False


def argument(node: fx.Node, name: str) -> Any:
    """What it is given for a parameter of this name, or has by default; None if there is none."""
    for at, parameter in enumerate(schema(node).arguments):
        if parameter.name == name:
            given = node.args[at] if at < len(node.args) else parameter.default_value
            return node.kwargs.get(name, given)
    return None


def takes_member(node: fx.Node) -> bool:
    """Whether it takes a member of a tuple or list: no operator, it computes nothing."""
    return node.target is operator.getitem


def is_graph(node: fx.Node) -> bool:
    """Whether it is a graph that another node takes."""
    return node.op == "get_attr" and "val" not in node.meta


def writes(node: fx.Node) -> bool:
    """Whether it writes into an operand, or may, or does something else than computing."""
    found = schema(node)
    if found is None:
        return not takes_member(node) and not is_inductors_own(node)
    return found.is_mutable or not found.returns


def is_view(node: fx.Node) -> bool:
    """Whether it shares its first operand's memory, or may."""
    if takes_member(node):
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    if node.target in _HIDDEN_VIEWS:
        return True
    found = schema(node)
    return found is not None and any(
        r.alias_info is not None and not r.alias_info.is_write for r in found.returns
    )


def costs_nothing(node: fx.Node) -> bool:
    """Whether it may be made anywhere, again and again: a view, or a number."""
    return is_view(node) or not isinstance(node.meta.get("val"), (Tensor, tuple, list, dict))


def takes_numbers(node: fx.Node) -> bool:
    """Whether its kernel takes a tensor of the CPU's without dimensions for a number."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def is_known(value: Any, known: KnownNumbers) -> bool:
    """Whether all of it is plain tensors of sizes known by now, and such numbers."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return all(member is None or is_known(member, known) for member in value)
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            return False
        return all(number_of(n, known) is not None for n in (*value.shape, *value.stride()))
    return number_of(value, known) is not None


def tensors(node: fx.Node) -> list[Tensor]:
    """Examples of those that it gives."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def is_on_cpu(node: fx.Node) -> bool:
    """Whether a tensor that it gives is there."""
    return any(tensor.device.type == "cpu" for tensor in tensors(node))


def runs_on_cpu(module: fx.GraphModule) -> bool:
    """Whether no tensor is elsewhere."""
    everything = (tensor for node in module.graph.nodes for tensor in tensors(node))
    return all(tensor.device.type == "cpu" for tensor in everything)


def number_of(value: Any, known: KnownNumbers) -> Any:
    """The number that a value is; None for what is known only at run time, or is no number."""
    return value if isinstance(value, (int, float, bool)) else known.number(value)
