"""Functions, methods and callables; arguments and results of every shape that Python has."""

import dataclasses
import functools
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import nn

import burnish


@burnish.compile
def decorated(x, y=2.0):
    """Sine, shifted."""
    return x.sin() + y


@burnish.compile(dynamic=True, name="scaled")
def decorated_with_arguments(x, *, scale):
    return x * scale


@pytest.fixture
def x():
    return torch.randn(3, 4)


def test_decorator(x):
    torch.testing.assert_close(decorated(x), x.sin() + 2.0)
    torch.testing.assert_close(decorated(x, y=1.0), x.sin() + 1.0)
    assert decorated.__name__ == "decorated" and decorated.__doc__ == "Sine, shifted."
    assert torch.equal(decorated.burnish.eager(x), x.sin() + 2.0)


def test_decorator_with_arguments(x):
    torch.testing.assert_close(decorated_with_arguments(x, scale=3), x * 3)
    assert burnish.stats(decorated_with_arguments).name == "scaled"
    assert burnish.stats(decorated_with_arguments).compiles == 1


def test_a_decorated_function_pickles():
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def test_recompiling_a_function_does_not_nest(x):
    again = burnish.compile(decorated, fullgraph=True)
    assert again.burnish.eager is decorated.burnish.eager
    torch.testing.assert_close(again(x), x.sin() + 2.0)


class Worker:
    def __init__(self, scale):
        self.scale = scale

    @burnish.compile
    def run(self, x):
        return x * self.scale + 1

    @burnish.compile
    @staticmethod
    def fixed(x):
        return x * 7

    @classmethod
    @burnish.compile
    def of_class(cls, x):
        return x * len(cls.__name__)

    def __call__(self, x):
        return x - self.scale


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    @burnish.compile
    def forward(self, x):
        return self.inner(x).relu()


def test_methods(x):
    two, three = Worker(2.0), Worker(3.0)
    torch.testing.assert_close(two.run(x), x * 2 + 1)
    torch.testing.assert_close(three.run(x), x * 3 + 1)
    torch.testing.assert_close(Worker.fixed(x), x * 7)
    torch.testing.assert_close(two.fixed(x), x * 7)
    torch.testing.assert_close(Worker.of_class(x), x * 6)
    assert burnish.stats(two.run).compiles >= 1
    assert two.run.__name__ == "run"


def test_a_bound_method_and_a_callable(x):
    torch.testing.assert_close(burnish.compile(Worker(2.0).__call__)(x), x - 2)
    torch.testing.assert_close(burnish.compile(Worker(2.0))(x), x - 2)
    torch.testing.assert_close(burnish.compile(functools.partial(torch.add, alpha=2))(x, x), x * 3)
    torch.testing.assert_close(burnish.compile(torch.sin)(x), x.sin())


def test_a_forward_decorated_in_its_class(x):
    layer = Layer()
    torch.testing.assert_close(layer(x), layer.inner(x).relu())
    layer(x).sum().backward()
    assert layer.inner.weight.grad is not None


def test_closures_see_changes(x):
    factor = 2

    @burnish.compile
    def scaled(x):
        return x * factor

    torch.testing.assert_close(scaled(x), x * 2)
    factor = 5
    torch.testing.assert_close(scaled(x), x * 5)


def test_compiled_calls_compiled(x):
    inner = burnish.compile(lambda x: x.cos())

    @burnish.compile
    def outer(x):
        return inner(x) + 1

    torch.testing.assert_close(outer(x), x.cos() + 1)
    assert burnish.stats(outer).compiles == 1 and burnish.stats(outer).graph_breaks == ()
    assert burnish.stats(inner).compiles == 0
    torch.testing.assert_close(torch.compile(lambda x: inner(x) * 2, backend="eager", fullgraph=True)(x), x.cos() * 2)


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    parts: dict[str, list[torch.Tensor]]
    note: str = ""


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("options", [{"gate": False, "verify": "off"}, {}], ids=["forced", "judged"])
def test_a_function_that_is_made_another(x, options, sealed):
    def fn(x, y=2.0, *, z=1.0):
        return x * y + z

    def other(x, y=2.0, *, z=1.0):
        return x - y - z

    compiled = burnish.compile(fn, options=options)
    compiled(x), compiled(x)
    if sealed:
        burnish.seal(compiled)
        compiled(x), compiled(x)
    fn.__defaults__ = (3.0,)
    torch.testing.assert_close(compiled(x), x * 3 + 1)
    fn.__kwdefaults__ = {"z": 5.0}
    torch.testing.assert_close(compiled(x), x * 3 + 5)
    fn.__code__ = other.__code__
    torch.testing.assert_close(compiled(x), x - 3 - 5)
    fn.__kwdefaults__["z"] = 7.0
    torch.testing.assert_close(compiled(x), x - 3 - 7)


def test_a_function_that_is_made_another_all_the_time(x):
    """Eager serves it then, and compiled code again where it is what was compiled."""

    def fn(x, y=2.0):
        return x * y + 1

    compiled = burnish.compile(fn, gate=False, verify="off")
    states = [(2.0,), (3.0,)]
    for k in range(60):
        fn.__defaults__ = states[k % 2]
        torch.testing.assert_close(compiled(x), x * states[k % 2][0] + 1)
    stats = burnish.stats(compiled)
    assert stats.compiles < 30 and any("changes too often" in notice for notice in stats.notices)


def test_nested_results(x):
    def nested(x, options):
        return Result(x + 1, {"a": [x * 2, x * options["by"]]}, note=options["note"]), Pair(x, x - 1), None, 3

    options = {"by": 4.0, "note": "hello"}
    ours, theirs = burnish.compile(nested)(x, options), nested(x, options)
    assert isinstance(ours[0], Result) and ours[0].note == "hello" and isinstance(ours[1], Pair)
    assert ours[2:] == (None, 3)
    torch.testing.assert_close(ours[0].value, theirs[0].value)
    torch.testing.assert_close(ours[0].parts, theirs[0].parts)
    torch.testing.assert_close(ours[1].right, theirs[1].right)
    assert ours[1].left is x, "an argument that comes back is the same object"


def test_arguments_of_all_kinds(x):
    def mixed(a, *more, flag=True, table=None, **named):
        total = a + sum(more)
        return total * named["k"] if flag else total + table["t"]

    compiled = burnish.compile(mixed)
    torch.testing.assert_close(compiled(x, x, x, k=2.0), mixed(x, x, x, k=2.0))
    torch.testing.assert_close(compiled(x, flag=False, table={"t": x}), mixed(x, flag=False, table={"t": x}))


def test_exceptions_are_eagers(x):
    @burnish.compile
    def picky(x, y):
        if x.shape[0] == 1:
            raise KeyError("no single rows")
        return x @ y

    with pytest.raises(KeyError, match="no single rows"):
        picky(x[:1], x)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        picky(x, x)
    torch.testing.assert_close(picky(x, x.T), x @ x.T)


def test_disable(x):
    @burnish.disable
    def outside(x):
        return x.sin() if float(x.sum()) > 0 else x.cos()

    @burnish.compile
    def around(x):
        return outside(x * 2) + 1

    torch.testing.assert_close(around(x), outside(x * 2) + 1)
    assert burnish.stats(around).compiles == 2  # before it, and after it


def test_disable_a_module(x):
    part = nn.Linear(4, 4)
    kept_out = burnish.disable(part)
    assert isinstance(kept_out, nn.Linear) and kept_out.__dict__ is part.__dict__
    whole = nn.Sequential(nn.ReLU(), kept_out, nn.ReLU())
    assert list(whole.state_dict()) == ["1.weight", "1.bias"]
    compiled = burnish.compile(whole)
    torch.testing.assert_close(compiled(x), part(x.relu()).relu())
    calls = [node.target for node in _graphs(whole, x) if "linear" in str(node.target) or "addmm" in str(node.target)]
    assert calls == []


def _graphs(model, x):
    nodes = []

    def backend(graph, inputs):
        nodes.extend(graph.graph.nodes)
        return graph.forward

    burnish.compile(model, backend=backend)(x)
    return nodes


def test_reset(x):
    compiled = burnish.compile(lambda x: x + 1)
    compiled(x)
    compiled(x)
    assert burnish.stats(compiled).compiles == 1
    burnish.reset()
    assert burnish.stats(compiled).compiles == 0
    torch.testing.assert_close(compiled(x), x + 1)
    assert burnish.stats(compiled).compiles == 1


def test_force_eager_stance_is_respected(x):
    compiled = burnish.compile(lambda x: x + 1)
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(compiled(x), x + 1)
    assert burnish.stats(compiled).compiles == 0
    compiled(x)
    assert burnish.stats(compiled).compiles == 1


def test_inside_a_tracer(x):
    compiled = burnish.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    traced = torch.fx.experimental.proxy_tensor.make_fx(compiled)(x)
    torch.testing.assert_close(traced(x), compiled(x))
