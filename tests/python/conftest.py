"""Makes the plugin and the tests' own modules importable; fixtures that several files use."""

from __future__ import annotations

import gc
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
for _path in (_HERE, _HERE.parents[1] / "python"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))


def _time_kernels_alone() -> None:
    """On a GPU each process of pytest-xdist has a cache of Inductor's of its own.

    Inductor times the forms of a kernel and keeps the fastest one in that cache. Of two processes
    that share one, each may find the other's choice, and two models of the same code then have
    sums in another order.
    """
    process = os.environ.get("PYTEST_XDIST_WORKER")
    if process is None:
        return
    import torch
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    if torch.cuda.is_available():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache_dir()}-{process}"


class _Failures:
    """Names each failure at once: a run that is ended from outside prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            words = report.longreprtext.splitlines() or [""]
            terminal.write_line(f"failed: {report.nodeid}: {words[-1]}")


def pytest_configure(config: pytest.Config) -> None:
    _time_kernels_alone()
    if not hasattr(config, "workerinput"):  # xdist's processes print nothing
        config.pluginmanager.register(_Failures(config))


def pytest_collection_finish() -> None:
    """Tests collect garbage often. What was imported is none: looking through it each time took
    half of the tests' time."""
    import torch._dynamo  # noqa: F401
    import torch._functorch.aot_autograd  # noqa: F401

    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """For what looks among all objects: it would find those of the tests' files as in a script."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_device_guard() -> None:
    """This thread's guard stays.

    Without a GPU, PyTorch goes on with that of the last thread that traced, also when that has
    ended (c10::impl::ensureCUDADeviceGuardSet).
    """
    import torch

    if not torch.cuda.is_available():
        torch._C._ensureCUDADeviceGuardSet()
        torch._C._ensureCUDADeviceGuardSet = lambda: None


@pytest.fixture(autouse=True)
def _settings_of_its_own() -> Iterator[None]:
    """What a test sets of the process is gone behind it: files run in any order, in any process."""
    import torch
    import torch._dynamo

    config = torch._dynamo.config
    before, threads = config.get_config_copy(), torch.get_num_threads()
    yield
    for name, value in config.get_config_copy().items():  # without asking for what is deprecated
        if before[name] != value:
            setattr(config, name, before[name])
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _reports_of_its_own() -> None:
    """No report has the graphs that earlier tests of the process left alive."""
    live = sys.modules.get("gravure.calls.live_graphs")
    if live is not None:
        for graphs in (live._LIVE, live._UPDATES):
            graphs.clear()


@pytest.fixture
def fresh() -> Iterator[None]:
    """The same random numbers for each test, and nothing that was compiled before."""
    import torch

    torch.manual_seed(0)
    gc.collect()
    yield
    torch._dynamo.reset()
    gc.collect()


@pytest.fixture
def plugin() -> Iterator[types.ModuleType]:
    """gravure.torchtitan, for which a missed capture is an error."""
    import gravure.torchtitan as module

    module.configure(on_missed="raise")
    yield module
    module.configure()
    gc.collect()


@pytest.fixture
def passes() -> Iterator[Any]:
    """The GraphPasses of one test, for which a missed capture is an error."""
    from gravure.calls.graph_passes import GraphPasses

    made = GraphPasses()
    made.configure({"on_missed": "raise", "min_partition_size": 1})
    yield made
    made.shutdown()


@pytest.fixture
def region_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for Inductor, which is never given a whole graph."""
    from gravure.graphs import codegen
    from region_compiler import RegionCompiler

    compiler = RegionCompiler()

    def parts(_: Any, *, symbolic: bool) -> list[codegen.Style]:
        return [codegen.Style(inductor=True)]

    monkeypatch.setattr(codegen, "compile_region", compiler)
    monkeypatch.setattr(codegen, "styles", parts)
    return compiler
