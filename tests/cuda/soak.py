"""Minutes of everything at once on a GPU: `python3 tests/cuda/soak.py [--minutes 5] [--seed 0]`.

Threads train models on streams of their own, each step compared with eager's in bits, while others
capture graphs, with and without compiled steps in them, replay PyTorch's own, draw, allocate,
synchronise, empty caches, release memory, drop programs and collect garbage. By the seed, one
thread waits for the whole GPU, in the place of those that capture, since PyTorch forbids it beside
each other; and the process ends with an error that its GPU does not recover from, behind it all or
in the middle. `--expandable` turns PyTorch's expandable segments on; half of the processes have
them otherwise. Prints a line of figures; exit status 0 if nothing differed and every process ended
as it was to.

Under compute-sanitizer: `--within compute-sanitizer --seconds 60`, which puts that before each
process' command.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

_LOST = 7  # the status of a process that lost its GPU on purpose


class Soak:
    """One process: threads that go on until it is time, and what they counted."""

    def __init__(self, seed: int, seconds: float, lost: bool) -> None:
        self.random = random.Random(seed)
        self.begun = time.monotonic()
        self.end = self.begun + seconds
        self.waits = seed % 3 == 2
        self.loses = lost and seed % 4 == 3  # in the middle
        self.lost = threading.Event()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.folder = Path(tempfile.mkdtemp())

    def going(self) -> bool:
        return time.monotonic() < self.end and not self.failures

    def repeat(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                while self.going():
                    work()
                    self.counts[name] += 1
            except BaseException as failure:  # whatever it is, the soak failed
                import traceback

                if self.lost.is_set() and isinstance(failure, (RuntimeError, AssertionError)):
                    self.counts["errors behind a lost GPU"] += 1
                    return

                self.failures.append(f"{name}: {failure!r}\n{traceback.format_exc()}")

        thread = threading.Thread(target=run, name=name)
        thread.start()
        return thread

    def run(self) -> None:
        import foreign_users
        import gravure
        import torch

        model, x = foreign_users.net(), foreign_users.inputs()
        foreign_users.warmed(model, x)
        gravure.export_step(lambda x: model(x).square().mean(), (x,), self.folder)
        drawing = foreign_users.net(p=0.2)
        gravure.export_step(lambda x: drawing(x).square().mean(), (x,), self.folder / "draws")
        torch.cuda.synchronize()
        works = {f"programs {i}": self.program() for i in range(2)} | {
            "models": self.model(),
            "draws": self.draws(),
            "dropouts": self.dropout(),
            "allocations": self.allocate,
            "calls": self.call,
        }
        if self.waits:
            works["waits"] = self.wait
        else:
            works["captures"] = foreign_users.captures_in_a_loop("thread_local")
            works["insides"] = self.inside()
        torch.cuda.synchronize()
        threads = [self.repeat(name, work) for name, work in works.items()]
        if self.loses:
            time.sleep(0.7 * (self.end - self.begun))
            self.lost.set()
            foreign_users.assert_fails_on_device()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive(), f"{thread.name} does not end"

    def program(self) -> Callable[[], None]:
        """Makes a program on a stream of its own, runs it, holds some results, drops it."""
        import gravure
        import torch
        from foreign_users import inputs
        from running import bits

        x, expected = inputs(), None
        torch.cuda.synchronize()

        def work() -> None:
            nonlocal expected
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                program = gravure.load(self.folder, "cuda")
                program.bind_saved()
                held = []
                for _ in range(self.random.randint(3, 12)):
                    results = program.run((x,))
                    found = [bits(result) for result in results]
                    assert expected is None or found == expected
                    expected = found
                    held.append(self.random.choice(results))
                    if self.random.random() < 0.3:
                        held.clear()
                if self.random.random() < 0.3:
                    program.circle = program  # for the garbage collector
                del program
                assert all(bits(each) in expected for each in held)

        return work

    def model(self) -> Callable[[], None]:
        """Compiles, trains and drops a model, on this thread and autograd's."""
        import torch
        from foreign_users import inputs, net, ours, step

        def work() -> None:
            seed, width = self.random.randint(0, 9), self.random.choice([32, 48, 64])
            x = inputs(width, self.random.choice([8, 32]))
            mine, plain = net(width, seed=seed), net(width, seed=seed)
            optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (mine, plain)]
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                compiled = ours(mine)
                for _ in range(self.random.randint(2, 8)):
                    assert step(mine, compiled, x) == step(plain, plain, x)
                    for optimizer in optimizers:
                        optimizer.step()
                torch.cuda.current_stream().synchronize()
            del mine, compiled, optimizers
            torch._dynamo.reset()

        return work

    def draws(self) -> Callable[[], None]:
        """Draws from a generator of its own, which no capture of others may move."""
        import torch
        from running import bits

        def drawn(seed: int) -> list[Any]:
            generator = torch.Generator("cuda").manual_seed(seed)
            return [bits(torch.rand(n, device="cuda", generator=generator)) for n in (7, 4096)]

        expected = [drawn(seed) for seed in range(8)]

        def work() -> None:
            seed = self.random.randint(0, 7)
            assert drawn(seed) == expected[seed]

        return work

    def dropout(self) -> Callable[[], None]:
        """A program that draws from the default generator, as others may: nothing is compared."""
        import gravure
        import torch
        from foreign_users import inputs

        x = inputs()
        torch.cuda.synchronize()

        def work() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                program = gravure.load(self.folder / "draws", "cuda")
                program.bind_saved()
                for _ in range(8):
                    try:
                        results = program.run((x,))
                    except RuntimeError as error:  # PyTorch's, beside a capture (law 12)
                        if "outside graph capture" not in str(error):
                            raise
                        self.counts["draws that PyTorch refused"] += 1
                    else:
                        assert all(each.isfinite().all() for each in results)

        return work

    def inside(self) -> Callable[[], None]:
        """Captures a program's step in a graph of its own, and replays that."""
        import gravure
        import torch
        from foreign_users import inputs
        from running import bits

        # Of those without a priority PyTorch gives each out again and again.
        x, stream = inputs(), torch.cuda.Stream(priority=-1)
        program = gravure.load(self.folder, "cuda")
        program.bind_saved()
        pool, graphs = torch.cuda.graph_pool_handle(), []
        torch.cuda.synchronize()
        expected = None

        def work() -> None:
            nonlocal expected
            with torch.cuda.stream(stream):
                for _ in range(1 if expected else 5):  # cuBLAS wants a handle for each thread
                    found = [bits(each) for each in program.run((x,))]
                    assert expected is None or found == expected
                    expected = found
                graph = torch.cuda.CUDAGraph()
                del graphs[1:]
                graphs.append(graph)
                graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    results = program.run((x,))
                finally:
                    graph.capture_end()
                graph.replay()
                assert [bits(each) for each in results] == expected

        return work

    def wait(self) -> None:
        """For the whole GPU, which breaks captures of others; they must come again."""
        import torch

        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            if "captur" not in str(error):
                raise
        time.sleep(self.random.random() * 0.02)

    def allocate(self) -> None:
        import torch

        with torch.cuda.stream(torch.cuda.Stream()):
            sizes = [self.random.randint(1, 1 << 22) for _ in range(8)]
            blocks = [torch.full((n,), float(n % 97), device="cuda") for n in sizes]
            assert [b[-1].item() for b in blocks] == [float(n % 97) for n in sizes]

    def call(self) -> None:
        """What any thread may call at any time."""
        import gravure
        import torch

        calls: list[Callable[[], Any]] = [
            gc.collect,
            torch.cuda.empty_cache,
            gravure.release_memory,
            gravure.report,
            torch.cuda.memory_stats,
            torch.cuda.current_stream().synchronize,
            torch.cuda.memory_snapshot,
        ]
        chosen = self.random.choice(calls)
        try:
            chosen()
        except RuntimeError as error:  # PyTorch empties no cache beside a capture of PyTorch's
            if chosen is not torch.cuda.empty_cache or "captures_underway" not in str(error):
                raise
        time.sleep(self.random.random() * 0.05)


def process(seed: int, seconds: float, lost: bool) -> None:
    soak = Soak(seed, seconds, lost)
    soak.run()
    print(json.dumps(soak.counts), flush=True)
    for failure in soak.failures:
        print(failure, file=sys.stderr)
    if soak.failures:
        sys.exit(1)
    if lost:
        import foreign_users

        if not soak.loses:
            foreign_users.assert_fails_on_device()
        gc.collect()
        sys.exit(_LOST)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="of one process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--expandable", action="store_true")
    parser.add_argument("--within", default="", help="a command that runs each process")
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        seed, seconds, lost = options.process
        process(int(seed), float(seconds), lost == "lost")
        return 0
    begun, total, bad, seed = time.monotonic(), Counter[str](), 0, options.seed
    while seed == options.seed or time.monotonic() - begun < 60 * options.minutes:
        lost = seed % 2 == 1
        expandable = options.expandable or seed % 4 >= 2
        variables = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if expandable else {}
        how = [str(seed), str(options.seconds), "lost" if lost else "kept"]
        done = subprocess.run(
            [*shlex.split(options.within), sys.executable, __file__, "--process", *how],
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )
        total["processes"] += 1
        wanted = _LOST if lost else 0
        if done.returncode != wanted:
            bad += 1
            print(f"process {' '.join(how)} {variables} ended with {done.returncode}, not {wanted}")
            print((done.stdout + done.stderr)[-4000:])
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            for name, count in json.loads(line).items():
                total[name.rstrip(" 0123456789")] += count
        seed += 1
    minutes = (time.monotonic() - begun) / 60
    figures = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    print(f"{minutes:.1f} minutes: {figures}; {bad} processes failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
