"""Recompile storms: a Python value, the length of a list or the order of a dict that changes from call to call, so that
each call compiles. Named once, with its source line and what to do.

TorchDynamo's reason for a recompile begins with the check that failed, then the line of code that made it:

    step == 3      # y = self.linear(x) * step  # model.py:12 in forward
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from burnish.errors import RecompileWarning, warn
from burnish.observe.log import CompileLog
from burnish.stats import Recompile

_STORM = 3  # recompiles for one reason
_PLACE = re.compile(r"#\s*([^\s(]\S*:\d+) in ")
_OWN = re.compile(r"^target\.(?P<name>[\w.]+)$")
_AS_TENSOR = "pass it as a tensor (torch.tensor(value)), or keep it constant"
_KINDS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"^list\(dict\.keys\((?P<what>.+?)\)\)\[\d+\] == "), "the order of the keys of {}", "use one order"),
    (
        re.compile(r"^(?:len\((?P<what>.+)\) == \d+|not (?P<empty>[\w.\[\]']+))$"),
        "the length of {}",
        "pass one stacked tensor, or always as many items",
    ),
    (re.compile(r"^(?P<what>.+?) == -?[\d.]+(?:e-?\d+)?$"), "the number {}", _AS_TENSOR),
    (
        re.compile(r"^(?P<what>.+?) == (['\"]).*\2$"),
        "the text {}",
        "pass what depends on it instead, or compile one object for each value",
    ),
)


@dataclass(frozen=True)
class Cause:
    """What changes, and what to do."""

    what: str
    way_out: str
    line: str

    def __str__(self) -> str:
        return f"{self.what}{f' (read at {self.line})' if self.line else ''} changes from call to call"


def cause_of(entry: Recompile) -> Cause | None:
    """The value behind a recompile, if it is one that may change in every call."""
    first = entry.reason.splitlines()[0] if entry.reason else ""
    check, _, rest = first.partition("#")
    check = check.strip()
    for pattern, words, way_out in _KINDS:
        found = pattern.match(check)
        if found is None:
            continue
        name = next(group for key, group in found.groupdict().items() if group is not None)
        if name.startswith("___"):  # Dynamo's own, after a graph break
            return None
        own = _OWN.match(name)
        if own is not None:
            way_out = "make it a buffer of the module (register_buffer), or change it outside the compiled call"
            name = own["name"]
            words = f"{words} of the module"
        place = _PLACE.search(f"#{rest}")
        return Cause(words.format(f"`{name}`"), way_out, place[1] if place else "")
    return None


def note_storm(log: CompileLog, entry: Recompile) -> None:
    """Called for each recompile, once it is in the log. Warns of each cause once."""
    cause = cause_of(entry)
    if cause is None:
        return
    alike = sum(known == cause for known in map(cause_of, list(log.recompiles)))
    if alike != _STORM:
        return
    log.noticed(f"recompiled again and again: {cause}")
    name = log.name or entry.function
    warn(f"burnish: {name} is compiled again and again, because {cause}. Way out: {cause.way_out}.", RecompileWarning)
