"""A call of a compiled step goes past torch.compile where Dynamo's guards hold, and only there.

It is right in bits, compiles anew where it must, and torch._dynamo.reset() is obeyed.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import gravure
import pytest
import torch
from gravure.torch_api import compiled_frames
from gravure.torch_api.compiled_frames import CompiledFrames
from running import need_library
from torch import Tensor, nn

need_library()


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.factor).square().mean()


class Calls:
    """How often a compiled code was found, and was not."""

    def __init__(self) -> None:
        self.found = self.missed = 0

    def __enter__(self) -> Calls:
        find = CompiledFrames.find

        def counted(frames: CompiledFrames, frame: dict[str, Any]) -> Any:
            run = find(frames, frame)
            self.found += run is not None
            self.missed += run is None
            return run

        self._patch = mock.patch.object(CompiledFrames, "find", counted)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


def step_and_model() -> tuple[Any, Scaled]:
    torch.manual_seed(0)
    model = Scaled()
    return gravure.compile_step(model), model


def eager_loss(model: Scaled, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


def test_a_call_like_the_last_one_goes_past_torch_compile() -> None:
    step, model = step_and_model()
    x = torch.randn(3, 4)
    step(x)
    with Calls() as calls:
        for _ in range(3):
            assert torch.equal(step(x), eager_loss(model, x))
    assert (calls.found, calls.missed) == (3, 0)


def test_shapes_in_turns_do_so_too() -> None:
    step, model = step_and_model()
    batches = [torch.randn(n, 4) for n in (3, 5, 3, 5)]
    for x in batches:
        step(x)
    with Calls() as calls:
        for x in batches:
            assert torch.equal(step(x), eager_loss(model, x))
    assert (calls.found, calls.missed) == (4, 0)


@pytest.mark.parametrize("what", ["attribute", "shape", "module", "layers"])
def test_what_guards_see_is_compiled_anew(what: str) -> None:
    step, model = step_and_model()
    x = torch.randn(3, 4)
    step(x)
    step(x)
    if what == "attribute":
        model.factor = 3.0
    elif what == "shape":
        x = torch.randn(7, 4)
    elif what == "module":
        model.linear = nn.Linear(4, 4, bias=False)
    else:
        model.linear = nn.Sequential(model.linear, nn.Dropout(0.5)).eval()
    with Calls() as calls:
        assert torch.equal(step(x), eager_loss(model, x))
        assert torch.equal(step(x), eager_loss(model, x))
    assert (calls.found, calls.missed) == (1, 1)


class Applied(nn.Module):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x)).square().mean()


def times_tanh(factor: float) -> Any:
    class Act:
        def __call__(self, x: Tensor) -> Tensor:
            return torch.tanh(x) * factor

    return Act()


def test_code_for_an_object_that_is_gone_is_left_alone() -> None:
    model = Applied(times_tanh(1.0))
    step = gravure.compile_step(model)
    x = torch.randn(3, 4)
    step(x)
    for factor in (2.0, 3.0, 4.0):
        model.act = times_tanh(factor)
        gc.collect()  # the former object's class goes, and Dynamo drops what it compiled for it
        for _ in range(2):
            with torch.no_grad():
                expected = model(x)
            assert torch.equal(step(x), expected)


def test_keyword_arguments_are_guarded_as_others() -> None:
    layer = nn.Linear(4, 4)
    step = gravure.compile_step(lambda x, *, by=1.0: (layer(x) * by).mean())
    x = torch.randn(3, 4)
    for by in (1.0, 2.0, 1.0, 2.0):
        with torch.no_grad():
            expected = (layer(x) * by).mean()
        assert torch.equal(step(x, by=by), expected)


def test_a_reset_is_obeyed_while_somebody_holds_what_was_compiled() -> None:
    step, model = step_and_model()
    x = torch.randn(3, 4)
    seen = []
    note = CompiledFrames.note

    def noted(frames: CompiledFrames) -> None:
        note(frames)
        seen.extend((each.guards(), each.code()) for each in frames._known)

    with mock.patch.object(CompiledFrames, "note", noted):
        step(x)
    step(x)
    torch._dynamo.reset()
    assert len(seen) == 1 and None not in seen[0]
    with Calls() as calls:
        assert torch.equal(step(x), eager_loss(model, x))
    assert (calls.found, calls.missed) == (0, 1)


def test_a_reset_is_obeyed_and_nothing_is_kept() -> None:
    step, model = step_and_model()
    x = torch.randn(3, 4)
    step(x)
    step(x)
    compiler = step.gravure_step.compilers()[0]
    graphs = [weakref.ref(graph) for graph in compiler.graphs]
    torch._dynamo.reset()
    gc.collect()
    assert all(graph() is None for graph in graphs)
    made = compiler.programs
    with Calls() as calls:
        assert torch.equal(step(x), eager_loss(model, x))
    assert (calls.missed, compiler.programs) == (1, made + 1)


def test_a_stance_is_obeyed() -> None:
    step, model = step_and_model()
    x = torch.randn(3, 4)
    step(x)
    step(x)
    with Calls() as calls, torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(step(x), eager_loss(model, x))
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            step(torch.randn(9, 4))
    assert calls.found == 0


def test_a_missing_name_costs_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_frames, "is_there", lambda name: name != "eval_frame")
    step, model = step_and_model()
    x = torch.randn(3, 4)
    with Calls() as calls:
        for _ in range(3):
            assert torch.equal(step(x), eager_loss(model, x))
    assert (calls.found, calls.missed) == (0, 3)
