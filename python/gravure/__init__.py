"""Gravure: PyTorch training steps as programs that are cut, captured and replayed."""

from __future__ import annotations

from .backend import compile_graph
from .errors import ExportError
from .export import export_joint, export_step
from .runtime import Program, load

__all__ = ["ExportError", "Program", "compile_graph", "export_joint", "export_step", "load"]
