"""Errors of Dynamo's and AOTAutograd's as ours: first their reason, then their first hint.

PyTorch's words are read, and may be others in its next release; a reason that is not known is
handed on as it is.

Private: `GuardOnDataDependentSymNode` is the error of a branch on data, whose words name the line.
Without it such an error has no remedy.
"""

from __future__ import annotations

import re

from ..errors import ExportError
from . import numpy_draws
from .effects_alone import to_the_call
from .private_names import GuardOnDataDependentSymNode
from .whether_compiled import REMEDY, asks


def first_line(error: Exception) -> str:
    """Of what it says; its type where it says nothing, as a bare assert of PyTorch's."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def refusal(error: Exception, name: str) -> ExportError:
    """Dynamo's or AOTAutograd's error as ours: first its reason, then its first hint."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ExportError):
            return cause
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    remedy = next((x[5:].strip() for x in lines if x.startswith("Hint:")), "")
    explanation = next((x[12:].strip() for x in lines if x.startswith("Explanation:")), "")
    stack = to_the_call(getattr(error, "real_stack", None) or ())
    location = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else ""
    if isinstance(error, GuardOnDataDependentSymNode):
        # It knows the line by its words alone.
        caused = re.search(r"^Caused by: \((.+?:\d+) in ", str(error), re.MULTILINE)
        location = location or (caused.group(1) if caused else "")
    branches = reason.startswith("Data-dependent") or "data-dependent expression" in reason
    if isinstance(error, GuardOnDataDependentSymNode) or branches:
        remedy = (
            "torch.where(condition, a, b) instead of a branch on values, or "
            'torch.compile(backend="gravure"), which breaks the graph at such a branch'
        )
        if stack and asks(stack[-1]):
            remedy += f", or {REMEDY}"
    what = f"{reason}: {explanation}" if explanation else f"{type(error).__name__}: {reason}"
    if remedy and remedy in what:  # said, and no remedy where the gradient is wanted
        remedy = 'torch.compile(backend="gravure"), which breaks the graph there'
    if reason.endswith(" raised:") and len(lines) > 1:  # the backend, which is Gravure
        what, remedy = lines[1], remedy or "report it with its traceback: it looks like our fault"
    if "Tensor.backward()" in reason:
        what = "it calls backward() itself"
        remedy = "leave out backward() and the optimizer, which run with and after the step"
    if "Generator" in str(error):
        what, remedy = "it draws from a Generator of its own", "draw from the default generator"
    if 'set the storage of a tensor on device "meta"' in str(error):
        what = "an nn.LSTM, nn.GRU or nn.RNN under autocast on a GPU: cuDNN asks for addresses"
        remedy = 'use torch.compile(backend="gravure"), which cuts the graph there'
    if numpy_draws.SETTING in reason:
        what, remedy = numpy_draws.WHY, numpy_draws.REMEDY
    if "Module-level backwards hooks" in reason:
        what = "a module has backward hooks, which autograd calls"
        remedy = 'remove them, or use torch.compile(backend="gravure"), which runs them'
    if location.rpartition(":")[0].endswith("/torch/nn/parallel/distributed.py"):
        what = "it calls a DistributedDataParallel, whose gradients hooks of autograd average"
        remedy = 'use torch.compile(backend="gravure"), which runs them'
    if "/torch/distributed/fsdp/_fully_shard/" in location:
        what = (
            "it calls a module of fully_shard, whose hooks gather parameters and scatter gradients"
        )
        remedy = (
            'call .compile(backend="gravure") on its layers, and gravure.compile_optimizer on the '
            "optimizer, in a loop of your own"
        )
    return ExportError(name, what, remedy or "move this out of the step", location)
