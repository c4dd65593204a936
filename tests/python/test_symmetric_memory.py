"""The workspaces of PyTorch's symmetric memory, without one (test_distributed.py has ranks)."""

from __future__ import annotations

import sys

import pytest
import torch
from gravure.graphs.node_facts import facts
from gravure.options import library_options
from gravure.torch_api import symmetric_memory
from gravure.torch_api.symmetric_memory import PRODUCTS, WatchedWorkspaces
from running import need_library

need_library()

symmetric = pytest.importorskip("torch.distributed._symmetric_memory")


def test_one_that_is_replaced_stays_and_its_group_is_told() -> None:
    first, second, told = object(), object(), []
    workspaces = WatchedWorkspaces({"a": None}, told.append)
    workspaces["a"] = first
    workspaces["b"] = first
    assert (told, workspaces.replaced) == ([], [])
    workspaces["a"] = second
    assert (told, workspaces.replaced) == (["a"], [first])
    assert (workspaces["a"], workspaces.get("b"), workspaces.get("c")) == (second, first, None)


def test_pytorchs_are_watched_once_a_program_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a": object()}
    monkeypatch.setattr(symmetric, "_group_name_to_workspace_tensor", known)
    assert "host" not in library_options()
    watched = symmetric._group_name_to_workspace_tensor
    assert isinstance(watched, WatchedWorkspaces)
    assert watched == known
    library_options()
    assert symmetric._group_name_to_workspace_tensor is watched


def test_they_are_the_operators_that_are_captured() -> None:
    """`ir/facts/op_table.cpp` has the same ones."""
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("symm_mem::")]
    known = {name: facts(*name.partition(".")[::2]) for name in names}
    assert {n for n, of in known.items() if of and not of["reason"]} == set(PRODUCTS)
    assert all("waits-inside" in known[name]["flags"] for name in PRODUCTS)


def test_where_there_are_none_such_products_run_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(symmetric_memory, "is_there", lambda _: False)
    options = library_options(host=["aten::mm"])
    assert options["host"].split(",") == ["aten::mm", *PRODUCTS]


def test_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed._symmetric_memory")
    assert "host" not in library_options()
    assert "torch.distributed._symmetric_memory" not in sys.modules
