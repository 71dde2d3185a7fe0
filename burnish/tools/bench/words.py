"""Numbers in words, without digits beyond the precision of the measurement."""

from __future__ import annotations


def percent(fraction: float) -> str:
    return f"{fraction * 100:.0f} %"


def times(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"{number} {what}s"


def count(calls: float) -> str:
    """A number of calls as a person says it: two digits are all that the measurement carries."""
    if calls < 100:
        return f"{max(1, round(calls))}"
    for size, word in ((1e9, " billion"), (1e6, " million")):
        if calls >= size:
            return f"{calls / size:.1f}{word}"
    digits = len(str(int(calls)))
    return f"{round(calls, 2 - digits):,.0f}"


def seconds_words(seconds: float) -> str:
    if seconds < 0.1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
