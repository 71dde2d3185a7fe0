"""The demo: its words for the numbers, and one run of it from end to end."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from rich.console import Console

from burnish.demo import comparison_table, run_demo, verdict
from burnish.measure import Ratio, Timing
from burnish.trial import Comparison, EngineResult


def comparison(ours: float = 0.8, inductor: float = 1.0, noisy: bool = False) -> Comparison:
    def result(p50: float, cold: float | None, error: float) -> EngineResult:
        return EngineResult(cold, Timing(9, p50, 0.0, p50, p50, p50), error)

    def ratio(value: float) -> Ratio:
        return Ratio(value, value * (0.9 if noisy else 0.99), value * 1.01, 9)

    engines = {
        "eager": result(1.0, None, 2e-7),
        "inductor": result(inductor, 30.0, 2e-7),
        "burnish": result(ours, 6.0, 3e-7),
    }
    return Comparison("m", engines, {"eager": ratio(1 / ours), "inductor": ratio(inductor / ours)}, threads=2)


def test_the_verdict_says_faster_slower_and_equal() -> None:
    assert verdict(comparison()).startswith("1.25 × faster than eager; 1.25 × faster than Inductor; compiles 5.0 ×")
    assert "25 % slower than eager" in verdict(comparison(ours=1.25))
    assert "as fast as eager" in verdict(comparison(ours=1.0))
    assert "error 1.5 × eager's" in verdict(comparison())


def test_the_verdict_hides_neither_noise_nor_failure_nor_fallback() -> None:
    assert "(noisy: rounds spread 11 %)" in verdict(comparison(noisy=True))
    whole = comparison()
    failed = {**whole.engines, "inductor": EngineResult(failure="InvalidCxxCompiler: none")}
    assert "Inductor failed (InvalidCxxCompiler: none)" in verdict(Comparison("m", failed, {}, 2))
    ran_eager = EngineResult(1.0, whole.engines["burnish"].timing, 0.0, notes=("eager served a graph: build",))
    served = {**whole.engines, "burnish": ran_eager}
    assert "eager served a graph: build" in verdict(Comparison("m", served, {}, 2))


def test_the_table_fits_eighty_columns() -> None:
    console = Console(width=80, record=True, force_terminal=False)
    console.print(comparison_table([comparison(ours=0.0000123), comparison(ours=0.8, noisy=True)]))
    text = console.export_text()
    assert "…" not in text and "vs Inductor" in text and "12.3 µs" in text and "1.25 × ±" in text


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
