"""What a graph computes of meshes alone, as one does that was compiled on one rank for all.

Such a graph takes the mesh of its DTensors, and asks it for the group of a collective, and for
where this rank stands; and it asks for this rank's device. For one mesh and one rank these are
constants: a program is for them.

    %group = _dtensor.mesh_get_process_group(%mesh, 0)
    %y = _c10d_functional.all_gather_into_tensor(%x, 2, %group)      =>      …(%x, 2, "3")
    %device = coor::current_device()
    %z = aten::zeros([4], device=%device)                   =>      …([4], device="cuda:0")

A region that Inductor compiled takes meshes and groups as other operands: it becomes a call of the
region for these (RegionFor).
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx

from ..torch_api.aot_metadata import is_opaque
from ..torch_api.dispatch import without_modes
from ..torch_api.inductor import is_compiled_region

_NAMESPACES = ("_dtensor", "device_mesh", "coor")  # of operators that tell of a mesh or a rank


class RegionFor:
    """A compiled region for some of its operands, as another region without these."""

    def __init__(self, region: Callable[..., Any], known: Mapping[int, Any]) -> None:
        """`known`: by position among the region's operands."""
        self.known = known
        self._region = region
        self.__name__ = getattr(region, "__name__", "region")
        self.__wrapped__ = region.__wrapped__  # type: ignore[attr-defined]

    def __call__(self, *others: Any) -> Any:
        rest = iter(others)
        count = len(others) + len(self.known)
        return self._region(
            *(self.known[i] if i in self.known else next(rest) for i in range(count))
        )


def meshes_read(module: fx.GraphModule) -> list[int] | None:
    """Which arguments the graph reads as meshes; None where it asks nothing of any, nor of its
    rank."""
    known = _known(module)
    arguments = module.graph.find_nodes(op="placeholder")
    read = {operand for node in known for operand in node.all_input_nodes}
    regions = [node for node in module.graph.nodes if is_compiled_region(node.target)]
    read |= {operand for node in regions for operand in node.all_input_nodes if _is_mesh(operand)}
    if not known and not read:
        return None
    return [i for i, node in enumerate(arguments) if node in read]


def for_meshes(
    module: fx.GraphModule, given: Mapping[int, Any]
) -> tuple[fx.GraphModule, dict[int, Any]]:
    """A copy of the graph for these arguments, and which of its results are known now."""
    known = _known(module)
    values: dict[fx.Node, Any] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if i in given:
            values[node] = given[i]
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    with without_modes():
        for node in module.graph.nodes:
            if node.op == "output":
                break
            if node in known:
                values[node] = _compute(module, node, values)
                copies[node] = _as_operand(values[node])
            elif is_compiled_region(node.target):
                copies[node] = _region_for(graph, node, values, copies)
            else:
                copies[node] = graph.node_copy(node, copies.__getitem__)
    results: Any = module.graph.output_node().args[0]
    found = {i: values[node] for i, node in enumerate(results) if node in known}
    graph.output([None if i in found else _copied(r, copies) for i, r in enumerate(results)])
    return fx.GraphModule(module, graph), found


def _known(module: fx.GraphModule) -> set[fx.Node]:
    """Nodes that follow of meshes, of constants and of this rank alone."""
    known: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function" or isinstance(node.meta.get("val"), Tensor):
            continue
        operands = node.all_input_nodes
        if str(node.target).partition(".")[0] in _NAMESPACES:  # overloads, and packets of them
            if all(operand in known or _is_given(operand) for operand in operands):
                known.add(node)
        elif _is_arithmetic(node) and operands and all(n in known for n in operands):
            known.add(node)
    return known


def _region_for(
    graph: fx.Graph, node: fx.Node, values: Mapping[fx.Node, Any], copies: Mapping[fx.Node, Any]
) -> fx.Node:
    """A call in `graph` of the region for those operands that are known."""
    known = {i: values[n] for i, n in enumerate(node.args) if n in values}  # type: ignore[index]
    copy = graph.node_copy(node, copies.__getitem__)
    if known:
        copy.target = RegionFor(node.target, known)  # type: ignore[arg-type]
        copy.args = tuple([arg for i, arg in enumerate(copy.args) if i not in known])
    return copy


def _is_mesh(operand: fx.Node) -> bool:
    return operand.op == "placeholder" and is_opaque(operand.meta.get("val"))


def _is_given(operand: fx.Node) -> bool:
    return _is_mesh(operand) or operand.op == "get_attr"  # the mesh's ranks


def _is_arithmetic(node: fx.Node) -> bool:
    return getattr(node.target, "__module__", "") in (operator.__name__, "_operator", "math") or (
        node.target in (builtins.min, builtins.max)
    )


def _compute(module: fx.GraphModule, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    def value(operand: fx.Node) -> Any:
        if operand.op == "get_attr":
            return operator.attrgetter(str(operand.target))(module)
        return values[operand]

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
    call: Any = node.target
    return call(*args, **kwargs)


def _as_operand(value: Any) -> Any:
    """A group by its name, as collectives take it, too."""
    name = getattr(value, "group_name", None)
    return name if isinstance(name, str) else value


def _copied(result: Any, copies: Mapping[fx.Node, Any]) -> Any:
    return copies[result] if isinstance(result, fx.Node) else result
