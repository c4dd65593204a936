"""A pass that fails while Python makes a program leaves what `gravure opt` shows it again with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import gravure
import pytest
from gravure.library.load import program_class
from gravure_native import tool_environment, tool_path
from running import need_library

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

# Has a partition before the passes ran, which partition-graph refuses.
PARTITIONED = """gravure 1
graph step(%x : Float(4, strides=[1], device=cpu) {user_input "x"}):
  %y.out : Float(4, strides=[1], device=cpu) = cudagraph::partition[index=0](%x)
    block0(%x.0 : Float(4, strides=[1], device=cpu)):
      %y : Float(4, strides=[1], device=cpu) = aten::neg(%x.0)
      -> (%y)
  return (%y.out {output "y"})
"""
FAILURE = "is a partition already"


def opt(*arguments: str) -> str:
    command = [str(tool_path()), "opt", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=tool_environment())
    assert done.returncode != 0
    return done.stderr


def test_a_text_is_written_down_with_all_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(RuntimeError, match=FAILURE) as raised:
        program_class().of_text(PARTITIONED, "host", {"order": "program", "host": "aten::mm"})
    named = re.search(r"to see it again: gravure opt (\S+\.gv)", str(raised.value))
    assert named is not None
    (file,) = tmp_path.iterdir()
    assert Path(named[1]) == file
    text = file.read_text()
    assert "order=program" in text and "host=aten::mm" in text
    assert "# fails: partition-graph: entry 'step'" in text and text.endswith(PARTITIONED)
    assert FAILURE in opt(str(file))


def test_a_file_is_named_with_the_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    file = tmp_path / "step.gv"
    file.write_text(PARTITIONED)
    with pytest.raises(RuntimeError, match=FAILURE) as raised:
        gravure.load(file, device="host", order="program")
    named = re.search(r"gravure opt '(.+)' --passes='(.+)'", str(raised.value))
    assert named is not None and named[1] == str(file)
    assert FAILURE in opt(named[1], f"--passes={named[2]}")
    assert not list((tmp_path / "temporary").iterdir())


def test_where_no_file_can_be_written_the_error_is_the_pass_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "there is none"))
    with pytest.raises(RuntimeError, match=FAILURE) as raised:
        program_class().of_text(PARTITIONED, "host", {})
    assert "to see it again" not in str(raised.value)
