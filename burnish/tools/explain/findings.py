"""What `burnish explain` found, as data."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from burnish.stats import Stats


@dataclass(frozen=True)
class BreakCost:
    """A graph break: where, what it costs each call, and what to write instead."""

    file: str
    line: int
    code: str
    reason: str
    kind: str
    advice: str
    seconds: float | None  # per call, between leaving one graph and entering the next; None: not on a call's way
    shared_with: int = 0  # other breaks between the same two graphs


@dataclass(frozen=True)
class RecompileCost:
    file: str
    line: int
    code: str
    function: str
    check: str
    kind: str
    advice: str
    when: str  # the call that brought it about
    seconds: float  # that call, beyond what a call takes
    count: int = 1


@dataclass(frozen=True)
class AtenCall:
    op: str
    count: int
    reason: str


@dataclass(frozen=True)
class KernelFacts:
    number: int
    kind: str  # loop, product, attention, ATen
    ops: tuple[str, ...]
    bytes: int
    flops: int
    seconds: float | None

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second."""
        return self.bytes / self.seconds if self.seconds else None


@dataclass(frozen=True)
class RefusedFusion:
    first: int
    second: int
    buffers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class GraphFacts:
    number: int
    kind: str
    unfused_kernels: int
    kernels: tuple[KernelFacts, ...]
    fusions: int
    refused: tuple[RefusedFusion, ...]
    call_seconds: float  # a run of the whole graph, the program around its kernels included
    eager_bytes: int
    unfused_bytes: int
    fused_bytes: int

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds or 0.0 for kernel in self.kernels)


@dataclass(frozen=True)
class Findings:
    """Of one target."""

    name: str
    stats: Stats
    breaks: tuple[BreakCost, ...]
    recompiles: tuple[RecompileCost, ...]
    aten_calls: tuple[AtenCall, ...]
    graphs: tuple[GraphFacts, ...]
    ceiling: float  # bytes per second this machine moves at most
    first_call_seconds: float
    call_seconds: float  # a call in steady state
    outside_seconds: float  # of it, outside every compiled graph: guards, Python, what runs in eager
    error: float | None = None  # against float64
    eager_error: float | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(dataclasses.asdict(dataclasses.replace(self, stats=Stats())))
        return {**plain, "stats": self.stats.to_dict()}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
