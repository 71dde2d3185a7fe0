"""The return value of `llm.stats()`: frozen records of generation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from burnish.stats import Fallback, Stats


@dataclass(frozen=True)
class Timing:
    """The last request. A look tells of several tokens at once: their time is shared between them."""

    first_token_s: float = 0.0
    seconds: float = 0.0
    new_tokens: int = 0  # of one row
    token_s: tuple[float, ...] = field(repr=False, default=())  # of each token after the first, in order

    def quantile(self, q: float) -> float:
        ordered = sorted(self.token_s)
        return ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else 0.0


@dataclass(frozen=True)
class GenerationStats:
    name: str = ""
    requests: int = 0
    prompt_tokens: int = 0  # that were run, without padding
    new_tokens: int = 0  # of all rows
    steps: int = 0  # of the decode program
    wasted_steps: int = 0  # run ahead of an end that the host had not seen yet
    looks: int = 0  # round trips between host and device
    host_steps: int = 0  # steps that waited for a LogitsProcessor or StoppingCriteria on the host
    eager_chunks: int = 0  # chunks of prompts that ran in eager, because they were the first of their length
    notes: Mapping[str, int] = field(default_factory=dict)  # what happened -> times
    fallbacks: tuple[Fallback, ...] = ()  # why eager decoded instead
    max_length: int = 0  # of the cache
    max_batch: int = 0
    cache_bytes: int = 0
    slot_bytes: int = 0  # of one token of one row
    programs: tuple[Stats, ...] = ()  # of each compiled program
    last: Timing = Timing()

    @property
    def compiles(self) -> int:
        return sum(program.compiles for program in self.programs)

    @property
    def aten_calls(self) -> Mapping[str, int]:
        """Calls that the decode programs leave to ATen."""
        calls: Counter[str] = Counter()
        for program in self.programs:
            if "decode" in program.name:
                calls.update(program.aten_calls)
        return dict(calls)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["programs"] = [program.to_dict() for program in self.programs]
        plain["notes"] = dict(self.notes)
        return {**plain, "compiles": self.compiles, "aten_calls": dict(self.aten_calls)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __str__(self) -> str:
        lines = [
            f"generation stats for {self.name or 'a model'}",
            f"  requests      {self.requests}: {self.prompt_tokens} tokens of prompt, {self.new_tokens} new",
            f"  steps         {self.steps}, {self.wasted_steps} of them past an end; {self.looks} looks by the host",
            f"  cache         {self.max_batch} x {self.max_length} tokens, {self.cache_bytes / 2**20:,.1f} MiB",
            f"  programs      {len(self.programs)}, {self.compiles} compiles",
        ]
        lines += [f"  host          {self.host_steps} steps waited for code on the host"] if self.host_steps else []
        first = f"  first         {self.eager_chunks} chunks of prompts ran in eager, the first of their length"
        lines += [first] if self.eager_chunks else []
        lines += [f"  note          {what} ({count})" for what, count in self.notes.items()]
        lines += [f"  eager         {fallback}" for fallback in self.fallbacks]
        for program in self.programs:
            calls = ", ".join(f"{count} x {op}" for op, count in program.aten_calls.items())
            served = {v.engine for v in program.variants} or {"eager"}
            lines.append(f"    {program.name}: {', '.join(sorted(served))}" + (f"; ATen: {calls}" if calls else ""))
        return "\n".join(lines)


class Record:
    """Counts as they come."""

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.new_tokens = 0
        self.steps = self.wasted_steps = self.looks = self.host_steps = self.eager_chunks = 0
        self.notes: Counter[str] = Counter()
        self.fallbacks: list[Fallback] = []
        self.last = Timing()

    def fell_back(self, fallback: Fallback) -> None:
        """A reason is kept once; how often eager had to serve is a note."""
        self.notes["a request was decoded in eager"] += 1
        if fallback not in self.fallbacks:
            self.fallbacks.append(fallback)

    def snapshot(
        self, name: str, length: int, batch: int, cache_bytes: int, slot_bytes: int, programs: Sequence[Stats]
    ) -> GenerationStats:
        return GenerationStats(
            name, self.requests, self.prompt_tokens, self.new_tokens, self.steps, self.wasted_steps, self.looks,
            self.host_steps, self.eager_chunks, dict(self.notes), tuple(self.fallbacks), length, batch, cache_bytes,
            slot_bytes, tuple(programs), self.last,
        )  # fmt: skip
