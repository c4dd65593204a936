"""Writes the page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .html import page_of


def write_page(path: str | os.PathLike[str], page: Mapping[str, Any]) -> None:
    """`page` (html.page_of) into the file `path`, which is whole or not there at all.

    Raises OSError, which names the path and the remedy, where it cannot be written; TypeError for
    what is no name of a file; ImportError without plotly.
    """
    write_text(path, page_of(page))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Likewise for any report."""
    if not isinstance(path, (str, os.PathLike)):
        what = f"{path!r} ({type(path).__name__})"
        raise TypeError(
            f"a report is written to a file, by its name as a str or a Path, not {what}"
        )
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a device, a pipe; an error for a folder
            return
        replace_file(target, text.encode(), 0o666 & ~_umask())
    except OSError as error:
        reason = error.strerror or str(error)
        raise type(error)(
            error.errno,
            f"the report cannot be written: {reason}; name a file in a folder that exists and may "
            "be written to",
            str(target),
        ) from None


def replace_file(target: Path, content: bytes, mode: int) -> None:
    """`content` becomes that of `target`, with these permissions, at once or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
