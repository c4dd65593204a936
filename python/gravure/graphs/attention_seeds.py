"""The seed and the offset of the dropout in memory-efficient attention, where compiled code takes
them.

Its backward reads both on the host, and in a capture on the device, wherever they are: behind a
replayed forward they are on the device. For calls by the runtime
`runtime/step/attention_seeds.h` sees to it, and says more.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, MutableSequence
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.operators import pytree
from .node_facts import argument, is_graph

_BACKWARDS = (
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default,
    torch.ops.aten._efficient_attention_backward.default,
)


def seeds_of(nodes: Collection[fx.Node]) -> set[fx.Node]:
    """Those that some of `nodes` read so, also in graphs that these run."""
    return {seed for node in nodes for seed in _seeds_of(node)}


def _seeds_of(node: fx.Node) -> Iterator[fx.Node]:
    if node.target in _BACKWARDS and argument(node, "dropout_p") != 0:
        yield from (argument(node, name) for name in ("philox_seed", "philox_offset"))
    for inner in _graphs_of(node):
        placeholders = inner.graph.find_nodes(op="placeholder")
        seeds = seeds_of(inner.graph.nodes)
        given = pytree.tree_leaves(node.args)
        # What the graph takes stands behind all else.
        for placeholder, operand in zip(reversed(placeholders), reversed(given), strict=False):
            if placeholder in seeds and isinstance(operand, fx.Node):
                yield operand


def _graphs_of(node: fx.Node) -> Iterator[fx.GraphModule]:
    for operand in filter(is_graph, node.all_input_nodes):
        held = operator.attrgetter(str(operand.target))(node.graph.owning_module)
        if isinstance(held, fx.GraphModule):
            yield held


def place_seeds(tensors: MutableSequence[Any], seeds: Collection[int]) -> None:
    """Ahead of a run: outside of a capture `seeds`, positions in `tensors`, are copied to the host,
    which waits for the device. Raises RuntimeError in a capture that would read one on the host."""
    if not seeds:
        return
    capturing = torch.cuda.is_current_stream_capturing()
    for at in seeds:
        seed: Tensor = tensors[at]
        if capturing and seed.is_cpu:
            raise RuntimeError(
                "the seed of attention's dropout is on the host, since its forward was not "
                "replayed in this step"
            )
        if not capturing and not seed.is_cpu:
            tensors[at] = seed.cpu()
