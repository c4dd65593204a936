"""Where `nn.Module` keeps its members, and what wraps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

# The dictionaries of a module's members, and what torch.compile's wrapper calls the module, as they
# stand in Dynamo's sources. Without them names in programs have more words.
MEMBERS = frozenset({"_modules", "_parameters", "_buffers"})
BUFFERS = "_buffers"
WRAPPED = "_orig_mod"


def tables_of(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """The dictionaries of its parameters, buffers and modules, to be watched.

    Without them parameters would be looked up in each call.
    """
    return module._parameters, module._buffers, module._modules


def uncompiled(compiled: Any) -> Any:
    """The module or function inside of what torch.compile returned; itself if it is none.

    Without it a compiled model would have to be passed by the name of the plain one.
    """
    inner = getattr(compiled, WRAPPED, None)
    return inner or getattr(compiled, "_torchdynamo_orig_callable", None) or compiled


def called_of(fn: Callable[..., Any]) -> Callable[..., Any] | None:
    """What is called with the arguments of `fn`: of a module its `forward`; None where hooks of the
    module's may give it others.

    Without the name of the hooks a module that has some is taken for one without.
    """
    if not isinstance(fn, nn.Module) or type(fn).__call__ is not nn.Module.__call__:
        return fn
    return None if getattr(fn, "_forward_pre_hooks", None) else fn.forward
