"""Python numbers that vary, and may be negative: what a symbol stands for is not taken for a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import burnish
from tests.against_eager import agree

FORCED: dict[str, Any] = {"gate": False, "verify": "off"}


def written(x: torch.Tensor, i: int) -> torch.Tensor:
    y = x.clone()
    y[i] = 5
    y[i:, 0] = 7
    y.select(1, i).add_(1)
    return y + 1


PLACES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "index": lambda x, i: (x * 2)[i] + 1,
    "from": lambda x, i: (x * 2)[i:] + 1,
    "up to": lambda x, i: (x * 2)[:i] + 1,
    "every second from": lambda x, i: (x * 2)[i::2] + 1,
    "between": lambda x, i: (x * 2)[i : i + 2] + 1,
    "narrow": lambda x, i: x.narrow(0, i, 1) + 1,
    "select": lambda x, i: (x * 2).select(1, i) + 1,
    "written": written,
    "rolled": lambda x, i: x.roll(i, 0) + 1,
    "diagonal": lambda x, i: torch.diagonal(x, i) + 1,
    "triangle": lambda x, i: x.tril(i) + x.triu(i) * 2,
    "range": lambda x, i: torch.arange(i, 9) + x[0, 0],
    "padded": lambda x, i: torch.nn.functional.pad(x, (i, 1)) + 1,
}
NUMBERS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "product": lambda x, i: x * i,
    "at least 0": lambda x, i: x * max(i, 0),
    "at most 0": lambda x, i: x + min(i, 0),
    "absolute": lambda x, i: x * abs(i),
    "half": lambda x, i: x * (i // 2) + i % 3,
    "square": lambda x, i: x * (i * i) - i,
    "compared": lambda x, i: torch.where(x > i, x, x * i),
    "clamped": lambda x, i: x.clamp(min=i),
    "filled": lambda x, i: torch.full((3,), i) + x[0, :3],
    "is negative": lambda x, i: x + 1 if i < 0 else x - 1,
    "of both": lambda x, i: x * (i * (i - 1)) + (i - 1) // 4,
}


@pytest.mark.parametrize("values", [(3, 2, 4, 5), (-2, -3, -4, -5)], ids=["positive", "negative"])
@pytest.mark.parametrize("name", PLACES)
def test_a_place_is_counted_from_the_end_where_eager_counts_so(name: str, values: tuple[int, ...]) -> None:
    compiled = burnish.compile(PLACES[name], dynamic=True, **FORCED)
    for i in values:
        agree(compiled, PLACES[name], torch.randn(8, 8), i)


@pytest.mark.parametrize("first", [3, -3])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_changes_its_sign(name: str, first: int) -> None:
    compiled = burnish.compile(NUMBERS[name], dynamic=True, **FORCED)
    for i in (first, -first, 2 * first, -5, 7, -1):
        agree(compiled, NUMBERS[name], torch.randn(8, 8), i)


@pytest.mark.parametrize(
    "last",
    [
        lambda x: (x * 2)[..., -x.shape[-1] :] + 1,
        lambda x: (x * 2)[..., -(x.shape[-1] // 2) :] + 1,
        lambda x: (x * 2)[..., x.shape[-1] - 4 :] + 1,
        lambda x: (x * 2).narrow(-1, -(x.shape[-1] // 2), 2) + 1,
        lambda x: (x * 2).select(-1, -x.shape[-1]) + 1,
        lambda x: (x * 2)[..., -(x.shape[-1] // 2) :: 2] + 1,
        lambda x: (x * 2)[..., 3 - x.shape[-1] :] + 1,
    ],
    ids=["all", "half", "but for some", "narrow", "first", "every second", "less some"],
)
def test_a_size_with_a_minus_counts_from_the_end(last: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = burnish.compile(last, dynamic=True, **FORCED)
    for n in (7, 9, 8, 12):
        agree(compiled, last, torch.randn(2, 3, n))


def test_a_division_by_a_number_that_may_be_negative() -> None:
    def fn(x: torch.Tensor, i: int) -> torch.Tensor:
        return x * (x.shape[0] // i) + x.shape[0] % i

    compiled = burnish.compile(fn, dynamic=True, **FORCED)
    for i in (3, -3, 2, -5):
        agree(compiled, fn, torch.randn(8, 8), i)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_window_counted_from_the_end_of_what_is_written(size: int) -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        window = x[-2:]
        x[..., :1] *= 2
        return window

    x = torch.arange(float(size))
    compiled = burnish.compile(last, gate=False)
    want, got = last(x.clone()), compiled(x)
    assert (got.tolist(), got.storage_offset()) == (want.tolist(), want.storage_offset())
    assert not burnish.stats(compiled).fallbacks
