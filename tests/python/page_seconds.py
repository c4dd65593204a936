"""How long a page of 11,000 calls takes until it is drawn: of the browser's thread, and by a clock.

python tests/python/page_seconds.py [--runs 3]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from browser import Browser
from test_page_browser import page, program, ragged

CALLS = 11_000
STEPS = {"two graphs": program(CALLS, 5000, 5100), "each second call a graph": ragged(CALLS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        for name, detail in STEPS.items():
            file = Path(folder) / "report.html"
            file.write_text(page(detail))
            for _ in range(runs):
                with Browser() as shown:
                    clock = shown.open(file)
                    print(f"{name}: {shown.thread_seconds():.2f} s of the thread, {clock:.2f} s")


if __name__ == "__main__":
    main()
