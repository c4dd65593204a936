"""torch.set_default_device: where the caller's tensors are made, and none of Gravure's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import gravure
import pytest
import torch
from running import DEVICES, bits, need_library
from torch import Tensor
from training import Mlp, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the step is. The default is another device, or a GPU."""
    torch.set_default_device("cuda" if request.param == "cuda" else "meta")
    yield request.param
    torch.set_default_device(None)


def model_on(device: str) -> Mlp:
    with torch.device(device):
        return Mlp(0.3)


def batch_on(device: str, number: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(number)
    return torch.randn(6, 8, device="cpu", generator=generator).to(device)


def test_training_by_torch_compile(device: str) -> None:
    model = model_on(device)
    twin = copy.deepcopy(model)
    call = torch.compile(twin, backend="gravure")
    for number in range(6):
        losses = []
        for m, c in ((model, model), (twin, call)):
            torch.manual_seed(number)
            m.zero_grad()
            loss = c(batch_on(device, number)).square().mean()
            loss.backward()
            losses.append(bits(loss))
        assert losses[0] == losses[1]
        assert state_of(model) == state_of(twin)
    assert not any(graph.failure for graph in gravure.report().graphs)


def test_whole_steps_and_their_optimizer(device: str) -> None:
    model = model_on(device)
    twin = copy.deepcopy(model)
    ours, eagers = (torch.optim.AdamW(m.parameters(), fused=True) for m in (twin, model))
    step = gravure.compile_step(lambda x: twin(x).square().mean(), optimizer=ours)
    for number in range(6):
        x = batch_on(device, number)
        torch.manual_seed(number)
        loss = model(x).square().mean()
        loss.backward()
        eagers.step()
        eagers.zero_grad()
        torch.manual_seed(number)
        assert bits(step(x)) == bits(loss)
        assert state_of(model) == state_of(twin)


def test_an_export(device: str, tmp_path: Path) -> None:
    model = model_on(device).eval()
    x = batch_on(device, 0)
    gravure.export_step(lambda x: model(x).square().mean(), (x,), tmp_path / "step")
    program = gravure.load(tmp_path / "step", "cuda" if device == "cuda" else "host")
    program.bind_saved()
    loss = model(x).square().mean()
    loss.backward()
    found = zip(program.outputs(), program.run((x,)), strict=True)
    assert [bits(value) for slot, value in found if slot.role == "loss"] == [bits(loss)]


def test_what_explain_says(device: str) -> None:
    model = model_on(device)
    found = gravure.explain(lambda x: model(x).square().mean(), (batch_on(device, 0),))
    assert not found.stopped
    assert found.graphs
