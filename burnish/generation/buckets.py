"""Splits a prompt into chunks of a few lengths, so that few programs serve all prompts. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CHUNKS: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
_SLOTS = 64  # caches grow in steps of so many tokens


@dataclass(frozen=True)
class Chunk:
    """`size` tokens go into the program, the first `used` of which are the prompt's; the rest is padding on the right.

    Padding is written to the cache behind the prompt, where causality hides it until later tokens overwrite it."""

    start: int
    size: int
    used: int

    def visible(self, capacity: int) -> int:
        """The number of cache slots it attends to: a prompt's first chunk attends only to itself."""
        return self.size if self.start == 0 else capacity


def slack(sizes: Sequence[int]) -> int:
    """Slots that a cache has beyond its length, so that the smallest chunk fits wherever a token does."""
    return min(sizes) - 1


def chunks(tokens: int, start: int, capacity: int, sizes: Sequence[int]) -> list[Chunk]:
    """Chunks for `tokens` tokens from slot `start` on. The capacity includes the slack."""
    out: list[Chunk] = []
    while tokens > 0:
        fitting = [size for size in sorted(sizes) if start + size <= capacity]
        size = next((size for size in fitting if size >= tokens), fitting[-1])
        used = min(size, tokens)
        out.append(Chunk(start, size, used))
        start, tokens = start + used, tokens - used
    return out


def grown(needed: int, limit: int | None) -> int:
    """The length of a cache that must hold `needed` tokens: doubling, so that it is seldom made anew."""
    length = _SLOTS
    while length < needed:
        length *= 2
    return max(needed, length if limit is None else min(length, limit))


def rows(batch: int) -> int:
    """Rows of the programs that serve a batch: the next power of two."""
    return 1 << (batch - 1).bit_length()
