"""Run the tests that need a GPU and write down how they went.

python -m tests.gpu [SUMMARY.json] [pytest arguments]
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch


class Summary:
    """A pytest plugin that counts outcomes and keeps what failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
            self.seconds[report.nodeid] = report.duration
        if report.failed:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self.failed[report.nodeid] = "\n".join(lines if len(lines) <= 24 else [*lines[:4], "...", *lines[-20:]])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.counts["error"] += 1
            self.failed[report.nodeid or "collection"] = str(report.longrepr)[-600:]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    for name in ("triton", "transformers"):
        try:
            found[name] = __import__(name).__version__
        except ImportError:
            found[name] = "not installed"
    found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    found["cuda"] = str(torch.version.cuda)
    return found


def main(arguments: list[str]) -> int:
    path = arguments.pop(0) if arguments and arguments[0].endswith(".json") else None
    summary, start = Summary(), time.perf_counter()
    here = str(Path(__file__).parent)
    status = int(pytest.main(["-m", "gpu", "-q", here, *arguments], plugins=[summary]))
    slowest = sorted(summary.seconds.items(), key=lambda item: -item[1])[:5]
    told = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "seconds": round(time.perf_counter() - start, 1),
        "counts": dict(summary.counts),
        "failed": summary.failed,
        "slowest": {name: round(seconds, 1) for name, seconds in slowest},
    }
    text = json.dumps(told, indent=2)
    print(text)
    if path:
        Path(path).write_text(text + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
