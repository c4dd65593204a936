"""Inductor's draws by a seed (`fused_random`), and what they are without Inductor's code.

A graph draws its seeds once, from the generator; each draw follows from one of them, so that a
backward repeats the forward's. As operators of PyTorch's they do not look at the seed, and take
other numbers from the generator in each run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.fake_tensors import FakeTensor


def _random(size: list[int], seed: Tensor, mode: str, **_: Any) -> Tensor:
    draw = torch.rand if mode == "rand" else torch.randn
    generator = _generator(seed)
    return draw(size, generator=generator, device=seed.device, dtype=torch.float32)


def _randint(low: int, high: int, size: list[int], seed: Tensor) -> Tensor:
    return torch.randint(low, high, size, generator=_generator(seed), device=seed.device)


def _generator(seed: Tensor) -> torch.Generator | None:
    if isinstance(seed, FakeTensor):
        return None
    return torch.Generator(seed.device).manual_seed(int(seed))


_BY_SEED = {
    "prims.inductor_random.default": _random,
    "prims.inductor_randint.default": _randint,
}


def draws_by_seed(node: fx.Node) -> bool:
    """Whether it draws what its seed says."""
    return str(node.target) in _BY_SEED


def without_inductor(module: fx.GraphModule) -> fx.GraphModule:
    """The graph for who runs it as it is: a copy whose draws, too, follow from their seeds, by
    other numbers than Inductor's code would draw; itself where it has none."""
    if not any(map(draws_by_seed, module.graph.nodes)):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if draws_by_seed(node):
            node.target = _BY_SEED[str(node.target)]
    return fx.GraphModule(module, graph)
