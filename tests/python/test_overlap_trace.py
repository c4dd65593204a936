"""What tests/cuda/overlap_trace.py reads from a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "cuda"))

import overlap_trace  # noqa: E402


def kernel(name: str, begin: float, length: float, cat: str = "kernel") -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": begin, "dur": length}


def test_overlap_is_time_in_which_both_run() -> None:
    trace = {
        "traceEvents": [
            kernel("ncclDevKernel_AllGather_RING_LL", 100, 50),
            kernel("ncclDevKernel_AllReduce_Sum_bf16", 140, 30),  # they overlap each other
            kernel("gemm", 90, 20),
            kernel("gemm", 120, 10),
            kernel("gemm", 125, 10),  # and so do these: on two streams
            kernel("gemm", 165, 100),
            kernel("ncclDevKernel_AllGather", 300, 10),  # alone
            kernel("gemm", 300, 10, cat="cuda_runtime"),  # its launch is no kernel
            {"name": "no kernel at all"},
        ]
    }
    found = overlap_trace.times(trace)
    assert found == {"nccl": 80, "other": 135, "both": 10 + 15 + 5}


def test_a_trace_without_collectives_has_no_share() -> None:
    found = overlap_trace.times({"traceEvents": [kernel("gemm", 0, 4)]})
    assert found == {"nccl": 0, "other": 4, "both": 0}
    assert overlap_trace.row("x", found, 2).split() == ["x", "0.0", "2.0", "0.0", "0.00"]
