"""Whose kernels a replay runs: what a trace of the profiler is told of captured calls."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
from running import need_library
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

need_library()
pytestmark = pytest.mark.usefixtures("fresh")
NODE_ID = "graph node id"


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        return self.down(hidden.softmax(-1)).sum()


def trained(device: str, **options: Any) -> Callable[[], None]:
    """A step of a model of which all but the loop is captured by now."""
    model = Tower().to(device)
    compiled = torch.compile(model, backend="gravure", options=options)
    x = torch.randn(8, 16, device=device)

    def step() -> None:
        compiled(x).backward()
        model.zero_grad()

    for _ in range(6):
        step()
    return step


def told() -> list[dict[str, Any]]:
    return [each for (each,) in gravure.kernel_annotations().values()]


def trace_with(numbers: list[int], path: Path) -> Path:
    events = [{"name": "begin", "ph": "X"}, {"name": "copy", "args": {"bytes": 3}}]
    events += [{"name": "kernel", "args": {NODE_ID: number, "grid": [1]}} for number in numbers]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    trace = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    assert trace["schemaVersion"] == 1
    return trace["traceEvents"]


def test_each_captured_call_says_its_module_line_and_operator() -> None:
    step = trained("cpu")
    found = told()
    assert len({(each["entry"], each["partition"]) for each in found}) == 2
    assert {each["entry"] for each in found} == {"forward", "backward"}
    assert {each["module_fqn"] for each in found if "module_fqn" in each} >= {"up", "down"}
    (softmax,) = (e for e in found if e["operator"] == "aten::_softmax")
    line = next(
        n
        for n, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if ".softmax(-1)" in text
    )
    assert softmax["source"].endswith(f"test_kernel_names.py:{line}")
    products = [e for e in found if e["operator"] in ("aten::addmm", "aten::mm")]
    assert {(e["entry"], e["module_fqn"]) for e in products} == {
        (entry, module) for entry in ("forward", "backward") for module in ("up", "down")
    }
    step()  # still the same captures
    assert told() == found


def test_what_is_not_captured_or_gone_has_no_names() -> None:
    assert told() == []
    step = trained("cpu", uncaptured=True)
    assert told() == []
    step = trained("cpu")
    assert told()
    del step
    torch._dynamo.reset()
    gravure.drop_captures()
    assert told() == []


def test_captures_for_other_addresses_have_names_too() -> None:
    model = Tower()
    compiled = torch.compile(model, backend="gravure")
    first = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(8, 16)
    given = [p.data for p in model.parameters()]
    counts = set()
    for turn in range(6):
        for parameter, data in zip(model.parameters(), (given, first)[turn % 2], strict=True):
            parameter.data = data
        for _ in range(6):
            compiled(x).backward()
            model.zero_grad()
        counts.add(len(told()))
    one, both = sorted(counts)[0], sorted(counts)[-1]
    assert both == 2 * one


def test_an_update_has_names() -> None:
    parameters = [torch.randn(4, requires_grad=True) for _ in range(2)]
    optimizer = gravure.compile_optimizer(torch.optim.SGD(parameters, lr=0.1))
    for _ in range(6):
        for parameter in parameters:
            parameter.grad = torch.ones(4)
        optimizer.step()
    assert {each["operator"] for each in told()} == {"aten::add_"}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_told_whose_kernels_it_has(name: str, tmp_path: Path) -> None:
    step = trained("cpu")
    known = gravure.kernel_annotations()
    number = next(iter(known))
    path = trace_with([number, 5, number], tmp_path / name)
    assert gravure.annotate_trace(path) == 2
    *before, first, foreign, second = read(path)
    assert before == [{"name": "begin", "ph": "X"}, {"name": "copy", "args": {"bytes": 3}}]
    assert first["args"] == {NODE_ID: number, "grid": [1]} | known[number][0]
    assert second == first
    assert foreign["args"] == {NODE_ID: 5, "grid": [1]}
    assert [each.name for each in tmp_path.iterdir()] == [name]
    del step


def test_a_trace_of_others_is_left_alone(tmp_path: Path) -> None:
    step = trained("cpu")
    path = trace_with([5], tmp_path / "trace.json")
    raw = path.read_bytes()
    assert gravure.annotate_trace(path) == 0
    assert path.read_bytes() == raw
    del step


def test_names_that_were_taken_before_the_programs_went(tmp_path: Path) -> None:
    step = trained("cpu")
    known = gravure.kernel_annotations()
    del step
    torch._dynamo.reset()
    gravure.drop_captures()
    path = trace_with(list(known), tmp_path / "trace.json")
    assert gravure.annotate_trace(path) == 0
    assert gravure.annotate_trace(path, known) == len(known)


@pytest.mark.parametrize("content", [b"", b"no json", b'{"events": []}', b"\x1f\x8b broken"])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_what_is_no_trace_is_an_error_that_names_the_file(
    content: bytes, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is no trace: .*export_chrome_trace"):
        gravure.annotate_trace(path)
    assert path.read_bytes() == content
    with pytest.raises(FileNotFoundError):
        gravure.annotate_trace(tmp_path / "nowhere.json")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("codegen", ["aten", "inductor"])
def test_every_kernel_of_a_replay_has_a_name_in_a_trace(codegen: str, tmp_path: Path) -> None:
    step = trained("cuda", codegen=codegen)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
        step()
        torch.cuda.synchronize()
    path = tmp_path / "trace.json"
    watched.export_chrome_trace(str(path))
    named = gravure.annotate_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    kernels = [e for e in events if e.get("args", {}).get(NODE_ID)]  # 0: of no graph
    assert len(kernels) > 6
    assert named == len(kernels)
    for kernel in kernels:
        assert {"operator", "entry", "partition"} <= set(kernel["args"])
    if codegen == "aten":  # a kernel is of the operator that PyTorch's own trace has it for
        for kernel in kernels:
            if "softmax" in kernel["name"].lower():
                assert "softmax" in kernel["args"]["operator"]
            if "gemm" in kernel["name"].lower():
                assert kernel["args"]["operator"] in ("aten::addmm", "aten::mm")
                assert kernel["args"]["module_fqn"] in ("up", "down")
