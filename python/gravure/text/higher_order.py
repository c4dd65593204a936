"""Higher-order operators of an FX graph, each as plain statements; what has none is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import fx

from ..errors import ExportError
from ..graphs.compiled_ops import CompiledCode
from ..graphs.compiled_regions import carried_code
from ..graphs.known_numbers import KnownNumbers
from ..graphs.marked_regions import communicated_by, may_be_carried, may_draw
from ..graphs.node_facts import is_inductors_own
from ..torch_api.fake_tensors import FakeTensorMode
from ..torch_api.operators import OpOverload, higher_order_name, pytree
from .program_text import TypeWriter
from .source_lines import Locations

_CALLS = 2  # for how many calls carried code counts: nobody knows, but it is more than one

# What a node stands for in the text: a value or constant, or the members of a tuple or list.
Ref = Any


class Writer(Protocol):
    """What writes the statements of one entry: fx_import.EntryWriter."""

    known: KnownNumbers
    types: TypeWriter
    locations: Locations
    env: dict[fx.Node, Ref]
    lines: list[str]
    indent: str
    carries_python: bool
    held: list[CompiledCode]

    def add_graph(self, module: fx.GraphModule, bound: list[Ref]) -> list[Any]: ...

    def define(self, wanted: str, kind: str, call: str, suffix: str = "") -> str: ...

    def define_all(
        self, wanted: list[str], kinds: list[str], call: str, suffix: str
    ) -> list[str]: ...

    def value(self, arg: Any, node: fx.Node) -> str: ...

    def operator(
        self,
        node: fx.Node,
        overload: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        example: Any,
        rng: str = "",
    ) -> Ref: ...

    def refusal(self, node: fx.Node, reason: str, remedy: str) -> ExportError: ...


# Its length is the device's own, and a program may be loaded on another device.
_STATE = "Byte(*, strides=[1], device=cpu)"

_REMEDIES = {
    "flex_attention": "use scaled_dot_product_attention",
    "flex_attention_backward": "use scaled_dot_product_attention",
    "while_loop": "run a fixed number of iterations",
    "scan": "write the loop out in Python",
    "map_impl": "write the loop out in Python",
    "triton_kernel_wrapper_functional": "register the kernel as a torch.library operator",
    "triton_kernel_wrapper_mutation": "register the kernel as a torch.library operator",
}


def write(writer: Writer, node: fx.Node) -> Ref:
    """The statements of one higher-order node; ExportError if there is no way to write it."""
    name = higher_order_name(node.target) or getattr(node.target, "__name__", str(node.target))
    handler = _HANDLERS.get(name)
    carried_by_python = is_inductors_own(node) or may_be_carried(node)
    if handler is None and writer.carries_python and carried_by_python:
        return _carry(writer, node)
    if handler is None:
        raise writer.refusal(
            node,
            f"a program has no form of {name}",
            _REMEDIES.get(name, "write this part with plain operators, or as one custom operator"),
        )
    return handler(writer, node)


def _examples(value: Any) -> Any:
    return pytree.tree_map_only(fx.Node, lambda n: n.meta.get("val"), value)


def _returned(node: fx.Node, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the operator inside `node` returns: these nodes carry no example of their own."""
    if "val" in node.meta:
        return node.meta["val"]
    values, keywords = _examples(args), _examples(kwargs)
    fakes = pytree.tree_leaves((values, keywords))
    mode = next((f.fake_mode for f in fakes if hasattr(f, "fake_mode")), None)
    if mode is None:
        mode = FakeTensorMode()
    with mode:
        return op(*values, **keywords)


def _adopt_location(node: fx.Node) -> None:
    """Source and module path from the first user that has them."""
    pending = list(node.users)
    while pending and "stack_trace" not in node.meta:
        user = pending.pop(0)
        for key in ("stack_trace", "nn_module_stack", "fwd_nn_module_stack"):
            if key in user.meta:
                node.meta.setdefault(key, user.meta[key])
        pending += list(user.users)


def _save_and_run(writer: Writer, node: fx.Node) -> Ref:
    op, *args = node.args
    args, kwargs = tuple(args), dict(node.kwargs)
    _adopt_location(node)
    example = _returned(node, op, args, kwargs)
    leaves = pytree.tree_leaves((example, _examples(args)))
    cuda = next((t.device for t in leaves if isinstance(t, torch.Tensor) and t.is_cuda), None)
    device = str(cuda) if cuda else "cpu"
    call = f'cudagraph::save_rng_state("{device}")'
    state = writer.define("rng_state", _STATE, call, writer.locations.suffix(node))
    return [state, writer.operator(node, op, args, kwargs, example)]


def _run_with_state(writer: Writer, node: fx.Node) -> Ref:
    state, op, *args = node.args
    args, kwargs = tuple(args), dict(node.kwargs)
    _adopt_location(node)
    example = _returned(node, op, args, kwargs)
    return writer.operator(node, op, args, kwargs, example, rng=writer.value(state, node))


def _run_with_generator(writer: Writer, node: fx.Node) -> Ref:
    op, *args = node.args
    args, kwargs = tuple(args), dict(node.kwargs)
    state = kwargs.pop("rng_state")
    _adopt_location(node)
    example = _returned(node, op, args, kwargs)
    return writer.operator(node, op, args, kwargs, example, rng=writer.value(state, node))


def _with_effects(writer: Writer, node: fx.Node) -> Ref:
    """The token only keeps the order, which statements have anyway."""
    _, op, *args = node.args
    if not isinstance(op, OpOverload):
        raise writer.refusal(node, f"it orders {op}, which is no operator", "leave it out")
    example = node.meta.get("val")
    result = example[1:] if isinstance(example, (tuple, list)) else ()
    result = result[0] if len(result) == 1 else result
    ref = writer.operator(node, op, tuple(args), dict(node.kwargs), result)
    return ["None", *ref] if isinstance(ref, list) else ["None", ref]


def _branch(writer: Writer, node: fx.Node, branch: fx.Node, bound: list[Ref]) -> list[str]:
    """One block of an `if`; what its outputs are called."""
    outputs = writer.add_graph(writer.env[branch], bound)
    refs = [writer.value(o, node) for o in outputs]
    if any(r == "None" for r in refs):
        raise writer.refusal(node, "a branch returns None", "return tensors from both branches")
    return refs


def _cond(writer: Writer, node: fx.Node) -> Ref:
    predicate, true_branch, false_branch, operands = node.args
    value = writer.value(predicate, node)
    kind = writer.types.of(predicate.meta.get("val")) if isinstance(predicate, fx.Node) else "bool"
    if kind not in ("bool", "int"):
        value = writer.define("predicate", "bool", f"aten::Bool.Tensor({value})")
    bound = [writer.env[o] if isinstance(o, fx.Node) else writer.value(o, node) for o in operands]
    outer_lines, outer_indent = writer.lines, writer.indent
    blocks: list[str] = []
    for i, branch in enumerate((true_branch, false_branch)):
        writer.lines, writer.indent = [], outer_indent + "    "
        refs = _branch(writer, node, branch, bound)
        blocks += [f"{outer_indent}  block{i}():", *writer.lines]
        blocks.append(f"{outer_indent}    -> ({', '.join(refs)})")
    writer.lines, writer.indent = outer_lines, outer_indent
    kinds = [writer.types.of(example) for example in node.meta["val"]]
    names = [f"{node.name}_{i}" for i in range(len(kinds))]
    values = writer.define_all(names, kinds, f"prim::If({value})", writer.locations.suffix(node))
    writer.lines += blocks
    return values


def _inline(writer: Writer, node: fx.Node) -> Ref:
    """`invoke_subgraph(graph, name, *operands)`: the graph's own statements, inlined."""
    graph, _, *operands = node.args
    bound = [writer.env[o] if isinstance(o, fx.Node) else writer.value(o, node) for o in operands]
    outputs = writer.add_graph(writer.env[graph], bound)
    return [writer.env[o] if isinstance(o, fx.Node) else writer.value(o, node) for o in outputs]


def _carry(writer: Writer, node: fx.Node) -> Ref:
    """One call of compiled code: the node itself. Its results keep the node's structure."""
    code, inputs, numbers = carried_code(
        node, writer.known, random=may_draw(node), collectives=communicated_by(node)
    )
    writer.held.append(code)
    leaves, structure = pytree.tree_flatten(node.meta["val"])
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    args = code.arguments(_CALLS, inputs, numbers)
    values = iter(writer.operator(node, code.operator, args, {}, tensors))
    refs = [next(values) if isinstance(leaf, torch.Tensor) else "None" for leaf in leaves]
    return pytree.tree_unflatten(refs, structure)


_HANDLERS: dict[str, Callable[[Writer, fx.Node], Ref]] = {
    "run_and_save_rng_state": _save_and_run,
    "run_with_rng_state": _run_with_state,
    "graphsafe_run_with_rng_state": _run_with_generator,
    "with_effects": _with_effects,
    "cond": _cond,
    "invoke_subgraph": _inline,
}
