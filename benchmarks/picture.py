"""The README's picture: how much faster than eager, for each measured model, as SVG text made from the results.

Bars are on a logarithmic scale and compare medians of single calls (p50), on a CPU of rounds taken in turns. Both
compilers are shown in the same mode: `default` on a CPU, `reduce-overhead` on a GPU. The picture follows the reader's
light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from burnish.tools.workloads import WORKLOADS

_WIDTH, _LEFT, _RIGHT, _TOP = 760, 190, 70, 62
_BAR, _ROW, _HEAD, _FOOT = 11, 36, 30, 30
_LEAST, _MOST = 0.5, 32.0
_TICKS = (0.5, 1, 2, 4, 8, 16, 32)
_NAMES = {
    "mlp": "MLP",
    "bert-base": "BERT-base",
    "bert-b1": "BERT-base, batch 1",
    "bert-b32": "BERT-base, batch 32",
    "resnet50": "ResNet-50",
    "resnet50-b1": "ResNet-50, batch 1",
    "resnet50-b32": "ResNet-50, batch 32",
    "gpt2-train": "GPT-2, training step",
    "1b": "Llama 1B, decode step",
}
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; }
.small { font-size: 11px; fill: #57606a; }
.grid { stroke: #d0d7de; }
.one { stroke: #57606a; }
.inductor { fill: #6e7fa3; }
.burnish { fill: #c2500c; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9da7b3; }
  .grid { stroke: #30363d; }
  .one { stroke: #9da7b3; }
  .inductor { fill: #8b9dc3; }
  .burnish { fill: #f0883e; }
}"""


@dataclass(frozen=True)
class Pair:
    """A model's speed-ups over eager; 1 is eager's own speed."""

    model: str
    inductor: float
    burnish: float


def speedups_svg(results: Iterable[Mapping[str, Any]]) -> str:
    """One group of rows for each machine that has them."""
    groups: dict[str, list[Pair]] = {}
    for result in results:
        heading, pairs = _pairs(result)
        if pairs:
            groups.setdefault(heading, []).extend(pairs)
    drawn, y = _legend(), _TOP
    for heading, pairs in groups.items():
        drawn.append(_text(8, y + 18, heading, "title"))
        y += _HEAD
        for pair in pairs:
            drawn += _row(pair, y)
            y += _ROW
    axis = [part for tick in _TICKS for part in _tick(tick, y)]
    height = y + _FOOT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'role="img" aria-label="Speed-ups over eager, by model: torch.compile and burnish">'
    )
    return "\n".join([head, f"<style>\n{_STYLE}\n</style>", *axis, *drawn, "</svg>", ""])


def _pairs(result: Mapping[str, Any]) -> tuple[str, list[Pair]]:
    rows = result.get("rows", {})
    if result.get("what") == "generation":
        return str(result["gpu"]), _compared(rows, "eager", "inductor:reduce-overhead", "burnish")
    if "gpu" in result:
        return str(result["gpu"]), _compared(rows, "eager", "inductor:reduce-overhead", "burnish:reduce-overhead")
    if "what" in result:
        return "", []
    machine = result["machine"]
    known = [_raced(name, rows[name]) for name in WORKLOADS if name in rows]
    return f"{machine['cpu']}, {machine['cores']} cores", [pair for pair in known if pair]


def _raced(model: str, row: Mapping[str, Any]) -> Pair | None:
    """A CPU's row holds ratios that were taken in turns: those of the table."""
    if not all(row["speedup"].get(other) for other in ("eager", "inductor")):
        return None
    eager, inductor = (row["speedup"][other]["value"] for other in ("eager", "inductor"))
    return Pair(_NAMES.get(model, model), eager / inductor, eager)


def _compared(rows: Mapping[str, Any], *candidates: str) -> list[Pair]:
    """The rows in which all three were measured."""
    found = []
    for model, row in rows.items():
        times = [row.get(candidate, {}).get("p50_ms") for candidate in candidates]
        if all(times):
            eager, inductor, ours = times
            found.append(Pair(_NAMES.get(model, model), eager / inductor, eager / ours))
    return found


def _x(ratio: float) -> float:
    """Logarithmic: twice as fast is the same distance everywhere."""
    within = min(max(ratio, _LEAST), _MOST)
    share = math.log(within / _LEAST) / math.log(_MOST / _LEAST)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _row(pair: Pair, y: float) -> list[str]:
    drawn = [_text(_LEFT - 12, y + 16, pair.model, anchor="end")]
    for engine, ratio, top in (("inductor", pair.inductor, y), ("burnish", pair.burnish, y + _BAR + 2)):
        left, right = sorted((_x(1), _x(ratio)))
        drawn.append(
            f'<rect class="{engine}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 1):.1f}" height="{_BAR}"/>'
        )
        drawn.append(_text(right + 6, top + _BAR - 1, f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:.1f} ×", "small"))
    return drawn


def _tick(value: float, bottom: float) -> list[str]:
    x, kind = _x(value), "one" if value == 1 else "grid"
    label = "eager" if value == 1 else f"{value:g} ×"
    return [
        f'<path class="{kind}" d="M{x:.1f} {_TOP + 4}V{bottom}"/>',
        _text(x, bottom + 18, label, "small", anchor="middle"),
    ]


def _legend() -> list[str]:
    return [
        _text(8, 22, "How much faster than eager", "title"),
        _text(8, 42, "median call; higher is better; the scale is logarithmic", "small"),
        '<rect class="inductor" x="470" y="12" width="12" height="12"/>',
        _text(488, 23, "torch.compile"),
        '<rect class="burnish" x="600" y="12" width="12" height="12"/>',
        _text(618, 23, "burnish"),
    ]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    style = f' class="{kind}"' * bool(kind)
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
