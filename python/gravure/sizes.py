"""Bytes, shares and times as people read them."""

from __future__ import annotations

_STEPS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def bytes_text(count: int) -> str:
    """`1.50 MiB`, `12.0 GiB`; below a KiB `512 bytes`."""
    for unit, size in _STEPS:
        if abs(count) >= size:
            return f"{_three_digits(count / size)} {unit}"
    return "1 byte" if count == 1 else f"{count} bytes"


def share_text(part: float, whole: float) -> str:
    """`93 %`. Never 100 % or 0 % for what is not all or nothing."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 1:
        return "< 1 %"
    if 99 < share < 100:
        return f"{min(share, 99.9):.1f} %"
    return f"{share:.0f} %"


def time_text(nanoseconds: float) -> str:
    """`1.78 ms`, `35.0 µs`."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{_three_digits(nanoseconds / size)} {unit}"
    return f"{nanoseconds:.0f} ns"


def times_text(factor: float) -> str:
    """`0.62 ×`, `12 ×`, `280 ×`: two digits."""
    return f"{factor:.2g} ×" if factor < 10 else f"{float(f'{factor:.2g}'):,.0f} ×"


def count_text(count: int, one: str, several: str = "") -> str:
    """`1 partition`, `1,200 partitions`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"
