"""The time left: expectations, corrected by what is done."""

from __future__ import annotations

import pytest

from burnish.tools.bench.candidates import Candidate
from burnish.tools.bench.progress import Forecast, Progress, expected_alone
from burnish.tools.commands.bench import time_left


def test_the_time_left_follows_the_machine() -> None:
    now = [0.0]
    seen: list[Progress] = []
    forecast = Forecast(seen.append, clock=lambda: now[0])
    for name in ("a", "b", "c"):
        forecast.expect(name, 10.0)
    forecast.begin("a")
    forecast.move(0.0, "first")
    assert seen[-1].seconds_left == pytest.approx(30.0)
    now[0] = 20.0  # twice as long as expected
    forecast.move(0.9, "first")
    forecast.end()
    forecast.begin("b")
    forecast.move(0.0, "second")
    assert seen[-1].seconds_left == pytest.approx(40.0)
    now[0] = 40.0
    forecast.end()
    forecast.begin("c")
    now[0] = 60.0
    forecast.move(1.0, "third")
    assert seen[-1].seconds_left == pytest.approx(0.0)
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions) and fractions[-1] == pytest.approx(1.0)


def test_compiling_takes_longer_than_eager_and_autotuning_longer_still() -> None:
    times = [expected_alone(Candidate(*one)) for one in (("eager",), ("burnish",), ("inductor",))]
    assert times == sorted(times)
    assert expected_alone(Candidate("inductor", "max-autotune")) > times[-1]


def test_the_time_left_reads_well() -> None:
    assert [time_left(seconds) for seconds in (125.0, 59.6, 3.0, 0.2, -9.0)] == [
        "about 2:05 left", "about 1:00 left", "about 0:03 left", "a moment more", "a moment more",
    ]  # fmt: skip
