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
from burnish.capture.entry import method_guards
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.host import extension as host_extension

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


class Base(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class OtherBase(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - 4


class Inherited(Scale):
    pass


class Registry(type):
    """A metaclass."""

    entries: list[str] = []  # noqa: RUF012


class Registered(Base, metaclass=Registry):
    pass


class Settings:
    """No module: what a model asks."""

    def shift(self) -> float:
        return 1.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear, self.settings = Inherited(), nn.Linear(4, 4), Settings()
        self.registered = Registered()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _shifted(self.linear(self.registered(self.scale(x))), self.settings)


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
    "forward of a base class": lambda patch, model: patch.setattr(Base, "forward", _other),
    "code of forward of a base class": lambda patch, model: patch.setattr(
        Base.forward, "__code__", OtherBase.forward.__code__
    ),
    "forward of a class with a metaclass": lambda patch, model: patch.setattr(Registered, "forward", _other, False),
    "a method of what is no module": lambda patch, model: patch.setattr(Settings, "shift", lambda self: 5.0),
}


@pytest.fixture(params=["C", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who asks."""
    if request.param == "C":
        assert host_extension.host_library(Options(), CompileLog()) is not None
    else:
        monkeypatch.setattr(method_guards, "host_if_built", lambda: None)
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_method_that_is_replaced_is_noticed(
    name: str, sealed: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


SPECIAL: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "__add__": (lambda held: held + 1, lambda self, other: 1, lambda self, other: 2),
    "__eq__": (lambda held: held == 1, lambda self, other: True, lambda self, other: False),
    "__lt__": (lambda held: held < 1, lambda self, other: True, lambda self, other: False),
    "__bool__": (lambda held: 3 if held else 4, lambda self: True, lambda self: False),
    "__len__": (len, lambda self: 1, lambda self: 2),
    "__iter__": (lambda held: [*held], lambda self: iter([1]), lambda self: iter([2])),
    "__getitem__": (lambda held: held[0], lambda self, at: 1, lambda self, at: 2),
    "__getattr__": (lambda held: held.missing, lambda self, name: 1, lambda self, name: 2),
    "__hash__": (hash, lambda self: 1, lambda self: 2),
    "__str__": (str, lambda self: "one", lambda self: "two"),
    "__float__": (float, lambda self: 1.0, lambda self: 2.0),
}


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("name", SPECIAL)
def test_a_special_method_that_is_replaced_is_noticed(name: str, inherited: bool) -> None:
    asked, first, second = SPECIAL[name]
    owner = type("Owner", (), {name: first})
    derived = type("Derived", (owner,), {})
    held = derived() if inherited else owner()

    def function(x: torch.Tensor) -> Any:
        return x + 1, asked(held)

    compiled = burnish.compile(function, gate=False)
    assert compiled(X)[1] == function(X)[1]
    setattr(derived if inherited else owner, name, second)
    assert compiled(X)[1] == function(X)[1]
    setattr(derived if inherited else owner, name, first)
    assert compiled(X)[1] == function(X)[1]


def test_one_of_two_functions_of_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a factory makes differs by what it holds alone."""

    def times(factor: float) -> Callable[..., torch.Tensor]:
        return lambda self, x: x * factor

    compiled = burnish.compile(Model(), **FORCED)
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setattr(Model, "forward", times(factor))
        torch.testing.assert_close(compiled(X), X * factor)


TORCHS: dict[str, tuple[Any, str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a function of torch": (torch, "sin", lambda x: torch.sin(x) + x),
    "a function of torch.nn": (nn.functional, "relu", lambda x: nn.functional.relu(x) + x),
}


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("name", TORCHS)
def test_torchs_own_that_is_replaced_is_noticed(name: str, sealed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, function = TORCHS[name]
    compiled: Any = burnish.compile(function, **FORCED)
    before = compiled(X)
    if sealed:
        burnish.seal(compiled)
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, lambda x: x * 100)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), X * 100 + X)
    torch.testing.assert_close(compiled(X), before)
    torch.testing.assert_close(before, function(X))


METHODS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a method": ("sin", lambda x: x.sin().cos()),
    "an operator": ("__add__", lambda x: (x + x).cos()),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_replaced_method_of_tensors_is_noticed_after_a_reset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, function = METHODS[name]
    compiled = burnish.compile(function, **FORCED)
    torch.testing.assert_close(compiled(X), function(X))
    monkeypatch.setattr(torch.Tensor, attribute, lambda x, *others: x * 50)
    burnish.reset()
    torch.testing.assert_close(compiled(X), (X * 50).cos())


# -- the question by itself ---------------------------------------------------------------------------------------


class Meta(type):
    pass


def _asked(way: str, *classes: type, **options: Any) -> Callable[[], bool]:
    def reads(x: Any) -> Any:
        return x.plain(x.fixed, x.of_class(), x.of_nobody())

    question = method_guards._Question(method_guards.called_methods(classes, reads.__code__, {}))
    return question.asked_after(**options)


def _family() -> tuple[type, type]:
    class Parent(metaclass=Meta):
        def plain(self) -> int:
            return 1

        @property
        def fixed(self) -> int:
            return 2

        @classmethod
        def of_class(cls) -> int:
            return 3

        @staticmethod
        def of_nobody() -> int:
            return 4

    class Child(Parent):
        pass

    return Parent, Child


def _different(self: Any = None) -> int:
    return 7


REPLACED: dict[str, Any] = {
    "plain": _different,
    "fixed": property(_different),
    "of_class": classmethod(_different),
    "of_nobody": staticmethod(_different),
}


@pytest.mark.parametrize("owner", ["class", "base"])
@pytest.mark.parametrize("name", REPLACED)
def test_replaced_and_restored(name: str, owner: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child = _family()
    ask = _asked(way, child)
    for _ in range(3):
        assert ask() and ask()
        with monkeypatch.context() as patch:
            patch.setattr(child if owner == "class" else parent, name, REPLACED[name], False)
            assert not ask() and not ask()
        assert ask() and ask()
        monkeypatch.setattr(child, "something_else", 1, False)
        assert ask()


@pytest.mark.parametrize("name", REPLACED)
def test_code_swapped(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child = _family()
    ask = _asked(way, child)
    raw = vars(parent)[name]
    function = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
    assert ask()
    with monkeypatch.context() as patch:
        patch.setattr(function, "__code__", _different.__code__)
        assert not ask() and not ask()
    assert ask()


@pytest.mark.parametrize("name", ["fixed", "of_class", "of_nobody"])
def test_a_descriptor_that_is_made_again_in_place(name: str, way: str) -> None:
    """No class sees that."""
    parent, child = _family()
    ask = _asked(way, child)
    assert ask() and ask()
    vars(parent)[name].__init__(_different)
    assert not ask() and not ask()


def test_a_metaclass_that_answers_for_its_class(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, child = _family()
    ask = _asked(way, child)
    assert ask() and ask()
    answers = True

    def answer(cls: type, name: str) -> Any:
        return _different if answers and name == "plain" else type.__getattribute__(cls, name)

    with monkeypatch.context() as patch:
        patch.setattr(Meta, "plain", property(lambda cls: _different), False)
        assert not ask() and not ask()
    assert ask()
    with monkeypatch.context() as patch:
        patch.setattr(Meta, "__getattribute__", answer, False)
        assert not ask()
        answers = False  # which nothing but asking tells
        assert ask() and ask()
        answers = True
        assert not ask()
    assert ask() and ask()


def test_a_metaclass_or_a_base_that_is_replaced(way: str) -> None:
    class Shows(Meta):
        plain = property(lambda cls: _different)

    class Stepmother:
        plain, fixed, of_class, of_nobody = REPLACED.values()

    parent, child = _family()
    ask = _asked(way, child)
    assert ask()
    child.__class__ = Shows
    assert not ask()
    child.__class__ = Meta
    assert ask()
    child.__bases__ = (Stepmother, parent)
    assert not ask()
    child.__bases__ = (parent,)
    assert ask()
    del parent.plain  # type: ignore[attr-defined]
    assert not ask() and not ask()


def test_a_class_of_more_versions_than_python_gives_it(way: str) -> None:
    parent, child = _family()
    ask = _asked(way, child)
    for k in range(1500):
        parent.counter = k  # type: ignore[attr-defined]
        assert ask()
    child.plain = _different  # type: ignore[attr-defined]
    assert not ask()


def test_what_is_gone_is_not_unchanged(way: str) -> None:
    family = _family()
    ask = _asked(way, family[1])
    kept = weakref.ref(family[1])
    assert ask()
    del family
    gc.collect()
    assert kept() is None and not ask()


def test_what_is_held_is_asked_before(way: str) -> None:
    answers = iter((False, True, AttributeError(), ValueError(), 1))

    def held() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    _, child = _family()
    ask = _asked(way, child, held=(held, lambda: True))
    assert not ask() and ask() and not ask()
    with pytest.raises(ValueError):
        ask()
    assert ask()


def test_the_extension_takes_over_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    native = host_extension.host_library(Options(), CompileLog())
    assert native is not None
    asked: list[str] = []
    found: list[Any] = []
    monkeypatch.setattr(method_guards, "host_if_built", lambda: found[0] if found else None)
    monkeypatch.setattr(method_guards, "host_was_sought", lambda: bool(found))
    _, child = _family()
    question = method_guards._Question(method_guards.called_methods([child], (lambda x: x.plain()).__code__, {}))
    ask = question.asked_in_open(lambda: asked.append("build it"))
    for _ in range(method_guards._OFTEN - 1):
        assert ask(None)
    assert not asked
    for _ in range(method_guards._OFTEN):
        assert ask(None)
    assert asked == ["build it"]
    monkeypatch.setattr(question, "_in_python", lambda: pytest.fail("it is there"))
    found.append(native)
    assert ask(None)
    child.plain = _different  # type: ignore[attr-defined]
    assert not ask(None)


@pytest.mark.parametrize("wrong", [(1,), ((int, "real", "", len, 1),), ((weakref.ref(Scale), "x", "", 1, 1),)])
def test_the_extension_is_given_something_else(wrong: Any) -> None:
    native = host_extension.host_library(Options(), CompileLog())
    assert native is not None
    with pytest.raises(TypeError):
        native.Methods(wrong, ())


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
