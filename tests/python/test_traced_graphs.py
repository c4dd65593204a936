"""What AOTAutograd's graphs take and return is decoded into one value, and written from it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
import torch
from gravure.errors import ExportError
from gravure.graphs.known_numbers import KnownNumbers
from gravure.graphs.names import FrameNamer, InputSpec, Namer, tied_names
from gravure.graphs.trace import trace
from gravure.graphs.traced_graphs import OutputSpec, TracedGraphs, backward_inputs, input_specs
from gravure.graphs.undivided import undivided
from gravure.text.entries import graph_entries, joint_entries, step_entry
from gravure.text.source_lines import Locations
from gravure.torch_api.aot_metadata import Argument, Metadata, Result
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    IntermediateBaseAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    SubclassGetAttrAOTInput,
    SyntheticBaseAOTInput,
    TangentAOTInput,
)
from torch._subclasses.fake_tensor import FakeTensorMode

_aten = torch.ops.aten
_DRAW = torch.ops.higher_order.graphsafe_run_with_rng_state
METADATA = Metadata(
    arguments=(Argument(True, False), Argument(False, False)),
    results=(Result(True, True, None),),
    tokens=0,
    written=(),
    bases=0,
    tangent_formats=(0,),
    may_vary=False,
    is_ordinary=False,
    are_plain=True,
)


def fake(*sizes: int) -> Tensor:
    with FakeTensorMode():
        return torch.empty(sizes)


def placeholder(graph: fx.Graph, name: str, value: Any, desc: Any = None) -> fx.Node:
    node = graph.placeholder(name)
    node.meta = {"val": value} | ({"desc": desc} if desc is not None else {})
    return node


def call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta = {"val": fake(2)}
    return node


def checkpointed() -> TracedGraphs:
    """`(w * dropout(x)).sum()`, whose backward draws again what its forward drew."""
    forward, backward = fx.Graph(), fx.Graph()
    w = placeholder(forward, "primals_1", fake(2), PlainAOTInput(0))
    x = placeholder(forward, "primals_2", fake(2), PlainAOTInput(1))
    state = placeholder(forward, "fwd_rng_state_3", torch.Generator())
    noise = call(forward, _DRAW, _aten.rand_like.default, x, rng_state=state)
    forward.output((call(forward, _aten.mul.Tensor, w, noise), w, x))

    kept = [placeholder(backward, f"primals_{i}", fake(2)) for i in (1, 2)]
    tangent = placeholder(backward, "tangents_1", fake(2), TangentAOTInput(PlainAOTOutput(0)))
    again = placeholder(backward, "bwd_rng_state_3", torch.Generator())
    noise = call(backward, _DRAW, _aten.rand_like.default, kept[1], rng_state=again)
    backward.output((call(backward, _aten.mul.Tensor, tangent, noise), None))

    modules = [fx.GraphModule(nn.Module(), graph) for graph in (forward, backward)]
    arguments = [InputSpec("parameter", "w", None), InputSpec("user_input", "x", None)]
    return TracedGraphs(
        "loss",
        FrameNamer(),
        modules[0],
        modules[1],
        input_specs(modules[0], 0, arguments, states=True),
        *backward_inputs(modules[1], states=True),
        own_results=1,
        metadata=METADATA,
        outputs=(OutputSpec("loss", index=0),),
    )


def roles(specs: Any) -> list[tuple[str, str] | None]:
    return [(spec.role, spec.name) if spec is not None else None for spec in specs]


def test_a_paired_draw_has_a_state_on_either_side() -> None:
    traced = checkpointed()
    assert roles(traced.inputs)[2] == ("rng_state", "cpu#3")
    assert roles(traced.generators) == [("rng_state", "cpu#3/backward")]
    states = [traced.inputs[2].value, traced.generators[0].value]  # type: ignore[union-attr]
    assert torch.equal(*states)  # so that it draws the same
    assert roles(traced.arguments) == [("parameter", "w"), ("user_input", "x")]
    assert [node.name for node in traced.saved_inputs] == ["primals_1", "primals_2"]


def test_torchvisions_lines_are_not_torchs() -> None:
    own = os.path.dirname(torch.__file__)
    files = (__file__, f"{own}vision/models/resnet.py", f"{own}/nn/modules/conv.py")
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = "".join(f'  File "{file}", line 5, in forward\n' for file in files)
    assert Locations(FrameNamer()).source(node) == "torchvision/models/resnet.py:5"


def test_a_variable_without_a_value_is_tied_to_nothing() -> None:
    def loss(x: Tensor) -> Tensor:
        return later(x) if x.dim() > 2 else x.sum()

    assert tied_names(loss, []) == {}
    later = torch.sin


def test_an_empty_key_adds_no_word_to_a_name() -> None:
    assert FrameNamer().name("L['batch']['']") == "batch"
    assert Namer(lambda batch: batch, ({},)).name("L['args'][0]['']['x']") == "batch.x"


@pytest.mark.parametrize("joined", [False, True])
def test_a_step_takes_both_states(joined: bool) -> None:
    step = step_entry(undivided(checkpointed()) if joined else checkpointed())
    taken = [(spec.role, spec.name) for spec, _, _ in step.writer.inputs]
    assert taken[2:] == [("rng_state", "cpu#3"), ("rng_state", "cpu#3/backward")]
    text = step.text()
    assert "rng(%rng_cpu_3)" in text and "rng(%rng_cpu_3_backward)" in text
    assert '{gradient "w"}' in text and "{loss}" in text


def test_entries_of_their_own_take_one_each() -> None:
    traced = checkpointed()
    text, (forward, backward) = graph_entries(traced, KnownNumbers())
    assert forward.arguments == 3 and backward.arguments == 4
    assert forward.kept == [0]  # what is bound
    head, _, back = text.partition("graph backward(")
    assert '{rng_state "cpu#3"}' in head and '{saved "w"}' in head
    assert '{rng_state "cpu#3/backward"}' in back and '{tangent "tangents_1"}' in back
    joint = joint_entries(traced)
    assert '{saved "x"}' in joint["forward"][0] and '{saved "w"}' not in joint["forward"][0]
    assert '{tangent "loss"}' in joint["backward"][0]


def test_a_tangent_that_is_absent_is_not_taken() -> None:
    traced = checkpointed()
    assert traced.backward is not None
    (taken,) = traced.backward.graph.find_nodes(op="output")
    taken.args = ((traced.saved_inputs[0], None),)
    traced.backward.graph.eliminate_dead_code()
    text, (_, backward) = graph_entries(traced, KnownNumbers(), absent=(0,))
    assert "tangents_1" not in text and 2 not in backward.taken


def test_inputs_are_told_by_their_descriptors() -> None:
    graph = fx.Graph()
    inside = SubclassGetAttrAOTInput(ParamAOTInput("block.weight"), "_local_tensor")
    for name, value, desc in (
        ("token", fake(0), None),
        ("a", fake(2), PlainAOTInput(1)),
        ("b", fake(2), inside),
        ("c", fake(2), BufferAOTInput("block.mean")),
        ("d", 3, PlainAOTInput(0)),
        ("e", fake(2), SyntheticBaseAOTInput(PlainAOTInput(0))),
    ):
        placeholder(graph, name, value, desc)
    graph.output(())
    module = fx.GraphModule(nn.Module(), graph)
    known = [None, InputSpec("user_input", "x", None)]
    found = roles(input_specs(module, 1, known))
    assert found[:2] == [None, ("user_input", "x")]
    assert found[2:4] == [("parameter", "block.weight"), ("buffer", "block.mean")]
    assert found[4] == ("symint", "d") and found[5] == ("user_input", "e")


def test_a_gradient_of_another_result_is_refused() -> None:
    traced = checkpointed()
    for output in (PlainAOTOutput(1), IntermediateBaseAOTOutput(PlainAOTOutput(0))):
        graph = fx.Graph()
        placeholder(graph, "tangents_1", fake(2), TangentAOTInput(output))
        graph.output(())
        tangents, _ = backward_inputs(fx.GraphModule(nn.Module(), graph))
        other = dataclasses.replace(traced, tangents=tangents)
        with pytest.raises(ExportError, match="a gradient flows into .*AOTOutput"):
            step_entry(other)


def test_what_is_saved_comes_numbers_first() -> None:
    """The forward returns them last."""
    model = nn.Linear(4, 4)

    def loss(x: Tensor) -> Tensor:
        return model(x).sin().sum()

    traced = trace(loss, (torch.randn(2, 4),), step=True, paired_rng=True)
    assert traced.saved_numbers == 0 and traced.backward is not None
    assert len(traced.saved) == len(traced.saved_inputs)
    numbered = dataclasses.replace(traced, own_results=traced.own_results)
    node = traced.forward.graph.output_node().args[0][-1]
    node.meta["val"] = _symbol()
    assert numbered.as_backward_takes(["a", "b", "n"]) == ["n", "a", "b"]


def _symbol() -> torch.SymInt:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return ShapeEnv().create_unbacked_symint()


def test_it_does_not_change() -> None:
    traced = checkpointed()
    for value in (traced, traced.tangents[0], traced.arguments[0], traced.metadata):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)  # type: ignore[arg-type]
