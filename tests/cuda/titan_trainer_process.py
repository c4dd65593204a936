"""One run of torchtitan 0.3's graph trainer, as a program: its arguments are torchtitan's.

`$FOUND` gets what the first rank found, as JSON, `$FOUND.1` the second. With `$TURNS`
(`ours,own,none`, or one of them) graphs of each take turns of `$TURN` steps in the one process, for
`$TURNS_SECONDS`; else each step's bits are digested. Where there is a GPU, nothing of torchtitan or
PyTorch is replaced by what the CPU needs.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import titan_trainer
import torch

GRAPH_TRAINER = "torchtitan.experiments.graph_trainer"
ON_GPU = torch.cuda.is_available()
OWN_PASS = "cudagraph_pass"


class Warnings(logging.Handler):
    """What was logged as a warning or worse, by logger; each once."""

    def __init__(self, into: dict[str, list[str]]) -> None:
        super().__init__(logging.WARNING)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        said = self._into.setdefault(record.name, [])
        message = record.getMessage()[:600]
        if message not in said and len(said) < 20:
            said.append(message)


def found_file() -> Path:
    """`$FOUND` of the first rank, and beside it one of each other."""
    rank = os.environ["RANK"]
    return Path(os.environ["FOUND"] + ("" if rank == "0" else f".{rank}"))


def own_graphs(found: dict[str, Any]) -> None:
    """Notes what torchtitan's own pass refuses, and whether it captured."""
    cudagraph = importlib.import_module(f"{GRAPH_TRAINER}.cudagraph")
    judge = cudagraph.is_full_cudagraphable

    def judge_and_tell(gm: Any) -> bool:
        nodes = [node for node in gm.graph.nodes if not cudagraph.is_cudagraphable(node)]
        found["own_refused"] = dict(Counter(str(node.target) for node in nodes))
        return bool(judge(gm))

    cudagraph.is_full_cudagraphable = judge_and_tell


def own_captures() -> list[bool]:
    manager = importlib.import_module(f"{GRAPH_TRAINER}.cudagraph")._cg_manager
    return [wrapper._cudagraph is not None for wrapper in manager._cudagraph_wrappers]


def programs() -> list[dict[str, Any]]:
    """Of Gravure, by graph and program."""
    gravure = sys.modules.get("gravure")
    graphs = gravure.report().graphs if gravure else []
    return [
        {
            "failure": graph.failure,
            "partitions": {e: dict(Counter(each)) for e, each in program.partitions.items()},
            "host_nodes": program.host_nodes,
            "remarks": program.remarks,
            "stats": {name: count for name, count in program.stats.items() if count},
        }
        for graph in graphs
        for program in graph.programs
    ] + [{"failure": graph.failure} for graph in graphs if not graph.programs]


def memory() -> dict[str, int]:
    """In MiB; `device` counts whatever else runs on the GPU."""
    if not ON_GPU:
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_allocated": torch.cuda.max_memory_allocated() >> 20,
        "peak_reserved": torch.cuda.max_memory_reserved() >> 20,
        "device": (total - free) >> 20,
    }


def watch(trainer: type, found: dict[str, Any]) -> None:
    """Warnings from when torchtitan has set up its log; what ran, before anything is closed."""
    make, close, step = trainer.__init__, trainer.close, trainer.train_step
    found.update(warnings={}, step_seconds=[])
    handler = Warnings(found["warnings"])

    def make_and_listen(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("", "gravure"):
            logger = logging.getLogger(name)
            if not name or not logger.propagate:
                logger.addHandler(handler)
        make(self, *args, **kwargs)

    def step_and_count(self: Any, *args: Any) -> None:
        begun = time.perf_counter()
        step(self, *args)
        if len(found["step_seconds"]) < 12:
            found["step_seconds"].append(round(time.perf_counter() - begun, 4))

    def look_and_close(self: Any) -> None:
        if ON_GPU:
            torch.cuda.synchronize()
        found["memory"] = memory()
        found["programs"] = programs()
        found["own_captured"] = own_captures()
        close(self)

    trainer.__init__ = make_and_listen
    trainer.train_step = step_and_count
    trainer.close = look_and_close


class Turns:
    """Graphs of several pass pipelines take turns, in one trainer.

    Data are eight batches over and over: the loader splits text into tokens in the same thread,
    for longer than a step takes.
    """

    def __init__(self, names: list[str], found: dict[str, Any]) -> None:
        self._names, self._built, self._found = names, dict[str, Any](), found
        self._length = int(os.environ.get("TURN", "10"))
        self._limit = float(os.environ.get("TURNS_SECONDS", "15"))
        self._deadline = 0.0
        self._turns: list[dict[str, Any]] = []
        self._steps = 0
        self._begun = 0.0
        self._host = 0.0
        self._events: list[tuple[Any, Any]] = []
        found["turns"] = self._turns

    @property
    def name(self) -> str:
        return self._names[self._steps // self._length % len(self._names)]

    def take(self, trainer: type) -> None:
        turns, step, trace = self, trainer.train_step, trainer._make_fx_forward_backward_step
        close, load = trainer.close, trainer.batch_generator

        def train_step(self: Any, data: Any) -> None:
            turns.begin()
            step(self, data)
            turns.end(self.config.training)

        def forward_backward(self: Any, *args: Any) -> Any:
            name = turns.name
            self._traced_step = turns._built.get(name)
            choose(self.config.compile, name)
            with turns.timing():
                loss = trace(self, *args)
            turns._built[name] = self._traced_step
            return loss

        def go_on(self: Any) -> bool:
            return self.step < self.config.training.steps and not turns.over()

        def close_all(self: Any) -> None:
            turns._built.clear()
            close(self)

        def eight_batches(self: Any, loader: Any) -> Iterator[Any]:
            batches = list(itertools.islice(load(self, loader), 8))
            metrics = self.metrics_processor
            metrics.ntokens_since_last_log = 0
            for inputs, labels in itertools.cycle(batches):
                metrics.ntokens_since_last_log += labels.numel()
                metrics.data_loading_times.append(0.0)
                yield dict(inputs), labels

        trainer.train_step = train_step
        trainer._make_fx_forward_backward_step = forward_backward
        trainer.should_continue_training = go_on
        trainer.close = close_all
        trainer.batch_generator = eight_batches

    def timing(self) -> Any:
        return _Timed(self)

    def begin(self) -> None:
        if self._steps % self._length:
            return
        _wait()
        if self._steps == self._length * len(self._names):  # each has had its captures
            self._deadline = time.perf_counter() + self._limit
            self._found["memory_first"] = memory()
            if ON_GPU:
                torch.cuda.reset_peak_memory_stats()
        self._host, self._events = 0.0, []
        self._begun = time.perf_counter()

    def end(self, training: Any) -> None:
        if (self._steps + 1) % self._length == 0:
            launched = time.perf_counter() - self._begun
            _wait()
            seconds = time.perf_counter() - self._begun
            tokens = max(training.global_batch_size, training.local_batch_size) * training.seq_len
            device = sum(a.elapsed_time(b) for a, b in self._events)
            turn = {
                "name": self.name,
                "step_ms": 1e3 * seconds / self._length,
                "tokens_a_second": tokens * self._length / seconds,
                "launched_ms": 1e3 * launched / self._length,
                # Of forward, loss and backward: on the device's clock, and the host's.
                "graph_device_ms": device / self._length,
                "graph_host_ms": 1e3 * self._host / self._length,
            }
            self._turns.append({k: v if k == "name" else round(v, 3) for k, v in turn.items()})
        self._steps += 1

    def over(self) -> bool:
        whole = self._steps % (self._length * len(self._names)) == 0
        return whole and bool(self._deadline) and time.perf_counter() > self._deadline


class _Timed:
    """One call of forward and backward, of a turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self._pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if ON_GPU else []
        if self._pair:
            self._pair[0].record()
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._turns._host += time.perf_counter() - self._begun
        if self._pair:
            self._pair[1].record()
            self._turns._events.append((self._pair[0], self._pair[1]))


def _wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def without_autotuning() -> None:
    """As torchtitan does in deterministic runs: tuning flex attention takes minutes."""
    attention = importlib.import_module("torchtitan.models.common.attention")
    flex = attention.FlexAttention
    flex.inductor_configs.update(max_autotune=False, coordinate_descent_tuning=False)
    flex._compiled_flex_attn = torch.compile(
        attention.flex_attention, options=flex.inductor_configs
    )


def choose(compile_config: Any, name: str) -> None:
    """The pass pipeline of `ours`, `own` or `none`, for the graph that is traced next."""
    compile_config.pass_pipeline = "cudagraph" if name == "ours" else "default"
    others = [each for each in compile_config.disable_passes if each != OWN_PASS]
    compile_config.disable_passes = [*others, OWN_PASS] if name == "none" else others


def main() -> None:
    begun = time.perf_counter()
    found: dict[str, Any] = {"losses": [], "gradients": [], "torch": torch.__version__}
    if ON_GPU:
        found["gpu"] = torch.cuda.get_device_name()
    else:
        titan_trainer.use_the_cpu()
    names = [name for name in os.environ.get("TURNS", "").split(",") if name]
    if "ours" in names or "--compile.pass_pipeline=cudagraph" in sys.argv:
        importlib.import_module("gravure.torchtitan")
    trainer = importlib.import_module(f"{GRAPH_TRAINER}.trainer").GraphTrainer
    train = importlib.import_module("torchtitan.train").main
    found["seconds_to_import"] = round(time.perf_counter() - begun, 1)
    own_graphs(found)
    if names:
        without_autotuning()
        Turns(names, found).take(trainer)
    else:
        titan_trainer.record(trainer, found)
    watch(trainer, found)
    try:
        train()
        found["ended"] = titan_trainer.programs_have_ended()
    finally:
        found["seconds"] = round(time.perf_counter() - begun, 1)
        found_file().write_text(json.dumps(found))


if __name__ == "__main__":
    main()
