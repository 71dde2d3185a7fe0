"""What is compiled is freed with the last reference to it, also where its own class refers to it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import burnish

FORCED = {"gate": False, "verify": "off"}
X = torch.linspace(-1, 2, 12).reshape(3, 4)
Kept = tuple[type | nn.Module, ...]


def _compiled_class(use: Callable[[Any], None], **options: Any) -> Kept:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * 2 if compiled is not None else x

    model = Model()
    compiled = burnish.compile(model, **options)
    use(compiled)
    return model, Model


def _class_of_a_module(use: Callable[[Any], None], **options: Any) -> Kept:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * weight).exp() if compiled is not None else x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1

    weight = nn.Parameter(torch.ones(4))
    model = Model()
    compiled = burnish.compile(model, **options)
    use(compiled)
    return model, Model, Inner


def _compiled_function(use: Callable[[Any], None], **options: Any) -> Kept:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3 if compiled is not None else x

    model = Model()
    compiled = burnish.compile(lambda x: model(x) - 1, **options)
    use(compiled)
    return model, Model


def _disabled_part(use: Callable[[Any], None], **options: Any) -> Kept:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3 if part is not None else x

    model = Model()
    part = burnish.disable(model)
    use(burnish.compile(lambda x: part(x) - 1, **options))
    return model, Model


def _served(compiled: Any) -> None:
    with torch.no_grad():
        compiled(X)


def _trained(compiled: Any) -> None:
    compiled(X.clone().requires_grad_()).sum().backward()


def _sealed(compiled: Any) -> None:
    _served(compiled)
    burnish.seal(compiled)
    for _ in range(3):
        _served(compiled)


MADE = (_compiled_class, _class_of_a_module, _compiled_function, _disabled_part)
USED = (_served, _trained, _sealed)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("use", USED, ids=lambda use: use.__name__)
@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_a_class_that_refers_to_what_is_compiled(make: Callable[..., Kept], use: Callable[[Any], None]) -> None:
    kept = [weakref.ref(each) for each in make(use, **FORCED)]
    for _ in range(3):
        gc.collect()
    assert [each() for each in kept] == [None] * len(kept)


def test_with_its_gate() -> None:
    kept = [weakref.ref(each) for each in _compiled_class(_trained)]
    for _ in range(3):
        gc.collect()
    assert [each() for each in kept] == [None] * len(kept)


def test_two_objects_of_a_class_have_one_compiled_class() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    first, second = burnish.compile(Model(), **FORCED), burnish.compile(Model(), **FORCED)
    assert type(first) is type(second) and type(first) is not type(burnish.disable(Model()))
