"""Refuses a torch that this package was not built for, before anything else fails on it."""

from __future__ import annotations

from pathlib import Path

import torch
from gravure_native import PACKAGE, Torch, built_for, mismatch


def check_torch(folder: Path = PACKAGE) -> None:
    """Raises ImportError, which names both releases and the remedy.

    `folder` holds the library and the record of what it was built for; without a record it is the
    release alone that counts.
    """
    problem = mismatch(Torch(torch.__version__, torch.version.cuda), built_for(folder))
    if problem:
        raise ImportError(problem)
