"""A kernel function's parameters, whatever language it is printed in."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Signature:
    """Buffers and sizes in order of first use; callers bind them by name."""

    buffers: list[str] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    checks: bool = False
