"""On a GPU: other threads and streams, the end of a process in every order, and wrong inputs."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
need_library()
pytestmark = pytest.mark.usefixtures("fresh")
WAITS = re.compile("Synchronize|cudaFree$|cudaMemcpy$")
ROOT = Path(__file__).resolve().parents[2]


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 256, device="cuda")
        self.second = nn.Linear(256, 8, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(F.gelu(self.first(x)), 0.1)).square().mean()


@contextmanager
def meanwhile(*works: Callable[[], None]) -> Iterator[None]:
    """Runs each work over and over on a thread of its own; raises what one of them raised."""
    stop = threading.Event()
    failures: list[BaseException] = []
    rounds = [0] * len(works)

    def repeat(i: int) -> None:
        try:
            while not stop.is_set():
                works[i]()
                rounds[i] += 1
        except BaseException as failure:  # whatever it is, the test must see it
            failures.append(failure)

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert all(rounds), rounds


def test_a_step_waits_for_nothing_that_the_program_does_not_ask_for(tmp_path: Path) -> None:
    """Two warm-ups, a capture and replays, each behind work that a wait would wait for."""
    module, x = Mlp(64), torch.randn(32, 64, device="cuda")
    gravure.export_step(module, (x,), tmp_path)

    def load() -> gravure.Program:
        program = gravure.load(tmp_path, "cuda")
        program.bind({name: p.detach() for name, p in module.named_parameters()})
        program.bind_saved(roles=("rng_state",))
        return program

    load().run((x,))  # libraries that are used for the first time call cudaFree(0)
    program = load()
    torch.cuda.synchronize()
    with torch.profiler.profile() as seen:
        for _ in range(6):
            torch.cuda._sleep(10_000_000)
            program.run((x,))
        assert not torch.cuda.current_stream().query()
    assert program.partition_states() == ["captured"]
    waits = [e.name for e in seen.events() if WAITS.search(e.name)]
    assert waits == ["cudaDeviceSynchronize"]  # the profiler's own, at its end


def pins_and_queries() -> None:
    """What a loader does: pinned memory, a copy, an event that is asked until it is done."""
    batch = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        there = batch.to("cuda", non_blocking=True)
        event.record()
    while not event.query():
        pass
    assert there[-1].item() == (1 << 16) - 1


def allocates() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        blocks = [torch.full((n << 10,), float(n), device="cuda") for n in (1, 7, 300, 5000)]
        assert [block[-1].item() for block in blocks] == [1.0, 7.0, 300.0, 5000.0]


def uncaptured_steps(folder: Path) -> Callable[[], None]:
    """A runtime of its own, all of whose operators run one by one."""
    program = linear(folder, uncaptured=True)
    x = torch.ones(3, 8, device="cuda")
    expected = bits(program.run((x,))[0])

    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            assert bits(program.run((x,))[0]) == expected

    torch.cuda.synchronize()
    return run


def train(model: nn.Module, step: Callable[[Tensor], Tensor], width: int, steps: int) -> list:
    torch.manual_seed(1)
    found = []
    for i in range(steps):
        model.zero_grad(set_to_none=True)
        x = torch.full((32, width), 0.01 * i, device="cuda")
        found.append(bits(step(x)))
        found += [bits(p.grad) for p in model.parameters()]
    return found


def test_threads_that_pin_allocate_and_compute_do_not_disturb_captures_nor_replays(
    tmp_path: Path,
) -> None:
    other = uncaptured_steps(tmp_path)
    for width in (32, 48, 64, 80):
        model = Mlp(width)

        def eager(x: Tensor, model: nn.Module = model) -> Tensor:
            loss = model(x)
            loss.backward()
            return loss.detach()

        expected = train(model, eager, width, 12)
        step = gravure.compile_step(model, options={"require_capture": True})
        with meanwhile(pins_and_queries, allocates, other):
            assert train(model, step, width, 12) == expected
        states = [g.programs[0].partitions for g in gravure.report().graphs]
        assert {"step": ["captured"]} in states


def test_a_reader_on_another_stream_sees_the_bits_of_a_result_that_it_holds() -> None:
    model = Mlp(512)
    step = gravure.compile_step(model)
    side = torch.cuda.Stream()
    x = torch.ones(4096, 512, device="cuda")
    reads, copies = [], []
    for _ in range(8):
        model.zero_grad(set_to_none=True)
        step(x)
        gradient = model.first.weight.grad
        copies.append(gradient.clone())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(3_000_000)
            reads.append(gradient.clone())
        gradient.record_stream(side)
        del gradient
    torch.cuda.synchronize()
    for read, copy in zip(reads, copies, strict=True):
        assert bits(read) == bits(copy)


PREAMBLE = f"""
import sys
sys.path.insert(0, {str(ROOT / "python")!r})
import torch, gravure
model = torch.nn.Linear(32, 8, device="cuda")
step = gravure.compile_step(lambda x: model(x).square().mean())
compiled = torch.compile(model, backend="gravure")
x = torch.ones(4, 32, device="cuda")
def run(times=6):
    for _ in range(times):
        model.zero_grad(set_to_none=True)
        loss = step(x)
        model.zero_grad(set_to_none=True)
        compiled(x).square().sum().backward()
    return loss
"""

ENDINGS = {
    "nothing is dropped": "held = [run(), *[p.grad for p in model.parameters()]]",
    "the steps go before the results": "held = run(); del step, compiled; import gc; gc.collect()",
    "the results go before the steps": "held = run(); del held; model.zero_grad()",
    "before anything ran": "",
    "in the middle of warm-up": "run(1)",
    "dynamo forgets first": "held = run(); torch._dynamo.reset()",
    "the cache is emptied last": "held = run(); del step, held; torch.cuda.empty_cache()",
    "a thread ran it": """
        import threading
        thread = threading.Thread(target=run); thread.start(); thread.join()
    """,
    "a child that never used it": """
        import os
        run()
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run()
    """,
    "workers of a loader": """
        run()
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
        assert sum(b[0].sum().item() for b in loader) == 63 * 32
        run()
    """,
}


def ended(script: str) -> subprocess.CompletedProcess[str]:
    # Python warns of any fork() once there are threads.
    quiet = ["-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *quiet, "-c", PREAMBLE + textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_without_a_word(ending: str) -> None:
    done = ended(ENDINGS[ending])
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exception_ends_a_process_with_its_own_traceback_alone() -> None:
    done = ended("held = run(); raise KeyError('the user wrote this')")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "KeyError: 'the user wrote this'"
    assert done.stderr.count("Error") == 1


def test_an_allocator_without_pools_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    done = ended("run()")
    assert done.returncode == 1
    assert "leave backend:cudaMallocAsync out of PYTORCH_ALLOC_CONF" in done.stderr


def linear(tmp_path: Path, **options: Any) -> gravure.runtime.Program:
    model = nn.Linear(8, 4, device="cuda")
    folder = tmp_path / "linear"
    x = torch.ones(3, 8, device="cuda")
    gravure.export_step(lambda x: model(x).square().mean(), (x,), folder)
    program = gravure.load(folder, "cuda", **options)
    program.bind_saved()
    return program


def test_wrong_inputs_are_named_and_leave_the_program_as_it_was(tmp_path: Path) -> None:
    program = linear(tmp_path)
    good = torch.ones(3, 8, device="cuda")
    expected = bits(program.run((good,))[0])
    wrong = {
        "cpu": torch.ones(3, 8),
        r"\[5, 8\]|5": torch.ones(5, 8, device="cuda"),
        "[Dd]ouble": torch.ones(3, 8, device="cuda", dtype=torch.double),
    }
    for _ in range(6):
        for message, value in wrong.items():
            with pytest.raises(RuntimeError, match=message):
                program.run((value,))
        assert bits(program.run((good,))[0]) == expected
    assert program.partition_states() == ["captured"]


def test_a_parameter_that_moved_is_read_where_it_lies_now(tmp_path: Path) -> None:
    program = linear(tmp_path)
    good = torch.ones(3, 8, device="cuda")
    for _ in range(4):
        program.run((good,))
    name = next(slot.name for slot in program.inputs() if slot.name.endswith("weight"))
    moved = torch.full((4, 8), 0.25, device="cuda")
    program.bind({name: moved})
    zero = torch.zeros(3, 8, device="cuda")
    losses = [program.run((good,))[0].item() for _ in range(4)]
    assert len(set(losses)) == 1
    assert losses[0] != program.run((zero,))[0].item()
    uncaptured = bits(program.run((good,))[0])
    moved.zero_()
    assert bits(program.run((good,))[0]) == bits(program.run((zero,))[0]) != uncaptured


def test_there_is_no_such_gpu(tmp_path: Path) -> None:
    linear(tmp_path)
    with pytest.raises(RuntimeError, match="no cuda:93"):
        gravure.load(tmp_path / "linear", "cuda:93")
