"""A training step of Inductor's kernels as one CUDA graph that is captured by hand: the limit.

Each way takes a module that returns the loss, and one batch. A step copies its batch into buffers
of the graph and replays it; loss and gradients stay in the graph's own memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

Run = Callable[[Tensor, Tensor], Tensor]


def two_graphs(model: nn.Module, ids: Tensor, targets: Tensor) -> Run:
    """torch.compile's forward and backward, cut by AOTAutograd's min-cut, with autograd between."""
    compiled = torch.compile(model)

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = compiled(ids, targets)
        loss.backward()
        return loss.detach()

    return _captured(step, ids, targets)


def joint(model: nn.Module, ids: Tensor, targets: Tensor) -> Run:
    """Inductor on the joint graph as it was traced: nothing is cut, and nothing computed again."""
    names = [name for name, _ in model.named_parameters()]
    parameters = [p for _, p in model.named_parameters()]
    flat = [p.detach() for p in parameters]

    def differentiated(*args: Tensor) -> list[Tensor]:
        own = [a.requires_grad_() for a in args[:-2]]
        named = dict(zip(names, own, strict=True))
        loss = torch.func.functional_call(model, named, args[-2:])
        return [loss, *torch.autograd.grad(loss, own)]

    module = make_fx(differentiated, tracing_mode="fake")(*flat, ids, targets)
    functional = torch.func.functionalize(module)
    table = select_decomp_table()
    module = make_fx(functional, decomposition_table=table, tracing_mode="fake")(
        *flat, ids, targets
    )
    module.graph.eliminate_dead_code()
    module.recompile()
    examples = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    with tracing(TracingContext(examples[0].fake_mode)):
        run: Any = compile_fx_inner(module, examples, is_inference=True)

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            loss, *gradients = run([*flat, ids, targets])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss

    return _captured(step, ids, targets)


def _captured(step: Run, ids: Tensor, targets: Tensor) -> Run:
    if not ids.is_cuda:
        return step
    held = ids.clone(), targets.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(*held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        loss = step(*held)

    def run(ids: Tensor, targets: Tensor) -> Tensor:
        held[0].copy_(ids)
        held[1].copy_(targets)
        graph.replay()
        return loss

    return run


WAYS = {"one graph": two_graphs, "one joint graph": joint}
