"""NumPy code in a compiled function gives what NumPy gives: torch's translation has other types, shapes and values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import burnish


def sorted_backwards(a: Any, i: Any) -> Any:
    found = a.copy()
    found.sort()
    backwards = found[::-1]
    backwards[0] = 9
    return found


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "abs": lambda a, i: abs(a),
    "cumsum of bools": lambda a, i: (a > 0).cumsum(),
    "an integer by zero": lambda a, i: 6 // i,
    "sign of complex": lambda a, i: np.sign(a + 1j),
    "cbrt": lambda a, i: np.cbrt(a),
    "fix": lambda a, i: np.fix(a),
    "modf": lambda a, i: np.modf(a)[0],
    "around": lambda a, i: np.around(i * 37, -1),
    "reciprocal": lambda a, i: np.reciprocal(i + 1),
    "cumsum of int32": lambda a, i: np.cumsum(i.astype(np.int32) * 0 + 2**30),
    "integers divided": lambda a, i: (i + 2**30) / 3,
    "where": lambda a, i: np.where(i > 1, i + 2**25 + 1, 0.5),
    "median": lambda a, i: np.median(a),
    "percentiles": lambda a, i: np.stack([np.percentile(a, 25), np.percentile(a, 75)]),
    "square": lambda a, i: np.square(i),
    "prod of bytes": lambda a, i: np.prod(i.astype(np.uint8)),
    "a view that is written": sorted_backwards,
    "to torch": lambda a, i: torch.from_numpy(i / 7) * 2,
    "from torch": lambda a, i: torch.from_numpy(a).numpy().sum(),
}


@pytest.mark.parametrize("name", CASES)
def test_numpy_is_numpys(name: str) -> None:
    compiled = burnish.compile(CASES[name])
    a, i = np.array([1.5, -0.25, -2.75, 0.5]), np.array([0, 1, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's own, of a division by zero
        for _ in range(2):
            got, want = compiled(a, i), CASES[name](a, i)
            assert type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape
            assert np.array_equal(np.asarray(got), np.asarray(want), equal_nan=True)


def test_a_mode_of_numpys_errors_around_the_call_is_heard() -> None:
    compiled = burnish.compile(lambda a: a / (a * 0))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(np.ones(3))


def test_what_is_around_numpy_is_compiled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x.sin() + 1).square()
        return (y - float(np.median(y.numpy()))).cos() * 2

    compiled = burnish.compile(function, options={"gate": False})
    x = torch.linspace(-1, 1, 16)
    torch.testing.assert_close(compiled(x), function(x))
    assert burnish.stats(compiled).compiles == 2


NUMBERS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "times": lambda x, a: (x * a, a * x, x / a, x**a),
    "by name": lambda x, a: (torch.add(x, x, alpha=int(a)), x.clamp(max=a), torch.where(x > 1, x, a)),
    "computed": lambda x, a: (x + 1, -a, a + 1, a / 3),
    "computed first": lambda x, a: x * (a * 2),
    "compared": lambda x, a: x + 1 if a > 2 else x - 1,
    "as a condition": lambda x, a: x + 1 if a else x - 1,
    "its class": lambda x, a: (x + 1, isinstance(a, float), isinstance(a, np.floating), type(a).__name__),
    "filled": lambda x, a: (x + 1, torch.full((2,), a)),
    "made a tensor": lambda x, a: torch.tensor(a) + x,
    "returned": lambda x, a: (x + 1, a),
    "a range": lambda x, a: [x * n for n in range(int(a))],
    "its item": lambda x, a: x * a.item(),
}


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.int32, np.bool_])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_numpy_are_no_arrays(name: str, kind: Any) -> None:
    compiled = burnish.compile(NUMBERS[name], options={"gate": False, "verify": "off"})
    for x in (torch.arange(1, 4), torch.arange(1.0, 4.0)):
        for value in (3, 1, 0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got, want = _attempt(compiled, x, kind(value)), _attempt(NUMBERS[name], x, kind(value))
            assert repr(got) == repr(want)


def _attempt(function: Callable[..., Any], *args: Any) -> Any:
    try:
        result = function(*args)
    except (RuntimeError, TypeError) as error:
        return type(error)
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [(type(part), getattr(part, "dtype", None), part) for part in parts]


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = np.sqrt(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(-1, -2) / self.scale).softmax(-1) @ x


def test_a_modules_numpy_number_is_a_constant() -> None:
    model = Attention()
    compiled = burnish.compile(model, options={"gate": False})
    x = torch.randn(2, 4, 8)
    torch.testing.assert_close(compiled(x), model.forward(x))
    model.scale = np.sqrt(2)
    torch.testing.assert_close(compiled(x), Attention.forward(model, x))
    stats = burnish.stats(compiled)
    assert stats.compiles == 2 and not stats.graph_breaks and not stats.fallbacks
