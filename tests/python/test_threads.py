"""Threads with one program, steps inside of steps, and memory whose end needs Python's lock."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gravure
import gravure_native
import pytest
import torch
from running import need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


def _run(script: str) -> None:
    """In a process of its own, which is ended where it hangs, and shows what its threads did."""
    path = {"PYTHONPATH": str(Path(gravure_native.__file__).parent)}
    begin = "import faulthandler; faulthandler.dump_traceback_later(100, exit=True)\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(script)],
        env=os.environ | path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.strip().endswith("done"), done.stderr[-4000:]


def test_an_operator_runs_the_program_that_it_is_part_of() -> None:
    calls = []

    @torch.library.custom_op("gravure_threads::again", mutates_args=())
    def again(x: Tensor, depth: int) -> Tensor:
        calls.append(depth)
        return x.clone() if depth == 0 else compiled(x.clone(), depth - 1)

    @again.register_fake
    def _(x: Tensor, depth: int) -> Tensor:
        return torch.empty_like(x)

    weight = torch.randn(4)

    def call(x: Tensor, depth: int) -> Tensor:
        return again(x * weight, depth) + 1

    def eager(x: Tensor, depth: int) -> Tensor:
        return (x * weight if depth == 0 else eager(x * weight, depth - 1)) + 1

    compiled = torch.compile(call, backend="gravure", dynamic=False)
    for _ in range(6):
        for depth in (0, 2, 1):
            x = torch.randn(4)
            assert torch.equal(compiled(x, depth), eager(x, depth))
    assert len(calls) >= 6 * (1 + 3 + 2)


def test_a_step_inside_of_itself_is_refused() -> None:
    inside: list[Exception] = []
    # An operator that waits for a backward of its own calls as that does: autograd is on there.
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    @torch.library.custom_op("gravure_threads::step_again", mutates_args=())
    def step_again(x: Tensor) -> Tensor:
        if compiling:
            return x.clone()
        try:
            with torch._C._ForceDispatchKeyGuard(*keys), torch.enable_grad():
                compiled(x)
        except RuntimeError as error:
            inside.append(error)
        return x.clone()

    @step_again.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    weight = torch.nn.Parameter(torch.randn(4))

    def objective(x: Tensor) -> Tensor:
        return (step_again(x) * weight).square().sum()

    compiled = gravure.compile_step(objective)
    compiling = True
    compiled(torch.randn(4))
    for _ in range(8):
        weight.grad, x = None, torch.randn(4)
        compiling = False
        compiled(x)
        compiling = True
        found, weight.grad = weight.grad, None
        objective(x).backward()
        assert found is not None and torch.equal(found, weight.grad)
    assert len(inside) >= 8
    assert all("inside of itself" in str(error) for error in inside)


def test_threads_train_one_compiled_model() -> None:
    _run(
        """
        import threading, torch, gravure
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
        compiled = torch.compile(model, backend="gravure")
        compiled(torch.randn(4, 8)).sum().backward()
        wrong = []

        def train(seed):
            generator = torch.Generator().manual_seed(seed)
            for _ in range(60):
                x = torch.randn(4, 8, generator=generator).requires_grad_()
                (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
                (expected,) = torch.autograd.grad(model(x).square().sum(), x)
                if not torch.equal(found, expected):
                    wrong.append(seed)

        threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not wrong, wrong
        print("done")
        """
    )


def test_memory_whose_end_needs_pythons_lock() -> None:
    """A program may be the last to hold what NumPy lent, while another thread has Python's lock."""
    _run(
        """
        import gc, sys, threading, numpy, torch, gravure
        sys.setswitchinterval(1e-5)
        stop = threading.Event()

        class Lent(numpy.ndarray):
            def __del__(self):
                sum(range(100))

        def lent():
            return torch.from_numpy(numpy.random.randn(64).astype("f4").view(Lent))

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.mean = lent()
            def forward(self, x):
                self.mean = 0.5 * self.mean + x
                return (self.mean * x).tanh()

        def train(own):
            while not stop.is_set():
                net = Net()
                call = torch.compile(net, backend="gravure") if own else shared
                for _ in range(8):
                    call(lent())

        shared = torch.compile(lambda x: (x * 2).tanh(), backend="gravure")
        shared(lent())

        def disturb():
            while not stop.is_set():
                gravure.release_memory()
                gc.collect()
                str(gravure.report())

        threads = [threading.Thread(target=train, args=(False,)) for _ in range(2)]
        threads += [threading.Thread(target=disturb)]
        for thread in threads: thread.start()
        train_one = threading.Timer(6, stop.set)
        train_one.start()
        for thread in threads: thread.join()
        print("done")
        """
    )


def test_a_program_that_ends_beside_its_steps() -> None:
    _run(
        """
        import threading, torch, gravure, tempfile
        model = torch.nn.Linear(8, 8)
        path = gravure.export_step(lambda x: model(x).square().mean(), (torch.randn(4, 8),),
                                   tempfile.mkdtemp())
        for _ in range(10):
            program = gravure.load(path)
            program.bind_saved()
            steps, errors = [], []

            def run():
                try:
                    while True:
                        program.run((torch.randn(4, 8),))
                        steps.append(1)
                except RuntimeError as error:
                    errors.append(str(error))

            thread = threading.Thread(target=run)
            thread.start()
            while len(steps) < 20:
                pass
            program.shutdown()
            thread.join()
            assert "was shut down" in errors[0], errors
        print("done")
        """
    )


def test_what_python_raises_to_end_a_program_ends_the_step() -> None:
    raised: list[BaseException] = []

    @torch.library.custom_op("gravure_threads::raises", mutates_args=())
    def raises(x: Tensor) -> Tensor:
        if raised:
            raise raised.pop()
        return x.clone()

    @raises.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    compiled = torch.compile(lambda x: raises(x * 2) + 1, backend="gravure")
    for kind in (KeyboardInterrupt, SystemExit, ValueError):
        for _ in range(4):  # warm-ups, a capture, replays
            x = torch.randn(4)
            raised.append(kind())
            with pytest.raises(kind):
                compiled(x)
            raised.clear()
            assert torch.equal(compiled(x), x * 2 + 1)
