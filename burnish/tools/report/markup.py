"""HTML and SVG as text: elements with escaped contents."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable


class Markup(str):
    """Text that is markup already; every other string is escaped when it is put into an element, and its numbers are
    tied to their units so that no line ends between them."""

    __slots__ = ()


Part = str | Iterable[str] | None


def tag(name: str, *parts: Part, **attributes: str | float | int | bool | None) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; None and False leave an attribute out."""
    inner = join(*parts)
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if not inner and name in ("rect", "line", "path", "circle", "meta", "br", "polyline", "stop"):
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{inner}</{name}>")


_UNITS = re.compile(r"(?<=\d) (?=(?:µs|ms|s|min|h|days|%|×|MiB|mJ|J|calls)\b|×|%)")


def join(*parts: Part) -> Markup:
    texts = []
    for part in parts:
        if part is None:
            continue
        if isinstance(part, str):
            texts.append(part if isinstance(part, Markup) else html.escape(_UNITS.sub("\u00a0", part), quote=False))
        else:
            texts.append(join(*part))
    return Markup("".join(texts))


def _attribute(key: str, value: str | float | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-") if key not in ("viewBox", "preserveAspectRatio") else key
    if value is True:
        return f" {name}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text, quote=True)}"'
