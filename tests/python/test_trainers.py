"""The trainers of docs/examples/trainers: in eager's bits, and captured."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from gravure.steps.compiled_update import CompiledUpdate
from host_counters import use_host_counters
from running import bits, need_library
from training import replays

need_library()
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
]

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "trainers"


@pytest.fixture
def host_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a loop on the CPU whose optimizer is not fused."""
    use_host_counters(monkeypatch)


@pytest.fixture
def host_counters_without_gpu(request: pytest.FixtureRequest) -> None:
    """For a trainer that takes a GPU where there is one."""
    if not torch.cuda.is_available():
        request.getfixturevalue("host_counters")


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[CompiledUpdate]:
    """All that were made."""
    found: list[CompiledUpdate] = []
    given = CompiledUpdate.__init__

    def init(self: Any, *args: Any, **how: Any) -> None:
        given(self, *args, **how)
        found.append(self)

    monkeypatch.setattr(CompiledUpdate, "__init__", init)
    return found


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Loads one, where the libraries that it needs are installed."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str, *needed: str) -> Any:
        for library in needed:
            pytest.importorskip(library, reason=f"{library} is not installed")
        return importlib.import_module(name)

    yield load
    for file in FOLDER.glob("*.py"):
        sys.modules.pop(file.stem, None)


def _bits(model: nn.Module) -> dict[str, Any]:
    return {name: bits(value) for name, value in model.state_dict().items()}


def _replayed_bits(model: nn.Module) -> dict[str, Any]:
    """Of a model whose own graphs were replayed, too."""
    assert replays(gravure.report()), str(gravure.report())
    return _bits(model)


def _is_captured(updates: list[CompiledUpdate], caplog: pytest.LogCaptureFixture) -> None:
    assert updates and all(update.programs == 1 for update in updates)
    assert all(update.own_steps == 1 for update in updates)  # which made the state
    assert all(update.repeated_steps >= 3 for update in updates)  # as the trainer calls it
    said = [r.getMessage() for r in caplog.records if r.name == "gravure"]
    assert not [text for text in said if "as it is" in text or "eager's kernels" in text]


@pytest.mark.usefixtures("host_counters")
def test_a_plain_loop(
    example: Any, updates: list[CompiledUpdate], caplog: pytest.LogCaptureFixture
) -> None:
    module = example("plain_loop")
    eager = _bits(module.train(captured=False))
    with caplog.at_level(logging.WARNING, "gravure"):
        assert _replayed_bits(module.train(captured=True)) == eager
    _is_captured(updates, caplog)
    assert _bits(module.train_as_one()) == eager


@pytest.mark.parametrize("name", ["gan", "ppo"])
def test_compiled_steps(name: str, example: Any) -> None:
    module = example(name)
    found = [module.train(captured=captured) for captured in (False, True)]
    pairs = [result if isinstance(result, list) else [result] for result in found]
    assert list(map(_bits, pairs[0])) == list(map(_bits, pairs[1]))


@pytest.mark.usefixtures("host_counters_without_gpu")
def test_accelerate(
    example: Any, updates: list[CompiledUpdate], caplog: pytest.LogCaptureFixture
) -> None:
    module = example("accelerate_loop", "accelerate")
    precisions = ["no", "bf16"] + (["fp16"] if torch.cuda.is_available() else [])
    state = importlib.import_module("accelerate.state").AcceleratorState
    for precision in precisions:
        state._reset_state(reset_partial_state=True)
        updates.clear()
        eager = _bits(module.train(captured=False, mixed_precision=precision))
        with caplog.at_level(logging.WARNING, "gravure"):
            ours = module.train(captured=True, mixed_precision=precision)
            assert _replayed_bits(ours) == eager
        _is_captured(updates, caplog)


@pytest.mark.usefixtures("host_counters_without_gpu")
def test_lightning(
    example: Any, updates: list[CompiledUpdate], caplog: pytest.LogCaptureFixture
) -> None:
    module = example("lightning_module", "lightning")
    eager = _bits(module.train(captured=False))
    with caplog.at_level(logging.WARNING, "gravure"):
        assert _replayed_bits(module.train(captured=True)) == eager
    _is_captured(updates, caplog)


def test_transformers_trainer(
    example: Any,
    updates: list[CompiledUpdate],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With accumulation, bfloat16, evaluation, clipping, a schedule; and resumed."""
    module = example("hf_trainer", "transformers", "accelerate")
    eager = module.train(str(tmp_path / "eager"), captured=False)
    folder = tmp_path / "ours"
    with caplog.at_level(logging.WARNING, "gravure"):
        ours = module.train(str(folder), captured=True)
    _is_captured(updates, caplog)
    assert _replayed_bits(ours.model) == _bits(eager.model)
    losses = [
        [(e.get("loss"), e.get("eval_loss")) for e in t.state.log_history] for t in (eager, ours)
    ]
    assert losses[0] == losses[1]
    resumed = module.train(
        str(tmp_path / "resumed"), captured=True, resume=str(folder / "checkpoint-8")
    )
    assert _bits(resumed.model) == _bits(eager.model)
