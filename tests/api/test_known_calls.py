"""Sealed calls compared in C: what fits goes to its route, everything else through Python, which decides."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import burnish
from burnish.assumptions import AssumptionUnmet
from burnish.capture.entry import seal
from burnish.capture.entry.known_calls import _KINDS
from burnish.errors import CompilerMissing
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.host import extension as host_extension
from burnish.runtime.host.extension import Host, host_library
from burnish.runtime.host.signature import TENSORS


@pytest.fixture(scope="module")
def native() -> Host:
    found = host_library(Options(), CompileLog())
    assert found is not None, "no C compiler, no Python.h, or a torch that is laid out in an unknown way"
    return found


def entrance(native: Host, args: tuple[Any, ...], kwargs: dict[str, Any], **asked: Any) -> Callable[..., str]:
    """Says which way a call goes."""
    sealed = native.Sealed(
        lambda *_, **__: "otherwise", lambda callback: callback, AssumptionUnmet, lambda *_, **__: "refused"
    )
    state, attributes = asked.get("state", ()), asked.get("attributes", ())
    sealed.add(native.Route(args, kwargs, _KINDS, TENSORS, state, attributes, lambda *_, **__: "route"))
    found: Callable[..., str] = sealed
    return found


THING = object()
X, Y = torch.zeros(2, 3), torch.zeros(2, 3)


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("known", "other"),
    [
        (X, torch.zeros(3, 2)),
        (X, torch.zeros(2, 3, 1)),
        (X, torch.zeros(3, 2).t()),
        (X, X.double()),
        (X, torch.zeros(2, 3, device="meta")),
        (X, torch.zeros(2, 3).requires_grad_()),
        (X, inference_tensor()),
        (X, torch.zeros(2, 3).to_sparse()),
        (X, None),
        (X, torch.zeros(2, 3).as_subclass(type("Odd", (torch.Tensor,), {}))),
        (torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64).conj()),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("a", "b"),
        (torch.float32, torch.float64),
        (THING, object()),
    ],
)
def test_a_call_that_differs_goes_the_other_way(native: Host, known: Any, other: Any) -> None:
    f = entrance(native, (known,), {})
    assert f(known) == "route" and f(other) == "otherwise"
    assert f(known, known) == "otherwise" and f() == "otherwise" and f(x=known) == "otherwise"
    g = entrance(native, (), {"x": known})
    assert g(x=known) == "route" and g(x=other) == "otherwise" and g(y=known) == "otherwise"


@pytest.mark.parametrize(
    ("known", "alike"),
    [
        (X, torch.ones(2, 3)),
        (X, torch.nn.Parameter(torch.ones(2, 3), requires_grad=False)),
        (10**30, 10**30 + 0),
        (float("nan"), float("nan") + 1),
        ("word", "".join(["wo", "rd"])),
        (None, None),
    ],
)
def test_a_call_that_is_alike_goes_the_same_way(native: Host, known: Any, alike: Any) -> None:
    assert entrance(native, (known,), {})(alike) == "route"


def test_which_arguments_are_one_tensor(native: Host) -> None:
    once, twice = entrance(native, (X, Y), {}), entrance(native, (X, X), {})
    assert (once(Y, X), once(X, X)) == ("route", "otherwise")
    assert (twice(Y, Y), twice(X, Y)) == ("route", "otherwise")


def test_a_tensor_that_was_changed_in_place_is_asked_again(native: Host) -> None:
    x = torch.zeros(4)
    f = entrance(native, (x,), {})
    x.data = torch.zeros(5)
    assert f(x) == "otherwise"
    x.data = torch.ones(4)
    assert f(x) == "route"


def test_lists_and_dicts_are_left_to_python(native: Host) -> None:
    for argument in ([X], (X,), {"x": X}, torch.Size([1]), torch.return_types.max((X, X))):
        with pytest.raises(ValueError, match="not compared here"):
            entrance(native, (argument,), {})


def test_the_state_of_the_process(native: Host) -> None:
    class Module:
        training = True

    def raises() -> bool:
        raise RuntimeError

    answers = [True]
    f = entrance(native, (X,), {}, state=((lambda: answers[0], True),), attributes=((Module, "training", True),))
    assert f(X) == "route"
    Module.training = False
    assert f(X) == "otherwise"
    Module.training, answers[0] = True, False
    assert f(X) == "otherwise"
    assert entrance(native, (X,), {}, state=((raises, True),))(X) == "otherwise"
    with pytest.raises(KeyboardInterrupt):
        entrance(native, (X,), {}, state=((_interrupted, True),))(X)


def _interrupted() -> bool:
    raise KeyboardInterrupt


def test_dynamos_callback_is_put_back_whatever_happens(native: Host) -> None:
    calls: list[Any] = []

    def set_callback(callback: Any) -> Any:
        calls.append(callback)
        return "prior"

    def fails() -> None:
        raise LookupError("the program's own")

    sealed = native.Sealed(lambda: "otherwise", set_callback, AssumptionUnmet, lambda: "refused")
    sealed.add(native.Route((), {}, _KINDS, TENSORS, (), (), fails))
    with pytest.raises(LookupError, match="own"):
        sealed()
    assert calls == [None, "prior"]


class Owner:
    """Known by its entrance, as a sealed module is."""

    def __init__(self, native: Host) -> None:
        self.sealed = native.Sealed(
            lambda *_: "otherwise", lambda callback: callback, AssumptionUnmet, lambda *_: "refused"
        )
        for k in range(native.MOST_ROUTES + 3):
            self.sealed.add(native.Route((k,), {}, _KINDS, TENSORS, (), (), self.answer))

    def answer(self, k: int) -> int:
        return k


def test_routes_have_their_limit_and_are_collected(native: Host) -> None:
    owner, most = Owner(native), native.MOST_ROUTES
    assert owner.sealed.count == most
    assert (owner.sealed(0), owner.sealed(most + 2), owner.sealed(most)) == (0, most + 2, "otherwise")
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


# -- in a sealed object --------------------------------------------------------------------------------------------


def sealed_function() -> Any:
    def f(x: torch.Tensor, pair: list[torch.Tensor] | None = None, k: int = 1) -> torch.Tensor:
        return torch.tanh(x) * k + (pair[0] if pair else 0)

    compiled = burnish.compile(f)
    with torch.no_grad():
        compiled(torch.randn(4)), compiled(torch.randn(4), [torch.randn(4)])
    burnish.seal(compiled)
    return compiled


def check(compiled: Any, *args: Any) -> None:
    torch.testing.assert_close(compiled(*args), compiled.burnish.eager(*args))


def test_the_third_call_goes_by_c(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Any] = []
    make = seal.key_maker

    def counting(*about: Any) -> Any:
        maker = make(*about)
        return lambda args, kwargs: keys.append(maker(args, kwargs)) or keys[-1]

    monkeypatch.setattr(seal, "key_maker", counting)
    compiled = sealed_function()
    with torch.no_grad():
        for calls in (1, 2, 2, 2):
            check(compiled, torch.randn(4))
            assert len(keys) == calls
        with torch.enable_grad():
            check(compiled, torch.randn(4))
        assert len(keys) == 3
        for calls in (4, 5, 6):  # what Python must look into
            check(compiled, torch.randn(4), [torch.randn(4)])
            assert len(keys) == calls
    assert compiled.burnish.entrance.call.count == 1 and burnish.stats(compiled).compiles == 2


def test_a_hook_registered_elsewhere_changes_nothing() -> None:
    model = torch.nn.Linear(4, 4)
    compiled = burnish.compile(model)
    with torch.no_grad():
        compiled(torch.randn(4))
        burnish.seal(compiled)
        for _ in range(3):
            check(compiled, torch.randn(4)), check(compiled, torch.randn(4))
            assert compiled.burnish.entrance.call.count == 1
            torch.nn.ReLU().register_forward_hook(lambda *_: None)
    assert burnish.stats(compiled).notices == {}


def test_without_the_extension_python_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*args: Any, **settings: Any) -> Any:
        raise CompilerMissing(["cc"])

    monkeypatch.setattr(host_extension, "_found", [])
    monkeypatch.setattr(host_extension, "build_shared", no_compiler)
    compiled = sealed_function()
    with torch.no_grad():
        for _ in range(3):
            check(compiled, torch.randn(4))
            check(compiled, torch.randn(4), [torch.randn(4)])
    (notice,) = burnish.stats(compiled).notices
    assert "host path in Python" in notice and "cc" in notice and not hasattr(compiled.burnish.entrance.call, "count")


@pytest.mark.parametrize("unlike", [{"_IN_TENSOR": range(8, 16, 8)}, {"_IN_PYTHON_OBJECT": range(40, 48, 8)}])
def test_a_torch_that_is_laid_out_in_another_way(monkeypatch: pytest.MonkeyPatch, unlike: dict[str, range]) -> None:
    monkeypatch.setattr(host_extension, "_found", [])
    for name, value in unlike.items():
        monkeypatch.setattr(host_extension, name, value)
    log = CompileLog()
    assert seal.host_library(Options(), log) is None
    assert "laid out in an unknown way" in next(iter(log.snapshot().notices))


# -- tensors seen from C ------------------------------------------------------------------------------------------


def _moves(parameter: torch.nn.Parameter, whole: torch.Tensor) -> dict[str, Callable[[], object]]:
    return {
        "another's memory": lambda: setattr(parameter, "data", torch.randn(4)),
        "the same storage, further on": lambda: setattr(parameter, "data", whole[8:12]),
        "another storage": lambda: parameter.detach_().set_(torch.randn(4)),
        "grown elsewhere": lambda: parameter.data.untyped_storage().resize_(1 << 16),
    }


@pytest.mark.parametrize("how", _moves(torch.nn.Parameter(torch.empty(0)), torch.empty(0)))
def test_what_moved_is_noticed_however_often_it_was_seen_to_stay(native: Host, how: str) -> None:
    whole = torch.randn(64)
    parameter = torch.nn.Parameter(whole[4:8])
    others = [torch.nn.Parameter(torch.randn(3)), torch.randn(5)]
    tensors = [*others, parameter]
    stay = native.Addresses([0, 1, 2], [x.data_ptr() for x in tensors])
    for _ in range(3):
        assert stay(tensors)
        parameter.data.mul_(2)  # in place
    assert stay([*others, parameter.detach()])  # another object over the same memory
    assert not stay([*others, whole]) and not stay(others) and not stay([*others, None])
    assert not stay([*others, torch.eye(4).to_sparse()])
    before = parameter.data_ptr()
    _moves(parameter, whole)[how]()
    assert stay(tensors) == (parameter.data_ptr() == before)
    assert how == "grown elsewhere" or not stay(tensors)


def test_the_places_of_memory_are_known() -> None:
    assert -1 not in (*host_extension._places_of_memory(), host_extension._place_of_sizes())


def test_where_they_are_not_torch_is_asked(native: Host) -> None:
    places = host_extension._places()
    native.open(host_extension._torch_library("cpu"), torch._C.TensorBase, *places, -1, -1, -1, -1)
    try:
        x = torch.randn(4)
        stay = native.Addresses([0], [x.data_ptr()])
        assert stay([x]) and stay([x]) and not stay([torch.randn(4)])
    finally:
        known = (*host_extension._places_of_memory(), host_extension._place_of_sizes())
        native.open(host_extension._torch_library("cpu"), torch._C.TensorBase, *places, *known)
