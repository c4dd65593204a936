"""What autograd's engine knows: of the backward that runs, of hooks on what is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .private_names import (
    MissingName,
    Variable,
    _current_graph_task_id,
    _get_current_graph_task_keep_graph,
    _top_saved_tensors_default_hooks,
    warn_of,
)


def keeps_graph() -> bool:
    """Whether the backward that runs was called with retain_graph=True.

    Without it a replay would overwrite saved values that are needed again: then it is said of all.
    """
    try:
        return _get_current_graph_task_keep_graph()
    except MissingName as error:
        warn_of(error)
        return True


def backward_number() -> int:
    """Of the backward that runs. Without it calls that share casts cannot be told: bits."""
    return _current_graph_task_id()


def at_end_of_backward(call: Callable[[], None]) -> None:
    """It is called once the backward that runs has ended. Without it, it is not called."""
    try:
        Variable._execution_engine.queue_callback(call)
    except MissingName as error:
        warn_of(error)


def saved_tensor_hooks_are_set() -> bool:
    """Hooks on saved tensors must see each of them.

    Without it they would see a bundle, and hand it to somebody's disk: then it is said always.
    """
    try:
        return bool(_top_saved_tensors_default_hooks(True))
    except MissingName as error:
        warn_of(error)
        return True


def has_gradient_hooks(tensor: object) -> bool:
    """Whether somebody wants to be called with the gradient of this leaf.

    Without it a step, which runs no autograd, would leave hooks out without a word.
    """
    hooks = getattr(tensor, "_backward_hooks", None)
    return bool(hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def gradient_hooks(tensor: torch.Tensor) -> list[Any]:
    """What is called with its gradient. Without it nobody is told of a hook that misses a part."""
    return list((tensor._backward_hooks or {}).values())


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd takes it for a view: autocast keeps no casts of these.

    Without it a leaf that is a view would be cast once, and its gradients rounded otherwise.
    """
    return tensor._is_view()


def times_written(tensors: Iterable[torch.Tensor]) -> int:
    """How often, as far as it was counted. Without it old casts of autocast's are not told."""
    return sum([tensor._version for tensor in tensors])


def may_require_gradient(tensor: torch.Tensor) -> bool:
    """Of its dtype: whole numbers never do."""
    return tensor.is_floating_point() or tensor.is_complex()


def leaf_of(node: object) -> object:
    """The leaf whose gradient this node of autograd's keeps; None for any other node.

    Without it a graph's own uses of a parameter are not counted: sums of three gradients would
    round otherwise where other code uses it, too.
    """
    return getattr(node, "variable", None)
