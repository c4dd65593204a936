"""What autograd's engine knows: of the backward that runs, of hooks on what is saved."""

from __future__ import annotations

import torch
from torch._C._autograd import _get_current_graph_task_keep_graph


def keeps_graph() -> bool:
    """Whether the backward that runs was called with retain_graph=True.

    Without it a replay would overwrite saved values that are needed again.
    """
    return _get_current_graph_task_keep_graph()


def saved_tensor_hooks_are_set() -> bool:
    """Hooks on saved tensors must see each of them.

    Without it they would see a bundle, and hand it to somebody's disk.
    """
    return bool(torch._C._autograd._top_saved_tensors_default_hooks(True))


def has_gradient_hooks(tensor: object) -> bool:
    """Whether somebody wants to be called with the gradient of this leaf.

    Without it a step, which runs no autograd, would leave hooks out without a word.
    """
    hooks = getattr(tensor, "_backward_hooks", None)
    return bool(hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))
