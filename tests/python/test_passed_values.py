"""Values that no operator knows of pass through a graph: a DTensor's mesh, from torch 2.15 on."""

from __future__ import annotations

from typing import Any

import torch
from gravure.graphs.traced_graphs import input_specs
from gravure.text.entry_call import Call, Passed
from gravure.torch_api.aot_metadata import is_opaque
from torch import fx


class Mesh:
    """Stands for one."""


def test_what_is_neither_tensor_nor_number_nor_generator() -> None:
    assert is_opaque(Mesh()) and is_opaque("name")
    known = (torch.ones(2), 1, 1.0, True, 1j, None, torch.Generator())
    assert not any(map(is_opaque, known))


def test_no_input_of_the_program_is_one() -> None:
    graph = fx.Graph()
    values = [graph.placeholder(name) for name in ("x", "mesh", "y")]
    for node, value in zip(values, (torch.ones(2), Mesh(), torch.ones(3)), strict=True):
        node.meta["val"] = value
    graph.output(tuple(values))
    specs = input_specs(fx.GraphModule(torch.nn.Module(), graph), 0)
    assert [spec and spec.name for spec in specs] == ["x", None, "y"]


def test_it_comes_out_where_the_graph_returns_it() -> None:
    mesh = Mesh()

    def run(args: tuple[Any, ...]) -> list[Any]:
        given.clear()  # as AOTAutograd's callers do
        return [sum(args)]

    call = Call("forward", 3, taken=[0, 2])
    call.results = [(-1, Passed(1)), (0, None), (-1, None), (-1, 7), (-1, Passed(1))]
    given = [1, mesh, 2]
    assert call.caller(run, keeps=False)(given) == [mesh, 3, None, 7, mesh]
