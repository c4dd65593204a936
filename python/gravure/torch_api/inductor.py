"""Inductor's part: one region of a graph as a function that launches its kernels.

Private: `compile_fx_inner` compiles a graph, `partition_fn` cuts one,
`_recursive_joint_graph_passes` and `select_decomp_table` prepare it, `list_mode_options` knows the
modes, `_inductor.config` its settings; `aot_module_simplified` takes operators apart, with
`_functorch.config` for its cache; `V`, `TracingContext` with `tracing`, and `detect_fake_mode` or a
`FakeTensorMode` are the surroundings that they look at; `preserve_rng_state` keeps the caller's
random states, `_disable_current_modes` his modes away. Without any of these `codegen="inductor"` is
refused, and eager's kernels remain. `inductor_prims` draw by a seed: without them `fused_random` is
refused. `replace_node_with_constant` makes a node a tensor that the graph holds: without it
constants are copied in each step. `decompose_auto_functionalized`: below. What `regional_inductor`
leaves in a graph is known by the module of its class. `_micro_pipeline_tp` and the like are looked
up: a release that lacks one does not communicate so. `maybe_warm_pool`: below.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

from .private_names import (
    FakeTensorMode,
    TracingContext,
    V,
    _disable_current_modes,
    _inductor,
    aot_module_simplified,
    detect_fake_mode,
    functorch_config,
    inductor_config,
    is_there,
    preserve_rng_state,
    replace_node_with_constant,
    tracing,
)

__all__ = [
    "compile_region",
    "cut_for_inductor",
    "decompose_auto_functionalized",
    "decompositions",
    "is_compiled_region",
    "load_inductor",
    "must_draw_by_seeds",
    "replace_node_with_constant",
    "setting_that_replaces_collectives",
    "settings_of",
    "start_compiling_processes",
]

# The runtime captures, not Inductor.
_SETTINGS = {
    "triton.cudagraphs": False,
    "freezing": False,
    "cpp_wrapper": False,
    "graph_partition": False,
}


# Each has Inductor put operators of symmetric memory in the place of functional collectives.
_REPLACING = (
    "_micro_pipeline_tp",
    "_collective.auto_select",
    "aten_distributed_optimizations.enable_low_contention_collectives",
)


def setting_that_replaces_collectives() -> str:
    """The first that is set; "" if none, or none is known."""
    for name in _REPLACING:
        owner: Any = inductor_config
        for part in name.split("."):
            owner = getattr(owner, part, None)
        if owner:
            return name
    return ""


def settings_of(mode: str | None) -> dict[str, Any]:
    """What torch.compile's mode of this name asks of Inductor. Graphs are the runtime's in each."""
    wanted = _inductor.list_mode_options(mode) if mode else {}
    return {name: value for name, value in wanted.items() if name not in _SETTINGS}


def _draws(*, fused: bool) -> dict[str, Any]:
    """Whose random numbers: Inductor's own, or those that ATen's operators draw. Both come from the
    generator that the runtime gives them: of the former the seeds."""
    return {"fallback_random": not fused}


def compile_region(
    module: fx.GraphModule,
    *,
    decompose: bool,
    backward: bool,
    inference: bool,
    mode: str | None = None,
    fused_random: bool = False,
    donated: Sequence[int] = (),
) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """Inductor's code for `module`, which takes and returns tensors alone and writes no input, but
    those at the positions `donated`, of a backward: their memory becomes the code's own.

    Every placeholder has `meta["val"]`, a fake tensor of known sizes. With `decompose` its
    operators are those that eager runs, and are taken apart first. `mode`, one of torch.compile's,
    is how Inductor chooses kernels. The result takes its inputs as one list, which it empties.
    Raises what Inductor raises.
    """
    from .private_names import _recursive_joint_graph_passes, compile_fx_inner

    examples = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    fake = detect_fake_mode(examples) or FakeTensorMode()
    context = TracingContext(fake)
    with (
        # AOTAutograd's wrapper has a mode on in its first call, which would see these operators.
        _disable_current_modes(),
        preserve_rng_state(),  # Inductor draws what it times kernels with
        tracing(context),
        V.set_fake_mode(fake),
        inductor_config.patch(settings_of(mode) | _SETTINGS | _draws(fused=fused_random)),
        _cached_apart(donated) if backward else contextlib.nullcontext(),
        torch.no_grad(),
    ):
        if decompose:
            module = _decomposed(module, examples, fused_random=fused_random)
        if decompose or inference:
            module = _recursive_joint_graph_passes(module)
        end = module.graph.output_node()
        # All strides are part of the program.
        end.meta["user_visible_output_idxs"] = list(range(len(end.args[0])))
        context.fw_metadata = _Donation(list(donated))
        return compile_fx_inner(
            module, examples, is_backward=backward, is_inference=inference, static_input_idxs=()
        )


@dataclass
class _Donation:
    """All that Inductor reads of AOTAutograd's metadata once it compiles."""

    bw_donated_idxs: list[int]


def _cached_apart(donated: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    """Inductor's cache takes code for the same that writes over its inputs, and code that does not:
    of the two the first one's name has to say it, also where torch.compile made the other."""
    config = torch.compiler.config
    tag = f"{config.cache_key_tag} gravure, donated: {list(donated)}"
    return config.patch(cache_key_tag=tag)  # type: ignore[no-any-return]


def load_inductor() -> None:
    """Imports what compiles. It takes seconds, for which PyTorch's own backend does not wait in the
    first call, but in torch.compile()."""
    from .private_names import compile_fx_inner, select_decomp_table

    _ = compile_fx_inner, select_decomp_table


def start_compiling_processes() -> None:
    """Has Inductor start its processes, which compile kernels of a GPU, while the caller goes on.

    They need seconds to start, and what comes before they are there this process compiles, a kernel
    at a time. They also end after a minute without work. Without `maybe_warm_pool` they start with
    the first kernel.
    """
    if torch.cuda.is_initialized() and is_there("maybe_warm_pool"):
        from .private_names import maybe_warm_pool

        maybe_warm_pool()


def must_draw_by_seeds() -> None:
    """Raises MissingName where this torch has no operators that draw by a seed."""
    from .private_names import inductor_prims

    _ = inductor_prims.seeds


def is_compiled_region(target: Any) -> bool:
    """Whether it is what `regional_inductor` put instead of a region: a function around Inductor's
    code."""
    code = getattr(target, "__wrapped__", None)
    return type(code).__module__ == "torch._inductor.standalone_compile"


def decompositions(*, fused_random: bool) -> dict[Any, Callable[..., Any]]:
    """How Inductor takes operators apart; those that draw, with `fused_random` alone."""
    from .private_names import select_decomp_table

    with inductor_config.patch(_SETTINGS | _draws(fused=fused_random)):
        return select_decomp_table()


def cut_for_inductor(joint: fx.GraphModule, inputs: Any, *, fused_random: bool, **rest: Any) -> Any:
    """Forward and backward as Inductor cuts them: what is cheap is computed again."""
    from .private_names import partition_fn

    with (
        preserve_rng_state(),
        V.set_fake_mode(detect_fake_mode(inputs) or FakeTensorMode()),
        inductor_config.patch(_draws(fused=fused_random)),
        inductor_config.patch(_saving_seeds() if fused_random else {}),
    ):
        return partition_fn(joint, inputs, **rest)


def _saving_seeds() -> dict[str, Any]:
    """Has the cut save the seeds, from which a checkpointed block draws again what it has drawn.
    Else they are drawn again, from a random state that is kept, on a GPU by a generator more."""
    from .private_names import inductor_prims

    theirs = inductor_config.joint_custom_post_pass
    passes = theirs if isinstance(theirs, (list, tuple)) else [theirs] if theirs else []

    def save_seeds(graph: fx.Graph) -> None:
        for each in passes:
            each(graph)
        for node in graph.find_nodes(op="call_function", target=inductor_prims.seeds):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    return {"joint_custom_post_pass": save_seeds}


def _decomposed(
    module: fx.GraphModule, examples: list[Any], *, fused_random: bool
) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return lambda *args: None

    with functorch_config.patch({"enable_autograd_cache": False}):
        aot_module_simplified(
            module,
            examples,
            fw_compiler=keep,
            decompositions=decompositions(fused_random=fused_random),
        )
    (graph,) = graphs
    given, wanted = (len(g.graph.find_nodes(op="placeholder")) for g in (graph, module))
    results, asked = (len(g.graph.output_node().args[0]) for g in (graph, module))
    if (given, results) != (wanted, asked):
        raise AssertionError(f"a region of {wanted} inputs and {asked} results lost some")
    return graph


def decompose_auto_functionalized(graph: fx.Graph) -> None:
    """Clones and the operator itself, for functional forms of operators that write.

    Without it a graph with such an operator of the user's gets no program.
    """
    from . import private_names

    private_names.decompose_auto_functionalized(graph)
