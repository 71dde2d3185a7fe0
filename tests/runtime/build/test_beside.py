"""Kernels are built while the rest of a compile goes on, and are there when something runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import burnish
from burnish import pipeline
from burnish.capture.restore.frame import WarmFrames
from burnish.runtime.build.concurrent import BuildFuture, can_wait, collecting, wait_last

LONG = 60.0


def test_the_c_compiler_works_while_what_is_stored_is_taken_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build does not end before the frame has been prepared for the cache: were one to wait for the other, neither
    would end."""
    prepared, seen = threading.Event(), list[bool]()
    build, prepare = pipeline._build, WarmFrames._prepared

    def slow_build(*args: Any) -> Any:
        seen.append(prepared.wait(LONG))
        return build(*args)

    def preparing(*args: Any) -> Any:
        made = prepare(*args)
        prepared.set()
        return made

    monkeypatch.setattr(pipeline, "_build", slow_build)
    monkeypatch.setattr(WarmFrames, "_prepared", preparing)
    compiled = burnish.compile(lambda x: (x * 2).exp() + 1, options={"warm_start": True})
    x = torch.randn(5, 7)
    torch.testing.assert_close(compiled(x), (x * 2).exp() + 1)
    assert seen == [True]
    stats = burnish.stats(compiled)
    assert stats.compiles == 1 and stats.graphs == {"inference": 1} and not stats.fallbacks


def test_waits_come_last_and_only_where_somebody_waits() -> None:
    told = list[str]()
    wait_last(lambda: told.append("at once"))
    assert told == ["at once"] and not can_wait()
    with collecting() as wait:
        wait_last(lambda: told.append("later"))
        assert can_wait() and told == ["at once"]
        wait()
        wait()
    assert told == ["at once", "later"]


def test_what_is_coming_raises_what_making_it_raised() -> None:
    assert BuildFuture(lambda: 3)() == 3
    coming = BuildFuture(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            coming()
