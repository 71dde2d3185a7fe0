"""Classes and modules whose methods are replaced after an object was compiled: the next call is by the new ones."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import burnish

FORCED = {"gate": False, "verify": "off"}
X = torch.linspace(-1, 2, 8).reshape(2, 4)


class Scale(nn.Module):
    factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rate * self.twice(x.dtype) + self.nothing()

    @property
    def rate(self) -> float:
        return 0.5

    @classmethod
    def twice(cls, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(cls.factor, dtype=dtype)

    @staticmethod
    def nothing() -> float:
        return 0.0


class Inherited(Scale):
    pass


class Settings:
    """No module: what a model asks."""

    def shift(self) -> float:
        return 1.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear, self.settings = Inherited(), nn.Linear(4, 4), Settings()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _shifted(self.linear(self.scale(x)), self.settings)


def _shifted(x: torch.Tensor, settings: Settings) -> torch.Tensor:
    return x + settings.shift()


def _other(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 50


def _other_linear(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x @ self.weight.t() * 3


Change = Callable[[pytest.MonkeyPatch, Model], None]
CHANGES: dict[str, Change] = {
    "forward": lambda patch, model: patch.setattr(Model, "forward", _other),
    "forward of a module's class": lambda patch, model: patch.setattr(Scale, "forward", _other),
    "forward of a class that inherits it": lambda patch, model: patch.setattr(Inherited, "forward", _other, False),
    "forward of torch's class": lambda patch, model: patch.setattr(nn.Linear, "forward", _other_linear),
    "forward of one object": lambda patch, model: patch.setattr(model, "forward", lambda x: x * 3),
    "forward of one module": lambda patch, model: patch.setattr(model.scale, "forward", lambda x: x * 3),
    "code of forward": lambda patch, model: patch.setattr(Scale.forward, "__code__", _other.__code__),
    "a method": lambda patch, model: patch.setattr(Scale, "scaled", _other),
    "a property": lambda patch, model: patch.setattr(Scale, "rate", property(lambda self: 7.0)),
    "a class method": lambda patch, model: patch.setattr(
        Scale, "twice", classmethod(lambda cls, dtype: torch.tensor(9.0, dtype=dtype))
    ),
    "a static method": lambda patch, model: patch.setattr(Scale, "nothing", staticmethod(lambda: 4.0)),
    "a method of what is no module": lambda patch, model: patch.setattr(Settings, "shift", lambda self: 5.0),
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_method_that_is_replaced_is_noticed(name: str, sealed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Model()
    compiled: Any = burnish.compile(model, **FORCED)
    before = compiled(X).detach()
    if sealed:
        burnish.seal(compiled)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), before)
    with monkeypatch.context() as patch:
        CHANGES[name](patch, model)
        want = model(X)
        assert not torch.allclose(want, before)
        for _ in range(3):
            torch.testing.assert_close(compiled(X), want)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), before)
    assert burnish.stats(compiled).compiles == (1 if sealed else 2)


def test_one_of_two_functions_of_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a factory makes differs by what it holds alone."""

    def times(factor: float) -> Callable[..., torch.Tensor]:
        return lambda self, x: x * factor

    compiled = burnish.compile(Model(), **FORCED)
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setattr(Model, "forward", times(factor))
        torch.testing.assert_close(compiled(X), X * factor)


@pytest.mark.parametrize("first_is_patched", [False, True])
def test_a_warm_start_looks_at_the_methods_there_are(
    first_is_patched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cache_dir": tmp_path, "warm_start": True}
    for is_patched in (first_is_patched, not first_is_patched):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = Model()
        with monkeypatch.context() as patch, torch.no_grad():
            if is_patched:
                patch.setattr(Scale, "forward", _other)
            compiled = burnish.compile(model, options=options, **FORCED)
            torch.testing.assert_close(compiled(X), model(X))


def test_a_warm_start_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"cache_dir": tmp_path, "warm_start": True}
    for _ in range(2):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = Model()
        compiled = burnish.compile(model, options=options, **FORCED)
        with torch.no_grad():
            compiled(X)
    assert burnish.stats(compiled).seconds.get("aot", 0.0) == 0.0, "restored"
    monkeypatch.setattr(Scale, "forward", _other)
    torch.testing.assert_close(compiled(X), model(X))


def test_the_guard_keeps_no_class_that_a_function_made() -> None:
    def made() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        class Local(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * 2

        model = Local()
        model.weight = nn.Parameter(torch.ones(2))
        compiled = burnish.compile(lambda x: model(x), **FORCED)
        torch.testing.assert_close(compiled(X), X * 2)
        return weakref.ref(model), weakref.ref(model.weight)

    kept = made()
    for _ in range(3):
        gc.collect()
    assert [each() for each in kept] == [None, None]
