"""Trains a model with Gravure where one private name of PyTorch's is missing: a process for each.

    python tests/python/without_names.py NAME...

Prints a line each: the name, whether eager's bits came out, and what was logged. Each process is
forked where torch is imported already.
"""

from __future__ import annotations

import importlib.machinery
import json
import logging
import os
import sys
import traceback
from typing import Any

import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch._inductor.compile_fx

_TABLE = "gravure.torch_api.private_names"


class _Damaged(importlib.machinery.SourceFileLoader):
    """Loads the table, and renames what a name stands for."""

    gone = ""

    def exec_module(self, module: Any) -> None:
        super().exec_module(module)
        row = module.NAMES[self.gone]
        object.__setattr__(row, "name", f"{row.name}_gone")


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if name == _TABLE and spec is not None and spec.origin is not None:
            spec.loader = _Damaged(name, spec.origin)
        return spec


def train(gone: str) -> list[str]:
    """What is logged. Raises AssertionError for other bits than eager's."""
    _Damaged.gone = gone
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gravure").addHandler(handler)
    import gravure

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3))
    x = torch.randn(2, 4)

    def bits(run: Any) -> list[Any]:
        torch.manual_seed(0)
        model.zero_grad()
        loss = run(x).square().sum()
        loss.backward()
        return [loss.item(), *[p.grad.tolist() for p in model.parameters()]]

    expected = bits(model)
    compiled = torch.compile(model, backend=gravure.compile_graph)
    for _ in range(3):
        assert bits(compiled) == expected, "other bits than eager's"
    return said


def warm_up() -> None:
    """Has the children find imported what Dynamo and AOTAutograd import when they first compile.

    Without a gradient: autograd's threads cannot be forked.
    """
    with torch.no_grad():
        torch.compile(torch.sin, backend="aot_eager")(torch.randn(2, 4))
    torch._dynamo.reset()


def main() -> None:
    warm_up()
    for name in sys.argv[1:]:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                found = {"name": name, "failed": "", "said": train(name)}
            except BaseException:
                found = {"name": name, "failed": traceback.format_exc(), "said": []}
            with os.fdopen(write, "w") as pipe:
                pipe.write(json.dumps(found))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            print(pipe.read(), flush=True)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
