"""Optimizers of DTensors, FSDP2's and tensor parallelism's, beside eager's: two gloo processes.

Each step is compared in bits where it runs, in rank_sharded.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import Found, run
from running import need_library

need_library()

LOOPS = ("classes", "fsdp", "tensor_parallelism", "implicit", "meshes", "scaled", "foreign")
CHANGES = (
    "checkpoints",
    "clipping",
    "averages",
    "moved",
    "copies",
    "gradients",
    "missing",
    "refusals",
)
# Steps that the optimizer itself runs, where they are not one, which makes its state.
OWN_STEPS = {"checkpoints": 2, "averages": 0}
SCRIPT = Path(__file__).parent / "rank_sharded.py"


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(tmp_path_factory.mktemp("loops"), *LOOPS, script=SCRIPT)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(tmp_path_factory.mktemp("changes"), *CHANGES, script=SCRIPT)


def check(found: Found, scenario: str) -> list[dict[str, Any]]:
    """In eager's bits, as replays, without a word."""
    own = OWN_STEPS.get(scenario, 1)
    cases = [(name, case) for rank in found[scenario] for name, case in rank.items()]
    assert cases
    for name, case in cases:
        assert case["equal"], name
        assert case["said"] == [], name
        assert case["own"] <= own, name
        assert sum(case["replays"]) > 0, (name, case)
        assert set(case["states"]) <= {"captured", "warmed-up", "cold"}, (name, case)
    return [case for _, case in cases]


@pytest.mark.parametrize("scenario", LOOPS)
def test_steps_are_replays(loops: Found, scenario: str) -> None:
    """The first one makes the state, and is the optimizer's own."""
    check(loops, scenario)


def test_gradients_are_clipped_over_both_dimensions_of_a_mesh(loops: Found) -> None:
    for rank in loops["meshes"]:
        assert [len(case["clip replays"]) for case in rank.values()] == [1, 1]


def test_state_of_a_checkpoint(changes: Found) -> None:
    """State of another optimizer's words, and a layer that begins to have gradients."""
    check(changes, "checkpoints")


def test_clipping_is_replayed_on_all_ranks(changes: Found) -> None:
    """A program for each way, the collectives among it; one rank has no row of a parameter."""
    for case in check(changes, "clipping"):
        assert case["states"] == ["captured"]
        assert len(case["clip replays"]) == 7 + 2  # those that look at the norm are two
        assert all(count > 0 for count in case["clip replays"]), case


def test_averages_of_shards(changes: Found) -> None:
    check(changes, "averages")


@pytest.mark.parametrize("scenario", ["moved", "copies", "gradients"])
def test_other_shards_are_noticed(changes: Found, scenario: str) -> None:
    """A DTensor that holds another tensor, that lies otherwise, or that is being written."""
    check(changes, scenario)


def test_without_a_private_name_steps_are_the_optimizers_own(changes: Found) -> None:
    for rank in changes["missing"]:
        for name, case in rank.items():
            assert case["equal"] and case["own"] == 3, name
            (said,) = case["said"]
            assert name in said and "does not have it" in said


def test_what_pytorch_refuses(changes: Found) -> None:
    for rank in changes["refusals"]:
        clip, our_clip, step, our_step = rank["errors"]
        assert clip == our_clip and step == our_step
        assert "mixed torch.Tensor and DTensor" in clip
        assert len(rank["said"]) == 2
        assert "it calls a module of fully_shard" in rank["step"]
        assert "gravure.compile_optimizer" in rank["step"]
