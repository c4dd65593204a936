"""Cuts the joint graph into forward and backward, with every random draw that eager makes."""

from __future__ import annotations

import operator
from collections.abc import Container
from typing import Any

from torch import fx

from ..torch_api.aot_autograd import described_result, partition_as_eager_saves
from .node_facts import draws, is_random


def partition(
    joint: fx.GraphModule,
    joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: list[int] | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The default partitioner's cut.

    A draw whose result nobody uses advances the random state all the same: it is made an output of
    the forward while the graph is cut, or it would be lost.
    """
    unused = _unused_draws(joint)
    end = joint.graph.output_node()
    outputs = list(end.args[0])
    outputs[num_fwd_outputs:num_fwd_outputs] = unused
    end.args = (outputs,)
    if "desc" in end.meta:
        descriptions = list(end.meta["desc"])
        # By positions that no result of the function has.
        extra = [described_result(1_000_000 + i) for i in range(len(unused))]
        descriptions[num_fwd_outputs:num_fwd_outputs] = extra
        end.meta["desc"] = descriptions
    forward, backward = partition_as_eager_saves(
        joint,
        joint_inputs,
        num_fwd_outputs=num_fwd_outputs + len(unused),
        static_lifetime_input_indices=static_lifetime_input_indices,
    )
    if unused:
        drop_outputs(forward, range(num_fwd_outputs, num_fwd_outputs + len(unused)))
    return forward, backward


def _unused_draws(joint: fx.GraphModule) -> list[fx.Node]:
    """A value of each random operator that reaches no output; of several the first, as a node."""
    graph = joint.graph
    reached: set[fx.Node] = set()
    pending = [graph.output_node()]
    while pending:
        for node in pending.pop().all_input_nodes:
            if node not in reached:
                reached.add(node)
                pending.append(node)
    found = []
    for node in list(graph.nodes):
        if node in reached or not is_random(node):
            continue
        if isinstance(node.meta.get("val"), (tuple, list)):
            with graph.inserting_after(node):
                member = graph.call_function(operator.getitem, (node, 0))
            member.meta = dict(node.meta, val=node.meta["val"][0])
            node = member
        found.append(node)
    return found


def drawn_twice(forward: fx.GraphModule, backward: fx.GraphModule) -> list[str]:
    """The operators of draws that both graphs make: in the backward they give other numbers.

    The min-cut partitioner takes them for cheap where it is told to save less.
    """
    names = {node.name for node in forward.graph.nodes}
    return [str(n.target) for n in backward.graph.nodes if n.name in names and draws(n)]


def drop_outputs(module: fx.GraphModule, dropped: Container[int]) -> None:
    """Leaves out the results at these positions, in place."""
    end = module.graph.output_node()

    def kept(values: Any) -> Any:
        return type(values)(value for i, value in enumerate(values) if i not in dropped)

    end.args = (kept(end.args[0]),)
    if end.meta.get("desc") is not None:
        end.meta["desc"] = kept(end.meta["desc"])
    module.recompile()
