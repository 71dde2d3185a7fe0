"""Graph breaks: tolerated and named with the user's line, or, under fullgraph=True, a typed error that names it."""

import pytest
import torch
from torch import nn

import burnish
from burnish.errors import BurnishError, GraphBreakError


def breaking(x):
    y = x.sin()
    torch._dynamo.graph_break()  # the line
    return y.cos()


BREAK = breaking.__code__.co_filename, breaking.__code__.co_firstlineno + 2


class Breaking(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(breaking(x))


def data_dependent(x):
    if x.sum() > 0:
        return x.sin()
    return x.cos()


def test_a_break_is_tolerated_and_named():
    x = torch.randn(3, 4)
    compiled = burnish.compile(breaking)
    torch.testing.assert_close(compiled(x), x.sin().cos())
    stats = burnish.stats(compiled)
    (entry,) = stats.graph_breaks
    assert (entry.file, entry.line) == BREAK and "graph_break()" in entry.reason
    assert stats.compiles == 2 and stats.recompiles == ()
    assert f"{BREAK[0]}:{BREAK[1]}" in str(stats)


def test_a_break_inside_a_module():
    model, x = Breaking(), torch.randn(3, 4)
    compiled = burnish.compile(model)
    torch.testing.assert_close(compiled(x), model(x))
    (entry,) = burnish.stats(compiled).graph_breaks
    assert (entry.file, entry.line) == BREAK
    compiled(x).sum().backward()
    assert model.inner.weight.grad is not None


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_data_dependent_python(value):
    x = torch.full((3,), value)
    compiled = burnish.compile(data_dependent)
    torch.testing.assert_close(compiled(x), data_dependent(x))
    (entry,) = burnish.stats(compiled).graph_breaks
    assert entry.line == data_dependent.__code__.co_firstlineno + 1


def test_a_loop_with_a_break_in_it_leaves_a_named_trace():
    def looping(x):
        for _ in range(2):
            x = x + 1
            torch._dynamo.graph_break()
        return x

    compiled = burnish.compile(looping)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x + 2)
    assert any(entry.file == __file__ for entry in burnish.stats(compiled).graph_breaks)


def test_fullgraph_raises_a_typed_error_with_the_line():
    compiled = burnish.compile(breaking, fullgraph=True)
    with pytest.raises(GraphBreakError, match="graph_break") as raised:
        compiled(torch.randn(3))
    error = raised.value
    assert (error.file, error.line) == BREAK and f"{BREAK[0]}:{BREAK[1]}" in str(error)
    assert isinstance(error, BurnishError) and isinstance(error, RuntimeError)
    assert error.hint and "Way out" in str(error)


@pytest.mark.parametrize("model", [Breaking(), data_dependent])
def test_fullgraph_on_modules_and_data(model):
    with pytest.raises(GraphBreakError) as raised:
        burnish.compile(model, fullgraph=True)(torch.randn(3, 4))
    assert raised.value.file == __file__


def test_fullgraph_with_another_backend():
    with pytest.raises(GraphBreakError):
        burnish.compile(breaking, fullgraph=True, backend="eager")(torch.randn(3))


def test_fullgraph_that_holds():
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    compiled = burnish.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    assert burnish.stats(compiled).compiles == 1


def test_fullgraph_past_the_recompile_limit_runs_eager():
    compiled = burnish.compile(lambda x, n: x * n, fullgraph=True, dynamic=False)
    x = torch.randn(3)
    with pytest.warns(burnish.errors.FallbackWarning, match="recompile limit"):
        results = [compiled(x, n) for n in range(11)]
    torch.testing.assert_close(results, [x * n for n in range(11)])
    assert any(entry.stage == "recompile limit" for entry in burnish.stats(compiled).fallbacks)


def test_many_objects_with_breaks_do_not_use_up_a_shared_limit():
    models = [Breaking() for _ in range(12)]
    x = torch.randn(3, 4)
    for model in models:
        compiled = burnish.compile(model)
        torch.testing.assert_close(compiled(x), model(x))
        stats = burnish.stats(compiled)
        assert stats.compiles >= 2 and not any(entry.stage == "recompile limit" for entry in stats.fallbacks)


def test_numpy_in_the_middle():
    numpy = pytest.importorskip("numpy")

    def through_numpy(x):
        return torch.from_numpy(numpy.sort((x * 2).numpy())) + 1

    x = torch.randn(5)
    torch.testing.assert_close(burnish.compile(through_numpy)(x), through_numpy(x))
