"""Sealed objects: nothing compiles, calls go by their signature, what is new runs in eager and is counted."""

from __future__ import annotations

import contextlib
import copy
import dis
import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import burnish
from burnish.errors import NothingToSeal
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.host.extension import Host, host_library
from burnish.trust.faults import Fault, RaisesAtRun
from tests.against_eager import fallback_warnings

EAGER = "sealed call in eager: not compiled for its inputs"


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> dict[str, Any]:
        hidden = torch.tanh(self.a(x) + self.shift)
        if mask is not None:
            hidden = hidden * mask
        return {"out": self.b(hidden) * scale, "hidden": hidden}


def sealed(model: Any, *calls: tuple[tuple[Any, ...], dict[str, Any]], **settings: Any) -> Any:
    compiled = burnish.compile(model, **settings)
    for args, kwargs in calls:
        compiled(*args, **kwargs)
    burnish.seal(compiled)
    return compiled


def eager_calls(compiled: Any) -> int:
    return burnish.stats(compiled).notices.get(EAGER, 0)


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected)
    assert type(found) is type(expected)


@pytest.fixture
def host() -> Host:
    found = host_library(Options(), CompileLog())
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def test_calls_of_a_known_signature_go_to_compiled_code_and_nothing_compiles() -> None:
    model, x, mask = Tiny(), torch.randn(3, 8), torch.rand(3, 8)
    c = sealed(model, ((x,), {}), ((x, mask), {"scale": 2.0}))
    compiles = burnish.stats(c).compiles
    for _ in range(3):
        y, m = torch.randn(3, 8), torch.rand(3, 8)
        assert_same(c(y), model(y))
        assert_same(c(y, m, scale=2.0), model(y, m, scale=2.0))
    assert burnish.stats(c).compiles == compiles and eager_calls(c) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda x: (x.double(), {}),
        lambda x: (x[:2], {}),
        lambda x: (x.t().contiguous().t(), {}),
        lambda x: (x, {"scale": 3.0}),
        lambda x: (x, {"mask": x}),
        lambda x: (x.requires_grad_(), {}),
    ],
    ids=["dtype", "shape", "strides", "value", "another argument", "requires_grad"],
)
def test_an_unseen_signature_runs_in_eager_and_is_counted(change: Callable[[torch.Tensor], Any]) -> None:
    model = Tiny()
    c = sealed(model, ((torch.randn(3, 8),), {}), dynamic=False)
    compiles = burnish.stats(c).compiles
    x, kwargs = change(torch.randn(3, 8))
    eager = copy.deepcopy(model).to(x.dtype)
    model.to(x.dtype)
    with torch.set_grad_enabled(x.requires_grad):
        for calls in (1, 2):
            assert_same(c(x, **kwargs), eager(x, **kwargs))
            assert eager_calls(c) == calls
    assert burnish.stats(c).compiles == compiles


def test_sizes_that_compiled_code_takes_are_no_new_signature_to_it() -> None:
    model = Tiny()
    c = sealed(model, *(((torch.randn(k, 8),), {}) for k in (3, 4)))  # the second makes the size dynamic
    for k in (4, 5, 6, 5):
        x = torch.randn(k, 8)
        assert_same(c(x), model(x))
    assert eager_calls(c) == 0


def test_parameters_may_be_changed_in_place() -> None:
    model, x = Tiny(), torch.randn(3, 8)
    c = sealed(model, ((x,), {}))
    c(x)
    model.a.weight.mul_(2)
    model.b.load_state_dict(torch.nn.Linear(8, 4).state_dict())
    model.a.bias.data = torch.randn(8)
    model.shift.add_(1)
    assert_same(c(x), model(x))


def test_grad_mode_autocast_and_training_are_part_of_the_signature() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.9)).eval()
    x = torch.randn(3, 8)
    c = sealed(model, ((x,), {}))
    assert_same(c(x), model(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert c(x).dtype is torch.bfloat16
    assert eager_calls(c) == 1
    with torch.enable_grad():
        assert c(x).requires_grad
    assert eager_calls(c) == 2
    c.train()
    torch.manual_seed(0)
    found = c(x)
    torch.manual_seed(0)
    assert_same(found, model(x))
    assert eager_calls(c) == 3
    c.eval()
    assert_same(c(x), model(x))
    assert eager_calls(c) == 3


def test_training_steps() -> None:
    with torch.enable_grad():
        model = Tiny()
        twin = copy.deepcopy(model)
        c = burnish.compile(model)

        def step(m: Any, x: torch.Tensor) -> torch.Tensor:
            loss = m(x)["out"].square().mean()
            loss.backward()
            with torch.no_grad():
                for p in m.parameters():
                    p.sub_(0.1 * p.grad)
                    p.grad = None
            return loss.detach()

        xs = [torch.randn(3, 8) for _ in range(5)]
        for n, x in enumerate(xs):
            torch.testing.assert_close(step(c, x), step(twin, x))
            if n == 1:
                c.burnish.seal()
                compiles = burnish.stats(c).compiles
    assert burnish.stats(c).compiles == compiles and eager_calls(c) == 0
    torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()))


def test_one_tensor_given_twice_is_not_two() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b

    c = sealed(f, ((torch.zeros(4), torch.ones(4)), {}))
    x = torch.zeros(4)
    assert_same(c(x, x), torch.full((4,), 2.0))
    assert eager_calls(c) == 1


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_containers_are_looked_into() -> None:
    def f(pair: Pair, table: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        return pair.first * 2 + table["x"][0] - pair.second

    def inputs(k: int = 4) -> tuple[Any, ...]:
        return Pair(torch.randn(k), torch.randn(k)), {"x": [torch.randn(k)]}

    c = sealed(f, (inputs(), {}), dynamic=False)
    for k, expected in ((4, 0), (4, 0), (5, 1)):
        args = inputs(k)
        assert_same(c(*args), f(*args))
        assert eager_calls(c) == expected


class Cache:
    def __init__(self, k: int = 4) -> None:
        self.state = torch.zeros(k)


def test_another_object_is_another_signature_and_its_tensors_are_looked_up() -> None:
    def f(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.state.add_(x)
        return cache.state * 2

    mine, other = Cache(), Cache()
    c = sealed(f, ((torch.ones(4), mine), {}))
    assert_same(c(torch.ones(4), mine), torch.full((4,), 4.0))
    mine.state = torch.full((4,), 10.0)  # replaced: seen, for it is no parameter
    assert_same(c(torch.ones(4), mine), torch.full((4,), 22.0))
    assert_same(c(torch.ones(4), other), torch.full((4,), 2.0))
    assert_same(other.state, torch.ones(4))


def test_globals_closures_and_defaults() -> None:
    weight = torch.randn(4)

    def f(x: torch.Tensor, k: int = 3, *rest: torch.Tensor, flag: bool = True) -> tuple[torch.Tensor, int]:
        return (x * weight * k + sum(rest) if flag else x), k

    x = torch.randn(4)
    c = sealed(f, ((x,), {}), ((x, 5, x * 2), {"flag": True}))
    for args in ((torch.randn(4),), (torch.randn(4), 5, torch.randn(4))):
        assert_same(c(*args), f(*args))
    weight.mul_(3)
    assert_same(c(x), f(x))
    assert eager_calls(c) == 0
    assert_same(c(x, flag=False), f(x, flag=False))
    assert eager_calls(c) == 1


def test_results_keep_their_structure_and_effects_happen() -> None:
    seen: list[int] = []

    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            return OrderedDict(out=[x + 1, (x, None)], n=7)

    model, x = Counting(), torch.randn(3)
    c = burnish.compile(model)
    c(x), c(x)
    c.burnish.seal()
    before = model.calls
    for _ in range(3):
        found = c(x)
        seen.append(model.calls)
        assert type(found) is OrderedDict and found["out"][1][0] is x and found["n"] == 7
        torch.testing.assert_close(found["out"][0], x + 1)
    assert seen[-1] == before + 3


def test_an_object_with_graph_breaks_keeps_its_guards() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) * 2
        torch._dynamo.graph_break()
        return y.relu() + 1

    x = torch.randn(6)
    c = sealed(f, ((x,), {}), dynamic=False)
    compiles = burnish.stats(c).compiles
    assert compiles == 2
    for x in (torch.randn(6), torch.randn(6), torch.randn(7)):
        assert_same(c(x), f(x))
    assert burnish.stats(c).compiles == compiles and eager_calls(c) == 1


@pytest.mark.parametrize("in_module", [False, True], ids=["function", "module"])
def test_a_break_in_what_is_called_last_keeps_its_guards(in_module: bool) -> None:
    """Nothing is left to resume then; the code that Dynamo makes looks like that of a whole frame."""

    def last(y: torch.Tensor) -> torch.Tensor:
        y = y.relu()
        torch._dynamo.graph_break()
        return y.cos() + 1

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return last(torch.tanh(x) * 2)

    f = Module() if in_module else lambda x: last(torch.tanh(x) * 2)
    x = torch.randn(6)
    c = sealed(f, ((x,), {}), dynamic=False)
    assert_same(c(x), f(x))
    assert any(notice.startswith("sealed with guards") for notice in burnish.stats(c).notices)


def test_wrong_arguments_raise_as_in_eager() -> None:
    c = sealed(Tiny(), ((torch.randn(3, 8),), {}))
    with pytest.raises(TypeError, match="forward"):
        c()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        c(torch.randn(3, 5))


def test_a_new_hook_is_called() -> None:
    model, x = Tiny(), torch.randn(3, 8)
    c = sealed(model, ((x,), {}))
    c(x)
    called: list[int] = []
    handle = model.a.register_forward_hook(lambda *_: called.append(1))
    c(x), c(x), c(x)
    assert called == [1, 1, 1]
    handle.remove()
    for _ in range(3):
        assert_same(c(x), model(x))
    assert eager_calls(c) == 0


def test_unseal_compiles_again() -> None:
    model = Tiny()
    c = sealed(model, ((torch.randn(3, 8),), {}), dynamic=False)
    c(torch.randn(5, 8))
    assert burnish.stats(c).compiles == 1
    c.burnish.unseal()
    x = torch.randn(5, 8)
    assert_same(c(x), model(x))
    assert burnish.stats(c).compiles == 2


def test_forward_and_call_are_both_sealed() -> None:
    model, x = Tiny(), torch.randn(3, 8)
    c = sealed(model, ((x,), {}))
    assert_same(c.forward(x), model(x))
    assert burnish.stats(c).compiles == 1  # never compiled by its own way in, and not now


def test_nothing_to_seal_is_said() -> None:
    with pytest.raises(NothingToSeal, match="call it with the inputs"):
        burnish.seal(burnish.compile(Tiny()))
    with pytest.raises(NothingToSeal, match="own backend"):
        burnish.seal(burnish.compile(Tiny(), backend="eager"))


def test_threads() -> None:
    model = Tiny()
    c = sealed(model, *(((torch.randn(k, 8),), {}) for k in (2, 3)))
    wrong: list[int] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        start.wait()
        with torch.no_grad():
            for n in range(30):
                x = torch.randn(2 + n % 3, 8, generator=generator)
                if not torch.allclose(c(x)["out"], model(x)["out"], atol=1e-5):
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and eager_calls(c) == 0


def test_close_gives_memory_back_and_a_later_call_compiles() -> None:
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Softmax(-1)),
        torch.randn(64, 64),
    )
    c = sealed(model, ((x,), {}))
    c(x)
    c.burnish.close()
    assert burnish.stats(c).memory.arena_bytes == 0 and not list(c.burnish.log._programs)
    assert_same(c(x), model(x))
    assert burnish.stats(c).compiles == 2


@pytest.mark.parametrize("is_sealed", [False, True])
def test_an_object_that_is_dropped_takes_its_programs_along(is_sealed: bool) -> None:
    c = burnish.compile(Tiny())
    for _ in range(3):
        c(torch.randn(3, 8))
        if is_sealed:
            c.burnish.seal()
    programs = [weakref.ref(program) for program in c.burnish.log._programs]
    assert programs
    del c
    for _ in range(3):
        gc.collect()
    assert all(program() is None for program in programs)


def test_parameters_are_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of Dynamo's code that loads them is replaced, on every Python and torch that is supported."""
    from burnish.capture.entry import unguarded

    made: list[Any] = []
    replace = unguarded.with_loader
    monkeypatch.setattr(unguarded, "with_loader", lambda *args: made.append(replace(*args)) or made[-1])
    model, x = Tiny(), torch.randn(3, 8)
    c = sealed(model, ((x,), {"scale": 0.5}))
    for _ in range(3):
        assert_same(c(x, scale=0.5), model(x, scale=0.5))
    assert len(made) == 1 and made[0] is not None
    assert "_parameters" not in {i.argval for i in dis.get_instructions(made[0])}


@pytest.mark.parametrize("fault", [RaisesAtRun(after=4), None], ids=["raises", "asked for"])
def test_a_sealed_object_is_rolled_back_like_any_other(fault: Fault | None) -> None:
    """Its graph is called with one list, and the arguments are there for eager all the same."""
    model, x = Tiny(), torch.randn(3, 8)
    c = sealed(model, ((x,), {}), options={"fault": fault})
    for k in range(8):
        if fault is None and k == 4:
            c.burnish.rollback()
        found, _ = fallback_warnings(lambda: c(x))
        assert_same(found, model(x))
    (variant,) = burnish.stats(c).variants
    assert variant.engine == "eager" and variant.rollbacks == 1


class Output(OrderedDict[str, torch.Tensor]):
    """As model libraries have them: a dict with the same as attributes."""

    def __init__(self, **items: torch.Tensor) -> None:
        super().__init__(**items)
        for name, item in items.items():
            self.__dict__[name] = item
        self.kind = "output"


def test_attributes_of_results_are_set_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.capture.entry import unguarded

    made: list[Any] = []
    replace = unguarded.with_loader
    monkeypatch.setattr(unguarded, "with_loader", lambda *args: made.append(replace(*args)) or made[-1])
    c = sealed(lambda x: Output(twice=x * 2, more=x + 1), ((torch.randn(4),), {}))
    for _ in range(3):
        x = torch.randn(4)
        found = c(x)
        assert type(found) is Output and list(found) == ["twice", "more"] and found.kind == "output"
        assert found.twice is found["twice"] and found.more is found["more"]
        torch.testing.assert_close((found.twice, found.more), (x * 2, x + 1))
    names = {i.argval for i in dis.get_instructions(made[0])}
    assert "object_setattr_ignore_descriptor" not in names and eager_calls(c) == 0


def test_an_attribute_set_in_c(host: Host) -> None:
    class Odd:
        name = property(lambda self: "the class's")

    odd, here = Odd(), threading.local()
    host.set_in_dict(odd, "name", 3)
    assert odd.__dict__ == {"name": 3} and odd.name == "the class's"
    if hasattr(torch._dynamo.utils, "object_setattr_ignore_descriptor"):
        with contextlib.suppress(AttributeError):  # in older versions of torch
            torch._dynamo.utils.object_setattr_ignore_descriptor(here, "name", 3)
            del here.name
            host.set_in_dict(here, "name", 4)
            assert here.name == 4
    with pytest.raises(AttributeError):
        host.set_in_dict(object(), "name", 3)


# -- names of arguments -------------------------------------------------------------------------------------------


def _scaled_and_shifted(x: torch.Tensor, by: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return torch.sin(x) * by - shift


def _of_any(x: torch.Tensor, **numbers: float) -> torch.Tensor:
    return torch.sin(x) * numbers.get("by", 1.0) - numbers.get("shift", 0.0)


@pytest.mark.parametrize("function", [_scaled_and_shifted, _of_any])
def test_the_same_values_under_other_names_are_another_call(function: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(4)
    c = sealed(function, ((x,), {"by": 3.0}))
    for _ in range(3):
        torch.testing.assert_close(c(x, by=3.0), function(x, by=3.0))
        torch.testing.assert_close(c(x, shift=3.0), function(x, shift=3.0))
    assert eager_calls(c) == 3


# -- tied weights -------------------------------------------------------------------------------------------------


class _Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


def _another_weight(model: _Tied) -> None:
    model.b.weight = torch.nn.Parameter(torch.randn(8, 8))


def _assigned(model: _Tied) -> None:
    """Each key of a state is a tensor of its own."""
    state = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def _another_module(model: _Tied) -> None:
    model.b = torch.nn.Linear(8, 8)


@pytest.mark.parametrize("untie", [_another_weight, _assigned, _another_module])
def test_weights_that_are_no_longer_tied_are_noticed(untie: Callable[[_Tied], None]) -> None:
    model, x = _Tied(), torch.randn(3, 8)
    c = sealed(model, ((x,), {}))
    for _ in range(3):
        torch.testing.assert_close(c(x), model(x))
    assert eager_calls(c) == 0
    untie(model)
    for _ in range(3):
        torch.testing.assert_close(c(x), model(x))
    assert eager_calls(c) == 3
