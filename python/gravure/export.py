"""Exports training steps as programs: `export_step` and `export_joint`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .calls.written_again import warn_of_repeated
from .graphs.names import tied_names
from .graphs.trace import trace
from .graphs.traced_graphs import TracedGraphs
from .text.entries import joint_entries, step_entry
from .text.fx_import import EntryWriter
from .text.program_text import HEADER
from .text.saved_inputs import save_inputs
from .torch_api.dispatch import not_traced

PROGRAM_FILE = "program.gv"
INPUTS_FILE = "inputs.pt"


@not_traced
def export_step(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    *,
    eager_rng: bool = False,
    is_compiling: bool = False,
) -> Path:
    """Writes the training step of `fn(*args)`, forward and backward, as a program of one entry.

    `fn` returns the loss, or a tuple that begins with it. It may be a module, and may use modules
    and tensors that it closes over. The entry `step` returns the loss, the gradient of each
    parameter that the loss reaches, what `fn` wrote into (running statistics) and what else it
    returned. Nothing of the caller's is run or changed.

    Writes `path/program.gv`, the program, and `path/inputs.pt`, the value of each input, and
    returns `path`. `eager_rng` makes checkpointed random operators on CUDA repeat eager's own
    draws, for comparisons; such a program reads the random state on the host. `is_compiling` is
    what code is told that asks whether it is compiled.

    Raises ExportError, which names the node, the reason and a remedy, and writes nothing; TypeError
    for arguments that are no tuple.
    """
    _check_arguments(args)
    traced = trace(fn, args, step=True, paired_rng=not eager_rng, is_compiling=is_compiling)
    warn_of_repeated(traced, traced.name)
    step = step_entry(traced)
    return _save(fn, traced, path, {"step": (step.text(), step.writer)})


@not_traced
def export_joint(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    *,
    eager_rng: bool = False,
    is_compiling: bool = False,
) -> Path:
    """Like `export_step`, with `forward` and `backward` as two entries of one program.

    `backward` takes the gradient of each differentiable output (`tangent`) and what `forward` kept
    for it (`saved`). The first result need not be a scalar.
    """
    _check_arguments(args)
    traced = trace(fn, args, step=False, paired_rng=not eager_rng, is_compiling=is_compiling)
    warn_of_repeated(traced, traced.name)
    return _save(fn, traced, path, joint_entries(traced))


def _check_arguments(args: Any) -> None:
    if not isinstance(args, (tuple, list)):  # a tensor's rows would be taken for arguments
        kind = type(args).__name__
        raise TypeError(f"args: expected a tuple of arguments, as (x,), not a {kind}")


def _save(
    fn: Callable[..., Any],
    traced: TracedGraphs,
    path: str | os.PathLike[str],
    entries: dict[str, tuple[str, EntryWriter]],
) -> Path:
    """Writes both files, or neither."""
    lines = [HEADER, f"# {traced.name}, exported with torch {torch.__version__}"]
    for name, others in tied_names(fn, traced.arguments).items():
        lines.append(f"# {name} is also {', '.join(others)}")
    text = "\n".join(lines) + "\n" + "\n".join(text for text, _ in entries.values())
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    program, inputs = folder / PROGRAM_FILE, folder / INPUTS_FILE
    parts = [f.with_name(f".{f.name}.{os.getpid()}") for f in (program, inputs)]
    try:
        parts[0].write_text(text)
        specs = {name: [s for s, _, _ in writer.inputs] for name, (_, writer) in entries.items()}
        save_inputs(specs, parts[1])
        for part, final in zip(parts, (program, inputs), strict=True):
            os.replace(part, final)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return folder
