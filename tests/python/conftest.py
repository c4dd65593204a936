"""Makes the plugin and the tests' own modules importable."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
for _path in (_HERE, _HERE.parents[1] / "python"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))
