"""What Dynamo and torch.compile wrap a backend in, and what its options are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

# What wrappers of Dynamo's, torch.compile's, functools' and DDPOptimizer call what they wrap.
_WRAPPED = ("_torchdynamo_orig_backend", "compiler_fn", "func", "backend_compile_fn")


def layers(backend: Any) -> Iterator[Any]:
    """The wrappers, from the outside, and the backend."""
    while backend is not None:
        yield backend
        if isinstance(backend, MethodType):
            backend = backend.__self__
        found = (getattr(backend, name, None) for name in _WRAPPED)
        backend = next((inner for inner in found if inner is not None), None)


def with_keywords(backend: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """The same, each with the keywords that it will be called with: torch.compile, or a partial,
    gives them."""
    given: dict[str, Any] = {}
    for layer in layers(backend):
        keywords = getattr(layer, "kwargs", None) or getattr(layer, "keywords", None) or {}
        given = dict(keywords) | given
        yield layer, given
