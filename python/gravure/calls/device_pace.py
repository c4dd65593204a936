"""How fast the GPU of this process goes from kernel to kernel: measured once, for predictions."""

from __future__ import annotations

import statistics
import time
from functools import cache

import torch

_MANY = 257  # kernels of the longer graph
_REPEATS = 20


@cache
def device_pace() -> dict[str, float]:
    """Fields of page/costs.py's Pace, in nanoseconds; empty without a GPU that is in use.

    Two graphs of small kernels, one of one kernel and one of many, are launched; what a kernel
    itself takes is CUPTI's duration. It takes some milliseconds of an idle GPU, and some more for
    PyTorch's profiler to begin.
    """
    if not torch.cuda.is_initialized() or torch.version.hip is not None:
        return {}
    value = torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    kernel = _kernel_time(value)
    first, one = _launch_and_whole(value, 1)
    launch, many = _launch_and_whole(value, _MANY)
    period = (many - one) / (_MANY - 1)
    gap = max(0.0, period - kernel)
    return {
        "gap": gap,
        "launch": first,
        "each": max(0.0, (launch - first) / (_MANY - 1)),
        "start": max(1.0, one - first - kernel),
        "copy": kernel + gap,
    }


def _launch_and_whole(value: torch.Tensor, kernels: int) -> tuple[float, float]:
    """Until the launch returns, and until the GPU is idle again; the least of some."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            value.add_(1)
    launches, wholes = [], []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        graph.replay()
        launches.append(time.perf_counter_ns() - begin)
        torch.cuda.synchronize()
        wholes.append(time.perf_counter_ns() - begin)
    graph.reset()
    return min(launches), min(wholes)


def _kernel_time(value: torch.Tensor) -> float:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as watch:
        for _ in range(_REPEATS):
            value.add_(1)
        torch.cuda.synchronize()
    on_device = [e for e in watch.events() or () if e.device_type != torch.autograd.DeviceType.CPU]
    times = [event.time_range.elapsed_us() * 1000 for event in on_device]
    return statistics.median(times) if times else 0.0
