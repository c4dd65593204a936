"""`shadow=N` compares steps with the uncaptured path, and names where a difference begins."""

from __future__ import annotations

import logging
from typing import Any

import gravure
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

_cache: dict[int, Tensor] = {}
_calls = [0]


@torch.library.custom_op("gravure_shadow::scale_once", mutates_args=())
def scale_once(x: Tensor) -> Tensor:
    """What somebody wrote to save time: it keeps results by address, and replays have one."""
    return _cache.setdefault(x.data_ptr(), x * 2).clone()


@torch.library.custom_op("gravure_shadow::count", mutates_args=())
def count(x: Tensor) -> Tensor:
    _calls[0] += 1
    return x + _calls[0]


@torch.library.custom_op("gravure_shadow::tell", mutates_args=())
def tell(x: Tensor) -> None:
    _calls[0] += 1


@torch.library.custom_op("gravure_shadow::tire", mutates_args=())
def tire(x: Tensor) -> Tensor:
    """Right, until it has seen an address often, as replays show it."""
    _cache[x.data_ptr()] = _cache.get(x.data_ptr(), torch.zeros(())) + 1
    return x + (_cache[x.data_ptr()] > 6)


for _op in (scale_once, count, tire):
    _op.register_fake(torch.empty_like)
    _op.register_autograd(lambda ctx, grad: grad * 2)
tell.register_fake(lambda x: None)


class Cached(nn.Module):
    def __init__(self, op: Any = scale_once) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        y = self.op(self.first(x).relu())
        return self.last(y).tanh()


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    _cache.clear()
    _calls[0] = 0


def _train(model: nn.Module, steps: int, **options: Any) -> None:
    compiled = torch.compile(model, backend="gravure", options=options)
    for _ in range(steps):
        compiled(torch.randn(8, 4)).square().mean().backward()
        model.zero_grad()


def _said(caplog: Any, name: str = "shadow-differs") -> list[str]:
    return [r.getMessage() for r in caplog.records if f"[{name}]" in r.getMessage()]


def test_a_result_that_is_kept_by_address(caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "gravure"):
        _train(Cached(), 12, shadow=3)
    (said,) = [line for line in _said(caplog) if "of entry forward" in line]
    first = said.partition("the first value that differs is ")[2]
    assert first.startswith("%"), said
    assert "= gravure_shadow::scale_once at test_shadow.py:" in first, said
    assert 'options={"host": ["gravure_shadow::scale_once"]}' in first
    levels = {r.levelno for r in caplog.records if "[shadow-" in r.getMessage()}
    assert levels == {logging.WARNING}


def test_an_operator_with_a_state_of_its_own(caplog: Any) -> None:
    _train(Cached(count), 8, shadow=2)
    said = _said(caplog)
    assert said and "gravure_shadow::count at test_shadow.py:" in said[0]
    assert "two uncaptured runs differ there as well" in said[0]


def test_where_it_does_not_come_again_others_operators_are_named(caplog: Any) -> None:
    compiled = torch.compile(Cached(tire), backend="gravure", options={"shadow": 12})
    with torch.no_grad():
        for _ in range(12):
            compiled(torch.randn(8, 4))
    (said,) = _said(caplog)
    assert "no value differs when it is captured now" in said
    assert "look at %tire = gravure_shadow::tire at test_shadow.py:" in said


@pytest.mark.parametrize("each", [1, 3])
def test_nothing_is_said_of_what_is_right(each: int, caplog: Any) -> None:
    """Dropout draws, batch normalization counts, an optimizer writes: all of it is state."""
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Dropout(0.5), nn.Linear(6, 2)
    )
    with caplog.at_level(logging.INFO, "gravure"):
        _train(model, 10, shadow=each)
    assert not _said(caplog) and not _said(caplog, "shadow-skipped")
    stats = gravure.report().graphs[-1].programs[0].stats
    assert stats["compared"] == 2 * (10 // each) and stats["different"] == 0
    assert stats["replays"] > 0


@pytest.mark.parametrize("way", ["compile", "step", "optimizer"])
def test_a_run_with_it_has_the_bits_of_one_without(way: str) -> None:
    def run(options: dict[str, Any]) -> list[Any]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 2))
        optimizer = torch.optim.AdamW(model.parameters())

        def loss_of(x: Tensor) -> Tensor:
            return model(x).square().mean()

        losses = []
        if way == "optimizer":
            step = gravure.compile_step(loss_of, optimizer=optimizer, options=options)
        elif way == "step":
            step = gravure.compile_step(loss_of, options=options)
        else:
            step = torch.compile(loss_of, backend="gravure", options=options)
        for _ in range(8):
            loss = step(torch.randn(8, 4))
            if way == "compile":
                loss.backward()
            if way != "optimizer":
                optimizer.step()
                optimizer.zero_grad()
            losses.append(bits(loss))
        return [*losses, *map(bits, model.state_dict().values()), bits(torch.rand(2))]

    assert run({}) == run({"shadow": 2})


def test_a_draw_that_is_repeated_from_a_saved_state(caplog: Any) -> None:
    """A checkpoint saves the random state, and its copy is a part of a storage."""
    norm, drop, last = nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 8)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop, self.last = norm, drop, last

        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(lambda z: self.drop(self.norm(z)).relu(), x, use_reentrant=False)
            return self.last(y)

    with caplog.at_level(logging.INFO, "gravure"):
        model = Checkpointed()
        compiled = torch.compile(model, backend="gravure", options={"shadow": 1})
        for _ in range(9):
            compiled(torch.randn(4, 8, requires_grad=True)).square().mean().backward()
            model.zero_grad()
    assert not _said(caplog) and not _said(caplog, "shadow-skipped")
    program = gravure.report().graphs[-1].programs[0]
    assert any(node.startswith("uncapturable-rng") for node in program.host_nodes)
    assert program.stats["compared"] == 18 and program.stats["different"] == 0


def test_a_step_with_its_optimizer_is_compared(caplog: Any) -> None:
    model = Cached()
    optimizer = torch.optim.AdamW(model.parameters())
    step = gravure.compile_step(
        lambda x: model(x).square().mean(), optimizer=optimizer, options={"shadow": 5}
    )
    for _ in range(12):
        step(torch.randn(8, 4))
    said = _said(caplog)
    assert said and "= gravure_shadow::scale_once at test_shadow.py:" in said[0]


def test_an_exported_program(tmp_path: Any, caplog: Any) -> None:
    model = Cached()
    x = torch.randn(8, 4)
    gravure.export_step(lambda x: model(x).square().mean(), (x,), tmp_path / "step")
    program = gravure.load(tmp_path / "step", shadow=4)
    program.bind_saved()
    for _ in range(10):
        program.run([torch.randn(8, 4)])
    assert "= gravure_shadow::scale_once at test_shadow.py:" in _said(caplog)[0]


def test_an_effect_comes_once(tmp_path: Any, caplog: Any) -> None:
    text = """gravure 1
graph step(%x : Float(3, strides=[1], device=cpu) {user_input "x"}):
  %y : Float(3, strides=[1], device=cpu) = aten::exp(%x)
  gravure_shadow::tell(%y) @"model.py:3"
  %z : Float(3, strides=[1], device=cpu) = aten::neg(%y)
  return (%z {output "z"})
"""
    (tmp_path / "program.gv").write_text(text)
    program = gravure.load(tmp_path, shadow=1)
    for _ in range(5):
        program.run([torch.randn(3)])
    assert _calls[0] == 5
    (said,) = _said(caplog, "shadow-skipped")
    assert "gravure_shadow::tell at model.py:3" in said and "would come twice" in said


@pytest.mark.parametrize("value", [-1, 2.5, True, "often"])
def test_a_number_of_runs_is_asked_for(value: Any) -> None:
    with pytest.raises(ValueError, match="option 'shadow': expected a whole number of runs"):
        torch.compile(nn.Linear(2, 2), backend="gravure", options={"shadow": value})


def test_an_update_is_compared(caplog: Any) -> None:
    def update(to: Tensor, by: Tensor) -> None:
        to.add_(torch.ops.gravure_shadow.count(by))

    compiled = gravure.compile_update(update, options={"shadow": 2})
    to, by = torch.zeros(4), torch.zeros(4)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(8):
            by.fill_(i + 1.0)
            compiled(to, by)
    (said,) = _said(caplog)
    assert "gravure_shadow::count" in said


def test_an_optimizer_of_torchs_is_compared(caplog: Any) -> None:
    """A kernel of PyTorch's own that keeps a state of its own, in this process alone."""
    library = torch.library.Library("aten", "IMPL")

    def wrong(self: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
        _calls[0] += 1
        return self.copy_(self + value * a / b + _calls[0])

    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, foreach=False)
    library.impl("addcdiv_", wrong, "CPU")
    try:
        gravure.compile_optimizer(optimizer, options={"shadow": 2})
        with caplog.at_level(logging.WARNING, "gravure"):
            for _ in range(8):
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        library._destroy()
    assert any("aten::addcdiv_" in each for each in _said(caplog))
