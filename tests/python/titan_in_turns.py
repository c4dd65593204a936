"""For `--experimental.custom_import`: another pass takes turns with the chosen one, in one process.

Processes that are started one after the other differ by a tenth in speed. Here each turn of TURN
(20) steps has either Gravure's graphs or those of OTHER: `own`, torchtitan's own `cudagraph`, or
`none`. Every rank writes the microseconds of its steps, by turns, where TURNS says.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import titan_on_cores  # noqa: F401  gives this rank its processors
import torchtitan.experiments.compiler_toolkit.graph_utils as graph_utils
from torchtitan.train import Trainer

TURN = int(os.environ.get("TURN", "20"))

if os.environ.get("MESHES_OF_ONE"):
    importlib.import_module("titan_meshes_of_one")

_graphs: list[Any] = []  # ours and the other's, when each has been built
_turns: list[list[float]] = []
_train_step, _forward = Trainer.train_step, graph_utils.CompiledModule.forward


def _train_timed(trainer: Any, batches: Any) -> Any:
    if not _turns or len(_turns[-1]) == TURN:
        _turns.append([])
    begun = time.perf_counter()
    try:
        return _train_step(trainer, batches)
    finally:
        _turns[-1].append(1e6 * (time.perf_counter() - begun))


def _passes_of_the_other() -> list[Any]:
    if os.environ.get("OTHER", "own") == "none":
        return []
    # Not imported before the trainer has chosen its device: it makes a pool on the current one.
    return [importlib.import_module(f"{graph_utils.__package__}.passes").cudagraph_pass]


def _forward_in_turns(module: Any, *args: Any, **kwargs: Any) -> Any:
    which = (len(_turns) - 1) % 2
    first = which == len(_graphs)  # the graph is built then
    if first and which == 1:
        compilers = graph_utils.make_compiler_with_passes(_passes_of_the_other())
        build = module.joint_graph_builder
        other = dict(zip(("fw_compiler", "bw_compiler"), compilers, strict=True))
        module.joint_graph_builder = functools.partial(
            build.func, *build.args, **build.keywords | other
        )
    module.joint_graph_module = None if first else _graphs[which]
    results = _forward(module, *args, **kwargs)
    if first:
        _graphs.append(module.joint_graph_module)
    return results


def _write() -> None:
    Path(f"{os.environ['TURNS']}.{os.environ['RANK']}").write_text(json.dumps(_turns))


Trainer.train_step = _train_timed
graph_utils.CompiledModule.forward = _forward_in_turns
_close = Trainer.close


def _close_all(trainer: Any) -> Any:
    _graphs.clear()  # before the process group is destroyed
    return _close(trainer)


Trainer.close = _close_all
atexit.register(_write)
