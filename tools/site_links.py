"""A hook of mkdocs: links to files outside of docs/ become the repository's, or plain names.

GRAVURE_REPOSITORY is the address that files are shown under, `https://…/blob/main`.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<to>[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Raises ValueError for a file that is not there."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replaced(match: re.Match[str]) -> str:
        to, _, anchor = match["to"].partition("#")
        if not to or ":" in to:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, to))
        is_page = path.startswith("docs/") and not (ROOT / path).is_dir()
        if is_page:
            return match[0]
        if not (ROOT / path).exists():
            raise ValueError(f"{page.file.src_uri}: there is no {path}, which it links to")
        base = os.environ.get("GRAVURE_REPOSITORY", "")
        there = f"{base}/{path}#{anchor}".rstrip("#")
        return f"[{match['text']}]({there})" if base else match["text"]

    return _LINK.sub(replaced, markdown)
