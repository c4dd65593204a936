"""Where a report was made: versions, devices, and what the process was told."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..version import __version__


def versions() -> dict[str, str]:
    """Of what takes part, by name."""
    found = {
        "gravure": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
        "processor threads": str(torch.get_num_threads()),
    }
    if torch.version.cuda:
        found["CUDA, of torch"] = torch.version.cuda
    # Asking a process for its devices would begin CUDA in one that does without it.
    if torch.cuda.is_initialized():
        for i in range(torch.cuda.device_count()):
            found[f"cuda:{i}"] = torch.cuda.get_device_name(i)
    return found


def settings(chosen: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Options that are not as by default, of all graphs, and GRAVURE_* of the process."""
    found: dict[str, dict[str, None]] = {}  # by name, the values of all graphs, each once
    for options in chosen:
        for name, value in options.items():
            found.setdefault(name, {})[repr(value)] = None
    named = sorted(name for name in os.environ if name.startswith("GRAVURE_"))
    texts = {name: ", or ".join(values) for name, values in found.items()}
    return texts | {name: os.environ[name] for name in named}
