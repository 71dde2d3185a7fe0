"""Selects the next token: the largest logit, or a random draw. Plain tensor operations, traced into the decode step.

Draws depend only on the seed, the row and the token's slot: a counter is hashed to Gumbel noise, and the largest sum of
noise and logits is a draw from their softmax. There is no generator to advance, so a step is the same inside a CUDA
graph, outside it and on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_WORD = 0xFFFFFFFF
# Multipliers of a 32-bit mixer. The second is given modulo 2**32 as a negative number: no product leaves 64 bits.
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - (1 << 32)
_ROWS_APART, _SLOTS_APART = 0x9E3779B1, 0x85EBCA77


@dataclass(frozen=True)
class Selection:
    """The settings that determine the operations on the logits; the numbers are in `Knobs`."""

    sample: bool = False
    candidates: int | None = None  # of top-k: as many are sorted; None: all take part
    top_p: bool = False
    min_p: bool = False
    penalty: bool = False
    min_length: bool = False

    def __str__(self) -> str:
        parts = ["sample" if self.sample else "greedy"]
        parts += [f"top_k<={self.candidates}"] if self.candidates else []
        parts += [name for name in ("top_p", "min_p", "penalty", "min_length") if getattr(self, name)]
        return "+".join(parts)


@dataclass(frozen=True)
class Choice:
    """The numbers of one request."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalty: float = 1.0
    min_length: int = 0  # tokens, prompt included, before which no sequence may end
    seed: int = 0

    def selection(self, sample: bool, vocabulary: int) -> Selection:
        if not sample:
            return Selection(penalty=self.penalty != 1.0, min_length=self.min_length > 0)
        candidates = None
        if 0 < self.top_k < vocabulary:  # powers of two: another k is seldom another program
            candidates = min(vocabulary, max(64, 1 << (self.top_k - 1).bit_length()))
        return Selection(True, candidates, self.top_p < 1.0, self.min_p > 0.0, self.penalty != 1.0, self.min_length > 0)


class Knobs:
    """The numbers on the device, where the step reads them: changing one compiles nothing."""

    def __init__(self, device: torch.device) -> None:
        self.temperature = torch.ones((), device=device)
        self.top_k = torch.zeros((), dtype=torch.long, device=device)
        self.top_p = torch.ones((), device=device)
        self.min_p = torch.zeros((), device=device)
        self.penalty = torch.ones((), device=device)
        self.min_length = torch.zeros((), dtype=torch.long, device=device)
        self.seed = torch.zeros((), dtype=torch.long, device=device)

    def set(self, choice: Choice) -> None:
        self.temperature.fill_(choice.temperature)
        self.top_k.fill_(choice.top_k)
        self.top_p.fill_(choice.top_p)
        self.min_p.fill_(choice.min_p)
        self.penalty.fill_(choice.penalty)
        self.min_length.fill_(choice.min_length)
        self.seed.fill_(choice.seed & _WORD)

    def tensors(self) -> list[torch.Tensor]:
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]


def choose(
    logits: torch.Tensor,
    how: Selection,
    knobs: Knobs,
    slot: torch.Tensor,
    ends: torch.Tensor,
    seen: torch.Tensor | None,
) -> torch.Tensor:
    """The token of each row for `slot`, from float32 logits [rows, vocabulary]. `ends` marks tokens that end a
    sequence, `seen` [rows, vocabulary] those that a row already has."""
    if how.penalty:
        assert seen is not None
        logits = torch.where(seen, torch.where(logits > 0, logits / knobs.penalty, logits * knobs.penalty), logits)
    if how.min_length:
        logits = torch.where(ends & (slot < knobs.min_length), -torch.inf, logits)
    if not how.sample:
        return logits.argmax(-1)
    scores = logits / knobs.temperature
    if how.candidates is None and not how.top_p:
        if how.min_p:
            scores = torch.where(_is_likely(scores, scores.amax(-1, keepdim=True), knobs), scores, -torch.inf)
        tokens = torch.arange(scores.shape[-1], device=scores.device)
        return (scores + noise(knobs.seed, slot, tokens.expand_as(scores))).argmax(-1)
    scores, tokens = torch.topk(scores, how.candidates or scores.shape[-1])
    if how.candidates is not None:
        rank = torch.arange(scores.shape[-1], device=scores.device)
        scores = torch.where(rank < knobs.top_k, scores, -torch.inf)
    likely = scores
    if how.top_p:
        share = torch.softmax(scores, -1)
        likely = torch.where(share.cumsum(-1) - share < knobs.top_p, likely, -torch.inf)
    if how.min_p:
        likely = torch.where(_is_likely(scores, scores[:, :1], knobs), likely, -torch.inf)
    drawn = (likely + noise(knobs.seed, slot, tokens)).argmax(-1, keepdim=True)
    return tokens.gather(-1, drawn).squeeze(-1)


def _is_likely(scores: torch.Tensor, best: torch.Tensor, knobs: Knobs) -> torch.Tensor:
    return torch.exp(scores - best) >= knobs.min_p


def noise(seed: torch.Tensor, slot: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Gumbel noise for each of `tokens` [rows, n]."""
    row = torch.arange(tokens.shape[0], device=tokens.device).unsqueeze(-1)
    key = _mixed(_mixed((seed ^ (slot * _SLOTS_APART)) & _WORD) ^ ((row * _ROWS_APART) & _WORD))
    bits = _mixed(_mixed((tokens * _ROWS_APART + key) & _WORD) ^ key)
    uniform = (_right(bits, 9).float() + 0.5) * 2.0**-23  # neither 0 nor 1
    return -torch.log(-torch.log(uniform))


def _mixed(word: torch.Tensor) -> torch.Tensor:
    """A permutation of 32-bit words in which each bit depends on every other."""
    word = word ^ _right(word, 16)
    word = (word * _FIRST) & _WORD
    word = word ^ _right(word, 15)
    word = (word * _SECOND) & _WORD
    return word ^ _right(word, 16)


def _right(word: torch.Tensor, bits: int) -> torch.Tensor:
    """The operator of the same meaning is another one in ATen, and older."""
    return torch.bitwise_right_shift(word, bits)
