"""A real browser for tests of the page: Chromium, without a window, by its debugging pipe.

Nothing but the browser is needed (Debian: chromium). Where there is none, tests skip.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE = 180.0  # seconds: a busy machine takes many


def found() -> str | None:
    """The browser's program; None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One page. `problems`: errors and warnings of its console, and what it asked a network for."""

    def __init__(self, *, dark: bool = False, width: int = 1400, height: int = 1000) -> None:
        self.problems: list[str] = []
        self._number = 0
        self._data = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        program = found()
        assert program is not None
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()
        self._write, self._read = from_us, from_browser

        def hand_over() -> None:  # the browser reads at 3 and writes at 4
            low, high = os.dup2(to_browser, 100), os.dup2(to_us, 101)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={self._profile.name}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=hand_over,
        )
        os.close(to_browser)
        os.close(to_us)
        target = self._ask("Target.createTarget", {"url": "about:blank"}, "")["targetId"]
        attach = {"targetId": target, "flatten": True}
        self._session = self._ask("Target.attachToTarget", attach, "")["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable", {})
        self._ask("Performance.enable", {"timeDomain": "threadTicks"})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", metrics)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def open(self, file: Path) -> float:
        """Opens a page and waits until it has drawn; the seconds that it took, by its own clock."""
        self._ask("Page.navigate", {"url": file.resolve().as_uri()})
        drawn = self.wait_for("document.documentElement?.dataset.drawn")
        return float(drawn) / 1000

    def thread_seconds(self) -> float:
        """What the page's thread has worked so far, however busy the machine is."""
        metrics = self._ask("Performance.getMetrics", {})["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript's `expression`. AssertionError where it throws."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self._ask("Runtime.evaluate", asked)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Its value, as soon as it is true."""
        end = time.monotonic() + _PATIENCE
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"{expression} stayed {value!r}; {self.problems}"
            time.sleep(0.05)
        return value

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        asked = {"captureBeyondViewport": whole, "format": "png"}
        if whole:
            size = self._ask("Page.getLayoutMetrics", {})["cssContentSize"]
            extent = {"width": size["width"], "height": size["height"]}
            asked["clip"] = {"x": 0, "y": 0, "scale": 1, **extent}
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", asked)["data"]))

    def accessible(self) -> list[dict[str, Any]]:
        """The page as a screen reader has it."""
        return self._ask("Accessibility.getFullAXTree", {})["nodes"]

    def _ask(self, method: str, params: dict[str, Any], session: str | None = None) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _next(self, waits_for: str) -> dict[str, Any]:
        while b"\0" not in self._data:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            read = os.read(self._read, 1 << 20) if ready else b""
            assert read, f"the browser does not answer {waits_for}"
            self._data += read
        message, _, self._data = self._data.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:", "blob:")):
                self.problems.append(f"asks for {url}")
