"""Where each row of a batch ends: an end token, a stop string, or the user's criteria. On the host, from the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_TOKENS_PER_CHARACTER = 4  # of text in bytes; a stop string is looked for in no more tokens than it can take up
_MORE_TOKENS = 8


class Ends:
    """Receives the new tokens as they arrive, and returns how many of them to keep."""

    def __init__(self, batch: int, ends: Sequence[int], pad: int, stops: Sequence[str] = (), tokenizer: Any = None):
        self.ends = frozenset(ends)
        self.pad = pad
        self.stops = tuple(stops)
        self.tokenizer = tokenizer
        self.rows: list[list[int]] = [[] for _ in range(batch)]  # a row's tokens, up to its end
        self.columns = 0
        self._over = [False] * batch
        self._window = max((len(s) for s in stops), default=0) * _TOKENS_PER_CHARACTER + _MORE_TOKENS

    @property
    def is_over(self) -> bool:
        return all(self._over)

    def add(self, tokens: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Of new tokens [batch, n]: those up to the end of the last row, padded behind the end of each; and the rows
        that ended in a way that the device has not seen."""
        wanted, told = 0, []
        out = [[self.pad] * tokens.shape[1] for _ in self.rows]
        for column, values in enumerate(tokens.T.tolist()):
            if self.is_over:
                break
            wanted += 1
            for row, token in enumerate(values):
                if self._over[row]:
                    continue
                out[row][column] = token
                self.rows[row].append(token)
                if token in self.ends:
                    self._over[row] = True
                elif self.stops and self._says_stop(row):
                    self._over[row] = True
                    told.append(row)
        self.columns += wanted
        return torch.tensor(out, dtype=torch.long).view(len(self.rows), -1)[:, :wanted], told

    def stop(self, rows: Sequence[bool]) -> list[int]:
        """Criteria want these rows to end here; those that had not."""
        told = [row for row, stops in enumerate(rows) if stops and not self._over[row]]
        for row in told:
            self._over[row] = True
        return told

    def _says_stop(self, row: int) -> bool:
        text = self.tokenizer.decode(self.rows[row][-self._window :])
        return any(stop in text for stop in self.stops)

    def mask(self) -> torch.Tensor:
        """Which of the new tokens are tokens, not padding."""
        return torch.tensor([[c < len(row) for c in range(self.columns)] for row in self.rows]).view(-1, self.columns)
