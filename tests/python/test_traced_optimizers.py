"""torch.compile(optimizer.step, backend="gravure"): eager's bits, and what to do instead."""

from __future__ import annotations

import copy
import importlib
import logging
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import bits, need_library
from torch import Tensor, optim

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

MAKES = {
    "sgd": lambda m: optim.SGD(m.parameters(), 0.1, momentum=0.9),
    "adamw": lambda m: optim.AdamW(m.parameters(), 0.02),
    "foreach": lambda m: optim.AdamW(m.parameters(), 0.02, foreach=True),
    "fused": lambda m: optim.Adam(m.parameters(), 0.02, fused=True),
    "nadam": lambda m: optim.NAdam(m.parameters(), 0.02),
    "adagrad": lambda m: optim.Adagrad(m.parameters(), 0.02),
}


def _pair(make: Any) -> tuple[list[nn.Module], list[Any]]:
    models: list[nn.Module] = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))]
    models.append(copy.deepcopy(models[0]))
    return models, [make(model) for model in models]


def _same(models: list[nn.Module], optimizers: list[Any]) -> None:
    found = [
        [(bits(p), *map(bits, o.state.get(p, {}).values())) for p in m.parameters()]
        for m, o in zip(models, optimizers, strict=True)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", MAKES)
def test_a_step_that_dynamo_traces(name: str, caplog: pytest.LogCaptureFixture) -> None:
    models, optimizers = _pair(MAKES[name])
    steps = [optimizers[0].step, torch.compile(optimizers[1].step, backend="gravure")]
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(5):
            x = torch.randn(3, 8)
            for model, optimizer, step in zip(models, optimizers, steps, strict=True):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.param_groups[0]["lr"] = 0.02 / (i + 1)
                step()
            _same(models, optimizers)


def test_a_whole_loop_under_dynamo() -> None:
    models, optimizers = _pair(MAKES["adamw"])

    def train(x: Tensor, which: int) -> Tensor:
        loss = models[which](x).square().mean()
        loss.backward()
        optimizers[which].step()
        optimizers[which].zero_grad()
        return loss.detach()

    compiled = torch.compile(train, backend="gravure")
    for _ in range(5):
        x = torch.randn(3, 8)
        assert bits(compiled(x, 1)) == bits(train(x, 0))
        _same(models, optimizers)


def test_a_compiled_optimizer_under_dynamo_runs_its_program() -> None:
    models, optimizers = _pair(MAKES["adamw"])
    gravure.compile_optimizer(optimizers[1])
    steps = [optimizers[0].step, torch.compile(optimizers[1].step, backend="gravure")]
    for _ in range(5):
        x = torch.randn(3, 8)
        for model, optimizer, step in zip(models, optimizers, steps, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            step()
        _same(models, optimizers)
    assert optimizers[1].step.gravure_update.programs == 1


def test_an_averaged_model_is_compiled() -> None:
    average = optim.swa_utils.AveragedModel(nn.Linear(8, 2))
    compiled = torch.compile(average, backend="gravure")
    before = len(gravure.report().graphs)
    x = torch.randn(3, 8)
    for _ in range(4):
        assert bits(compiled(x)) == bits(average(x))
    assert len(gravure.report().graphs) > before


def test_it_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    from gravure.torch_api import dynamo

    dynamo._warn.cache_clear()
    _, optimizers = _pair(MAKES["adamw"])
    for p in optimizers[0].param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    with caplog.at_level(logging.WARNING, "gravure"):
        torch.compile(optimizers[0].step, backend="gravure")()
    assert any("gravure.compile_optimizer" in r.getMessage() for r in caplog.records)


def test_a_model_in_a_folder_of_that_name_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "learn-torch" / "optim"
    folder.mkdir(parents=True)
    (folder / "doubled.py").write_text("def doubled(x):\n    return (x * 2).sum()\n")
    monkeypatch.syspath_prepend(folder)
    doubled = importlib.import_module("doubled").doubled
    torch.compile(doubled, backend="gravure", options={"on_missed": "raise"})(torch.ones(2))


def test_it_is_an_error_where_all_must_be_captured() -> None:
    _, optimizers = _pair(MAKES["adamw"])
    for p in optimizers[0].param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    options = {"on_missed": "raise"}
    step = torch.compile(optimizers[0].step, backend="gravure", options=options)
    with pytest.raises(Exception, match="call gravure.compile_optimizer"):
        step()
