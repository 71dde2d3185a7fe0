"""Cold seconds over layers, drawn: one line for each engine, as an SVG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.tools.report.plot import Scale

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 360, 56, 48, 24, 120
_COLOURS = {"burnish": "#c2410c", "burnish-whole": "#a16207", "inductor": "#1d4ed8"}
_NAMES = {"inductor": "torch.compile", "burnish-whole": "burnish, no regions"}


def growth_svg(growth: Mapping[str, Mapping[str, Any]]) -> str:
    """`growth`: layers -> what `compile_time.measure` found."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for layers, row in sorted(growth.items(), key=lambda item: int(item[0])):
        for engine, starts in row["engines"].items():
            if seconds := starts.get("cold", {}).get("seconds"):
                lines.setdefault(engine, []).append((int(layers), seconds))
    points = [point for found in lines.values() for point in found]
    if not points:
        return ""
    x = Scale(0, max(layers for layers, _ in points), _LEFT, _WIDTH - _RIGHT)
    y = Scale(0, 1.05 * max(seconds for _, seconds in points), _HEIGHT - _BOTTOM, _TOP)
    drawn = [_text(_LEFT, 14, "cold compile, seconds"), _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "layers")]
    for value in y.ticks():
        drawn.append(f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        drawn.append(_text(_LEFT - 8, y(value) + 4, f"{value:g}", "end"))
    for layers in sorted({layers for layers, _ in points}):
        drawn.append(_text(x(layers), _HEIGHT - _BOTTOM + 18, str(layers), "middle"))
    for engine, found in lines.items():
        colour, (last, seconds) = _COLOURS.get(engine, "#444"), found[-1]
        path = " ".join(f"{x(layers):.1f},{y(taken):.1f}" for layers, taken in found)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in found]
        drawn.append(_text(x(last) + 8, y(seconds) + 4, f"{_NAMES.get(engine, engine)} {seconds:.1f} s", colour=colour))
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    background = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', background, *drawn, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#333") -> str:
    style = f'font-family="sans-serif" font-size="12" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{text}</text>'
