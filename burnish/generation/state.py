"""The buffers that the programs of one batch size read and write; their addresses are the same in all calls."""

from __future__ import annotations

import torch

from burnish.generation.cache import Memory, ModelShape
from burnish.generation.selection import Choice, Knobs, Selection, choose
from burnish.runtime.host.addresses import stay


class State:
    """`length` slots of the cache are filled; `token` comes next, and is not in it yet.

    `tokens[:, s]` is the token at slot s, `mask[:, s]` whether it counts (padding does not), `positions` the position
    of `token` in each row. `finished` rows get padding from now on. A prompt's chunk reads its tokens and their
    positions from `tokens` and `places`, from slot `length` on; `used` of them are the prompt's."""

    def __init__(self, shape: ModelShape, memory: Memory, rows: int, capacity: int) -> None:
        device = shape.device

        def integers(*sizes: int) -> torch.Tensor:
            return torch.zeros(sizes, dtype=torch.long, device=device)

        self.rows, self.capacity, self.shape = rows, capacity, shape
        self.memory: Memory = tuple(pair and (pair[0][:rows], pair[1][:rows]) for pair in memory)
        self.length = integers()
        self.token = integers(rows)
        self.positions = integers(rows)
        self.places = integers(rows, capacity)
        self.used = integers()
        self.tokens = integers(rows, capacity)
        self.mask = torch.ones(rows, capacity, dtype=torch.bool, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)
        self.pad = integers()
        self.ends = torch.zeros(shape.vocabulary, dtype=torch.bool, device=device)
        self.logits = torch.zeros(rows, shape.vocabulary, device=device)
        self.knobs = Knobs(device)
        self.seen: torch.Tensor | None = None  # made when a repetition penalty first asks for it
        for tensor in (*self._own(), *self.knobs.tensors(), *(t for pair in self.memory if pair for t in pair)):
            stay(tensor)

    def _own(self) -> list[torch.Tensor]:
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]

    def begin(self, ids: torch.Tensor, mask: torch.Tensor, held: int, batch: int) -> None:
        """Tokens [rows, total] and what of them counts are known; the cache holds the first `held` of them."""
        total = ids.shape[1]
        self.tokens[:, :total].copy_(ids, non_blocking=True)
        self.mask.fill_(True)
        self.mask[:, :total].copy_(mask, non_blocking=True)
        self.places[:, :total].copy_((mask.cumsum(-1) - 1).clamp_(min=0), non_blocking=True)
        self.positions.copy_(mask.sum(-1), non_blocking=True)
        self.length.fill_(held)
        self.finished.fill_(False)
        self.finished[batch:].fill_(True)  # rows that only fill up the batch

    def choose_by(self, choice: Choice, how: Selection, ends: list[int], pad: int) -> None:
        self.knobs.set(choice)
        self.pad.fill_(pad)
        self.ends.fill_(False)
        if ends:
            self.ends[torch.tensor(ends, device=self.ends.device)] = True
        if how.penalty:
            if self.seen is None:
                self.seen = torch.zeros_like(self.logits, dtype=torch.bool)
                stay(self.seen)
            self.seen.fill_(False)

    def note_prompt(self, total: int) -> None:
        if self.seen is not None:
            self.seen.scatter_(1, self.tokens[:, :total], True)

    def take(self, logits: torch.Tensor, how: Selection) -> None:
        """Choose the token for slot `length` and write it down. Traced into the decode step; also run as it is, for
        the first token of a request and after processors on the host."""
        chosen = choose(logits, how, self.knobs, self.length, self.ends, self.seen)
        chosen = torch.where(self.finished, self.pad, chosen)
        self.token.copy_(chosen)
        self.tokens.index_copy_(1, self.length.view(1), chosen.unsqueeze(-1))
        self.finished.logical_or_(self.ends[chosen])
        if how.penalty and self.seen is not None:
            self.seen.scatter_(1, chosen.unsqueeze(-1), True)
