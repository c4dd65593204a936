"""Under autocast a weight that is used twice is cast once, as in eager.

Eager keeps the cast of a leaf that requires a gradient until the outermost autocast ends: autograd
adds the gradients of its uses in the lower precision, and casts their sum. AOTAutograd's inputs are
no leaves, so it would trace a cast for each use, and add in float32. Dynamo's graph is therefore
changed while it is differentiated: the cast is a node of it, which these uses take.

Which uses share a cast is asked of PyTorch: what takes such a leaf runs on stand-ins, under the
graph's own autocasts, and the cache decides.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.autograd import is_view
from ..torch_api.dispatch import (
    TorchDispatchMode,
    enter_autocast,
    exit_autocast,
    in_autocast,
    set_grad_enabled,
)
from ..torch_api.fake_tensors import FakeTensor, mode_of
from ..torch_api.operators import higher_order_name, pytree
from .graph_as_it_is import CHECKPOINT

logger = logging.getLogger("gravure")

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_META = ("stack_trace", "nn_module_stack", "source_fn_stack")
_said: set[str] = set()


@contextlib.contextmanager
def casts_as_eager(graph: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """Inside, Dynamo's `graph` casts a leaf as often as eager does. `inputs` are those of it."""
    changes = _Changes()
    try:
        if torch.is_grad_enabled() and (in_autocast() or _has_autocast(graph)):
            _share_casts(graph, inputs, changes)
        yield
    finally:
        changes.undo()


def has_reentrant_part(graph: fx.GraphModule) -> bool:
    """Whether a part is checkpointed in the reentrant way, by a backward of its own. A graph that
    runs as it is has no such backward: the part would share casts with the rest."""
    modules = [m for m in graph.modules() if isinstance(m, fx.GraphModule)]
    return any(_is_reentrant(node) for m in modules for node in m.graph.nodes)


def _is_reentrant(node: fx.Node) -> bool:
    checkpointed = higher_order_name(node.target) == CHECKPOINT
    return checkpointed and node.kwargs.get("use_reentrant") is not False


def _has_autocast(graph: fx.GraphModule) -> bool:
    modules = [m for m in graph.modules() if isinstance(m, fx.GraphModule)]
    return any(node.target is enter_autocast for m in modules for node in m.graph.nodes)


def cast_inputs(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """Positions of the inputs that autocast keeps casts of."""
    found = _look_through(graph, inputs)
    cast = {id(cast.leaf) for cast in found.casts.values()}
    cast |= {id(leaf) for *_, leaf in found.beyond}
    taken = graph.graph.find_nodes(op="placeholder")
    leaves = found.top
    return [i for i, node in enumerate(taken) if node in leaves and id(leaves[node]) in cast]


def _look_through(graph: fx.GraphModule, inputs: Sequence[Any]) -> _Casts:
    """Which inputs are cast, and where."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    found = _Casts()
    stand_ins: dict[int, Tensor] = {}
    for node, value in zip(placeholders, inputs, strict=False):
        example = node.meta.get("example_value")
        if isinstance(example, FakeTensor) and _is_kept(value):
            if id(value) not in stand_ins:
                stand_ins[id(value)] = _leaf_like(example)
            found.top[node] = stand_ins[id(value)]
    if found.top:
        with mode_of(next(iter(found.top.values()))), torch.no_grad():
            _Walk(found).through(_Part(graph, found.top))
    return found


def _share_casts(graph: fx.GraphModule, inputs: Sequence[Any], changes: _Changes) -> None:
    found = _look_through(graph, inputs)
    for cast in found.casts.values():
        if cast.times > 1:
            _share(cast, found, changes)
    for part, node, leaf in found.beyond:
        if found.times(leaf) > 1:
            _say(part.placeholder(leaf), node)
    changes.recompile()


def _is_kept(value: Any) -> bool:
    """Whether autocast keeps casts of it (at::autocast::cached_cast)."""
    return (
        isinstance(value, Tensor)
        and value.dtype is torch.float32
        and value.requires_grad
        and value.is_leaf
        and not is_view(value)
    )


def _leaf_like(example: FakeTensor) -> Tensor:
    with mode_of(example), torch.no_grad():
        return torch.empty_like(example).requires_grad_()


@dataclass(eq=False)
class _Part:
    """A graph, and what runs it if another graph does."""

    module: fx.GraphModule
    leaves: dict[fx.Node, Tensor]  # stand-ins, by the placeholder that takes each leaf
    call: fx.Node | None = None  # of `parent`, which runs this part; None in the whole graph
    parent: _Part | None = None
    # By the `id` of each shared cast the node that has it here: the cast, or a placeholder.
    given: dict[int, fx.Node] = field(default_factory=dict)

    def placeholder(self, leaf: Tensor) -> fx.Node:
        return next(node for node, known in self.leaves.items() if known is leaf)


@dataclass(eq=False)
class _Cast:
    """A cast that autocast keeps, and what takes it."""

    leaf: Tensor
    value: Tensor
    grad_mode: bool  # whether gradients were on where it was made
    users: list[tuple[_Part, fx.Node]] = field(default_factory=list)
    times: int = 0  # how often it was taken


class _Casts(TorchDispatchMode):
    """Sees which casts of leaves there are, and what takes them, while nodes run on stand-ins."""

    def __init__(self) -> None:
        super().__init__()
        self.top: dict[fx.Node, Tensor] = {}  # leaves among the inputs of the whole graph
        self.leaves: dict[int, Tensor] = {}  # of all parts, by `id`
        self.casts: dict[int, _Cast] = {}  # by the `id` of their value
        self.apart: set[tuple[fx.Node, int]] = set()  # nodes that take a leaf as it is, with its id
        self.beyond: list[tuple[_Part, fx.Node, Tensor]] = []  # what is not looked into
        self.grad_mode = True
        self._at: tuple[_Part, fx.Node] | None = None

    def run(self, part: _Part, node: fx.Node, call: Callable[[], Any]) -> None:
        self._at = part, node
        with self:
            call()

    def times(self, leaf: Tensor) -> int:
        inside = sum(cast.times for cast in self.casts.values() if cast.leaf is leaf)
        return inside + sum(other is leaf for *_, other in self.beyond)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        assert self._at is not None
        result = func(*args, **(kwargs or {}))
        if func.namespace == "prim":  # it asks for the device
            return result
        casts = func is torch.ops.aten._to_copy.default
        for value in pytree.tree_leaves((args, kwargs)):
            cast, leaf = self.casts.get(id(value)), self.leaves.get(id(value))
            if cast is not None:
                cast.times += 1
                if self._at not in cast.users:
                    cast.users.append(self._at)
            elif leaf is not None and casts:
                self.casts[id(result)] = _Cast(leaf, result, self.grad_mode)
            elif leaf is not None:
                self.apart.add((self._at[1], id(leaf)))
        return result


class _Walk:
    """Goes through a graph and runs what takes leaves under autocast."""

    def __init__(self, found: _Casts) -> None:
        self._found = found
        self._modules: set[fx.GraphModule] = set()

    def through(self, part: _Part) -> None:
        self._found.leaves |= {id(leaf): leaf for leaf in part.leaves.values()}
        self._modules.add(part.module)
        entered: dict[fx.Node, Any] = {}
        try:
            for node in part.module.graph.nodes:
                if node.target is enter_autocast:
                    entered[node] = enter_autocast(*node.args)
                elif node.target is exit_autocast:
                    exit_autocast(entered.pop(node.args[0]))
                elif node.target is set_grad_enabled:
                    self._found.grad_mode = bool(node.args[0])
                elif in_autocast() and any(n in part.leaves for n in node.all_input_nodes):
                    self._look_at(part, node)
        finally:
            for state in reversed(entered.values()):
                exit_autocast(state)

    def _look_at(self, part: _Part, node: fx.Node) -> None:
        name = higher_order_name(node.target)
        if name == CHECKPOINT and self._into_checkpoint(part, node):
            return
        if not name and node.op != "output" and self._run(part, node):
            return
        if name != "autograd_function_apply" and node.op != "output":
            held = [part.leaves[n] for n in node.all_input_nodes if n in part.leaves]
            self._found.beyond += [(part, node, leaf) for leaf in held]

    def _run(self, part: _Part, node: fx.Node) -> bool:
        def value(n: fx.Node) -> Any:
            leaf = part.leaves.get(n)
            return n.meta["example_value"] if leaf is None else leaf

        try:
            args, kwargs = fx.map_arg((node.args, node.kwargs), value)
            target: Any = node.target
            if node.op == "call_method":
                args, target = args[1:], getattr(args[0], target)
            self._found.run(part, node, lambda: target(*args, **kwargs))
        except Exception as error:
            logger.debug("%s is not looked into for casts: %r", node.format_node(), error)
            return False
        return True

    def _into_checkpoint(self, part: _Part, node: fx.Node) -> bool:
        """A checkpointed part casts as if it stood there; a reentrant one in a backward of its own,
        so that its casts are its own."""
        body: Any = node.args[0]
        args: Any = node.args[1:]
        module = getattr(part.module, str(body.target), None) if _is_attribute(body) else None
        if not isinstance(module, fx.GraphModule) or module in self._modules:
            return False
        if any(isinstance(value, fx.Node) for value in node.kwargs.values()):
            return False
        taken = module.graph.find_nodes(op="placeholder")
        leaves = {p: part.leaves[a] for p, a in zip(taken, args, strict=True) if a in part.leaves}
        inner = _Part(module, leaves, node, part)
        if _is_reentrant(node):
            own = {id(leaf): _leaf_like(leaf) for leaf in leaves.values()}
            leaves = {p: own[id(leaf)] for p, leaf in leaves.items()}
            inner = _Part(module, leaves)
        self.through(inner)
        return True


def _is_attribute(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "get_attr"


class _Changes:
    """Changes of graphs, to be undone."""

    def __init__(self) -> None:
        self._arguments: dict[fx.Node, tuple[Any, Any]] = {}
        self._added: list[fx.Node] = []
        self._modules: dict[fx.GraphModule, None] = {}

    def keep(self, module: fx.GraphModule, node: fx.Node) -> None:
        """What `node` takes, before it is changed."""
        self._modules[module] = None
        self._arguments.setdefault(node, (node.args, node.kwargs))

    def added(self, module: fx.GraphModule, node: fx.Node) -> None:
        self._modules[module] = None
        self._added.append(node)

    def recompile(self) -> None:
        for module in self._modules:
            module.recompile()

    def undo(self) -> None:
        for node, (args, kwargs) in self._arguments.items():
            node.args, node.kwargs = args, kwargs
        for node in reversed(self._added):
            node.graph.erase_node(node)
        self.recompile()


def _share(cast: _Cast, found: _Casts, changes: _Changes) -> None:
    """Makes the cast a node, which its users take."""
    for part, node in cast.users:
        if (node, id(cast.leaf)) in found.apart:
            _say(part.placeholder(cast.leaf), node)
            return
    part, first = cast.users[0]
    while part.parent is not None and part.call is not None:
        part, first = part.parent, part.call
    graph, leaf = part.module.graph, part.placeholder(cast.leaf)
    made: list[fx.Node] = []
    with graph.inserting_before(first):
        if not cast.grad_mode:
            made.append(graph.call_function(set_grad_enabled, (True,)))
        made.append(graph.call_method("to", (leaf, cast.value.dtype)))
        part.given[id(cast.value)] = made[-1]
        made[-1].meta = {key: first.meta[key] for key in _META if key in first.meta}
        if not cast.grad_mode:
            made.append(graph.call_function(set_grad_enabled, (False,)))
    for node in made:
        changes.added(part.module, node)
    for part, node in cast.users:
        changes.keep(part.module, node)
        node.replace_input_with(part.placeholder(cast.leaf), _given(part, cast, changes))


def _given(part: _Part, cast: _Cast, changes: _Changes) -> fx.Node:
    """The cast in `part`: as a further argument of what runs it, where it was made outside."""
    known = part.given.get(id(cast.value))
    if known is not None:
        return known
    assert part.parent is not None and part.call is not None
    outside = _given(part.parent, cast, changes)
    changes.keep(part.parent.module, part.call)
    part.call.args = (*part.call.args, outside)
    last = part.module.graph.find_nodes(op="placeholder")[-1]
    with part.module.graph.inserting_after(last):
        node = part.module.graph.placeholder(f"cast_{len(part.given)}")
    node.meta["example_value"] = cast.value
    changes.added(part.module, node)
    part.given[id(cast.value)] = node
    return node


def _say(leaf: fx.Node, user: fx.Node) -> None:
    """Warns, once a line, of a weight whose gradients are added otherwise than eager's."""
    lines = _FRAME.findall(user.meta.get("stack_trace") or "")
    line = f"{lines[-1][0]}:{lines[-1][1]}" if lines else f"%{user.name}"
    text = (
        f'{line}: "{leaf.name}" is used more than once under autocast, and here in a way that is '
        "not looked into: its gradients are added in float32, and by eager in the lower precision; "
        "autocast(..., cache_enabled=False) has the same bits in both"
    )
    if text not in _said:
        _said.add(text)
        logger.warning(text)
