"""What AOTAutograd's backward takes, and how it meets what its forward returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import fx

from ..errors import ExportError

Saved = TypeVar("Saved")


def tangent_nodes(backward: fx.GraphModule) -> list[fx.Node]:
    placeholders = backward.graph.find_nodes(op="placeholder")
    return [n for n in placeholders if n.name.startswith("tangents_")]


def saved_nodes(backward: fx.GraphModule) -> list[fx.Node]:
    placeholders = backward.graph.find_nodes(op="placeholder")
    return [n for n in placeholders if not n.name.startswith(("tangents_", "bwd_rng_state"))]


def generator_nodes(backward: fx.GraphModule) -> list[fx.Node]:
    """The paired random states from which it draws again what the forward drew."""
    placeholders = backward.graph.find_nodes(op="placeholder")
    return [n for n in placeholders if n.name.startswith("bwd_rng_state")]


def in_backward_order(
    backward: fx.GraphModule, saved: Sequence[Saved], symbols: int
) -> list[Saved]:
    """What the forward saves, one for each of `saved_nodes`.

    The forward returns its `symbols` saved numbers last, the backward takes them first.
    """
    count = len(saved_nodes(backward))
    if count != len(saved):
        raise AssertionError(f"forward saves {len(saved)} values, backward takes {count}")
    tensors = len(saved) - symbols
    return [*saved[tensors:], *saved[:tensors]]


def tangent_of(node: fx.Node) -> str:
    """Which output a tangent belongs to: "PlainAOTOutput(idx=0)"."""
    return str(getattr(node.meta.get("desc"), "output", ""))


def refuse_other_tangent(node: fx.Node) -> None:
    """Raises ExportError unless it is the loss's."""
    if tangent_of(node) != "PlainAOTOutput(idx=0)":
        raise ExportError(
            node.name,
            f"a gradient flows into {tangent_of(node)}, which is not the loss",
            "write only into tensors that require no gradient",
        )
