"""A real browser for the tests: Chromium, driven through its debugging pipe with nothing but the standard library."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
_PATIENCE_SECONDS = 120.0  # a guard against a browser that hangs, not a time to meet


def find_browser() -> str | None:
    """A Chromium on the PATH, or one that Playwright has installed."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found:
        return found
    playwright = Path.home() / ".cache" / "ms-playwright"
    return next((str(path) for path in sorted(playwright.glob("chromium*/chrome-linux*/*chrome*"))), None)


@dataclass
class Visit:
    """What the browser did with a page."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # console messages, exceptions, refused loads
    measured: Any = None
    picture: bytes = b""


class Browser:
    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self._process = process
        self._write = write
        self._read = read
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def visit(self, page: Path, *, width: int, height: int, dark: bool, measure: str, media: str = "screen") -> Visit:
        """Load a file at a viewport of this size, evaluate `measure` in it and take a picture of all of it."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable", session)
        self.send(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", session, media=media, features=[scheme])
        self.events.clear()
        self.send("Page.navigate", session, url=page.as_uri())
        self._wait_for("Page.loadEventFired")
        found = self.send("Runtime.evaluate", session, expression=measure, returnByValue=True)
        shot = self.send("Page.captureScreenshot", session, captureBeyondViewport=True)
        visit = Visit(measured=found["result"].get("value"), picture=base64.b64decode(shot["data"]))
        for event in self.events:
            self._sort(event, visit)
        self.send("Target.closeTarget", targetId=target)
        return visit

    @staticmethod
    def _sort(event: dict[str, Any], visit: Visit) -> None:
        said = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            visit.requests.append(said["request"]["url"])
        elif event["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            visit.complaints.append(json.dumps(said))

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError(f"the browser says nothing (status {self._process.poll()})")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextlib.contextmanager
def open_browser(path: str) -> Iterator[Browser]:
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()

    def place_pipes() -> None:  # the browser reads from 3 and writes to 4
        os.dup2(commands_out, 103)
        os.dup2(answers_in, 104)
        os.dup2(103, 3)
        os.dup2(104, 4)

    with tempfile.TemporaryDirectory(prefix="burnish-browser-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                path,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=place_pipes,
        )
        os.close(commands_out)
        os.close(answers_in)
        browser = Browser(process, commands_in, answers_out)
        try:
            yield browser
            with contextlib.suppress(RuntimeError, OSError):
                browser.send("Browser.close")
        finally:
            process.kill()
            process.wait()
            os.close(commands_in)
            os.close(answers_out)
