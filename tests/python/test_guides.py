"""docs/guides: what runs in several processes; the others are run by test_snippets.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from running import need_library

need_library()
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="it takes a GPU a rank"
)
def test_several_gpus(tmp_path: Path) -> None:
    """As the page says: saved as train.py, started by torchrun."""
    page = (ROOT / "docs/guides/several-gpus.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^torchrun (.*)$", page, re.MULTILINE)
    (tmp_path / "train.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *command.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 partitions: 1 captured" in done.stdout, done.stdout
    assert "6 runs" in done.stdout
