"""One cache and the programs over it: created at first use, enlarged when a request does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import BatchTooLarge, PromptTooLong
from burnish.generation.buckets import grown, rows, slack
from burnish.generation.cache import Memory, ModelShape, allocate, carried_over, memory_bytes, model_shape, room
from burnish.generation.programs import Programs
from burnish.generation.state import State
from burnish.stats import Stats

_ALIGNMENT = 16  # slots


class Store:
    """`max_length` and `max_batch` are the user's limits; without them it grows with the requests, as far as the
    memory goes."""

    def __init__(
        self,
        model: Any,
        *,
        max_length: int | None,
        max_batch: int | None,
        chunk_sizes: Sequence[int],
        settings: Mapping[str, Any],
        name: str,
        eager_first: bool,
    ) -> None:
        self.model = model
        self.max_length = max_length
        self.max_batch = max_batch
        self.chunk_sizes = tuple(sorted(chunk_sizes))
        self.settings = settings
        self.name = name
        self.eager_first = eager_first
        self.length = 0
        self.rows = 0
        self._shape: ModelShape | None = None
        self._memory: Memory = ()
        self._programs: dict[int, Programs] = {}
        self._earlier: list[Stats] = []  # of programs that went with a smaller cache

    @property
    def shape(self) -> ModelShape:
        if self._shape is None:
            self._shape = model_shape(self.model)
        return self._shape

    @property
    def capacity(self) -> int:
        """Slots, with what a padded chunk may write beyond the last token."""
        return -(-(self.length + slack(self.chunk_sizes)) // _ALIGNMENT) * _ALIGNMENT

    def check(self, batch: int, prompt: int, new: int) -> None:
        """Raise at once what no growing can help."""
        if self.max_batch is not None and batch > self.max_batch:
            raise BatchTooLarge(batch, self.max_batch)
        if self.max_length is not None and prompt + new > self.max_length:
            raise PromptTooLong(prompt, new, self.max_length, "max_length of generation.compile")

    def programs(self, batch: int, prompt: int, new: int, keep: int = 0) -> Programs:
        """The programs for a batch, over a cache with room for its tokens. The first `keep` slots keep what they
        hold, should the cache have to grow."""
        self.check(batch, prompt, new)
        if rows(batch) > self.rows or prompt + new > self.length:
            self._grow(batch, prompt, new, keep)
        count = rows(batch)
        if count not in self._programs:
            state = State(self.shape, self._memory, count, self.capacity)
            self._programs[count] = Programs(self.model, state, self.settings, self.name, self.eager_first)
        return self._programs[count]

    def _grow(self, batch: int, prompt: int, new: int, keep: int) -> None:
        most = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        count = max(self.rows, rows(self.max_batch or batch))
        length = max(self.length, self.max_length or grown(prompt + new, most))
        free = room(self.shape.device) + memory_bytes(self._memory)
        fits = free // (count * self.shape.slot_bytes) - slack(self.chunk_sizes) - _ALIGNMENT
        if length > fits:  # ask for no more than is needed, then
            length = max(prompt + new, self.max_length or 0)
        if length > fits:
            raise PromptTooLong(prompt, new, max(fits, 0), f"what memory allows for {count} rows")
        before = self._memory
        self._drop_programs()
        self.rows, self.length = count, length
        if not keep:  # give the old one back before the new one is made
            before = self._memory = ()
        self._memory = allocate(self.shape, count, self.capacity)
        if keep:
            carried_over(before, self._memory, keep)

    def _drop_programs(self) -> None:
        self._earlier = self.stats()
        for programs in self._programs.values():
            programs.close()
        self._programs.clear()

    def stats(self) -> list[Stats]:
        return [*self._earlier, *(s for programs in self._programs.values() for s in programs.stats())]

    @property
    def cache_bytes(self) -> int:
        return memory_bytes(self._memory)

    def close(self) -> None:
        self._drop_programs()
        self._memory, self.rows, self.length = (), 0, 0
