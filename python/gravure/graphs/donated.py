"""What a backward may write over: values that a forward saves for it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from torch import Tensor, fx

from ..torch_api.cudnn_recurrent import RECURRENT
from ..torch_api.fake_tensors import storage_key
from .node_facts import facts, is_recurrent, is_view, schema, takes_member, tensors
from .traced_graphs import TracedGraphs

# Operators whose schemas say whether a result is memory of its own; nobody promises it of others.
_TRUSTED = ("aten::", "prims::", RECURRENT)


def donatable(traced: TracedGraphs, private: Collection[int] | None = None) -> frozenset[fx.Node]:
    """Placeholders of the backward whose memory the forward makes, and nobody else has: no
    argument, constant, result or other saved value shares it.

    `private`: at these positions alone, since a hook on saved tensors sees the others.
    """
    if traced.backward is None:
        return frozenset()
    results = [n for n in traced.forward.graph.output_node().args[0] if isinstance(n, fx.Node)]
    owners = Counter(map(source_of, results))
    given = traced.forward.graph.find_nodes(op="placeholder")
    given += traced.forward.graph.find_nodes(op="get_attr")
    memory = Counter(storage for node in [*given, *results] for storage in set(storages(node)))
    saved = traced.as_backward_takes(traced.saved)
    found = set()
    for i, (node, placeholder) in enumerate(zip(saved, traced.saved_inputs, strict=True)):
        if private is not None and i not in private:
            continue
        if not isinstance(node, fx.Node) or not isinstance(_value(node), Tensor):
            continue
        is_own = owners[source_of(node)] == 1 and all(memory[s] == 1 for s in storages(node))
        if is_own and _makes_memory(source_of(node)) and _has_own_places(_value(placeholder)):
            found.add(placeholder)
    return frozenset(found)


def given_to_operators(
    traced: TracedGraphs, private: Collection[int] | None = None
) -> frozenset[fx.Node]:
    """What is donatable, where the backward has an operator that would make use of it."""
    backward = traced.backward
    if backward is None or not any(map(is_recurrent, backward.graph.nodes)):
        return frozenset()
    return donatable(traced, private)


def source_of(node: fx.Node) -> fx.Node:
    """What `node` is a view of; itself, if it is none."""
    while _may_share(node) and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _may_share(node: fx.Node) -> bool:
    if is_view(node):
        return True
    found = schema(node) if node.op == "call_function" else None
    return found is not None and _gives_operand(found.name, found.overload_name)


def _gives_operand(operator_name: str, overload: str) -> bool:
    """Whether a result may be an operand, though the schema does not say so (ir/facts)."""
    known = facts(operator_name, overload)
    return known is None or any(known["aliases"])


def storages(node: fx.Node) -> Iterator[int]:
    """The storages of its tensors, by their examples."""
    return map(storage_key, tensors(node))


def sharing(module: fx.GraphModule, nodes: Iterable[fx.Node]) -> dict[fx.Node, set[fx.Node]]:
    """Of each of `nodes`: all of the graph's that have its memory, itself among them."""
    by_source: dict[fx.Node, set[fx.Node]] = {}
    by_storage: dict[int, set[fx.Node]] = {}
    for node in module.graph.nodes:
        by_source.setdefault(source_of(node), set()).add(node)
        for storage in storages(node):
            by_storage.setdefault(storage, set()).add(node)
    return {
        node: by_source[source_of(node)].union(*(by_storage[s] for s in storages(node)))
        for node in nodes
    }


def _value(node: fx.Node) -> object:
    return node.meta.get("val")


def _makes_memory(node: fx.Node) -> bool:
    """Whether its result is memory of its own, for sure."""
    if takes_member(node):
        source = node.args[0]
        return isinstance(source, fx.Node) and _makes_memory(source)
    found = schema(node) if node.op == "call_function" else None
    if found is None or found.is_mutable or not found.name.startswith(_TRUSTED):
        return False
    return not _gives_operand(found.name, found.overload_name)


def _has_own_places(value: object) -> bool:
    """Whether each element has bytes of its own, from the beginning of the memory on, and the sizes
    are known. There may be gaps: rows that Inductor pads for its products."""
    if not isinstance(value, Tensor) or value.storage_offset() != 0:
        return False
    numbers = [*value.shape, *value.stride()]
    if not all(isinstance(number, int) for number in numbers) or value.numel() == 0:
        return False
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size == 1:
            continue
        if stride < expected:
            return False
        expected = stride * size
    return True
