"""Log lines: one per event, at a sensible level, and none unless asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

import burnish
from burnish.errors import BadOptionValue
from burnish.observe import sinks
from burnish.observe.events import KINDS, Event

LOGGER = logging.getLogger("burnish")


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    handlers, level, propagate = list(LOGGER.handlers), LOGGER.level, LOGGER.propagate
    yield
    LOGGER.handlers[:], LOGGER.propagate = handlers, propagate
    LOGGER.setLevel(level)


def test_quiet_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    LOGGER.propagate = False  # pytest's own handler is at the root
    burnish.compile(lambda x: x + 1)(torch.randn(3))
    sinks.log_line(Event("rollback", "x", reason="wrong"))
    assert capfd.readouterr() == ("", "")


def test_a_line_for_each_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "burnish")
    compiled = burnish.compile(torch.nn.Linear(4, 4), name="lined")
    compiled(torch.randn(2, 4)), compiled(torch.randn(3, 4))
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "burnish"]
    assert sum("lined [graph 1]: compiled in " in text and level == "INFO" for level, text in lines) == 1
    assert sum("lined: recompile" in text and "size mismatch" in text for _, text in lines) == 1
    assert all("\n" not in text for _, text in lines)


def test_levels() -> None:
    levels = {kind: logging.getLevelName(Event(kind).level) for kind in KINDS}
    assert levels["compiled"] == levels["recompile"] == levels["gate"] == levels["background_ready"] == "INFO"
    assert levels["fallback"] == levels["rollback"] == levels["budget_exceeded"] == "WARNING"
    assert levels["cache_hit"] == levels["cache_miss"] == "DEBUG"


def test_the_option_prints_to_stderr(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    LOGGER.propagate = False
    monkeypatch.setenv("BURNISH_LOG", "info")
    compiled = burnish.compile(lambda x: x + 1, name="printed")
    burnish.compile(lambda x: x + 2, name="another")  # adds no second handler
    compiled(torch.randn(3))
    out, err = capfd.readouterr()
    (line,) = (line for line in err.splitlines() if "compiled in" in line)
    assert "burnish INFO printed [graph 1]: compiled in" in line and not out
    assert "cache" not in err, "those lines are for debug"


def test_handlers_of_the_program_are_not_doubled(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[method-assign]
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    sinks.show_log("info")
    sinks.log_line(Event("compiled", "x"))
    assert len(seen) == 1 and capfd.readouterr().err == ""


def test_a_broken_handler_does_not_fail_the_call() -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("broken on purpose")

    LOGGER.addHandler(Broken())
    LOGGER.setLevel("DEBUG")
    compiled = burnish.compile(lambda x: x + 1)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert burnish.stats(compiled).compiles == 1 and burnish.stats(compiled).fallbacks == ()


def test_an_unknown_level_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadOptionValue, match="log='loud'.*debug, info, warning, error"):
        burnish.compile(lambda x: x, options={"log": "loud"})
    monkeypatch.setenv("BURNISH_LOG", "loud")
    with pytest.raises(BadOptionValue, match="BURNISH_LOG='loud'"):
        burnish.compile(lambda x: x)
