"""Small models whose calls vary in batch and length: some may be padded, some must not be."""

from __future__ import annotations

import torch
from torch import nn

WORDS, WIDTH = 50, 16


class Tokens(nn.Module):
    """Each token by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.embed(ids))))


class Attending(nn.Module):
    """Tokens attend to those that the mask shows; a dict of two results."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q, self.k, self.v = nn.Embedding(WORDS, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = 1.0

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.embed(ids)
        shown = None if attention_mask is None else (attention_mask != 0)[:, None, None, :]
        q, k, v = (linear(x)[:, None] for linear in (self.q, self.k, self.v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, shown, scale=self.scale)
        states = self.norm(x + attended[:, 0])
        return {"states": states, "first": states[:, 0].tanh()}


class Mean(nn.Module):
    """The mean over all tokens, padding included."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids).mean(1))


class Rows(nn.Module):
    """Rows of features: only the batch varies."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Normed(nn.Module):
    """Batch norm: in training its statistics are those of the batch, padding included."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


def ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * batch + length)
    return torch.randint(1, WORDS, (batch, length), generator=generator)


def mask(batch: int, length: int) -> torch.Tensor:
    """Rows of different lengths, none of which is empty."""
    shown = torch.tensor([max(1, length - (row * 3) % max(length, 1)) for row in range(batch)])
    return (torch.arange(length)[None] < shown[:, None]).long()
