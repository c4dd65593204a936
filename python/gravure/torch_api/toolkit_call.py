"""Calls of torchtitan's compiled modules, without what others do anew in each.

torchtitan's toolkit walks the tree of modules for its parameters, and AOTAutograd's wrapper looks
at every argument for special cases that a graph of DTensors and plain tensors has not. Together
they take longer than to launch both graphs. Where AOTAutograd has nothing else to do, a node of
autograd's calls the program's entries directly.

Private: `_backward_prologue_functional` and `_backward_epilogue_functional` are what AOTAutograd
does around a backward, `_aot_graph_capture` and `_aot_state` what it knows of the graphs,
`compiled_autograd` tells whether the backward is traced; `_local_tensor` is what a DTensor holds,
`_DisableAutocast` leaves autocast out, `_is_view` and `_materialize_non_diff_grads` are as
AOTAutograd's own node uses them, `pytree` gives results their structure. Only torchtitan 0.2.x
needs this module, and it is slower without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..library.direct_calls import PLAIN_TENSORS
from .aot_metadata import is_ordinary, is_plain
from .dtensor_specs import is_fixed_dtensor, keep_specs
from .guard_checks import Check, never, unchanged
from .private_names import (
    DTensor,
    _backward_epilogue_functional,
    _backward_prologue_functional,
    _DisableAutocast,
    compiled_autograd,
    is_there,
    pytree,
)

# What AOTAutograd calls: all arguments as one list.
Run = Callable[[list[Any]], Any]


class ModuleTensors:
    """A module's parameters and buffers, looked up again only when its tree has changed."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._values: list[Tensor] = []
        self._same: Check = never

    def __call__(self) -> list[Tensor]:
        if not self._same():
            module = self._module
            self._values = [*module.parameters(), *module.buffers()]
            tree = [(m._parameters, m._buffers, m._modules) for m in module.modules()]
            self._same = unchanged([dictionary for three in tree for dictionary in three])
        return self._values


def may_call_toolkit() -> bool:
    """Whether this torch has what ToolkitCall needs."""
    return all(
        map(
            is_there,
            (
                "_backward_epilogue_functional",
                "_backward_prologue_functional",
                "SubclassCreationMeta",
                "compiled_autograd",
            ),
        )
    )


class ToolkitCall:
    """Calls `compiled`, which AOTAutograd made of `joint`, or its graphs without AOTAutograd.

    `entries()` are the forward and the backward that take and return plain tensors, once there is a
    program for both; None before.
    """

    def __init__(
        self,
        joint: Any,
        compiled: Callable[..., Any],
        entries: Callable[[], tuple[Run, Run] | None],
    ) -> None:
        self.prologue, self.epilogue = _backward_prologue_functional, _backward_epilogue_functional
        self.compiled = compiled
        self.subclasses = joint._aot_graph_capture.maybe_subclass_meta
        self.metadata = joint._aot_state.fw_metadata
        keep_specs(self.metadata.subclass_fw_graph_out_meta)
        if self.subclasses is not None:
            keep_specs(self.subclasses.grad_input_metas)
        self._results = joint.out_spec
        self._entries = entries
        self._is_light = is_ordinary(self.metadata, lambda m: is_plain(m) or is_fixed_dtensor(m))
        self._was_called = False  # the first call is AOTAutograd's: it checks operators then
        self.forward: Run | None = None
        self.backward: Run | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self._was_called:
            self._was_called = True
            return self.compiled(*args, **kwargs)
        local = [value._local_tensor if type(value) is DTensor else value for value in args]
        if kwargs or not self._may_be_direct(local):
            return self.compiled(*args, **kwargs)
        return pytree.tree_unflatten(ToolkitFunction.apply(self, local, *args), self._results)

    def _may_be_direct(self, local: Sequence[Any]) -> bool:
        if self.forward is None:
            entries = self._entries() if self._is_light else None
            if entries is None:
                return False
            self.forward, self.backward = entries
        return (
            not compiled_autograd.compiled_autograd_enabled
            and len(local) == len(self.metadata.input_info)
            and all(type(value) in PLAIN_TENSORS for value in local)
        )


class ToolkitFunction(torch.autograd.Function):
    """What AOTAutograd's own node does, for tensors of known sizes, plain or DTensors. The program
    takes what each of `args` holds on this rank: `local`."""

    @staticmethod
    def forward(ctx: Any, call: ToolkitCall, local: list[Any], *args: Tensor) -> tuple[Any, ...]:
        assert call.forward is not None
        metas = call.metadata.subclass_fw_graph_out_meta
        with _DisableAutocast():
            found = call.forward(local)
        saved = [value for value in found[len(metas) :] if isinstance(value, Tensor)]
        ctx.save_for_backward(*[value.detach() if value._is_view() else value for value in saved])
        ctx.numbers = found[len(metas) + len(saved) :]  # read on the host
        ctx.call = call
        results = tuple(
            [
                found[meta.unwrapped_idx]
                if is_plain(meta)
                else meta.creation_fn(found, is_runtime=True)
                for meta in metas
            ]
        )
        infos = zip(results, call.metadata.output_info, strict=True)
        ctx.mark_non_differentiable(*[value for value, info in infos if not info.requires_grad])
        ctx._materialize_non_diff_grads = False
        return results

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        call = ctx.call
        meta, subclasses = call.metadata, call.subclasses
        saved = ctx.saved_tensors
        args = call.prologue(saved, ctx.numbers, (), meta, subclasses, *tangents)
        tensors = (value for value in args if isinstance(value, Tensor))
        if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
            raise RuntimeError(
                "torchtitan's graphs do not support double backward: leave out create_graph=True"
            )
        del saved
        ctx.maybe_clear_saved_tensors()
        with _DisableAutocast():
            found = call.backward(args)
        return (None, None, *call.epilogue(meta, subclasses, found))
