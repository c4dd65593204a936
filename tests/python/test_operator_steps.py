"""Steps on operators of PyTorch's of which forward and backward are replayed by turns.

A twentieth of the operators; `python tests/python/operator_steps.py` walks over all.
"""

from __future__ import annotations

import operator_steps
from running import DEVICE, need_library

need_library()


def test_law_3_a_forward_or_backward_alone_is_replayed_in_eagers_bits() -> None:
    found = operator_steps.walk_in_processes(DEVICE, jobs=2, seed=0, shares=40, some=range(2))
    assert [each.line() for each in found if each.outcome == "different"] == []
    assert sum(each.outcome == "held" for each in found) > 15, found
