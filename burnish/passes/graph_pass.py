"""A graph pass as data. A module of this package that holds one adds a pass to the compiler."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.passes.rewrite import Rule


@dataclass(frozen=True)
class GraphPass:
    name: str
    rule: Rule
    after: str = ""
    before: str = ""
    targets: tuple[str, ...] = ("cpu", "cuda")  # kinds of devices
