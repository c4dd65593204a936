"""Counts the test cases of one run of tools/test; the last line says `N passed, N failed`.

A results folder holds `bazel.json` (Bazel's build events, which name each test's log),
`pytest.xml`, and `NAME.status` with the exit status of each step. Bazel itself counts targets; here
a case is one Catch2 test case, one golden case, one Python test, or the check of the format.

Whatever cannot be read counts as failed: a log that stops short, a target that was not built, a
step that exits with an error although all its cases passed.
"""

import json
import re
import sys
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

# Catch2's last words: one form where all passed, another where something failed.
_CATCH_PASSED = re.compile(r"^All tests passed \(\d+ assertions? in (\d+) test cases?\)$", re.M)
_CATCH_MIXED = re.compile(r"^test cases: +(\d+) \|(.*)$", re.M)
_CATCH_PART = re.compile(r"(\d+) (passed|failed as expected|failed)")
# Any other test program says how its cases went in the words that tools/test uses itself.
_PLAIN = re.compile(r"^(\d+) passed, (\d+) failed$", re.M)

_STEPS = ("format", "bazel", "pytest")


@dataclass
class Count:
    """Cases that passed and failed, with a line on each thing that a reader should look at."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, other: "Count") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.notes += other.notes

    @staticmethod
    def failure(note: str) -> "Count":
        return Count(failed=1, notes=[note])


def count_log(text: str) -> Count | None:
    """The cases that one test program reports in its log; None where the log holds no summary."""
    if match := _last(_CATCH_PASSED, text):
        return Count(passed=int(match[1]))
    if match := _last(_CATCH_MIXED, text):
        parts = {kind: int(number) for number, kind in _CATCH_PART.findall(match[2])}
        passed = parts.get("passed", 0) + parts.get("failed as expected", 0)
        failed = parts.get("failed", 0)
        return Count(passed, failed) if passed + failed == int(match[1]) else None
    if match := _last(_PLAIN, text):
        return Count(int(match[1]), int(match[2]))
    return None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = list(pattern.finditer(text))
    return matches[-1] if matches else None


def count_target(label: str, status: str, log: Path | None) -> Count:
    """One Bazel test: its log's cases, and one failure more where the log hides what went wrong."""
    try:
        text = log.read_text(errors="replace") if log else ""
    except OSError:
        text = ""
    count = count_log(text)
    where = f"{label} ({log})"
    if count is None:
        return Count.failure(f"{where}: {status.lower()}, its log has no summary of its cases")
    if count.passed + count.failed == 0:
        return Count.failure(f"{where}: ran no case")
    if status not in ("PASSED", "FLAKY") and count.failed == 0:
        count.add(Count.failure(f"{where}: {status.lower()} although its cases passed"))
    elif count.failed:
        count.notes.append(f"{where}: {count.failed} failed")
    return count


def count_bazel(events_file: Path) -> Count:
    """All tests of Bazel's build events, together with those that were never run."""
    try:
        lines = events_file.read_text().splitlines()
    except OSError:
        return Count.failure(f"{events_file}: Bazel left no record")
    count = Count()
    expected: set[str] = set()
    results: dict[str, tuple[str, Path | None]] = {}
    finished = False
    for line in lines:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            count.add(Count.failure(f"{events_file}: the record is damaged"))
            continue
        finished = finished or "buildFinished" in event.get("id", {})
        _read_event(event, expected, results, count)
    for label in sorted(expected | set(results)):
        if label in results:
            count.add(count_target(label, *results[label]))
        else:
            count.add(Count.failure(f"{label}: was not built or not run"))
    if not finished:
        count.add(Count.failure(f"{events_file}: the record stops short"))
    return count


def _read_event(
    event: dict,
    expected: set[str],
    results: dict[str, tuple[str, Path | None]],
    count: Count,
) -> None:
    identity = event.get("id", {})
    if "targetConfigured" in identity:
        label = identity["targetConfigured"]["label"]
        if event.get("aborted", {}).get("reason") not in (None, "SKIPPED"):
            count.add(Count.failure(f"{label}: {event['aborted'].get('description', 'broken')}"))
        elif "testSize" in event.get("configured", {}):
            expected.add(label)
    elif "testResult" in identity and "testResult" in event:
        label = identity["testResult"]["label"]
        result = event["testResult"]
        outputs = {o["name"]: o.get("uri", "") for o in result.get("testActionOutput", [])}
        uri = outputs.get("test.log")
        log = Path(unquote(urlparse(uri).path)) if uri else None
        results[label] = (result.get("status", "NO_STATUS"), log)


def count_pytest(report: Path) -> Count:
    """The cases of a JUnit report. A test with a failure and an error is one failed case."""
    try:
        cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        return Count.failure(f"{report}: {error}")
    if not cases:
        return Count.failure(f"{report}: no Python test ran")
    count = Count()
    failed: set[tuple[str | None, str | None]] = set()
    passed: set[tuple[str | None, str | None]] = set()
    for case in cases:
        name = (case.get("classname"), case.get("name"))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif case.find("skipped") is not None:
            count.skipped += 1
        else:
            passed.add(name)
    count.passed = len(passed - failed)
    count.failed = len(failed)
    count.notes = [f"pytest: {file}::{name}" for file, name in sorted(failed, key=str)]
    return count


def count_status(results: Path, step: str, count: Count) -> Count:
    """Adds what a step's exit status knows and its cases do not."""
    try:
        status = int((results / f"{step}.status").read_text())
    except (OSError, ValueError):
        return Count.failure(f"{step}: did not run to its end")
    if status != 0 and count.failed == 0:
        return Count.failure(f"{step}: exit status {status}")
    return Count()


def count_run(results: Path) -> Count:
    """Everything in one results folder."""
    parts = {
        "format": Count(),
        "bazel": count_bazel(results / "bazel.json"),
        "pytest": count_pytest(results / "pytest.xml"),
    }
    total = Count()
    for step in _STEPS:
        part = parts[step]
        part.add(count_status(results, step, part))
        if step == "format" and part.failed == 0:
            part.passed = 1
        total.add(part)
    return total


def main(results: Path) -> int:
    total = count_run(results)
    for note in total.notes:
        print(f"gravure: {note}")
    if total.skipped:
        print(f"gravure: {total.skipped} skipped")
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
