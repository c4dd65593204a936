"""Graphs die before the communicators that they captured: docs/distributed.md."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def release_before_groups(release: Callable[[str], None]) -> None:
    """Calls `release` with its name before a process group is shut down, and with "" at exit.

    `destroy_process_group` shuts each group down by its method, however it was imported.
    """
    if not dist.is_available():
        return
    process = os.getpid()
    shutdown = dist.ProcessGroup.shutdown

    @functools.wraps(shutdown)
    def shutdown_after(group: Any) -> None:
        release(group.group_name)
        shutdown(group)

    def at_exit() -> None:
        if os.getpid() == process:  # in a forked child all of it is the parent's
            release("")

    dist.ProcessGroup.shutdown = shutdown_after
    atexit.register(at_exit)
