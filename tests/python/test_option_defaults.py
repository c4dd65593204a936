"""GRAVURE_OPTIONS sets defaults, and a wrong option is an error where it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import draw_options
import gravure
import pytest
import torch
from gravure.options import CompileOptions, defaults_of
from running import need_library
from training import Mlp, rows

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("codegen=inductor", {"codegen": "inductor"}),
        ("order=program,host=aten::mm,b.3", {"order": "program", "host": ["aten::mm", "b.3"]}),
        ("host=", {"host": []}),
        (" host = a , max_shapes=1,", {"host": ["a"], "max_shapes": 1}),
        ("uncaptured=1,poison=False", {"uncaptured": True, "poison": False}),
        ("memory_growth=0.5,memory_slack=0", {"memory_growth": 0.5, "memory_slack": 0}),
    ],
)
def test_what_is_written(text: str, found: dict[str, Any], monkeypatch: Any) -> None:
    assert defaults_of(text) == found
    monkeypatch.setenv("GRAVURE_OPTIONS", text)
    assert CompileOptions.parse(None) == CompileOptions(**found)


def test_what_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVURE_OPTIONS", "order=program,codegen=aten,max_shapes=3")
    chosen = CompileOptions.parse({"order": "levels", "mode": "max-autotune"})
    assert (chosen.order, chosen.codegen, chosen.max_shapes) == ("levels", "inductor", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots=a", "GRAVURE_OPTIONS: there is no option 'hots'; did you mean 'host'"),
        ("order=random", "GRAVURE_OPTIONS: option 'order': expected 'levels' or 'program'"),
        ("max_shapes=many", "GRAVURE_OPTIONS: option 'max_shapes': expected a whole number"),
        ("uncaptured=maybe", "GRAVURE_OPTIONS: option 'uncaptured': expected True or False"),
        ("inductor", "GRAVURE_OPTIONS: expected name=value, found 'inductor'"),
        ("=inductor", "GRAVURE_OPTIONS: expected name=value, found '=inductor'"),
        ("host=a,=b", "GRAVURE_OPTIONS: expected name=value, found '=b'"),
    ],
)
def test_what_is_none(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVURE_OPTIONS", text)
    with pytest.raises(ValueError, match=message):
        torch.compile(Mlp(), backend="gravure")


def test_a_wrong_option_is_an_error_where_it_is_given() -> None:
    with pytest.raises(ValueError, match="did you mean 'host'"):
        torch.compile(Mlp(), backend="gravure", options={"hots": []})
    with pytest.raises(ValueError, match="for compile_step and load"):
        torch.compile(Mlp(), backend="gravure", options={"results": "accumulate"})
    torch.compile(Mlp(), backend="eager", options={"hots": []})  # no business of ours


@pytest.mark.parametrize("given", [["shadow"], "shadow=2", 3], ids=str)
@pytest.mark.parametrize("default", ["", "order=program"])
def test_options_that_are_no_dictionary(given: Any, default: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRAVURE_OPTIONS", default)
    for way in (
        lambda: torch.compile(Mlp(), backend="gravure", options=given),
        lambda: gravure.explain(Mlp(), rows(0), options=given),
        lambda: gravure.diagnose(Mlp(), *rows(0), options=given),
    ):
        with pytest.raises(TypeError, match=r"options: expected a dictionary, as \{.*, found "):
            way()


def test_a_loaded_program_has_defaults_too(tmp_path: Path, monkeypatch: Any) -> None:
    model = Mlp()
    folder = gravure.export_step(lambda x: model(x).square().mean(), rows(0), tmp_path / "step")
    monkeypatch.setenv("GRAVURE_OPTIONS", "host=aten::gelu,codegen=inductor,max_in_flight=2")
    assert gravure.load(folder)._settings["host"] == "aten::gelu"
    assert gravure.load(folder, host=["aten::mm"])._settings["host"] == "aten::mm"
    monkeypatch.setenv("GRAVURE_OPTIONS", "hots=a")
    with pytest.raises(ValueError, match="GRAVURE_OPTIONS: there is no option 'hots'"):
        gravure.load(folder)


def test_a_default_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVURE_OPTIONS", "host=aten::gelu")
    assert any("user-request" in n for n in gravure.explain(Mlp(), rows(0)).graphs[0].host_nodes)


def test_the_table_of_options_is_drawn_from_docstrings() -> None:
    assert draw_options.drawn(draw_options.PAGE.read_text()) == draw_options.PAGE.read_text()
    assert {name for name, *_ in draw_options.options()} == set(CompileOptions.__dataclass_fields__)
