"""Captured: an imported graph with what else is known from its capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node as FxNode

from burnish.ir.expr import Dim
from burnish.ir.graph import Graph
from burnish.lower.symbols import Symbols

Window = tuple[int, tuple[Dim, ...], tuple[Dim, ...], Dim]  # argument or result, shape, strides, offset


@dataclass
class Captured:
    """A graph, where its sizes are read from, and which of its results share memory."""

    graph: Graph
    symbols: Symbols
    aliases: dict[int, Window] = field(default_factory=dict)  # result -> the window of an argument that it is
    windows: dict[int, Window] = field(default_factory=dict)  # result -> the window of another result that it is
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # where every tensor of the graph is
    target: str = "cpu"  # the kind of device it is lowered for
    # Results that share memory in eager: a result, an earlier one, and whether they are one tensor or two.
    objects: tuple[tuple[int, int, bool], ...] = ()
    results: int = 0  # outputs beyond these are only there for `windows` to look into
    externs: list[tuple[str, str]] = field(default_factory=list)  # (op, why it was not lowered)
    values: dict[FxNode, Any] = field(default_factory=dict)  # what each captured call became: a node, several, a size
