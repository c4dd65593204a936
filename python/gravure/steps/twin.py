"""An optimizer's step on stand-ins: a twin that has these tensors instead of the optimizer's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..graphs.recorded_numbers import Unrecorded
from ..torch_api.optimizers import chooses_foreach, plain_step


def twin_of(
    optimizer: Optimizer,
    tensors: Mapping[int, Tensor],
    gradients: Mapping[int, Tensor],
    numbers: Sequence[float],
) -> Optimizer:
    """`tensors`: by `id` of a parameter, of a tensor of its state or of a setting. Parameters that
    are not among them are left out. `numbers` are those of numbers_of(), in order."""
    twin: Optimizer = object.__new__(type(optimizer))
    twin.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    twin.state = defaultdict(dict)
    twin.param_groups = []
    rest = iter(numbers)

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tensors[id(value)]
        if isinstance(value, float):
            return next(rest)
        return type(value)(map(changed, value)) if type(value) in (tuple, list) else value

    for group in optimizer.param_groups:
        own = {key: changed(value) for key, value in group.items() if key != "params"}
        own["params"] = []
        for parameter in group["params"]:
            if id(parameter) not in gradients:
                continue
            stand_in = tensors[id(parameter)]
            stand_in.grad = gradients[id(parameter)]
            own["params"].append(stand_in)
            if parameter in optimizer.state:
                twin.state[stand_in] = {
                    key: tensors[id(value)] if isinstance(value, Tensor) else value
                    for key, value in optimizer.state[parameter].items()
                }
        if group.get("foreach", True) is None and group.get("fused") is None:
            own["foreach"] = chooses_foreach(group)
        twin.param_groups.append(own)
    return twin


def run_step(twin: Optimizer) -> bool:
    """The step, without what is around it. Whether it changed tensors alone, and no other value."""
    before = python_side(twin)
    try:
        plain_step(type(twin))(twin)
    except Unrecorded:
        if before.keys() == python_side(twin).keys():
            raise  # else it stumbles over the state that it makes
        return False
    after = python_side(twin)
    return before.keys() == after.keys() and all(before[k] is after[k] for k in before)


def python_side(optimizer: Optimizer) -> dict[Any, Any]:
    """All that a step could change besides the contents of tensors."""
    found: dict[Any, Any] = {
        key: value for key, value in vars(optimizer).items() if key not in ("state", "param_groups")
    }
    for p, state in optimizer.state.items():
        found |= {(id(p), key): value for key, value in state.items()}
    for i, group in enumerate(optimizer.param_groups):
        found |= {(i, key): value for key, value in group.items()}
    return found
