"""compile_step and words: no decision hangs on an error's, and what code says is not lost."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import bits, need_library
from torch import Tensor
from training import Mlp

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

_calls: list[str] = []
_words: list[str] = []


@torch.library.custom_op("words::failing", mutates_args=())
def failing(x: Tensor) -> Tensor:
    _calls.append("called")
    if _words:
        raise RuntimeError(_words[0])
    return x.clone()


@failing.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


failing.register_autograd(lambda ctx, gradient: gradient)


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    yield
    _calls.clear()
    _words.clear()


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(
    "words",
    [
        "the boat has a hook",
        '"w" requires a gradient; it did not when the step was compiled',
    ],
)
def test_an_operators_own_words_do_not_run_it_again(words: str, steps: int) -> None:
    weight = nn.Parameter(torch.randn(4))
    step = gravure.compile_step(
        lambda x: failing(x * weight).sum(), options={"host": ["words::failing"]}
    )
    x = torch.randn(4)
    for _ in range(steps):
        step(x)
    _words.append(words)
    _calls.clear()
    before = bits(weight.grad)
    with pytest.raises(RuntimeError, match=words.partition(";")[0]):
        step(x)
    assert len(_calls) == 1 and bits(weight.grad) == before
    _words.clear()
    step(x)


def test_what_a_step_says_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model, own = Mlp(), logging.getLogger("somebodys")

    def inner(x: Tensor) -> Tensor:
        print("inside", x.shape)
        return model(x).sum()

    def loss(x: Tensor) -> Tensor:
        y = inner(x)
        warnings.warn("careful", stacklevel=1)
        own.info("the loss is %s", y)
        return y

    step = gravure.compile_step(loss)
    x = torch.randn(5, 8)
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(5):
            assert bits(step(x)) == bits(model(x).sum())
    (record,) = [r for r in caplog.records if r.name == "gravure"]
    said = record.getMessage()
    first = inner.__code__.co_firstlineno + 1
    second = loss.__code__.co_firstlineno + 2
    for what, line in (("print", first), ("warn", second), ("logger.info", second + 1)):
        assert f"{what}() at {__file__}:{line}" in said
    assert "say it after the step" in said


def test_a_step_that_says_nothing_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    lstm = nn.LSTM(8, 8)

    def loss(x: Any) -> Tensor:
        return lstm(x)[0].sum()

    step = gravure.compile_step(loss)  # which Dynamo takes at its second attempt
    with caplog.at_level(logging.WARNING, "gravure"):
        for _ in range(3):
            step(torch.randn(2, 3, 8))
    assert not caplog.text
