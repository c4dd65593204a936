"""Models train through torch.compile(backend="gravure") and compile_step with eager's bits."""

from __future__ import annotations

from typing import Any

import gravure
import models
import pytest
import torch
from running import bits, need_library
from training import leaves, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

OPTIONS = {"poison": True}


def _loss(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


@pytest.mark.parametrize("way", ["torch.compile", "compile_step"])
@pytest.mark.parametrize("name", list(models.ALL))
def test_a_model_trains(name: str, way: str) -> None:
    ours, twin = models.ALL[name](), models.ALL[name]()  # each is seeded
    if way == "compile_step":
        options = OPTIONS | {"is_compiling": ours.is_compiling}
        step = gravure.compile_step(ours.fn, options=options)
    else:
        compiled = torch.compile(ours.fn, backend="gravure", options=OPTIONS)

        def step(*args: Any) -> Any:
            result = compiled(*args)
            _loss(result).backward()
            return result

    sides = (ours, step), (twin, twin.fn)
    optimizers = [torch.optim.AdamW(m.module.parameters(), 1e-3) for m, _ in sides]
    with torch._dynamo.config.patch(capture_scalar_outputs=True, allow_rnn=True):
        for i in range(5):
            args = models.next_args(twin.args, i)
            found = []
            for (model, call), optimizer in zip(sides, optimizers, strict=True):
                optimizer.zero_grad()
                torch.manual_seed(i)
                result = call(*args)
                if model is twin:
                    _loss(result).backward()
                found.append([leaves(result), bits(torch.get_rng_state()), state_of(model.module)])
                optimizer.step()
            assert found[0] == found[1], f"step {i}"
    last = gravure.report().graphs[-1]
    assert not last.failure and last.programs[0].stats["captures"]
