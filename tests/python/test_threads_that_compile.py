"""Two threads compile at once: neither puts back what the other has put into PyTorch's tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch._functorch.config as functorch_config
import torch.nn as nn
from gravure.calls import compiled_graph
from gravure.torch_api import aot_autograd, eager_kernels
from gravure.torch_api.step_settings import frames_inside
from running import need_library
from torch import Tensor
from torch._dynamo.convert_frame import compile_lock
from training import Mlp

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def tables() -> list[Any]:
    operators = [*eager_kernels._overloads(), *eager_kernels._OURS]
    return [
        *[dict(op.py_kernels) for op in operators],
        functorch_config.donated_buffer,
        functorch_config.force_non_lazy_backward_lowering,
        torch._dynamo.config.allow_rnn,
        torch._dynamo.config.automatic_dynamic_shapes,
        torch._dynamo.config.assume_static_by_default,
        set(torch._dynamo.config.ignore_logging_functions),
        frames_inside(),
    ]


def test_kernels_are_exchanged_by_one_thread_at_a_time() -> None:
    before = tables()
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with eager_kernels.eager_kernels():
            entered.set()
            left.wait(20)

    thread = threading.Thread(target=other)
    with eager_kernels.eager_kernels():
        thread.start()
        assert not entered.wait(0.5)
    assert entered.wait(20)
    left.set()
    thread.join()
    assert tables() == before


def is_locked_for_others() -> bool:
    """Whether this thread holds Dynamo's lock."""
    found: list[bool] = []

    def look() -> None:
        free = compile_lock.acquire(blocking=False)
        if free:
            compile_lock.release()
        found.append(not free)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def noting(called: Callable[..., Any], seen: list[bool]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append(is_locked_for_others())
        return called(*args, **kwargs)

    return noted


def test_what_is_compiled_late_holds_dynamos_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    made = compiled_graph.ProgramMaker.make
    monkeypatch.setattr(aot_autograd, "aot_autograd", noting(aot_autograd.aot_autograd, seen))
    monkeypatch.setattr(compiled_graph.ProgramMaker, "make", noting(made, seen))
    model = Mlp()
    model.first.weight.requires_grad_(False)
    call = torch.compile(model, backend="gravure", dynamic=False)
    call(torch.randn(5, 8)).sum().backward()
    first = len(seen)
    model.first.weight.requires_grad_()
    call(torch.randn(5, 8)).sum().backward()  # differentiated once more
    second = len(seen)
    with torch.autograd.graph.save_on_cpu():
        call(torch.randn(5, 8)).sum().backward()
    third = len(seen)
    several = torch.compile(Mlp(), backend="gravure", dynamic=True)
    for rows in (5, 3, 4):
        several(torch.randn(rows, 8)).sum().backward()
    assert 0 < first < second < third < len(seen) - 2 and all(seen)


_looks: list[tuple[bool, bool]] = []


@torch.library.custom_op("beside::look", mutates_args=())
def look(x: Tensor) -> Tensor:
    """Notes whether Dynamo's settings are changed, and whether its lock is held."""
    _looks.append((torch._dynamo.config.allow_rnn, is_locked_for_others()))
    return x.clone()


@look.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


look.register_autograd(lambda ctx, gradient: gradient)


def test_a_second_attempt_at_a_step_holds_dynamos_lock() -> None:
    gru = nn.GRU(8, 8)
    step = gravure.compile_step(lambda x: look(gru(x)[0]).sum())
    _looks.clear()
    before = tables()
    for _ in range(3):
        step(torch.randn(2, 3, 8))
    assert tables() == before
    assert (True, True) in _looks and (True, False) not in _looks


def test_threads_that_compile_late_leave_the_tables_alone() -> None:
    before = tables()
    models = [Mlp(0.1) for _ in range(4)]
    # Not with dynamic=False, which leaves the settings changed behind two threads: PyTorch does.
    calls = [torch.compile(model, backend="gravure") for model in models]
    for model, call in zip(models, calls, strict=True):
        model.first.weight.requires_grad_(False)
        call(torch.randn(5, 8)).sum().backward()
    together = threading.Barrier(len(models))
    failed: list[BaseException] = []

    def unfreeze(i: int) -> None:
        try:
            models[i].first.weight.requires_grad_()
            together.wait()
            done = 0
            while done < 4:
                try:
                    result: Tensor = calls[i](torch.randn(5, 8))
                except RuntimeError as error:  # PyTorch's own, while another thread traces
                    if "symbolically trace a dynamo-optimized function" not in str(error):
                        raise
                    continue
                result.sum().backward()
                done += 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=unfreeze, args=(i,)) for i in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and tables() == before
    assert all(model.first.weight.grad is not None for model in models)


class Stay:
    """An operator that waits, once it is told to."""

    def __init__(self, name: str) -> None:
        self.entered, self.left = threading.Event(), threading.Event()
        self.waits = False

        @torch.library.custom_op(f"beside::{name}", mutates_args=())
        def stay(x: Tensor) -> Tensor:
            if self.waits:
                self.entered.set()
                self.left.wait(20)
            return x.clone()

        stay.register_fake(torch.empty_like)
        stay.register_autograd(lambda ctx, gradient: gradient)
        model = Mlp()
        self.step = gravure.compile_step(lambda x: stay(model(x)).sum())
        self.thread = threading.Thread(target=self.step, args=(torch.randn(5, 8),))

    def begin(self) -> None:
        self.waits = True
        self.thread.start()
        assert self.entered.wait(20)

    def end(self) -> None:
        self.left.set()
        self.thread.join()


class Broken(nn.Module):
    """Asks behind a graph break whether Dynamo compiles there."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + int(torch.compiler.is_compiling())


def test_steps_on_two_threads_leave_dynamos_settings_alone() -> None:
    stays = [Stay("first"), Stay("second")]
    for stay in stays:
        stay.step(torch.randn(5, 8))
    before = tables()
    for stay in stays:
        stay.begin()
    for stay in stays:
        stay.end()
    assert tables() == before
    # What others compile is compiled as before, behind its graph breaks, too.
    x = torch.ones(3)
    assert torch.equal(torch.compile(Broken(), backend="eager")(x), x * 2 + 1)
