"""Loads the C++ library, and gives its class of programs."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from gravure_native import library_path

from . import log, progress  # noqa: F401  what the library talks through
from .process_groups import release_before_groups
from .torch_version import check_torch


@cache
def program_class() -> Any:
    """`torch.classes.gravure.Program`.

    Raises FileNotFoundError where the library is not built, ImportError where it was built for
    another torch.
    """
    path = library_path()
    check_torch(path.parent)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"{path} does not load with torch {torch.__version__}: {error}. It was built for "
            "another torch; build it anew, with tools/build or `pip install .`"
        ) from error
    program = torch.classes.gravure.Program
    release_before_groups(program.drop_collectives)
    return program
