"""A plan as the page takes it: of `gravure.explain`, and of `gravure plan --html`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..alike_remarks import grouped
from .file import write_page
from .surroundings import settings, versions


def graph_of_plan(
    label: str,
    kernels: str,
    sizes: Sequence[int],
    detail: Mapping[str, Any] | None,
    remarks: Mapping[str, int],
) -> dict[str, Any]:
    """A graph that nobody has run. Without `detail` it has no program."""
    program = {"sizes": list(sizes), "detail": detail, "remarks": dict(remarks)}
    programs = [] if detail is None else [program]
    return {"label": label, "failure": "", "kernels": kernels, "programs": programs}


def write_plan(path: str | os.PathLike[str], found: Mapping[str, Any]) -> None:
    """`found`: what `gravure plan PROGRAM --detail` prints. Raises as write_page."""
    name = found["plan"]["file"]
    missed = grouped(
        f"{remark['name']}: {remark['message']}"
        for remark in found["remarks"]
        if remark["kind"] == "missed" and not remark["node"]
    )
    page = {
        "title": f"Plan of {name}",
        "nothing": f"{name} has no entry.",
        "graphs": [graph_of_plan(name, "", (), found["detail"], missed)],
        "settings": settings([]),
        "versions": versions(),
    }
    write_page(path, page)
