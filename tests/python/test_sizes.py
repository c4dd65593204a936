"""Bytes, shares and times as people read them."""

from __future__ import annotations

import pytest
from gravure.sizes import bytes_text, share_text, times_text


@pytest.mark.parametrize(
    ("factor", "text"),
    [(0.617, "0.62 ×"), (1.0, "1 ×"), (1.64, "1.6 ×"), (12.3, "12 ×"), (284.0, "280 ×")],
)
def test_a_factor_is_no_power_of_ten(factor: float, text: str) -> None:
    assert times_text(factor) == text
    assert times_text(123_456.0) == "120,000 ×"


def test_bytes_and_shares() -> None:
    assert bytes_text(1) == "1 byte" and bytes_text(3 << 20) == "3.00 MiB"
    assert share_text(999, 1000) == "99.9 %" and share_text(1, 1000) == "< 1 %"
    assert share_text(0, 0) == "–"
