"""On a GPU beside code that knows nothing of Gravure: a process for each of `foreign_users.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from running import need_library

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
need_library()

HERE = Path(__file__).resolve().parent
PLUGIN = str(HERE.parents[1] / "python")


def alone(name: str, *args: str, status: int = 0, timeout: float = 240, **variables: str) -> str:
    """Runs one of them, and checks how it ends. What it said."""
    done = subprocess.run(
        [sys.executable, str(HERE / "foreign_users.py"), name, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={"PYTHONPATH": PLUGIN} | os.environ | variables,
    )
    said = done.stdout + done.stderr
    assert done.returncode == status, f"status {done.returncode}\n{said[-6000:]}"
    return said


@pytest.mark.parametrize("name", ["sticky_dropped", "sticky_at_exit", "sticky_in_a_step"])
def test_a_process_ends_as_it_wants_after_an_error_that_the_gpu_does_not_recover_from(
    name: str,
) -> None:
    said = alone(name, status=7)
    assert "dropped" in said
    assert "terminate called" not in said


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_law_12_programs_are_made_and_dropped_while_others_capture(mode: str) -> None:
    print(alone("dropping_beside_captures", mode))


def test_law_12_programs_are_made_and_dropped_beside_captures_with_expandable_segments() -> None:
    alone("dropping_beside_captures", PYTORCH_ALLOC_CONF="expandable_segments:True")


def test_law_12_the_garbage_collector_drops_programs_in_the_middle_of_a_capture() -> None:
    alone("collected_while_capturing")


@pytest.mark.parametrize(
    "name",
    [
        "step_inside_a_capture",
        "step_inside_a_capture_before_it_is_warm",
        "graphed_callable",
        "saved_outside_a_capture",
    ],
)
def test_a_step_inside_a_capture_of_the_callers_is_part_of_that_graph(name: str) -> None:
    alone(name)


@pytest.mark.parametrize("how", ["cudagraphs", "reduce-overhead"])
def test_pytorchs_own_graphs_work_beside_ours(how: str) -> None:
    if how != "cudagraphs" and not (shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("Triton needs a C compiler")
    alone("other_graphs", how)


@pytest.mark.parametrize("order", ["cache first", "input first"])
def test_a_warm_up_has_the_memory_that_eager_would_have(order: str) -> None:
    alone("cache_is_full", order)


def test_the_cache_is_emptied_beside_a_warm_up() -> None:
    alone("cache_is_emptied_beside_a_warm_up")


def test_an_allocator_in_place_of_pytorchs_is_refused_in_words() -> None:
    said = alone("pluggable_allocator")
    if "SKIPPED" in said:
        pytest.skip("nothing here builds an allocator")
    assert "CUDAPluggableAllocator" in said and "use_mem_pool" in said


def test_an_allocator_beside_pytorchs_works() -> None:
    if "SKIPPED" in alone("pool_of_another_allocator"):
        pytest.skip("nothing here builds an allocator")


def test_without_addresses_an_arena_lies_in_pytorchs_memory() -> None:
    alone("no_addresses")


def test_law_3_replays_draw_from_what_the_generator_is_by_then() -> None:
    alone("generators")


def test_law_1_programs_on_two_streams_draw_what_eager_does() -> None:
    alone("draws_on_streams")


def test_law_12_other_threads_draw_while_a_partition_that_draws_is_captured() -> None:
    print(alone("draws_on_another_thread"))
