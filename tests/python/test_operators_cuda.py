"""What Gravure knows of operators, held against runs and captures on a GPU: some three minutes."""

from __future__ import annotations

import pytest
import torch
from running import need_library

need_library()
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)


def test_nothing_that_is_known_of_an_operator_is_contradicted_on_a_gpu() -> None:
    import operator_walk

    report = operator_walk.walk_in_processes("cuda", jobs=8)
    assert report["wrong"] == {}
    assert len(report["judged"]) > 1000
