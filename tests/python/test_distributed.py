"""Collectives inside graphs: several processes with gloo, on the host device.

Laws 7 to 10: docs/distributed.md.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from ranks import ENDS, Found, Ranks, run
from running import need_library

need_library()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Two ranks, one scenario after another: processes take longer to start than to do all."""
    return run(
        tmp_path_factory.mktemp("pair"),
        "pairing",
        "compiled",
        "failed_capture",
        "late_capture",
        "other_program",
        "compiled_code",
        "other_code",
        "products",
        "left_alone",
        "left_together",
        "mixed",
        "refused",
        "thrown",
        "new_group",
    )


@pytest.mark.parametrize("scenario", ["pairing", "compiled_code"])
def test_law_7_collectives_are_captured_and_replayed(pair: Found, scenario: str) -> None:
    """Those of a program, and those in code that Inductor compiled as a whole."""
    for rank in pair[scenario]:
        assert rank["equal"]
        assert rank["states"] == ["captured"]
        assert rank["missed"] == []
        assert rank["stats"]["replays"] >= 4


def test_law_7_forward_and_backward_of_a_compiled_model(pair: Found) -> None:
    for rank in pair["compiled"]:
        assert rank["equal"]
        assert rank["states"] == {"forward": ["captured"], "backward": ["captured"]}
        assert (rank["missed"], rank["nodes"]) == ([], [])


def test_law_10_a_failed_capture_on_one_rank_is_everyones(pair: Found) -> None:
    ranks = pair["failed_capture"]
    for rank in ranks:
        assert rank["equal"]
        assert rank["states"] == ["quarantined"]
        assert rank["stats"]["replays"] == 0
    assert ranks[1]["missed"] == ["capture-failed"]
    assert ranks[0]["missed"] == ["captured-elsewhere-not"]
    assert "rank 1: injected fault at a call in a capture" in ranks[0]["messages"]


def test_law_10_reaches_ranks_with_which_there_is_no_common_group(tmp_path: Path) -> None:
    """Rank 3 fails; rank 0 has a group with 1 and one with 2."""
    ranks = run(tmp_path, "mesh", count=4)["mesh"]
    for rank in ranks:
        assert rank["equal"]
        assert rank["states"] == ["quarantined"]
    assert "rank 3: injected fault" in ranks[0]["messages"]


def test_law_10_a_rank_that_cannot_capture_yet_is_waited_for(pair: Found) -> None:
    ranks = pair["late_capture"]
    for rank in ranks:
        assert rank["equal"]
        assert rank["meanwhile states"] == ["warmed-up"]
        assert rank["states"] == ["captured"]
        assert rank["stats"]["replays"] > 0
    assert ranks[0]["meanwhile missed"] == ["rank-left"]
    assert "rank 1: it was asked to run uncaptured" in ranks[0]["meanwhile messages"]


def test_law_10_another_program_is_named(pair: Found) -> None:
    for rank in pair["other_program"]:
        assert rank["states"] == ["quarantined"]
        assert rank["missed"] == ["collectives-refused"]
        assert "rank 1 has another program: collective 0 is" in rank["messages"]
        assert '"max"' in rank["messages"] and '"sum"' in rank["messages"]


def test_law_10_ranks_compare_collectives_in_compiled_code(pair: Found) -> None:
    for rank in pair["other_code"]:
        assert rank["states"] == ["quarantined"]
        assert rank["missed"] == ["collectives-refused"]
        assert "rank 1 has another program: collective 0 is" in rank["messages"]
        assert "all_reduce(float32[4, 8], max) in group 0" in rank["messages"]


def test_law_10_a_rank_may_leave_a_replay_alone(pair: Found) -> None:
    """Its collectives are the same on the wire, in a graph or not."""
    ranks = pair["left_alone"]
    assert all(rank["equal"] for rank in ranks)
    assert [rank["missed"] for rank in ranks] == [[], ["guard-failed"]]
    replays = [rank["after"]["replays"] - rank["before"]["replays"] for rank in ranks]
    assert replays == [1, 0]
    assert [rank["states"] for rank in ranks] == [["captured"]] * 2


def test_law_10_with_agree_step_all_leave_together(pair: Found) -> None:
    ranks = pair["left_together"]
    assert all(rank["equal"] for rank in ranks)
    replays = [rank["after"]["replays"] - rank["before"]["replays"] for rank in ranks]
    assert replays == [0, 0]
    assert ranks[0]["missed"] == ["rank-left"]
    assert 'rank 1: parameter "w"' in ranks[0]["messages"]
    assert [rank["states"] for rank in ranks] == [["captured"]] * 2


def test_law_10_ranks_leave_and_capture_anew_as_they_need(pair: Found) -> None:
    for rank in pair["mixed"]:
        assert rank["equal"]
        assert 0 < rank["stats"]["replays"] - rank["before"]["replays"] < 24
        assert rank["states"] == ["captured"]
    assert pair["mixed"][1]["stats"]["captures"] > pair["mixed"][1]["before"]["captures"]


def test_law_10_a_step_that_cannot_begin_throws_on_all(pair: Found) -> None:
    ranks = pair["thrown"]
    assert 'user_input "x"' in ranks[1]["error"]
    assert "another rank cannot run this step: rank 1: user_input" in ranks[0]["error"]
    assert all(rank["equal"] for rank in ranks)
    assert [rank["states"] for rank in ranks] == [["captured"]] * 2


def test_law_10_a_dead_rank_is_named(tmp_path: Path) -> None:
    """The step then fails as it does without graphs: gloo says so."""
    ranks = Ranks(tmp_path, "dead_rank", timeout=5)
    assert ranks.wait() == [0, 0], ranks.logs()
    found = ranks.found(0)
    assert found["error"]
    assert "rank 1 did not come to a common step within 2500 ms" in found["messages"]


def test_law_10_a_rank_with_a_program_of_its_own_is_waited_for_once(tmp_path: Path) -> None:
    """Uncaptured the collectives meet; both ranks find that out, and go on."""
    for rank in run(tmp_path, "own_program", timeout=6)["own_program"]:
        assert rank["equal"]
        assert rank["states"] == ["quarantined"]
        assert "did not come to a common step within 3000 ms" in rank["messages"]


def test_law_10_a_replay_that_does_not_end_is_aborted(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "hung_replay", timeout=4)
    assert ranks.wait() == [0, 0], ranks.logs()
    for rank in range(2):
        error = ranks.found(rank)["error"]
        assert "the replay of partition 0 of entry 'step' did not end within 4000 ms" in error
        assert 'group "0" (gloo, ranks 0, 1)' in error


def test_law_8_groups_made_anew_get_their_communicator_first(pair: Found) -> None:
    for rank in pair["new_group"]:
        assert rank["equal"]
        assert rank["dropped"] == ["warmed-up"]  # graphs went before the group
        assert rank["states"] == ["captured"]
        assert rank["stats"]["uncaptured_steps"] == rank["before"]["uncaptured_steps"] + 1
        assert "capture-failed" not in rank["missed"]


def test_law_8_products_by_symmetric_memory_are_captured_anew_where_it_moves(pair: Found) -> None:
    """By gloo, and with a workspace that nobody uses: test_distributed_cuda.py has the true one."""
    for rank in pair["products"]:
        assert rank["equal"]
        assert (rank["states"], rank["missed"], rank["nodes"]) == (["captured"], [], [])
        before, stats = rank["before"], rank["stats"]
        assert before["replays"] > 0
        assert stats["replays"] > before["replays"]
        assert stats["uncaptured_steps"] == before["uncaptured_steps"] + 1
        assert stats["captures"] == before["captures"] + 1


def test_law_8_an_environment_that_breaks_captures_is_refused_on_all(pair: Found) -> None:
    for rank in pair["refused"]:
        assert rank["equal"]
        assert rank["states"] == ["quarantined"]
        assert "rank 1: TORCH_DISTRIBUTED_DEBUG=DETAIL" in rank["messages"]


@pytest.mark.parametrize(("end", "status"), ENDS)
def test_law_9_processes_end(tmp_path: Path, end: str, status: int) -> None:
    ranks = Ranks(tmp_path, end)
    assert ranks.wait(60) == [status, status], ranks.logs()


def test_law_9_processes_end_when_told_to(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "end_terminated")
    while not all(ranks.out(rank).exists() for rank in range(2)):
        assert all(process.poll() is None for process in ranks.processes), ranks.logs()
        time.sleep(0.05)
    for process in ranks.processes:
        process.send_signal(signal.SIGTERM)
    assert ranks.wait(10) == [-signal.SIGTERM] * 2
