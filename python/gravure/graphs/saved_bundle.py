"""What a forward computes for its backward alone passes autograd as one tensor.

Autograd keeps each saved tensor on its own, and Python carries all of them to it and back: of a
model of some layers, hundreds in each step. A bundle is one tensor whose memory keeps them alive
(python/csrc/autograd/saved_bundle.h), so they are gone when autograd would let go of them.
Parameters and arguments stay tensors of their own: autograd notices when somebody writes into one
before the backward, and whether a gradient of the gradient is asked for.

AOTAutograd's graphs name a bundle by two operators, which run where no program does; programs are
made of the graphs without them.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from ..library.namespace import LIBRARY
from ..torch_api.fake_tensors import FakeTensor, is_sym_node, mode_of
from ..torch_api.operators import schema_of
from .read_graph import ReadGraph
from .traced_graphs import TracedGraphs

# What runs them is in the library. Neither may be captured: addresses are others in each step.
_UNSAFE = (torch.Tag.cudagraph_unsafe,)
LIBRARY.define("bundle(Tensor[] values) -> Tensor", tags=_UNSAFE)
LIBRARY.define("unbundle(Tensor bundle, str types) -> Tensor[]", tags=_UNSAFE)
BUNDLE = torch.ops.gravure.bundle.default
UNBUNDLE = torch.ops.gravure.unbundle.default


def bundling(partition: Callable[..., Any]) -> Callable[..., Any]:
    """AOTAutograd's `partition_fn`, with what its forward saves in a bundle."""

    def cut(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
        forward, backward = partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest)
        bundle_saved(forward, backward, num_fwd_outputs)
        return forward, backward

    return cut


def bundle_saved(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> bool:
    """Makes what `forward` computes and returns behind its `outputs` first results one of them.

    Saved numbers stay results of their own: AOTAutograd returns them last, and passes them first.
    False if it saves next to nothing, or what is no plain tensor: then nothing is changed.
    """
    end = forward.graph.output_node()
    values = list(end.args[0])
    numbers = [v for v in values[outputs:] if isinstance(v, fx.Node) and is_sym_node(v)]
    saved = values[outputs : len(values) - len(numbers)]
    arguments = backward.graph.find_nodes(op="placeholder")[len(numbers) :][: len(saved)]
    if not all(map(_is_plain, saved)) or not all(map(_is_plain, arguments)):
        return False
    computed = [(n, a) for n, a in zip(saved, arguments, strict=True) if n.op != "placeholder"]
    # What is saved because it must be (MUST_SAVE), and is not read, nobody could find in a bundle.
    read = [(node, argument) for node, argument in computed if argument.users]
    if len(computed) < 2 or not read:
        return False
    inside = [node for node, _ in read]
    plain = [node for node in saved if node.op == "placeholder"]
    bases = dict.fromkeys(viewed_input(node) for node, _ in computed)
    seen = [base for base in bases if base and base not in plain]
    # By a saved tensor that requires one, AOTAutograd sees that a gradient's gradient is asked for:
    # one is enough. The others are in the bundle, so that a write into them is noticed.
    shown, watched = seen[:1], seen[1:]
    with mode_of(inside[0].meta["val"]):
        one = torch.empty(1, dtype=torch.uint8, device="cpu")

    with forward.graph.inserting_before(end):
        bundle = forward.graph.call_function(BUNDLE, ([*inside, *watched],))
    bundle.meta = {"val": one}
    kept = [*values[:outputs], *plain, *shown, bundle, *numbers]
    end.args = (type(end.args[0])(kept),)
    if "desc" in end.meta:
        count = len(kept)
        end.meta["desc"] = _descriptions(end.meta["desc"], count)
    forward.recompile()

    with backward.graph.inserting_before(arguments[-1].next):
        for node in shown:
            backward.graph.placeholder(f"shown_{node.name}").meta = {"val": node.meta["val"]}
        taken = backward.graph.placeholder("bundle")
    taken.meta = {"val": one}
    with backward.graph.inserting_before(_first_statement(backward)):
        found = [node.meta["val"] for node in [*inside, *watched]]
        types = json.dumps([_type_of(value) for value in found])
        unbundled = backward.graph.call_function(UNBUNDLE, (taken, types))
        unbundled.meta = {"val": found}
        for i, (_, argument) in enumerate(read):
            member = backward.graph.call_function(operator.getitem, (unbundled, i))
            member.meta = {"val": argument.meta["val"]}
            argument.replace_all_uses_with(member)
    for _, argument in computed:
        backward.graph.erase_node(argument)
    backward.recompile()
    return True


def viewed_input(node: fx.Node) -> fx.Node | None:
    """The input that `node` is a view of: who writes into it changes what was saved."""
    while node.op == "call_function":
        if node.target is not operator.getitem:
            schema = schema_of(node.target)
            if schema is None or not any(result.alias_info for result in schema.returns):
                return None
        if not node.args or not isinstance(node.args[0], fx.Node):
            return None
        node = node.args[0]
    return node if node.op == "placeholder" and _is_plain(node) else None


def _descriptions(former: Any, count: int) -> list[Any]:
    """Of `count` results. What is saved is described alike, so a result more has the last one's."""
    kept = list(former[:count])
    return kept + [former[-1]] * (count - len(kept))


def without_bundle(traced: TracedGraphs) -> TracedGraphs:
    """The graphs that programs are made of: a bundle's members are results and placeholders."""
    forward, results = _spread_forward(traced.forward)
    if traced.backward is None:
        return replace(traced, forward=forward, bundled_results=results)
    backward, inputs = _spread_backward(traced.backward)
    return replace(
        traced,
        forward=forward,
        backward=backward,
        bundled_results=results,
        bundled_inputs=inputs,
    )


def _spread_forward(module: fx.GraphModule) -> tuple[fx.GraphModule, range]:
    """The graph with the members of its bundle as results, and which results they are."""
    if not module.graph.find_nodes(op="call_function", target=BUNDLE):
        return module, range(0)
    module = _copy(module)
    (bundle,) = module.graph.find_nodes(op="call_function", target=BUNDLE)
    end = module.graph.output_node()
    values = list(end.args[0])
    first, members = values.index(bundle), list(bundle.args[0])
    values[first : first + 1] = members
    end.args = (tuple(values),)
    end.meta.pop("desc", None)
    module.graph.erase_node(bundle)
    return module, range(first, first + len(members))


def _spread_backward(module: fx.GraphModule) -> tuple[fx.GraphModule, range]:
    """The graph with the members of its bundle as placeholders, and which ones they are."""
    if not module.graph.find_nodes(op="call_function", target=UNBUNDLE):
        return module, range(0)
    module = _copy(module)
    (unbundled,) = module.graph.find_nodes(op="call_function", target=UNBUNDLE)
    taken = unbundled.args[0]
    first = module.graph.find_nodes(op="placeholder").index(taken)
    values = unbundled.meta["val"]
    members = []
    with module.graph.inserting_before(taken):
        for i, value in enumerate(values):
            members.append(module.graph.placeholder(f"saved_{i}"))
            members[-1].meta = {"val": value}
    for member in list(unbundled.users):
        member.replace_all_uses_with(members[member.args[1]])
        module.graph.erase_node(member)
    module.graph.erase_node(unbundled)
    module.graph.erase_node(taken)
    return module, range(first, first + len(values))


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    graph.output_node().meta = dict(module.graph.output_node().meta)
    return ReadGraph(module, graph)


def _is_plain(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return type(value) is FakeTensor and value.layout is torch.strided


def _type_of(value: Tensor) -> list[Any]:
    """Open sizes are None; where a size or a stride is open, so are the strides."""
    dtype = str(value.dtype).removeprefix("torch.")
    sizes = [size if isinstance(size, int) else None for size in value.shape]
    whole = all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    return [dtype, sizes, list(value.stride()) if whole else None, str(value.device)]


def _first_statement(module: fx.GraphModule) -> fx.Node:
    return next(node for node in module.graph.nodes if node.op != "placeholder")


@torch.library.register_fake("gravure::bundle", lib=LIBRARY)
def _(values: list[Tensor]) -> Tensor:
    return torch.empty(1, dtype=torch.uint8, device="cpu")


@torch.library.register_fake("gravure::unbundle", lib=LIBRARY)
def _(bundle: Tensor, types: str) -> list[Tensor]:
    found = []
    for dtype, sizes, strides, device in json.loads(types):
        kind = {"dtype": getattr(torch, dtype), "device": device}
        if strides is None:
            context = torch.library.get_ctx()
            sizes = [context.new_dynamic_size() if size is None else size for size in sizes]
            found.append(torch.empty(sizes, **kind))
        else:
            found.append(torch.empty_strided(sizes, strides, **kind))
    return found
