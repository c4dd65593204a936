"""What differs in one name alone is said once, wherever remarks are told."""

from __future__ import annotations

import logging
from pathlib import Path

import gravure
import pytest
import torch
from gravure.alike_remarks import grouped, worst_first
from running import need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def held(name: str) -> str:
    return f'result-held: gradient "{name}" was held'


def test_the_first_names_and_how_many_others() -> None:
    assert grouped(map(held, "abcdef")) == {
        'result-held: gradient "a" (and "b", "c", 3 others) was held': 6
    }
    # One that is named is no longer than "1 others".
    four = {'result-held: gradient "a" (and "b", "c", "d") was held': 4}
    assert grouped(map(held, "abcd")) == four
    assert grouped(map(held, "a")) == {held("a"): 1}


def test_a_name_that_comes_again_is_counted_and_said_once() -> None:
    assert grouped(map(held, "abab")) == {'result-held: gradient "a" (and "b") was held': 4}


def test_what_differs_otherwise_stays_apart() -> None:
    texts = [held("a"), held("a") + " twice", 'x: "a" is not "b"', 'x: "a" is not "c"', "no name"]
    assert grouped(texts) == dict.fromkeys(texts, 1)
    assert list(worst_first({texts[0]: 1, texts[4]: 3})) == [texts[4], texts[0]]


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.sum()


def test_gradients_that_are_held_take_one_line(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    model = Deep()
    compiled = torch.compile(model, backend="gravure")
    kept: list[Tensor | None] = []
    with caplog.at_level(logging.INFO, "gravure"):
        for _ in range(6):
            compiled(torch.ones(2, 4)).backward()
            kept = [parameter.grad for parameter in model.parameters()]
            model.zero_grad()
    assert len(kept) == 24
    page = tmp_path / "report.html"
    report = str(gravure.report(html=page))
    for told in (report, caplog.text):
        assert told.count("result-held") == 1 and "21 others) of entry 'backward'" in told, told
    text = page.read_text().partition('<script type="application/json"')[0]
    assert 0 < text.count("result-held") <= 2 and "21 others" in text
    (program,) = gravure.report().graphs[-1].programs
    (count,) = (n for remark, n in program.remarks.items() if remark.startswith("result-held"))
    assert count == 24
    # What to do about it, too.
    assert "zero_grad(set_to_none=True)" in report
