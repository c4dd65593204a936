"""The code of a line that is named by its file's name alone."""

from __future__ import annotations

import linecache
import re
import sys

_LOCATION = re.compile(r"([\w.-]+\.py):(\d+)$")


def code_at(location: str) -> str:
    """What stands at "model.py:12", of the loaded module of that file; "" where none is, or more
    than one."""
    match = _LOCATION.match(location)
    if match is None:
        return ""
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    found = [file for file in files if file.rpartition("/")[2] == match[1]]
    return linecache.getline(found[0], int(match[2])).strip() if len(found) == 1 else ""
