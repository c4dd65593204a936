"""The logger "gravure": what was missed, each once, and how far a long capture is."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import gravure
import gravure_native
import pytest
import torch
from running import need_library
from torch import Tensor
from training import Mlp, rows

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def _lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "gravure" and r.levelno == level]


def test_what_stays_on_the_host_is_information(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(Mlp(), backend="gravure", options={"host": ["aten::gelu"]})
    with caplog.at_level(logging.INFO, "gravure"):
        for i in range(5):
            compiled(*rows(i)).square().sum().backward()
    found = [line for line in _lines(caplog, logging.INFO) if "[user-request]" in line]
    assert len(found) == 1 and "aten::gelu" in found[0] and "training.py:" in found[0]
    assert _lines(caplog, logging.WARNING) == []


def test_a_capture_that_fails_is_a_warning_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    model = Mlp()

    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean()

    program = gravure.load(gravure.export_step(loss, rows(0), tmp_path))
    program.bind_saved()
    program.inject_fault("capture-call", 2)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(6):
            program.run(rows(i))
    (line,) = _lines(caplog, logging.WARNING)
    assert line.startswith("missed [capture-failed]") and "injected fault" in line


def test_a_step_that_falls_back_is_information(caplog: pytest.LogCaptureFixture) -> None:
    model = Mlp()
    compiled = torch.compile(model, backend="gravure")
    held = []
    with caplog.at_level(logging.INFO, "gravure"):
        for i in range(6):
            compiled(*rows(i)).square().sum().backward()
            held += [parameter.grad for parameter in model.parameters()]
            model.zero_grad()
    assert any("[result-held]" in line for line in _lines(caplog, logging.INFO))
    assert _lines(caplog, logging.WARNING) == []


@pytest.mark.parametrize(("setting", "shown"), [("gravure", True), ("-gravure", False)])
def test_torch_logs_turns_it_on(setting: str, shown: bool) -> None:
    script = (
        "import torch, gravure\n"
        "f = torch.compile(lambda x: torch.nn.functional.gelu(x + 1), backend='gravure',"
        " options={'host': ['aten::gelu']})\n"
        "f(torch.ones(3))"
    )
    environment = os.environ | {
        "TORCH_LOGS": setting,
        "PYTHONPATH": str(Path(gravure_native.__file__).parent),
        "GRAVURE_LIBRARY": str(gravure_native.library_path()),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert ("[user-request]" in done.stderr) == shown


def test_a_long_capture_tells_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    pauses = [0.0]
    library = torch.library.Library("slow", "DEF")
    library.define("pause(Tensor x) -> Tensor")

    def pause(x: Tensor) -> Tensor:
        time.sleep(pauses[0])
        return x.clone()

    library.impl("pause", pause, "CPU")
    torch.library.register_fake("slow::pause", torch.empty_like, lib=library)

    def call(x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.ops.slow.pause(x.sin().cos())
        return x.sin().cos()

    options = {"host": ["slow::pause"], "order": "program"}
    compiled = torch.compile(call, backend="gravure", options=options)
    with caplog.at_level(logging.INFO, "gravure"), torch.no_grad():
        for i in range(4):
            pauses[0] = 1.1 if i == 2 else 0.0  # two runs are recorded, the next one captured
            compiled(*rows(i))
    found = [line for line in _lines(caplog, logging.INFO) if "capturing" in line]
    assert found == ["capturing partition 3 of 5 of entry step"]
