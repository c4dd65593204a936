"""Inductor's part: one stretch of a graph as a function that launches its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx

# The runtime captures, not Inductor; random operators draw what ATen's draw, from the generator that
# the runtime gives them.
_SETTINGS = {
    "triton.cudagraphs": False,
    "fallback_random": True,
    "freezing": False,
    "cpp_wrapper": False,
    "graph_partition": False,
}


def compile_stretch(
    module: fx.GraphModule, *, decompose: bool, backward: bool, inference: bool
) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """Inductor's code for `module`, which takes and returns tensors alone and writes no input.

    Every placeholder has `meta["val"]`, a fake tensor of known sizes. With `decompose` its operators
    are those that eager runs, and are taken apart first. The result takes its inputs as one list,
    which it empties. Raises what Inductor raises.
    """
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner

    examples = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    mode = examples[0].fake_mode if examples else FakeTensorMode()
    with (
        unset_fake_temporarily(),
        tracing(TracingContext(mode)),
        inductor_config.patch(_SETTINGS),
        torch.no_grad(),
    ):
        if decompose:
            module = _decomposed(module, examples)
        if decompose or inference:
            module = _recursive_joint_graph_passes(module)
        end = next(iter(module.graph.find_nodes(op="output")))
        # All strides are part of the program.
        end.meta["user_visible_output_idxs"] = list(range(len(end.args[0])))
        return compile_fx_inner(
            module, examples, is_backward=backward, is_inference=inference, static_input_idxs=()
        )


def _decomposed(module: fx.GraphModule, examples: list[Any]) -> fx.GraphModule:
    from torch._inductor.decomposition import select_decomp_table

    run = torch.func.functionalize(fx.Interpreter(module).run)
    traced = make_fx(run, decomposition_table=select_decomp_table(), tracing_mode="fake")(*examples)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced
