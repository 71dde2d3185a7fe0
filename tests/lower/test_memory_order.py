"""Operations that depend on where eager has the elements of a tensor, not only on their values: `as_strided`, and
random numbers, which are drawn in the order of memory. `clone` and `contiguous` are no operations here, and a computed
value may lie in memory in any way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import burnish

TRANSPOSED = torch.linspace(-2, 2, 24).reshape(4, 6).t()
GAPS = torch.arange(96.0).as_strided((3, 8), (20, 2))
ONE_ROW = torch.arange(96.0).as_strided((1, 33), (66, 2))
CHANNELS_LAST = torch.linspace(-1, 1, 120).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)


def tensors(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


def check(f: Callable[..., Any], x: torch.Tensor, dynamic: bool) -> None:
    compiled = burnish.compile(f, options={"verify": "off", "gate": False}, dynamic=dynamic)
    torch.manual_seed(1)
    want = tensors(f(x))
    torch.manual_seed(1)
    got = tensors(compiled(x))
    assert [t.stride() for t in got] == [t.stride() for t in want]
    torch.testing.assert_close(got, want)
    assert burnish.stats(compiled).fallbacks == ()


def zeroed(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((6,), (2,), 0).zero_()
    return x


READ: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "a clone of one row": (lambda x: x.clone().as_strided((16,), (2,), 0), ONE_ROW),
    "a clone without the gaps": (lambda x: x.clone().as_strided((16,), (1,), 1), GAPS),
    "a copy": (lambda x: x.to(torch.float32, copy=True).as_strided((6,), (2,), 0), GAPS),
    "a computed value": (lambda x: (x + 1).as_strided((10,), (1,), 0), TRANSPOSED),
    "a computed value, from an offset": (lambda x: (x + 1).as_strided((3, 2), (2, 1), 3), TRANSPOSED),
    "a clone": (lambda x: x.clone().as_strided((10,), (1,), 0), TRANSPOSED),
    "contiguous": (lambda x: x.contiguous().as_strided((10,), (1,), 0), TRANSPOSED),
    "channels last": (lambda x: torch.relu(x).as_strided((10,), (1,), 2), CHANNELS_LAST),
    "from channels last": (lambda x: x.contiguous().as_strided((10,), (1,), 2), CHANNELS_LAST),
    "to channels last": (
        lambda x: x.contiguous().to(memory_format=torch.channels_last).as_strided((10,), (1,), 2),
        CHANNELS_LAST,
    ),
    "a cast": (lambda x: x.double().as_strided((6,), (2,), 0), TRANSPOSED),
    "an expanded tensor": (lambda x: (x[0].expand(4, 4) + 1).as_strided((10,), (1,), 0), TRANSPOSED),
    "scattered into a copy": (
        lambda x: torch.as_strided_scatter(x.clone(), torch.zeros(6), (6,), (2,), 0),
        GAPS,
    ),
    "scattered into a value": (lambda x: torch.as_strided_scatter(x + 1, torch.zeros(6), (6,), (2,), 0), TRANSPOSED),
    "written into a copy": (lambda x: zeroed(x.clone()), GAPS),
    "written into a value": (lambda x: zeroed(x + 1), TRANSPOSED),
}
DRAWN: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "rand_like": (lambda x: torch.rand_like(x + 1), TRANSPOSED),
    "rand_like contiguous": (lambda x: torch.rand_like(x.contiguous()), TRANSPOSED),
    "rand_like of a copy": (lambda x: torch.rand_like(x.clone()), GAPS),
    "rand_like with gaps": (lambda x: torch.rand_like(x), GAPS),
    "rand_like of a view": (lambda x: torch.rand_like((x + 1).t().reshape(2, 12)), TRANSPOSED),
    "rand_like of a result": (lambda x: (torch.rand_like((y := x + 1).contiguous()), y), TRANSPOSED),
    "rand_like of a permuted value": (lambda x: torch.rand_like((x * 2).permute(0, 2, 3, 1)), CHANNELS_LAST),
    "randint_like": (lambda x: torch.randint_like(x + 1, 10), TRANSPOSED),
    "bernoulli": (lambda x: torch.bernoulli(torch.sigmoid(x).t()), TRANSPOSED),
    "multinomial": (lambda x: torch.multinomial((x + 1).sigmoid(), 2), TRANSPOSED),
    "normal": (lambda x: torch.normal(x + 1, 1.0), TRANSPOSED),
    "dropout": (lambda x: F.dropout(x + 1, 0.5), TRANSPOSED),
    "dropout of a part": (lambda x: F.dropout((x + 1)[1:, ::2], 0.5), TRANSPOSED),
    "dropout of a product": (lambda x: F.dropout((x.t() @ x).t(), 0.5), TRANSPOSED),
    "dropout, channels last": (lambda x: F.dropout(x + 1, 0.5), CHANNELS_LAST),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", READ)
def test_memory_that_is_read(case: str, dynamic: bool) -> None:
    check(*READ[case], dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", DRAWN)
def test_random_numbers_in_the_order_of_memory(case: str, dynamic: bool) -> None:
    check(*DRAWN[case], dynamic)


def test_an_ordinary_dropout_needs_no_copy() -> None:
    compiled = burnish.compile(lambda x: F.dropout(x * 2, 0.5), options={"verify": "off", "gate": False})
    compiled(torch.ones(4, 6))
    assert burnish.stats(compiled).kernels == 1
