"""Exported programs give eager's bits: loss, gradients, buffers, random states."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from running import bits, exported, run

STEPS = 3


def with_gradient(model: models.Model) -> list[torch.nn.Parameter]:
    return [p for p in model.module.parameters() if p.grad is not None]


def eager_step(model: models.Model, args: tuple[Any, ...]) -> torch.Tensor:
    """One step of the model itself: its loss; gradients are left in `.grad`."""
    for parameter in model.module.parameters():
        parameter.grad = None
    result = model.fn(*args)
    loss = result[0] if isinstance(result, tuple) else result
    loss.backward()
    return loss


def check(model: models.Model, entries: Any, state: dict[str, Any]) -> None:
    """Runs the program and the model itself side by side, SGD between the steps."""
    inputs = state.get("step", state.get("forward"))
    assert inputs is not None
    is_module = isinstance(model.fn, torch.nn.Module)
    names = list(inspect.signature(model.fn.forward if is_module else model.fn).parameters)
    prefix = "" if is_module else "model."
    named = dict(model.module.named_parameters(prefix.rstrip("."), remove_duplicate=False))
    for step in range(STEPS):
        args = models.next_args(model.args, step)
        torch.manual_seed(step)
        loss = eager_step(model, args)
        after = torch.get_rng_state()

        torch.manual_seed(step)
        inputs.update({n: a.clone() for n, a in zip(names, args, strict=True) if n in inputs})
        found = run(entries, state)
        assert bits(found.loss) == bits(loss)
        reached = {n: named[n] for n in found.gradients}
        assert {id(p) for p in reached.values()} == {id(p) for p in with_gradient(model)}
        for name, parameter in reached.items():
            assert bits(found.gradients[name]) == bits(parameter.grad), name
        for name, buffer in model.module.named_buffers(prefix.rstrip(".")):
            if name in inputs:
                assert bits(inputs[name]) == bits(buffer), name
        assert torch.equal(torch.get_rng_state(), after)

        with torch.no_grad():
            for name, parameter in reached.items():
                parameter -= 0.1 * parameter.grad
                inputs[name] -= 0.1 * found.gradients[name]


@pytest.mark.parametrize("joint", [False, True], ids=["step", "joint"])
@pytest.mark.parametrize("name", models.ALL)
def test_model(name: str, joint: bool, tmp_path: Path) -> None:
    model = models.ALL[name]()
    before = {n: bits(t) for n, t in model.module.state_dict().items()}
    random = torch.get_rng_state()
    entries, state = exported(
        model.fn, model.args, tmp_path, joint=joint, is_compiling=model.is_compiling
    )
    assert torch.equal(torch.get_rng_state(), random), "exporting draws random numbers"
    assert {n: bits(t) for n, t in model.module.state_dict().items()} == before
    assert all(p.grad is None for p in model.module.parameters())
    check(model, entries, state)


def test_resnet18_writes_its_running_statistics(tmp_path: Path) -> None:
    model = models.resnet18()
    entries, _ = exported(model.fn, model.args, tmp_path)
    mutated = [name for _, role, name in entries["step"].outputs if role == "mutation"]
    assert len(mutated) == 60  # mean, variance and count of 20 layers
    outputs = [name for _, role, name in entries["step"].outputs if role == "output"]
    assert outputs == ["output1"]


def test_checkpointing_keeps_its_recomputation(tmp_path: Path) -> None:
    model = models.checkpointed()
    entries, _ = exported(model.fn, model.args, tmp_path)
    body = entries["step"].body
    drawn = [s for s in body if s.op == "aten::bernoulli_.float"]
    saved = [s for s in body if s.op == "cudagraph::save_rng_state"]
    assert [s.rng is None for s in drawn].count(True) == 4
    assert [s.rng.name for s in drawn if s.rng is not None] == [
        s.outputs[0][0] for s in reversed(saved)
    ]
    assert len(saved) == 2
    for state in saved:
        assert body[body.index(state) + 2].op == "aten::bernoulli_.float"


def test_sources_and_modules(tmp_path: Path) -> None:
    model = models.moe()
    entries, _ = exported(model.fn, model.args, tmp_path)
    body = entries["step"].body
    reads = [s for s in body if s.op == "aten::_local_scalar_dense"]
    assert {s.module for s in reads} == {"model.blocks.1.ffn", "model.blocks.3.ffn"}
    with open(Path(__file__).parents[2] / "docs" / "examples" / "moe_step.py") as file:
        lines = file.readlines()
    for read in reads:
        name, _, line = read.source.rpartition(":")
        assert name.endswith("moe_step.py")
        assert ".tolist()" in lines[int(line) - 1]
    unplaced = [s.op for s in body if not s.source]
    assert unplaced == ["aten::ones_like"]  # the gradient of the loss itself
