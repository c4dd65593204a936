"""PyTorch's own ways to train on several ranks, in eager's bits: two processes with gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Found, run
from running import need_library

need_library()

PAIR = {"forward": ["captured"], "backward": ["captured"]}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(
        tmp_path_factory.mktemp("models"),
        "gathered_parameters",
        "tensor_parallelism",
        "data_parallel",
        "fsdp2",
        "pipeline",
        "pipeline_step",
        script=Path(__file__).parent / "rank_models.py",
    )


def test_gathered_parameters_and_scattered_gradients(pair: Found) -> None:
    """Each all-gather is on its way while the layer before it computes."""
    for rank in pair["gathered_parameters"]:
        assert rank["compile"]["equal"] and rank["step"]["equal"]
        assert rank["compile"]["states"] == [PAIR]
        assert rank["step"]["states"] == [{"step": ["captured"]}]
        for way in ("compile", "step"):
            assert (rank[way]["missed"], rank[way]["nodes"]) == ([], [])
            assert rank[way]["replays"] > 0


def test_tensor_parallelism_by_dtensor(pair: Found) -> None:
    for rank in pair["tensor_parallelism"]:
        assert rank["compile"]["equal"]
        assert rank["compile"]["states"] == [PAIR]
        assert (rank["compile"]["missed"], rank["compile"]["nodes"]) == ([], [])
        assert rank["compile"]["replays"] > 0
        assert 'it reads a DTensor; use torch.compile(backend="gravure")' in rank["refused"]


def test_gradients_that_hooks_average(pair: Found) -> None:
    """A step runs without autograd, so without these hooks: refused, called through them or not."""
    for rank in pair["data_parallel"]:
        for way in ("compile", "layers"):
            assert rank[way]["equal"]
            assert rank[way]["states"] == [PAIR] * 4
            assert rank[way]["replays"] > 0
        through, past = rank["refused"]
        assert "it calls a DistributedDataParallel" in through
        assert '"model.layers.0.up.weight" has hooks on the node that accumulates' in past
        assert through.endswith('use torch.compile(backend="gravure"), which runs them')
        assert past.endswith('use torch.compile(backend="gravure"), which runs them')


def test_fsdp2_between_compiled_layers(pair: Found) -> None:
    """It gathers a parameter, and again for the backward, into memory that may be elsewhere: that
    run is uncaptured."""
    for rank in pair["fsdp2"]:
        found = rank["layers"]
        assert found["equal"]
        assert found["states"] == [PAIR, PAIR]
        assert found["replays"] > 0
        said = ("guard-failed: parameter", "guard-failed: saved", "often-uncaptured: ")
        others = [remark for remark in found["missed"] if not remark.startswith(said)]
        assert others == []


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_of_a_pipeline(pair: Found, schedule: str) -> None:
    for rank in pair["pipeline"]:
        assert rank[schedule]["equal"]
        assert PAIR in rank[schedule]["states"]
        assert rank[schedule]["replays"] > 0


def test_a_stage_of_a_pipeline_in_one_call(pair: Found) -> None:
    first, last = (rank["step"] for rank in pair["pipeline_step"])
    assert first["equal"] and last["equal"]
    assert last["states"] == [{"step": ["captured"]}]
    assert last["missed"] == []
    assert last["replays"] > 0
