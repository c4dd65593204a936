"""Gravure: PyTorch training steps as programs that are cut, captured and replayed."""

from __future__ import annotations

from .backend import compile_graph
from .compile_step import compile_step
from .errors import ExportError
from .export import export_joint, export_step
from .report import Report, report
from .runtime import Program, load, release_memory

__all__ = [
    "ExportError",
    "Program",
    "Report",
    "compile_graph",
    "compile_step",
    "export_joint",
    "export_step",
    "load",
    "release_memory",
    "report",
]
