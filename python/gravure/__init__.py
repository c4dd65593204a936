"""Gravure: PyTorch training steps as programs that are cut, captured and replayed."""

from __future__ import annotations

from .library.torch_version import check_torch

check_torch()  # on another torch, what follows fails in ways that say nothing

# ruff: noqa: E402
from .backend import compile_graph
from .clip_gradients import clip_grad_norm_, clip_grad_value_
from .compile_optimizer import compile_optimizer
from .compile_step import compile_step
from .compile_update import compile_update
from .diagnose import Diagnosis, diagnose
from .drop_captures import drop_captures
from .errors import ExportError
from .explain import Explanation, explain
from .export import export_joint, export_step
from .kernel_names import annotate_trace, kernel_annotations
from .report import Report, report
from .runtime import Program, load, release_memory
from .torch_api.registration import register
from .version import __version__

__all__ = [
    "__version__",
    "ExportError",
    "Diagnosis",
    "Explanation",
    "Program",
    "Report",
    "annotate_trace",
    "clip_grad_norm_",
    "clip_grad_value_",
    "compile_graph",
    "compile_optimizer",
    "compile_step",
    "compile_update",
    "diagnose",
    "drop_captures",
    "explain",
    "export_joint",
    "export_step",
    "kernel_annotations",
    "load",
    "release_memory",
    "report",
]

register()
