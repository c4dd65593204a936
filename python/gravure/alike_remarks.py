"""Remarks that differ in one name alone, as one: a model has 130 gradients that are held."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_NAMED = 3  # names that are said
_QUOTED = re.compile(r'"([^"\n]*)"')


def grouped(texts: Iterable[str]) -> dict[str, int]:
    """How often each came, in order. Of those that are alike but for the one name that
    they have in quotes, one is left, which says the first names and how many there are besides:
    `gradient "a" (and "b", "c", 37 others) was held`."""
    return _grouped((text, 1) for text in texts)


def worst_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Likewise of texts that were counted, the most often first."""
    return dict(sorted(_grouped(counts.items()).items(), key=lambda pair: -pair[1]))


def _grouped(counted: Iterable[tuple[str, int]]) -> dict[str, int]:
    names: dict[str, dict[str, int]] = {}  # by a text, what stands in its quotes
    for text, times in counted:
        quoted = _QUOTED.findall(text)
        key, name = (_QUOTED.sub('""', text), quoted[0]) if len(quoted) == 1 else (text, "")
        group = names.setdefault(key, {})
        group[name] = group.get(name, 0) + times
    return {_one(key, list(group)): sum(group.values()) for key, group in names.items()}


def _one(key: str, names: list[str]) -> str:
    if names == [""]:
        return key
    first, *more = [f'"{name}"' for name in names]
    rest = len(more) - _NAMED + 1
    if rest > 1:
        more = [*more[: _NAMED - 1], f"{rest:,} others"]
    return key.replace('""', first + (f" (and {', '.join(more)})" if more else ""), 1)
