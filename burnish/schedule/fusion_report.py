"""A record of fusion: which kernels were joined, and which kernels that share data were not, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refusal:
    """Two kernels of the fused schedule, by number, that pass or share `buffers`."""

    first: int
    second: int
    buffers: tuple[str, ...]
    reason: str


@dataclass
class FusionReport:
    members: list[tuple[int, ...]] = field(default_factory=list)  # fused kernel -> the unfused ones in it
    refused: list[Refusal] = field(default_factory=list)
    considered: dict[tuple[int, int], str] = field(default_factory=dict)  # unfused numbers -> reason, during the pass

    @property
    def made(self) -> int:
        return sum(len(numbers) - 1 for numbers in self.members)
