"""Tracing leaves the random states as they were, that of cuDNN's dropout included.

PyTorch puts the states of its generators back behind a trace. On a GPU that also makes the next
LSTM, GRU or RNN seed cuDNN's dropout anew, from a number that it draws: other masks from then on
than in eager, where nothing was put back.

Private: Dynamo's `convert_frame` traces a function by `trace_frame`, and puts the states back.
Without it dropout of recurrent modules has other bits on a GPU behind each compilation.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..library.load import program_class
from .private_names import MissingName, convert_frame, trace_frame

logger = logging.getLogger("gravure")


def _devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """The default generators of all devices, and dropout, go on as if nothing had run inside."""
    devices = _devices()
    with recurrent_dropout_kept(devices), torch.random.fork_rng(devices=devices):
        yield


def states_of_generators() -> list[tuple[torch.Generator, torch.Tensor]]:
    """Of the default generators, for put_back()."""
    generators = [torch.default_generator]
    if devices := _devices():
        generators += [torch.cuda.default_generators[device] for device in devices]
    return [(generator, generator.get_state()) for generator in generators]


def put_back(states: list[tuple[torch.Generator, torch.Tensor]]) -> None:
    """They draw next what they would have drawn then."""
    with recurrent_dropout_kept(_devices()):
        for generator, state in states:
            generator.set_state(state)


@contextlib.contextmanager
def recurrent_dropout_kept(devices: list[int]) -> Iterator[None]:
    """Behind it cuDNN's dropout is seeded anew by the next recurrent module only if it would have
    been before: states of these GPUs may be put back inside."""
    take = program_class().take_dropout_restart
    anew = [take(device) for device in devices]
    try:
        yield
    finally:
        for device, was in zip(devices, anew, strict=True):
            if was:
                generator = torch.cuda.default_generators[device]
                generator.set_state(generator.get_state())
            else:
                take(device)


def keep_recurrent_dropout(is_ours: Callable[[Any], bool]) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    try:
        convert_frame.trace_frame = _keeping(trace_frame, is_ours)
    except (AttributeError, MissingName, ValueError) as error:
        logger.warning(
            "dropout of LSTM, GRU and RNN has other bits than eager's on a GPU behind each "
            "compilation with this PyTorch: %r",
            error,
        )


def _keeping(trace: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    backend = list(inspect.signature(trace).parameters).index("compiler_fn")

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("compiler_fn", args[backend] if backend < len(args) else None)
        devices = _devices()
        if not devices or not is_ours(given):
            return trace(*args, **kwargs)
        with recurrent_dropout_kept(devices):
            return trace(*args, **kwargs)

    return traced
