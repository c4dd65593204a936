"""What test_distributed.py says, on two GPUs with NCCL. Skipped where there are fewer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import ENDS, Ranks, run
from running import need_library
from test_sharded_optimizers import CHANGES, LOOPS, SCRIPT, check

need_library()
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"
)


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE", "cuda")


def test_laws_7_8_and_10_hold(tmp_path: Path) -> None:
    names = ("pairing", "failed_capture", "other_program", "left_together", "thrown", "new_group")
    names += ("products",)
    found = run(tmp_path, *names)
    for name in names:
        assert all(rank.get("equal", True) for rank in found[name]), name
    assert [rank["states"] for rank in found["pairing"]] == [["captured"]] * 2
    assert [rank["missed"] for rank in found["pairing"]] == [[], []]
    assert [rank["states"] for rank in found["failed_capture"]] == [["quarantined"]] * 2
    assert "rank 1: injected fault" in found["failed_capture"][0]["messages"]
    assert "rank 1 has another program" in found["other_program"][0]["messages"]
    assert 'rank 1: parameter "w"' in found["left_together"][0]["messages"]
    assert "rank 1: user_input" in found["thrown"][0]["error"]
    assert [rank["states"] for rank in found["new_group"]] == [["captured"]] * 2
    for rank in found["products"]:
        assert (rank["states"], rank["missed"], rank["nodes"]) == (["captured"], [], [])
        assert rank["stats"]["captures"] == rank["before"]["captures"] + 1


@pytest.mark.parametrize(("rows", "width"), [(4, 8), (64, 1024), (8192, 1024)])
def test_law_10_graphs_and_calls_meet_on_the_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, width: int
) -> None:
    """Ranks leave replays, and capture anew, each at its own times; from 128 bytes to 32 MiB."""
    monkeypatch.setenv("ROWS", str(rows))
    monkeypatch.setenv("WIDTH", str(width))
    for rank in run(tmp_path, "mixed")["mixed"]:
        assert rank["equal"]
        assert 0 < rank["stats"]["replays"] - rank["before"]["replays"] < 24
        assert rank["states"] == ["captured"]


def test_law_8_pytorch_itself_fails_without_a_communicator(tmp_path: Path) -> None:
    for rank in run(tmp_path, "naive")["naive"]:
        assert "captur" in rank["error"]


def test_law_8_a_blocking_wait_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    for rank in run(tmp_path, "blocking_wait")["blocking_wait"]:
        assert rank["equal"]
        assert rank["states"] == ["quarantined"]
        assert "TORCH_NCCL_BLOCKING_WAIT is set" in rank["messages"]


def test_law_10_a_replay_that_waits_for_a_dead_rank_is_aborted(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "dead_in_replay", timeout=15)
    assert ranks.wait()[0] == 0, ranks.logs()
    assert "did not end within 15000 ms" in ranks.found(0)["error"]


@pytest.mark.parametrize(("end", "status"), ENDS)
def test_law_9_processes_end(tmp_path: Path, end: str, status: int) -> None:
    ranks = Ranks(tmp_path, end)
    assert ranks.wait(60) == [status, status], ranks.logs()


@pytest.mark.parametrize("scenarios", [LOOPS, CHANGES], ids=["loops", "changes"])
def test_optimizers_of_shards(tmp_path: Path, scenarios: tuple[str, ...]) -> None:
    """As test_sharded_optimizers.py has them: layers that are compiled under FSDP2, too."""
    found = run(tmp_path, *scenarios, script=SCRIPT)
    for name in scenarios:
        if name not in ("missing", "refusals"):
            check(found, name)
