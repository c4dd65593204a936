"""Programs of optimizers as a GPU has them, on the host device: step counts stay on the CPU, all
else lies on the device that captures."""

from __future__ import annotations

import re
from typing import Any

import pytest
from gravure.library.load import program_class
from gravure.steps import loaded_update

_TENSOR = re.compile(r"(Float|Double|BFloat16|Half)\((?=[^)]*strides=)([^)]*)device=cpu\)")


class _Programs:
    @staticmethod
    def of_text(text: str, device: str, options: Any) -> Any:
        moved = _TENSOR.sub(r"\1(\2device=cuda:0)", text)
        return program_class().of_text(moved, device, options)


def use_host_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_update, "program_class", lambda: _Programs)
