"""A strict reader of Prometheus's text format 0.0.4: it refuses whatever the format's description does not allow."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_PAIR = re.compile(rf'({_LABEL})="((?:[^"\\\n]|\\[\\n"])*)"(?:,|$)')
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|Inf)|NaN")

Labels = frozenset[tuple[str, str]]


@dataclass
class ParsedFamily:
    name: str
    help: str = ""
    kind: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, suffix: str = "", **labels: str) -> float:
        return self.samples[self.name + suffix, frozenset(labels.items())]


def parse(text: str) -> dict[str, ParsedFamily]:
    assert text.endswith("\n") and "\r" not in text
    families: dict[str, ParsedFamily] = {}
    current: ParsedFamily | None = None
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            name, _, told = line.removeprefix("# HELP ").partition(" ")
            assert name not in families, f"{name} comes twice"
            assert re.fullmatch(_NAME, name) and told
            current = families[name] = ParsedFamily(name, told)
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert current is not None and name == current.name and not current.samples
            assert kind in ("counter", "gauge", "histogram")
            current.kind = kind
        else:
            assert current is not None and current.kind, f"a sample before its type: {line}"
            _add_sample(current, line)
    for family in families.values():
        _check(family)
    return families


def _add_sample(family: ParsedFamily, line: str) -> None:
    found = _SAMPLE.fullmatch(line)
    assert found, f"no sample: {line!r}"
    name, inside, number = found[1], found[2] or "", found[3]
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert name in [family.name + suffix for suffix in suffixes], f"{name} inside {family.name}"
    assert _NUMBER.fullmatch(number), number
    pairs = _PAIR.findall(inside)
    assert "".join(f'{label}="{text}",' for label, text in pairs).rstrip(",") == inside, f"bad labels: {inside}"
    assert len({label for label, _ in pairs}) == len(pairs)
    labels = frozenset((label, _unescaped(text)) for label, text in pairs)
    assert (name, labels) not in family.samples, f"a series comes twice: {line}"
    family.samples[name, labels] = float(number.replace("Inf", "inf"))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text)


def _check(family: ParsedFamily) -> None:
    assert family.samples, f"{family.name} has no samples"
    if family.kind == "counter":
        assert family.name.endswith("_total")
        assert all(value >= 0 for value in family.samples.values())
    if family.kind == "histogram":
        series = {labels for name, labels in family.samples if name.endswith("_count")}
        assert series
        for labels in series:
            _check_histogram(family, labels)


def _check_histogram(family: ParsedFamily, labels: Labels) -> None:
    buckets = {
        float(dict(found)["le"].replace("Inf", "inf")): value
        for (name, found), value in family.samples.items()
        if name.endswith("_bucket") and {pair for pair in found if pair[0] != "le"} == labels
    }
    bounds, counts = list(buckets), list(buckets.values())
    assert bounds == sorted(bounds) and bounds[-1] == math.inf
    assert counts == sorted(counts), "counts of buckets include those of the ones before"
    assert counts[-1] == family.samples[f"{family.name}_count", labels]
    assert (f"{family.name}_sum", labels) in family.samples
