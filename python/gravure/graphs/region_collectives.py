"""Collectives of code that Inductor compiles, and what ranks must have alike of them.

A program may hold code that communicates where all of it ends in the code: each collective is
waited for there, and each wait is for one of them. Ranks compare a line for each
(docs/distributed.md), as they do for collectives that stand in a program themselves. They are read
in a graph that is to be compiled as a whole, or in the calls of compiled code (code_effects.py).

    %gathered = _c10d_functional.all_gather_into_tensor(%shard, 2, "3")
    %whole = _c10d_functional.wait_tensor(%gathered)
        =>      ("3", "_c10d_functional.all_gather_into_tensor(float32[8, 4], 2)")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.fake_tensors import storage_key
from ..torch_api.inductor import setting_that_replaces_collectives
from .node_facts import facts, is_collective, schema, takes_member, tensors

Collective = tuple[str, str]  # name of its group, and what all ranks must have alike

_IN_ANOTHER = "communicates, in a graph that another operator calls"
_NOT_WAITED_FOR = "communicates, and is not waited for in them"
_WAITS_FOR_OTHERS = "waits for what began before them"
_WAIT = torch.ops._c10d_functional.wait_tensor.default


def collectives_of(module: fx.GraphModule) -> tuple[list[Collective], str]:
    """Those of a graph that is to be compiled; and why no program can carry them, or ""."""
    found: list[Collective] = []
    for each in module.modules():
        for node in each.graph.nodes if isinstance(each, fx.GraphModule) else ():
            if not is_collective(node):
                continue
            why = _why_not(node) if each is module else _IN_ANOTHER
            if why:
                return [], f"{node.target} in them {why}"
            if node.target is not _WAIT:
                found.append((str(_group_of(node)), _text_of(node)))
    setting = setting_that_replaces_collectives() if found else ""
    if setting:
        return [], f"Inductor may communicate in another way, as its setting {setting} says"
    return found, ""


def collectives_called(calls: Sequence[fx.Node]) -> tuple[list[Collective], str]:
    """Those among the calls of compiled code, each with an example of its result; and why no
    program can carry the code, or ""."""
    found: list[Collective] = []
    under_way: dict[int, fx.Node] = {}  # by the memory of what each gives
    ended: set[int] = set()
    for call in filter(is_collective, calls):
        is_wait = call.target is _WAIT
        seen = call.args[0] if is_wait else call  # a wait's stand-in gives other memory
        places = {storage_key(tensor) for tensor in tensors(seen)}  # type: ignore[arg-type]
        if is_wait:
            if not places <= under_way.keys() | ended:
                return [], f"{_WAIT} in them {_WAITS_FOR_OTHERS}"
            under_way = {place: each for place, each in under_way.items() if place not in places}
            ended |= places
            continue
        if why := _why_never(call):
            return [], f"{call.target} in them {why}"
        under_way |= dict.fromkeys(places, call)
        found.append((str(_group_of(call)), _text_of(call)))
    left = next(iter(under_way.values()), None)
    return ([], f"{left.target} in them {_NOT_WAITED_FOR}") if left else (found, "")


def _why_never(node: fx.Node) -> str:
    """Why no code may have this collective, "" if it may."""
    flags = _flags(node)
    if "collective" not in flags or "blocking" in flags:
        return "communicates, and makes the host wait"
    if _group_of(node) is None:
        return "communicates, in a group that is known only at run time"
    return ""


def _why_not(node: fx.Node) -> str:
    if node.target is _WAIT:
        return "" if _begins_here(node.args[0]) else _WAITS_FOR_OTHERS
    if why := _why_never(node):
        return why
    operands = [n for n in node.all_input_nodes if not isinstance(n.meta.get("val"), Tensor)]
    if operands:
        return f"communicates, by %{operands[0].name}, which is known only at run time"
    if not all(any(user.target is _WAIT for user in r.users) for r in _results(node)):
        return _NOT_WAITED_FOR
    return ""


def _flags(node: fx.Node) -> list[str]:
    found = schema(node)
    known = facts(found.name, found.overload_name) if found is not None else None
    return list(known["flags"]) if known is not None else []


def _given(node: fx.Node) -> dict[str, Any]:
    """Its arguments, by name."""
    parameters = schema(node).arguments
    return dict(zip((p.name for p in parameters), node.args, strict=False)) | node.kwargs


def _group_of(node: fx.Node) -> str | None:
    """The name of its group, where it is known."""
    group = _given(node).get("group_name")
    name = getattr(group, "group_name", group)  # of a group itself
    return name if isinstance(name, str) else None


def _results(node: fx.Node) -> list[fx.Node | _Missing]:
    """All tensors that it gives, as nodes."""
    example = node.meta.get("val")
    if isinstance(example, Tensor):
        return [node]
    members = {user.args[1]: user for user in node.users if takes_member(user)}
    count = len(example) if isinstance(example, (list, tuple)) else 1
    return [members.get(i, _MISSING) for i in range(count)]


class _Missing:
    """A result that nobody takes."""

    users: tuple[fx.Node, ...] = ()


_MISSING = _Missing()


def _begins_here(value: Any) -> bool:
    """Whether it is a result of a collective in the graph, waited for before or not."""
    while isinstance(value, fx.Node) and (takes_member(value) or value.target is _WAIT):
        value = value.args[0]
    return isinstance(value, fx.Node) and value.op == "call_function" and is_collective(value)


def _text_of(node: fx.Node) -> str:
    """As `findCollectives` writes one of a program: nothing that may differ from rank to rank."""
    has_splits = "all_to_all" in str(node.target)
    left_out = [p for p in _given(node) if p == "group_name" or (has_splits and "split" in p)]
    shown = [_shown(v, has_splits) for p, v in _given(node).items() if p not in left_out]
    return f"{str(node.target).removesuffix('.default')}({', '.join(shown)})"


def _shown(value: Any, has_splits: bool) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shown(v, has_splits) for v in value) + "]"
    if not isinstance(value, fx.Node):
        return repr(value)
    example = value.meta["val"]
    dtype = str(example.dtype).removeprefix("torch.")
    sizes = ["*" if isinstance(n, torch.SymInt) else str(n) for n in example.shape]
    return dtype if has_splits else f"{dtype}[{', '.join(sizes)}]"
