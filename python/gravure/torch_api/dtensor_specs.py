"""The DTensors that AOTAutograd makes of a graph's results, with one spec in all steps.

AOTAutograd has each DTensor describe itself anew: a spec is made, checked and hashed for every
gradient in every step, which takes longer than to launch the graph that computes them.

Private: AOTAutograd's `SubclassCreationMeta` makes such a tensor of plain ones, `PlainTensorMeta`
says that what is inside is one, `_spec` is how a DTensor lies on its mesh. Without them only time
is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .private_names import DTensor, PlainTensorMeta, SubclassCreationMeta


class _SameDTensor(SubclassCreationMeta):
    """Makes what `meta` does. Its first DTensor's spec is that of the others, too.

    DTensor's own operators share specs among their results, and never write into one.
    """

    def __init__(self, meta: SubclassCreationMeta) -> None:
        self.__dict__.update(vars(meta))
        self._spec: Any = None

    def creation_fn(self, all_args: Sequence[Any], *, is_runtime: bool) -> torch.Tensor:
        if self._spec is None:
            made = super().creation_fn(all_args, is_runtime=is_runtime)
            self._spec = made._spec
            return made
        # DTensor.__init__ does nothing, but takes as long again.
        local = all_args[self.flat_tensor_start_idx]
        return DTensor.__new__(DTensor, local, self._spec, requires_grad=self.meta[1])


def keep_specs(metas: list[Any] | None) -> None:
    """For AOTAutograd's metadata of results, or of gradients, of what is compiled already."""
    for i, meta in enumerate(metas or ()):
        if is_fixed_dtensor(meta):
            metas[i] = _SameDTensor(meta)


def is_fixed_dtensor(meta: Any) -> bool:
    """A DTensor of a plain tensor, both of sizes that are known."""
    return (
        isinstance(meta, SubclassCreationMeta)
        and meta.original_subclass_type is DTensor
        and [type(inner) for inner in meta.attrs.values()] == [PlainTensorMeta]
        and all(isinstance(n, int) for n in (*meta.outer_size, *meta.outer_stride))
    )
