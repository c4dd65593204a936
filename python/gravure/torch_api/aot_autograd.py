"""AOTAutograd: how it is called, and how its joint graph is cut.

Private: `aot_autograd` and `aot_module_simplified` differentiate a graph, with and without autograd
around it, by the settings in `_functorch.config` and `_inductor.config`. Without them there are no
programs of graphs that are trained. `default_partition` is the cut that saves what eager saves, and
`PlainAOTOutput` describes a result to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx

from .fake_tensors import FakeTensorMode
from .private_names import (
    ConstantSource,
    DimDynamic,
    PlainAOTOutput,
    ShapeEnv,
    StatefulSymbolicContext,
    TracingContext,
    aot_autograd,
    aot_module_simplified,
    default_partition,
    functorch_config,
    inductor_config,
    tracing,
)
from .whether_compiled import not_compiling

__all__ = [
    "boxed",
    "boxed_module",
    "default_partition",
    "described_result",
    "graphs_alone",
    "partition_as_eager_saves",
    "with_autograd",
]

# Takes one of AOTAutograd's graphs and its example inputs; what runs the graph.
GraphCompiler = Callable[[fx.GraphModule, Any], Callable[..., Any]]

# While tracing: dead code elimination keeps random operators, or a draw that nobody uses would not
# advance the random state. Without the second setting the first one would turn paired generators
# off.
_KEEP_DRAWS = {
    "fallback_random": True,
    "test_configs.graphsafe_rng_func_ignores_fallback_random": True,
}


@contextlib.contextmanager
def _settings(*, paired_draws: bool, **further: Any) -> Iterator[None]:
    """What AOTAutograd is called under. `paired_draws`: checkpointed draws are repeated from
    generators of their own, and not by a state that is read on the host."""
    settings = {
        # Else both graphs do not come together, and cannot become one program.
        "force_non_lazy_backward_lowering": True,
        # Else a graph may come from a file, compiled by another backend.
        "enable_autograd_cache": False,
        "graphsafe_rng_functionalization": paired_draws,
        # True by default up to 2.11: gradients would be brought into strides and not into memory
        # formats, and no backward would be a node of ours (test_native_node.py).
        "guess_tangent_strides_as_outputs": False,
        **further,
    }
    with functorch_config.patch(settings), inductor_config.patch(_KEEP_DRAWS), not_compiling():
        yield


def with_autograd(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    cut: Callable[..., Any],
    decompositions: dict[Any, Callable[..., Any]],
    paired_draws: bool,
    in_autocast: bool,
) -> Callable[..., Any]:
    """`graph` differentiated: a function of its arguments that autograd can differentiate, and that
    calls what `forward` and `backward` (or `inference`) made of AOTAutograd's graphs.

    `cut` is a partitioner. `in_autocast`: the backward is traced under the forward's autocast, if
    any, and else without.
    """
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=cut,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )
    further = {
        "donated_buffer": False,  # saved values may be needed again
        "backward_pass_autocast": "same_as_forward" if in_autocast else "off",
    }
    with _settings(paired_draws=paired_draws, **further), _context_of_call(inputs):
        return compiler(graph, inputs)


def graphs_alone(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    context: TracingContext | None,
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    cut: Callable[..., Any],
    decompositions: dict[Any, Callable[..., Any]],
    paired_draws: bool,
) -> None:
    """Differentiates `graph` for who wants the graphs, and nothing that is called. `context`:
    Dynamo's, which was left already."""
    # Else an output that is a view would become its base.
    further = {"view_replay_for_aliased_outputs": False}
    with tracing(context), _settings(paired_draws=paired_draws, **further):
        aot_module_simplified(
            graph,
            inputs,
            fw_compiler=forward,
            bw_compiler=backward,
            partition_fn=cut,
            decompositions=decompositions,
            keep_inference_input_mutations=False,
        )


def _context_of_call(inputs: Sequence[Any]) -> AbstractContextManager[Any]:
    """A tracing context for what is compiled in a call, to which Dynamo gives none. Sizes are fixed
    in it.

    Without one PyTorch keeps random operators whose results nobody uses, also in the backward,
    which would draw again what the forward has drawn; and it knows no sizes that follow from data.
    """
    if TracingContext.try_get():
        return nullcontext()
    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    for i, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            context.tensor_to_context[value] = StatefulSymbolicContext(
                dynamic_sizes=[DimDynamic.STATIC] * value.dim(),
                tensor_source=ConstantSource(f"argument_{i}"),
            )
    return tracing(context)


def partition_as_eager_saves(
    joint: fx.GraphModule, inputs: Any, **rest: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The default partitioner's cut. Inductor's would have what is cheap computed again."""
    with inductor_config.patch(fallback_random=False):
        return default_partition(joint, inputs, **rest)


def described_result(i: int) -> Any:
    """A descriptor for a result that AOTAutograd does not know of.

    The partitioners refuse a graph that has more results than descriptors.
    """
    return PlainAOTOutput(idx=i)


def boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """Marks `run`: it takes its arguments as one list. AOTAutograd would pass them one by one."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def boxed_module(module: fx.GraphModule) -> fx.GraphModule:
    """Marks a graph module so, too: it has a class of its own."""
    type(module)._boxed_call = True  # type: ignore[attr-defined]
    return module
