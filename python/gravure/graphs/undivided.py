"""Forward, loss and backward as one graph, for a compiler that sees more in it than in two."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import ExportError
from ..torch_api.fake_tensors import storage_key
from ..torch_api.operators import pytree
from .node_facts import has_effects, is_collective
from .traced_graphs import Tangent, TracedGraphs

# Bytes that the forward's operators compute. One graph was faster in steps with fewer, two in steps
# with more (docs/benchmarks-log.md).
_FEW = 1 << 30


def gains_undivided(traced: TracedGraphs) -> bool:
    """Whether `undivided` is expected to make the step faster.

    In one graph Inductor launches fewer kernels, but reads more where it computes again what it
    did not write. With few bytes the launches count.
    """
    assert traced.backward is not None
    if _bytes_computed(traced.forward) > _FEW:
        return False
    # A collective that only the backward needs would run as early as those of the forward.
    return not any(map(is_collective, traced.backward.graph.nodes))


def _bytes_computed(module: fx.GraphModule) -> int:
    """Of all results; a view is none."""
    sizes: dict[Any, int] = {}  # by storage
    for node in module.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                computed = node.op == "call_function"
                sizes.setdefault(storage_key(value), storage.nbytes() if computed else 0)
    return sum(sizes.values())


def refuse_other_tangent(tangent: Tangent) -> None:
    """Raises ExportError unless `tangent` is the loss's."""
    assert tangent.spec is not None  # refuse_backward_effects()
    if tangent.result != 0:
        raise ExportError(
            tangent.spec.name,
            f"a gradient flows into {tangent.what}, which is not the loss",
            "write only into tensors that require no gradient",
        )


def refuse_backward_effects(traced: TracedGraphs) -> None:
    """Raises ExportError for an operator with ordered effects in the backward."""
    if any(tangent.spec is None for tangent in traced.tangents):
        assert traced.backward is not None
        ordered = (str(n.args[1]) for n in traced.backward.graph.nodes if has_effects(n))
        raise ExportError(
            traced.name,
            f"operators whose effects are ordered run in its backward ({', '.join(ordered)})",
            "leave what needs them out of the step (printing, logging, torch.linalg.eig)",
        )


def undivided(traced: TracedGraphs) -> TracedGraphs:
    """`traced` with one graph, which returns the forward's own results and then the gradients.

    Nothing is saved in between, and the loss's gradient is a constant in it. Raises ExportError
    where a gradient flows into anything but the loss, or the backward has ordered effects.
    """
    refuse_backward_effects(traced)
    for tangent in traced.tangents:
        refuse_other_tangent(tangent)
    return replace(
        traced,
        forward=_Joined(traced).module,
        backward=None,
        inputs=(*traced.inputs, *traced.generators),
        tangents=(),
        generators=(),
    )


class _Joined:
    """The graph while it is written."""

    def __init__(self, traced: TracedGraphs) -> None:
        assert traced.backward is not None
        self._graph = fx.Graph()
        self._env: dict[fx.Node, Any] = {}
        self._held: dict[str, Any] = {}  # constants and graphs of both graphs, by name
        forward, backward = traced.forward, traced.backward
        for node in forward.graph.find_nodes(op="placeholder"):
            self._copy(node, forward)
        saved = traced.saved_inputs
        tangents = backward.graph.find_nodes(op="placeholder")[len(saved) :]
        generators = tangents[len(traced.tangents) :]
        for node in generators:
            self._copy(node, backward)
        self._copy_calls(forward)
        results = fx.node.map_arg(forward.graph.output_node().args[0], self._env.__getitem__)
        own = list(results[: traced.own_results])
        taken = traced.as_backward_takes(list(results[traced.own_results :]))
        self._env.update(zip(saved, taken, strict=True))
        for node in tangents[: len(traced.tangents)]:
            self._env[node] = self._one(node)
        self._copy_calls(backward)
        gradients = fx.node.map_arg(backward.graph.output_node().args[0], self._env.__getitem__)
        self._graph.output((*own, *gradients))
        self.module = fx.GraphModule(self._held, self._graph)
        self.module.meta = dict(forward.meta)

    def _copy_calls(self, module: fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op not in ("placeholder", "output"):
                self._copy(node, module)

    def _copy(self, node: fx.Node, module: fx.GraphModule) -> None:
        if node.op == "get_attr":
            name = str(node.target)
            held = operator.attrgetter(name)(module)
            # Both were cut from one graph, whose names they kept.
            if self._held.setdefault(name, held) is not held:
                raise AssertionError(f"forward and backward hold different things as {name}")
        self._env[node] = self._graph.node_copy(node, self._env.__getitem__)

    def _one(self, tangent: fx.Node) -> fx.Node:
        """The gradient that a step starts from, as `loss.backward()` does."""
        value = tangent.meta["val"]
        call = self._graph.call_function(
            torch.ops.aten.full.default,
            (list(value.shape), 1),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
        call.meta = {"val": value}
        return call
