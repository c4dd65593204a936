"""Gravure: PyTorch training steps as programs that are cut, captured and replayed."""

from __future__ import annotations

from .errors import ExportError
from .export import export_joint, export_step
from .runtime import Program, load

__all__ = ["ExportError", "Program", "export_joint", "export_step", "load"]
