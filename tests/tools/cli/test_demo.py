"""The demo: its words for the numbers, and one run of it from end to end."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from rich.console import Console

from burnish.tools.demo import results_table, run_demo
from tests.tools.bench.results import result, row


def test_the_table_fits_eighty_columns() -> None:
    console = Console(width=80, record=True, force_terminal=False)
    quick = result(
        row("eager", 1e-4), row("inductor", 9e-5, eager_seconds=1e-4), row("burnish", 5e-5, eager_seconds=1e-4)
    )
    noisy = result(row("eager", noise=0.1), row("inductor", failure="no compiler"), row("burnish", 0.05, noise=0.1))
    console.print(results_table([quick, noisy]))
    text = console.export_text()
    assert "…" not in text and "vs Inductor" in text and "50.1 µs" in text and "failed" in text
    assert re.search(r"burnish +10.0 s +50.1 µs +2.00 × ", text) and re.search(r"\d × ± ", text)


def test_a_missing_package_is_said_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run_demo(["bert-base"]) == 1
    assert "pip install 'burnish[hf]'" in capsys.readouterr().out


@pytest.mark.slow
def test_the_demo_runs_where_there_is_no_terminal() -> None:
    command = [sys.executable, "-m", "burnish", "demo", "mlp@tiny", "--seconds", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"burnish +\d+\.\d s", done.stdout) and "Total" in done.stdout
    assert "\x1b" not in done.stdout
