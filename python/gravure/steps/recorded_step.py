"""An optimizer's step, and what clips gradients before it, recorded on stand-ins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..graphs.recorded_numbers import OWN_STEP, Number, Unrecorded, literal
from ..graphs.update_recorder import RecordedUpdate, record
from ..library.namespace import LIBRARY
from ..torch_api.dtensors import local_of, locals_of, spec_of
from ..torch_api.optimizers import can_be_fused
from .clipping import Clipping
from .scaling import Scaling, decides_itself
from .settings import counted_in
from .twin import ChangesNumbers, run_step, twin_of

_WAITS = "counts on the host, so that GradScaler waits for the device"
_OTHER = "an optimizer that has `fused=True`, as AdamW, or no scaler: bfloat16 needs none"

# Stands between what computes gradients and what uses them, and is in no capture: numbers are not
# written into one that draws random numbers. The library runs it.
LIBRARY.define("before_update(Tensor(a!)[] gradients) -> ()", tags=(torch.Tag.cudagraph_unsafe,))
LIBRARY.impl("before_update", lambda gradients: None, "Meta")


class HeldTensor(NamedTuple):
    """A tensor of an optimizer that is no parameter, and where it is found."""

    holder: dict[Any, Any]
    key: Any
    tensor: Tensor
    name: str  # "exp_avg.3": of which parameter, by number; or "lr.group0"
    kind: tuple[Any, ...]  # what a program is for: any other tensor of this kind will do


class MakesState(Unrecorded):
    """The step makes state: the next one may not."""


MOST_TRIES = 3  # steps in a row that make state


def state_of(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[HeldTensor]:
    """State of these parameters, and settings that are tensors, each once."""
    found: list[HeldTensor] = []
    for i, parameter in enumerate(parameters):
        state = optimizer.state.get(parameter, {})
        found += [_held(state, k, v, f"{k}.{i}") for k, v in state.items() if _is_tensor(v)]
    for i, group in enumerate(optimizer.param_groups):
        pairs = [(k, v) for k, v in group.items() if _is_tensor(v)]
        found += [_held(group, k, v, f"{k}.group{i}") for k, v in pairs]
    by_tensor: dict[int, list[HeldTensor]] = {}
    for held in found:
        by_tensor.setdefault(id(held.tensor), []).append(held)
    # Who shares a tensor with whom is part of what a program is for.
    return [
        HeldTensor(*held[:-1], (*held.kind, *[other.name for other in others]))
        for held, *others in by_tensor.values()
    ]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _held(holder: dict[Any, Any], key: Any, tensor: Tensor, name: str) -> HeldTensor:
    own = local_of(tensor)
    layout = own.stride() if own.layout is torch.strided else own.layout
    kind = (name, own.dtype, own.device, own.shape, layout, type(tensor), spec_of(tensor))
    return HeldTensor(holder, key, tensor, name, kind)


def refuse_kinds(tensors: Sequence[Any]) -> None:
    """Raises Unrecorded for a tensor that no program takes."""
    for tensor in locals_of(tensors):
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.is_nested:
            raise Unrecorded("its step", f"takes a {type(tensor).__name__}", OWN_STEP)
        if tensor.layout is not torch.strided:
            raise Unrecorded("its step", f"takes a {tensor.layout} tensor", OWN_STEP)
        if tensor.is_inference():
            raise Unrecorded("its step", "takes an inference tensor", OWN_STEP)


def record_step(
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
    gradients: Sequence[Any],
    held: Sequence[HeldTensor],
    numbers: Sequence[float],
    clipping: Clipping | None = None,
    scaling: Mapping[str, Tensor] | None = None,
    scaler: Scaling | None = None,
    counted: frozenset[str] | None = None,
    *,
    apart: bool = False,
) -> RecordedUpdate:
    """The step as an update. Its inputs are parameters, their gradients, what is held, and what a
    scaler has set, or the tensors of `scaler`, in this order.

    With `clipping` its limit is the last of `numbers`, and the results are what clipping returns.
    `counted`: names of Python's numbers that the step changes, which are among `numbers`, too;
    None: it changes none. `apart`: it is captured by itself, not with what computes the gradients.

    Raises Unrecorded with what stands in the way; MakesState where that may be gone in the next
    step; ChangesNumbers for numbers that the step changes and that are not counted.
    """
    known = counted or frozenset()
    after: tuple[str, ...] = ()
    others = [each.tensor for each in held]
    count = len(parameters)
    scaling = scaling or {}
    last = 2 * count + len(others)
    tensors = [*parameters, *gradients, *others, *scaling.values()]
    tensors += [] if scaler is None else scaler.tensors()
    refuse_kinds(tensors)
    if len(set(map(id, parameters))) < count:
        raise Unrecorded("its step", "has a parameter twice", OWN_STEP)

    def run(fakes: list[Tensor], values: list[float]) -> list[Tensor]:
        own = fakes[:count] + fakes[2 * count : last]
        real = [*parameters, *others]
        stand_ins = {id(t): fake for t, fake in zip(real, own, strict=True)}
        grads = dict(zip(map(id, parameters), fakes[count : 2 * count], strict=True))
        if apart:
            torch.ops.gravure.before_update(list(grads.values()))
        limits = [] if clipping is None else values[-1:]

        def clip() -> list[Tensor]:
            return clipping.run(list(grads.values()), *limits) if clipping is not None else []

        nonlocal after
        twin = twin_of(optimizer, stand_ins, grads, values[: len(values) - len(limits)], known)
        own_parameters = [p for group in twin.param_groups for p in group["params"]]
        before = counted_in(twin, own_parameters, known)
        results: list[Tensor] = []
        try:
            if scaler is not None:
                results, stays = scaler.run(fakes[last:], twin, own, clip)
            else:
                results = clip()
                vars(twin).update(zip(scaling, fakes[last:], strict=True))
                stays = run_step(twin, known)
        except ChangesNumbers:
            if counted is not None:
                raise
            stays = False
        left = counted_in(twin, own_parameters, known)
        names = [[(id(holder), name) for holder, name in each] for each in (before, left)]
        if not stays or names[0] != names[1]:
            raise MakesState("its step", "changes values of Python's in its state", OWN_STEP)
        after = tuple([_as_python(holder[name]) for holder, name in left])
        return results

    asks = scaler is not None and not decides_itself(optimizer)  # the host, whether a step is due
    devices = {each.tensor.device for each in held} - {p.device for p in parameters}
    waits = f"{_WAITS}; take {'fused=True' if can_be_fused(optimizer) else _OTHER}"
    if asks and devices:
        raise Unrecorded("its step", waits, OWN_STEP)
    update = record(run, tensors, numbers)
    if asks and update.reads:
        raise Unrecorded("its step", waits, OWN_STEP)
    return replace(update, after=after)


def _as_python(value: Any) -> str:
    """A number as the step leaves it, by those that it was given."""
    source = value.source if isinstance(value, Number) else literal(value)
    if source is None:
        what = "keeps a number that the program computes, or that is of another type than Python's"
        raise Unrecorded("its step", what, OWN_STEP)
    return str(source)
