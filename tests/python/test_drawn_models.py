"""Drawn models, trained in drawn ways, have eager's bits; GRAVURE_DRAWN=100:200 draws others."""

from __future__ import annotations

import copy
import os
from random import Random
from typing import Any

import gravure
import pytest
import torch
from drawn_models import DrawnModel, batch, draw_plan, results_of, seen, train
from running import need_library

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

SEEDS = range(*map(int, os.environ.get("GRAVURE_DRAWN", "0:16").split(":")))


def pair(seed: int, *, views: bool) -> tuple[DrawnModel, DrawnModel]:
    torch.manual_seed(seed)
    model = DrawnModel(draw_plan(Random(seed), views=views)).train()
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("seed", SEEDS)
def test_by_torch_compile(seed: int) -> None:
    model, twin = pair(seed, views=True)
    dynamic = Random(seed).choice([None, None, False, True])
    call = torch.compile(twin, backend="gravure", dynamic=dynamic, options={"poison": True})
    settings = {"capture_dynamic_output_shape_ops": True, "recompile_limit": 64}
    with torch._dynamo.config.patch(settings):
        found, expected = (train(m, c, Random(seed + 1)) for m, c in ((twin, call), (model, model)))
    assert len(found) == len(expected)
    for i, (ours, eagers) in enumerate(zip(found, expected, strict=True)):
        assert ours == eagers, (i, ours[0], [part.kind.__name__ for part in model.parts])


@pytest.mark.parametrize("seed", SEEDS[::2])
@pytest.mark.parametrize("with_optimizer", [False, True])
def test_by_compile_step(seed: int, *, with_optimizer: bool) -> None:
    draw = Random(seed + 1)
    models = pair(seed, views=False)
    optimizers = [torch.optim.AdamW(m.parameters(), 0.01, fused=True) for m in models]
    results = draw.choice(["owned", "copied"] if with_optimizer else ["owned", "accumulate"])
    options: dict[str, Any] = {"poison": True, "results": results}
    if draw.random() < 0.5:
        options |= {"host": ["aten::mm", "aten::cat", "aten::relu"], "min_partition_size": 1}
    step = gravure.compile_step(
        models[1], optimizer=optimizers[1] if with_optimizer else None, options=options
    )
    rows, labels = draw.choice([4, 6]), draw.random() < 0.5
    for number in range(7):
        args = [t.detach() for t in batch(draw, number, rows, labels=labels)]
        if draw.random() < 0.15:
            i = draw.randrange(len(list(models[0].parameters())))
            for model in models:
                frozen = list(model.parameters())[i]
                frozen.requires_grad_(not frozen.requires_grad)
        torch.manual_seed(number)
        expected = results_of(models[0](*args))
        if expected[0].requires_grad:
            expected[0].backward()
        if with_optimizer:
            optimizers[0].step()
            optimizers[0].zero_grad()
        torch.manual_seed(number)
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            assert seen(results_of(step(*args))) == seen(expected)
        found = [seen([p.grad for p in m.parameters()]) for m in models]
        assert found[0] == found[1]
        assert seen(models[0].state_dict().values()) == seen(models[1].state_dict().values())
        if draw.random() < 0.7:
            for model in models:
                model.zero_grad()
