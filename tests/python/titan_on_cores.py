"""For `--experimental.custom_import`: gives each rank processors of its own.

Ranks that the system moves among processors differ by milliseconds a step, and all wait for the
slowest one.
"""

from __future__ import annotations

import os

_given = sorted(os.sched_getaffinity(0))
_share = len(_given) // int(os.environ["LOCAL_WORLD_SIZE"])
if _share > 0:
    _first = _share * int(os.environ["LOCAL_RANK"])
    os.sched_setaffinity(0, _given[_first : _first + _share])
