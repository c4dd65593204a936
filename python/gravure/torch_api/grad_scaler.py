"""What a GradScaler keeps to itself: its tensors, its factors, and what it has begun.

Private: `_scale`, `_growth_tracker`, `_per_optimizer_states` and `_maybe_opt_step` of GradScaler,
and `_refresh_per_optimizer_state`, what it begins with. Without them what a scaler does runs behind
the step's program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from .private_names import _refresh_per_optimizer_state

_KINDS = (GradScaler, torch.cuda.amp.GradScaler, torch.cpu.amp.GradScaler)
_OWN = {
    name: value
    for name, value in vars(GradScaler).items()
    if callable(value) and name != "__init__"  # which differs in what is for one kind of device
}


def why_unknown(scaler: Any) -> str | None:
    """Why a program would not know what this one does; None if it would."""
    if type(scaler) not in _KINDS:
        return f"its {type(scaler).__name__} is not torch.amp's own"
    if any(callable(getattr(type(scaler), name, None)) for name in vars(scaler)):
        return "somebody replaced a function of its GradScaler"
    if any(getattr(type(scaler), name, None) is not value for name, value in _OWN.items()):
        return "somebody replaced a function of GradScaler"
    return None


def scaler_tensors(scaler: GradScaler) -> list[Tensor] | None:
    """Its scale and its count of good steps; None before the first step, and where somebody has
    begun something by hand that its own step must end."""
    if scaler._scale is None or scaler._growth_tracker is None or scaler._per_optimizer_states:
        return None
    return [scaler._scale, scaler._growth_tracker]


def scaler_settings(scaler: GradScaler) -> tuple[Any, ...]:
    """What a program of it is for."""
    return scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval


def scaler_twin(
    scaler: GradScaler, tensors: Sequence[Tensor], step: Callable[[Tensor], None]
) -> GradScaler:
    """Its own code on stand-ins. `step` takes what is 0 if the optimizer's step is due, in place of
    its read on the host."""
    twin: GradScaler = object.__new__(type(scaler))
    twin.__dict__.update(vars(scaler))
    twin._scale, twin._growth_tracker = tensors

    def decide(_: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        (found,) = state["found_inf_per_device"].values()
        step(found)

    twin._maybe_opt_step = decide  # type: ignore[method-assign, assignment]
    twin._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
    return twin
