"""What the page and `diagnose` say of Dynamo's graphs."""

from __future__ import annotations

import pytest
from gravure.page.graph_words import compiled_anew, frame_of, read_break


def test_code_that_has_many_graphs_is_named_once() -> None:
    labels = [f"graph 2/{i} at m.py:4" for i in range(3)]
    labels += labels[:1]  # of a model that is gone, behind torch._dynamo.reset()
    labels += ["graph 0/0 at m.py:4", "graph 0/1 at m.py:4", "step, graph 0/0", "stage 1"]
    (found,) = compiled_anew(labels)
    assert (found.location, found.times) == ("m.py:4", 3) and "3 times" in found.what


@pytest.mark.parametrize(
    ("label", "frame"),
    [
        ("graph 2/7 at m.py:4", "2 at m.py:4"),
        ("loss, graph 0/1 at m.py:4", "loss, 0 at m.py:4"),
        ("stage 1", "stage 1"),
    ],
)
def test_graphs_of_the_same_code(label: str, frame: str) -> None:
    assert frame_of(label) == frame


@pytest.mark.parametrize(
    ("text", "location", "why", "word"),
    [
        ("m.py:4: Failed to trace builtin operator", "m.py:4", "Failed", "behind the step"),
        ("m.py:4: Dynamic shape operator", "m.py:4", "Dynamic", "torch.where(mask"),
        ("m.py:4: Could not guard on data-dependent expression", "m.py:4", "Could", "torch.where("),
        ("m.py:4: a value is read; do this", "m.py:4", "a value is read", "do this"),
        ("m.py:4: something new", "m.py:4", "something new", "TORCH_LOGS=graph_breaks"),
    ],
)
def test_a_break_has_its_remedy(text: str, location: str, why: str, word: str) -> None:
    found = read_break(text)
    assert found.location == location and found.why.startswith(why) and word in found.remedy
