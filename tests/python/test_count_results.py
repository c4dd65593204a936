"""tools/count_results.py: every case is counted once, and nothing broken counts as passed."""

import json
from pathlib import Path

import count_results
import pytest
from count_results import Count, count_bazel, count_log, count_pytest, count_run

CATCH_PASSED = "=====\nAll tests passed (123 assertions in 12 test cases)\n\n"
CATCH_MIXED = "=====\ntest cases: 5 | 3 passed | 1 failed | 1 failed as expected\nassertions: 9\n"
CATCH_FAILED = "test cases: 2 | 2 failed\nassertions: 2 | 2 failed\n"


def numbers(count: Count | None) -> tuple[int, int] | None:
    return None if count is None else (count.passed, count.failed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CATCH_PASSED, (12, 0)),
        ("All tests passed (1 assertion in 1 test case)\n", (1, 0)),
        (CATCH_MIXED, (4, 1)),
        (CATCH_FAILED, (0, 2)),
        ("golden: a\n7 passed, 2 failed\n", (7, 2)),
        ("0 passed, 1 failed\nretry\n3 passed, 0 failed\n", (3, 0)),
    ],
)
def test_summaries(text: str, expected: tuple[int, int]) -> None:
    assert numbers(count_log(text)) == expected


@pytest.mark.parametrize("text", [CATCH_PASSED, CATCH_MIXED, "7 passed, 2 failed\n"])
def test_truncated_log_has_no_summary(text: str) -> None:
    """A log cut anywhere before the end of its summary is never read as a smaller count."""
    end = text.index("cases)") if "cases)" in text else len(text) - len("failed\n")
    if "as expected" in text:
        end = text.index("as expected")
    for length in range(end):
        assert count_log(text[:length]) is None, text[:length]


def target(folder: Path, label: str, status: str | None, log: str | None) -> list[dict]:
    configured = {
        "id": {"targetConfigured": {"label": label}},
        "configured": {"testSize": "MEDIUM"},
    }
    if status is None:
        return [configured]
    outputs = []
    if log is not None:
        path = folder / (label.rsplit(":", 1)[1] + ".log")
        path.write_text(log)
        outputs = [{"name": "test.log", "uri": path.as_uri()}]
    result = {
        "id": {"testResult": {"label": label}},
        "testResult": {"status": status, "testActionOutput": outputs},
    }
    return [configured, result]


FINISHED = {"id": {"buildFinished": {}}}


def write_run(folder: Path, events: list[dict], statuses: dict[str, int] | None = None) -> None:
    (folder / "bazel.json").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "pytest.xml").write_text(
        '<testsuites><testsuite><testcase classname="m" name="a"/>'
        '<testcase classname="m" name="b"><skipped/></testcase></testsuite></testsuites>'
    )
    for step in ("format", "bazel", "pytest"):
        (folder / f"{step}.status").write_text(str((statuses or {}).get(step, 0)))


def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = target(tmp_path, "//t:a", "PASSED", CATCH_PASSED)
    events += target(tmp_path, "//t:g", "PASSED", "4 passed, 0 failed\n")
    write_run(tmp_path, [*events, FINISHED])
    assert count_results.main(tmp_path) == 0
    # 12 of Catch2, 4 golden cases, 1 of pytest, the format.
    assert capsys.readouterr().out.splitlines()[-1] == "18 passed, 0 failed"


@pytest.mark.parametrize(
    ("status", "log", "expected"),
    [
        ("PASSED", "", (0, 1)),
        ("PASSED", CATCH_PASSED[:20], (0, 1)),
        ("PASSED", None, (0, 1)),
        ("PASSED", "0 passed, 0 failed\n", (0, 1)),
        ("FAILED", CATCH_PASSED, (12, 1)),
        ("TIMEOUT", "", (0, 1)),
        ("FAILED", CATCH_MIXED, (4, 1)),
        (None, None, (0, 1)),
    ],
)
def test_a_broken_target_fails(
    tmp_path: Path, status: str | None, log: str | None, expected: tuple[int, int]
) -> None:
    write_run(tmp_path, [*target(tmp_path, "//t:a", status, log), FINISHED])
    assert numbers(count_bazel(tmp_path / "bazel.json")) == expected
    assert count_results.main(tmp_path) == 1


def test_a_damaged_record_fails(tmp_path: Path) -> None:
    events = [*target(tmp_path, "//t:a", "PASSED", CATCH_PASSED), FINISHED]
    write_run(tmp_path, events)
    record = tmp_path / "bazel.json"
    whole = record.read_text()
    assert numbers(count_bazel(record)) == (12, 0)
    for length in range(len(whole) - 2):
        record.write_text(whole[:length])
        assert count_bazel(record).failed > 0, whole[:length]
    record.unlink()
    assert count_bazel(record).failed == 1


@pytest.mark.parametrize("step", ["format", "bazel", "pytest"])
def test_an_exit_status_is_not_lost(tmp_path: Path, step: str) -> None:
    events = [*target(tmp_path, "//t:a", "PASSED", CATCH_PASSED), FINISHED]
    write_run(tmp_path, events, {step: 2})
    assert count_run(tmp_path).failed == 1
    (tmp_path / f"{step}.status").unlink()
    assert count_run(tmp_path).failed == 1


def test_pytest_report(tmp_path: Path) -> None:
    report = tmp_path / "pytest.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="m" name="a"/>'
        '<testcase classname="m" name="b"><failure/></testcase>'
        '<testcase classname="m" name="b"><error/></testcase>'
        '<testcase classname="m" name="c"><error/></testcase></testsuite></testsuites>'
    )
    assert numbers(count_pytest(report)) == (1, 2)
    report.write_text(report.read_text()[:-20])
    assert numbers(count_pytest(report)) == (0, 1)
    report.write_text("<testsuites/>")
    assert numbers(count_pytest(report)) == (0, 1)
