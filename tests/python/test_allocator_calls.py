"""What the installed torch asks of an allocator of CUDA memory, ours passes on or answers.

A call that is new in a release has a default that does nothing: no compiler would tell.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = Path(torch.__file__).parent / "include"
OURS = ("runtime/cuda/cuda_allocator.h", "ir/torch_private/cuda_newer_allocator.h")
BASES = {
    "c10/core/Allocator.h": "Allocator",
    "c10/core/CachingDeviceAllocator.h": "DeviceAllocator",
    "c10/cuda/CUDACachingAllocator.h": "CUDAAllocator",
}
# With a default that does what ours must do.
INHERITED = {"is_simple_data_ptr"}


def uncommented(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def body_of(text: str, name: str) -> str:
    """The body of the class or struct `name`."""
    head = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\b[^;{{]*{{", text)
    assert head is not None, f"there is no class {name}"
    depth, end = 1, head.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[head.end() : end]


def asked(text: str, name: str) -> set[str]:
    """The names of the virtual functions that class `name` declares."""
    declared = re.findall(r"\bvirtual\b[^;{(]*?([~\w]+)\s*\(", body_of(uncommented(text), name))
    return {one for one in declared if not one.startswith("~")}


@pytest.mark.skipif(not (INCLUDE / "c10/cuda").is_dir(), reason="this torch has no CUDA headers")
def test_all_that_torch_asks_is_passed_on() -> None:
    wanted = set()
    for file, name in BASES.items():
        wanted |= asked((INCLUDE / file).read_text(), name)
    assert {"raw_alloc", "snapshot", "allocate", "emptyCache"} <= wanted
    ours = uncommented("".join((ROOT / file).read_text() for file in OURS))
    overridden = set(re.findall(r"(\w+)\s*\([^;{]*\)\s*(?:const\s+)?override\b", ours))
    assert sorted(wanted - overridden - INHERITED) == []


def test_a_new_call_is_seen() -> None:
    text = (
        "class Allocator : public Other {\n public:\n  // virtual void commented();\n"
        "  virtual std::function<void(int)> observed(\n      int a = {}) { return {}; }\n"
        "  virtual void markCaptureBegin(c10::DeviceIndex /*device*/) {}\n"
        "  virtual ~Allocator() = default;\n};\nvirtual void outside();"
    )
    found = asked(text, "Allocator")
    assert "markCaptureBegin" in found and "commented" not in found and "outside" not in found
