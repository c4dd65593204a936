"""The memory in which programs warm up, for graphs that run before a program is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .load import program_class


@contextmanager
def in_warm_up_pool(gpu: torch.device | None) -> Iterator[None]:
    """What this thread allocates on the GPU comes from there.

    In PyTorch's own cache it would leave holes: what an optimizer makes of its state comes to lie
    in some of them, and keeps the rest for good. Nothing is done without one, nor while somebody
    captures.
    """
    if gpu is None or torch.cuda.is_current_stream_capturing():
        yield
        return
    program = program_class()
    program.enter_warm_up_pool(str(gpu))
    try:
        yield
    finally:
        program.leave_warm_up_pool()
