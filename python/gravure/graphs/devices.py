"""Which device some graphs run on, and how much of its memory is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..torch_api.operators import pytree


def device_of(graphs: Sequence[fx.GraphModule], label: str) -> str:
    """The device that these graphs run on, as the library names it."""
    found: set[torch.device] = set()
    for graph in graphs:
        for node in graph.graph.nodes:
            for value in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(value, torch.Tensor):
                    found.add(value.device)
                    if value.layout is not torch.strided:
                        raise ExportError(
                            f"%{node.name}", f"its layout is {value.layout}", "use dense tensors"
                        )
    found.discard(torch.device("cpu"))
    if not found:
        return "host"
    if len(found) > 1 or next(iter(found)).type != "cuda":
        names = ", ".join(sorted(map(str, found)))
        raise ExportError(
            label, f"its tensors are on {names}", "keep one graph on one CUDA device, or on the CPU"
        )
    return str(found.pop())


_SPARE = 2  # arenas that are free when one more is made for a call in flight
_MUCH = 64 << 20  # bytes of PyTorch's cache, for which emptying it is worth the wait


def gpu_of(values: Iterable[Any]) -> torch.device | None:
    """That of the first tensor on one."""
    return next((v.device for v in values if isinstance(v, torch.Tensor) and v.is_cuda), None)


def give_back_cache(gpu: torch.device | None) -> None:
    """Empties PyTorch's cache: it kept blocks for calls that ran as they are, and programs have
    memory of their own.

    PyTorch does the same before a capture. Not where somebody captures, or little is kept.
    """
    if gpu is None or torch.cuda.is_current_stream_capturing():
        return
    if torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu) > _MUCH:
        torch.cuda.empty_cache()


def free_bytes(device: str) -> int | None:
    """Of this device, what can be had without taking it from anybody; None where nobody counts."""
    found = torch.device("cpu" if device == "host" else device)
    if found.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(found) - torch.cuda.memory_allocated(found)
    return torch.cuda.mem_get_info(found)[0] + cached


def arena_excess(program: Any, device: str) -> str:
    """Why `device` may have no further arena like that of `program`, for a call in flight; "" if it
    may. `program`: of the library's class."""
    need, free = program.stats()["arena_bytes"], free_bytes(device)
    if free is not None and _SPARE * need > free:
        return f"an arena takes {need} bytes, and {free} are free"
    return ""
