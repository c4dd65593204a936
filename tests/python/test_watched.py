"""What people's own tools see: torch.profiler, tlparse, a terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gravure_native
import pytest
import torch
from running import need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")
_ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(gravure_native.__file__).parent)}


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        rows = (hidden[:, 0] > 0.5).sum().item()
        return self.last(hidden).tanh() * rows


def _names(profile: Any, path: Path) -> list[str]:
    """Names of ours, as a trace for Perfetto has them, by time."""
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    own = [e for e in events if str(e.get("name", "")).startswith("gravure: ")]
    return [e["name"] for e in sorted(own, key=lambda e: e["ts"])]


def test_a_profile_names_each_part(tmp_path: Path) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        model = Reads()
        compiled = torch.compile(model, backend="gravure")
        with torch.profiler.profile() as profile:
            for _ in range(5):
                compiled(torch.randn(8, 4)).square().mean().backward()
        names = _names(profile, tmp_path / "trace.json")
        with torch.profiler.profile() as later:
            compiled(torch.randn(8, 4)).square().mean().backward()
    for begin in (
        "gravure: compiling graph",
        "gravure: planning graph",
        "gravure: forward, warm-up",
        "gravure: capture forward, partition 0, ",
        "gravure: capture backward, partition ",
        "gravure: forward, captured",
        "gravure: replay forward, partition 0, ",
        "gravure: stage inputs of forward",
        "gravure: on the host %",
    ):
        assert any(name.startswith(begin) for name in names), (begin, names)
    (read,) = {n for n in names if n.startswith("gravure: on the host") and "scalar_dense" in n}
    assert "at test_watched.py:" in read
    replayed = _names(later, tmp_path / "later.json")
    assert replayed[0] == "gravure: forward, captured"
    assert not any("capture forward" in n or "warm-up" in n for n in replayed)
    order = [n for n in replayed if ": replay" in n or "scalar_dense" in n]
    # A graph, the read, and the backward's.
    assert [n.split(",")[0] for n in order][:3] == [
        "gravure: replay forward",
        read,
        "gravure: replay backward",
    ]


def test_a_trace_is_one_that_perfetto_opens(tmp_path: Path) -> None:
    """Each event has what the format asks for; those of a thread lie in each other or apart."""
    compiled = torch.compile(Reads(), backend="gravure")
    with torch.profiler.profile() as profile:
        for _ in range(5):
            compiled(torch.randn(8, 4)).square().mean().backward()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    own = [e for e in events if str(e.get("name", "")).startswith("gravure: ")]
    threads: dict[Any, list[dict[str, Any]]] = {}
    for event in own:
        assert {"name", "ph", "ts", "dur", "pid", "tid"} <= event.keys()
        assert event["ph"] == "X" and event["dur"] >= 0
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    assert threads
    for each in threads.values():
        around: list[dict[str, Any]] = []
        for event in sorted(each, key=lambda e: (e["ts"], -e["dur"])):
            while around and _end(around[-1]) <= event["ts"]:
                around.pop()
            assert not around or _end(event) <= _end(around[-1]) + 0.002  # rounded to nanoseconds
            around.append(event)


def _end(event: dict[str, Any]) -> float:
    return event["ts"] + event["dur"]


# A tool as Nsight Systems is one: NVTX loads it, and gives it each range.
_TOOL = """
#include <stdio.h>
#include <stdlib.h>
#include <nvtx3/nvToolsExt.h>
static FILE* out;
static int push(const char* name) { fprintf(out, "push %s\\n", name); fflush(out); return 0; }
static int pop(void) { fputs("pop\\n", out); fflush(out); return 0; }
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const NvtxExportTableCallbacks* calls = get(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = 0;
  unsigned int size = 0;
  if (!calls || !calls->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  out = fopen(getenv("RANGES"), "w");
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
"""
# What torch.autograd.profiler.emit_nvtx() does, without its wait for a GPU.
_MARKS = """
import sys, torch, gravure
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.autograd.profiler import _disable_profiler, _enable_profiler
model = torch.nn.Linear(4, 1)
compiled = torch.compile(lambda x: model(x).sum(), backend="gravure")
for _ in range(4):
    compiled(torch.randn(8, 4)).backward()
if "watched" in sys.argv:
    config = False, False, False, False, False, _ExperimentalConfig()
    _enable_profiler(ProfilerConfig(ProfilerState.NVTX, *config), set())
    compiled(torch.randn(8, 4)).backward()
    _disable_profiler()
compiled(torch.randn(8, 4)).backward()
"""


@pytest.mark.parametrize("watched", [True, False])
def test_nvtx_has_a_range_for_each_part_where_somebody_watches(
    watched: bool, tmp_path: Path
) -> None:
    compiler = shutil.which("gcc")
    headers = next(
        Path(torch.__file__).parents[1].glob("nvidia/*/include/nvtx3/nvToolsExt.h"), None
    )
    if compiler is None or headers is None or torch.version.cuda is None:
        pytest.skip("NVTX's header and a compiler are needed")
    (tmp_path / "tool.c").write_text(_TOOL)
    tool, ranges = tmp_path / "tool.so", tmp_path / "ranges"
    command = [compiler, "-shared", "-fPIC", f"-I{headers.parents[1]}", "-o", tool]
    subprocess.run([*command, tmp_path / "tool.c"], check=True)
    environment = _ENVIRONMENT | {"NVTX_INJECTION64_PATH": str(tool), "RANGES": str(ranges)}
    words = ["watched"] if watched else []
    subprocess.run([sys.executable, "-c", _MARKS, *words], env=environment, check=True)
    lines = ranges.read_text().splitlines() if ranges.exists() else []
    own = [line.partition(", op_id")[0] for line in lines if line.startswith("push gravure: ")]
    if not watched:
        assert own == []
        return
    assert own[0] == "push gravure: forward, captured"
    assert any(line.startswith("push gravure: replay backward, partition ") for line in own)
    pushes = sum(line.startswith("push ") for line in lines)
    assert pushes == lines.count("pop")


_TRAINS = """
import torch, gravure
model = torch.nn.Linear(4, 1)
compiled = torch.compile(model, backend="gravure")
for _ in range(4):
    compiled(torch.randn(8, 4)).square().mean().backward()
step = gravure.compile_step(lambda x: model(x).square().mean())
step(torch.randn(8, 4))
"""


def test_tlparse_finds_plan_remarks_and_report(tmp_path: Path) -> None:
    environment = _ENVIRONMENT | {"TORCH_TRACE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _TRAINS], env=environment, check=True)
    lines = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    found = {}
    for i, line in enumerate(lines):
        if '"artifact"' in line and "gravure" in line:
            record = json.loads(line[line.index("{") :])
            payload = []
            for text in lines[i + 1 :]:
                if not text.startswith("\t"):
                    break
                payload.append(text[1:])
            found[record["artifact"]["name"]] = (record, "\n".join(payload))
    kinds = {name.removeprefix("gravure_").partition("_")[0] for name in found}
    assert kinds == {"plan", "remarks", "program", "report"}
    (plan, *_) = [name for name in found if name.startswith("gravure_plan_graph")]
    assert found[plan][0]["frame_id"] == 0  # of that compilation
    assert "partition" in found[plan][1]
    assert "captures, " in found["gravure_report"][1]


_SLOW = """
import time, torch, gravure
from gravure.library import progress
progress._PATIENCE = 0.2
with progress.under_way("compiling a large model"):
    with progress.under_way("planning it"):
        time.sleep(1)
for done in range(3):
    torch.ops.gravure.progress("capturing step", done, 3)
    time.sleep(0.2)
torch.ops.gravure.progress("", 0, 0)
with progress.under_way("what is quick"):
    pass
"""


def _in_a_terminal(code: str) -> str:
    ours, theirs = pty.openpty()
    environment = _ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            read = os.read(ours, 4096)
        except OSError:  # the other end is gone
            break
        if not read:
            break
        said += read
    os.close(ours)
    assert process.wait() == 0, said.decode()
    return said.decode()


def test_a_terminal_shows_what_takes_long() -> None:
    said = _in_a_terminal(_SLOW)
    assert "gravure: planning it" in said
    assert "gravure: capturing step" in said and "2/3" in said
    assert "what is quick" not in said


_TRACES = """
import time, torch, gravure
from gravure.library import progress
progress._PATIENCE = 0.3
def long(x):
    for _ in range(600):
        x = x * 1.5 - 1
    return x
for backend in ({backends}):
    torch._dynamo.reset()
    torch.compile(long, backend=backend)(torch.randn(4))
"""


def test_a_terminal_shows_that_dynamo_traces() -> None:
    said = _in_a_terminal(_TRACES.format(backends='"gravure", "gravure"'))
    assert "gravure: tracing long at <string>:5" in said
    assert "gravure: compiling graph" in said


def test_nothing_is_said_of_what_is_compiled_for_others() -> None:
    """They are before us and behind us."""
    said = _in_a_terminal(_TRACES.format(backends='"eager", "eager"'))
    assert "gravure" not in said
    code = _TRACES.format(backends='"eager",').replace(
        "for backend", "torch.compile(lambda x: x + 1, backend='gravure')\nfor backend"
    )
    assert "gravure" not in _in_a_terminal(code.replace("    torch._dynamo.reset()\n", ""))


def test_elsewhere_it_is_quiet() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SLOW)],
        env=_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == "" == done.stdout
