"""An optimizer's step on stand-ins: a twin that has these tensors instead of the optimizer's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..graphs.recorded_numbers import OWN_STEP, Unrecorded
from ..torch_api.optimizers import chooses_foreach, plain_step
from .own_optimizers import is_own_step
from .settings import is_number


def twin_of(
    optimizer: Optimizer,
    tensors: Mapping[int, Tensor],
    gradients: Mapping[int, Tensor],
    numbers: Sequence[float],
    counted: frozenset[str] = frozenset(),
) -> Optimizer:
    """One that has these tensors and numbers in place of the optimizer's.

    `tensors`: by `id` of a parameter, of a tensor of its state or of a setting. Parameters that
    are not among them are left out. `numbers` are those of read_groups() and of read_state(), in
    order."""
    twin: Optimizer = object.__new__(type(optimizer))
    twin.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    twin.state = defaultdict(dict)
    twin.param_groups = []
    rest = iter(numbers)

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in tensors:
                raise Unrecorded("its step", "has a tensor within a setting", OWN_STEP)
            return tensors[id(value)]
        if isinstance(value, float):
            return next(rest)
        if isinstance(value, (tuple, list)):
            if type(value) not in (tuple, list):
                what = f"has a setting that is a {type(value).__name__}"
                raise Unrecorded("its step", what, OWN_STEP)
            return type(value)(map(changed, value))
        return value

    def setting(key: str, value: Any) -> Any:
        return next(rest) if key in counted and type(value) is int else changed(value)

    def of_state(key: Any, value: Any) -> Any:
        if isinstance(value, Tensor):
            return tensors[id(value)]
        return next(rest) if key in counted and type(value) in (int, float) else value

    chooses = is_own_step(type(optimizer))  # foreach or not, by types that stand-ins have not
    settings = [
        {key: [] if key == "params" else setting(key, value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        for parameter in group["params"]:
            if id(parameter) not in gradients:
                continue
            stand_in = tensors[id(parameter)]
            stand_in.grad = gradients[id(parameter)]
            own["params"].append(stand_in)
            if parameter in optimizer.state:
                found = optimizer.state[parameter].items()
                twin.state[stand_in] = {key: of_state(key, value) for key, value in found}
        if chooses and group.get("foreach", True) is None and group.get("fused") is None:
            taken = [p for p in group["params"] if id(p) in gradients]
            own["foreach"] = chooses_foreach(type(optimizer), group, taken)
        twin.param_groups.append(own)
    stand_ins = [tensors.get(id(parameter)) for parameter in optimizer.state]
    for each in stand_ins:  # in the order that code finds them in
        if each is not None and each in twin.state:
            twin.state[each] = twin.state.pop(each)
    return twin


class ChangesNumbers(Exception):
    """The step changes numbers of Python's that have these names."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self.names = names


def run_step(twin: Optimizer, counted: frozenset[str] = frozenset()) -> bool:
    """The step, without what is around it. Whether it changed tensors alone, and no other value but
    numbers that are counted. Raises ChangesNumbers for numbers that it changes and that are not."""
    before = python_side(twin)
    try:
        result = plain_step(type(twin))(twin)
    except Unrecorded:
        if before.keys() == python_side(twin).keys():
            raise  # else it stumbles over the state that it makes
        return False
    if result is not None:
        raise Unrecorded("its step", "returns something", OWN_STEP)
    after = python_side(twin)
    if before.keys() != after.keys():
        return False
    changed = [
        k
        for k in before
        if before[k] is not after[k] and not _is_counted(k, counted, before[k], after[k])
    ]
    if not changed:
        return True
    if all(_is_named(k) and _is_number(before[k], after[k]) for k in changed):
        raise ChangesNumbers(frozenset(k[1] for k in changed))
    return False


def _is_counted(key: Any, counted: frozenset[str], *values: Any) -> bool:
    return _is_named(key) and key[1] in counted and all(map(is_number, values))


def _is_named(key: Any) -> bool:
    """Whether it is a group's entry or a state's, and not within one."""
    return type(key) is tuple and len(key) == 2


def _is_number(before: Any, after: Any) -> bool:
    if type(before) is int:
        return type(after) is int
    return isinstance(before, float) and isinstance(after, float)


def python_side(optimizer: Optimizer) -> dict[Any, Any]:
    """All that a step could change besides the contents of tensors."""
    found: dict[Any, Any] = {
        key: value for key, value in vars(optimizer).items() if key not in ("state", "param_groups")
    }
    for p, state in optimizer.state.items():
        found |= {(id(p), key): value for key, value in state.items()}
    for i, group in enumerate(optimizer.param_groups):
        found |= {(i, key): value for key, value in group.items()}
    for key, value in list(found.items()):
        found.update(_within(key if type(key) is tuple else (None, key), value))
    return found


def _within(key: tuple[Any, ...], value: Any) -> Iterator[tuple[Any, Any]]:
    """The members of a list, a tuple or a dictionary, and those of these."""
    if isinstance(value, (list, tuple)):
        members: Any = enumerate(value)
    elif isinstance(value, dict):
        members = value.items()
    else:
        return
    for at, member in members:
        path = (*key, at)
        yield path, member
        yield from _within(path, member)
