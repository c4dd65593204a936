"""Whose kernels a replay runs, for traces of `torch.profiler`: which call, line and module.

A graph's kernels come without Python, so a trace has nothing to name them by but a number that
CUPTI gives each node of a graph. This says what each number stands for.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .calls.live_graphs import reported
from .page.file import replace_file
from .runtime import loaded_programs

_NODE_ID = "graph node id"  # PyTorch's, in a trace's event


def kernel_annotations() -> dict[int, list[dict[str, Any]]]:
    """By the number of a graph's node, what captured it: one dict with `module_fqn`, `source`,
    `operator`, `entry` and `partition`, those that are known.

    For every capture that is alive, so call it before programs are dropped. It is what
    `prof.export_chrome_trace(path, cuda_graph_annotations=...)` takes from torch 2.15 on. Empty
    without CUPTI, which comes with PyTorch for CUDA.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    for program in _programs():
        for call in json.loads(program.traced_calls_json()):
            named = {
                "module_fqn": call["module"],
                "source": call["source"],
                "operator": call["operator"],
                "entry": call["entry"],
            }
            told = {key: value for key, value in named.items() if value}
            told["partition"] = call["partition"]
            for number in range(call["first"], call["first"] + call["count"]):
                found[number] = [told]
    return found


def annotate_trace(
    path: str | os.PathLike[str], annotations: Mapping[int, Any] | None = None
) -> int:
    """Writes into a trace of `torch.profiler` what its graphs' kernels belong to.

    `path` is what `export_chrome_trace` wrote, `.json` or `.json.gz`; the file is replaced, or left
    as it is where that fails. `annotations`: those of kernel_annotations(), taken earlier. Returns
    how many events were given names.
    """
    file = Path(path)
    zipped = file.suffix == ".gz"
    raw = file.read_bytes()
    try:
        trace = json.loads(gzip.decompress(raw) if zipped else raw)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
    except (ValueError, KeyError, EOFError, OSError, zlib.error) as error:
        raise ValueError(
            f"{file} is no trace: annotate_trace takes a file that prof.export_chrome_trace wrote"
        ) from error
    known = kernel_annotations() if annotations is None else annotations
    named = sum(_name(event, known) for event in events)
    if named:
        text = json.dumps(trace).encode()
        content = gzip.compress(text) if zipped else text
        replace_file(file, content, stat.S_IMODE(file.stat().st_mode))
    return named


def _name(event: Any, known: Mapping[int, Any]) -> bool:
    arguments = event.get("args") if isinstance(event, dict) else None
    if not isinstance(arguments, dict) or _NODE_ID not in arguments:
        return False
    found = known.get(arguments[_NODE_ID])
    for each in found or ():
        arguments.update(each if isinstance(each, dict) else {"name": str(each)})
    return bool(found)


def _programs() -> Iterator[Any]:
    """Of the library's class."""
    for graph in reported():
        made = (instance.program for instance in graph.all_instances())
        yield from (program for program in made if program is not None)
    yield from loaded_programs()
