"""Hooks fire whether they came before or after compiling, on the module or inside it, and stop when removed."""

import pytest
import torch
from torch import nn

import burnish


def make():
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4))).eval()


def doubling(module, args, output):
    return output * 2


@pytest.fixture
def x():
    return torch.randn(3, 4)


@pytest.mark.parametrize("where", ["", "1", "1.1"])
def test_hooks_before_compiling(where, x):
    model = make()
    plain = model(x)
    model.get_submodule(where).register_forward_hook(doubling)
    compiled = burnish.compile(model)
    torch.testing.assert_close(compiled(x), model(x))
    assert not torch.allclose(compiled(x), plain)


@pytest.mark.parametrize("on_compiled", [True, False])
@pytest.mark.parametrize("where", ["", "1", "1.1"])
def test_hooks_after_compiling_and_removed_again(where, on_compiled, x):
    model = make()
    compiled = burnish.compile(model)
    plain = compiled(x)
    hook = (compiled if on_compiled else model).get_submodule(where).register_forward_hook(doubling)
    torch.testing.assert_close(compiled(x), model(x))
    assert not torch.allclose(compiled(x), plain)
    hook.remove()
    torch.testing.assert_close(compiled(x), plain)


def test_pre_hooks_with_kwargs(x):
    class Scaled(nn.Module):
        def forward(self, x, scale=1.0):
            return x * scale

    model = Scaled()
    compiled = burnish.compile(model)
    compiled(x)
    compiled.register_forward_pre_hook(lambda module, args, kwargs: (args, {"scale": 3.0}), with_kwargs=True)
    torch.testing.assert_close(compiled(x), x * 3)


def test_a_hook_of_plain_python_runs_each_time(x):
    seen = []
    compiled = burnish.compile(make())
    compiled(x)
    compiled[1].register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    for _ in range(3):
        compiled(x)
    assert seen == [(3, 4)] * 3


def test_backward_hooks(x):
    grads = {}
    for name, wrap in (("eager", lambda m: m), ("compiled", burnish.compile)):
        torch.manual_seed(1)
        model = wrap(make())
        if name == "compiled":
            model(x)
        seen = grads[name] = []
        model[0].register_full_backward_hook(lambda module, gi, go, seen=seen: seen.append(go[0].clone()))
        model(x).sum().backward()
    assert len(grads["eager"]) == len(grads["compiled"]) == 1
    torch.testing.assert_close(grads["compiled"][0], grads["eager"][0])


def test_hooks_elsewhere_do_not_recompile(x):
    compiled = burnish.compile(make())
    compiled(x)
    other = nn.Linear(2, 2)
    for _ in range(3):
        other.register_forward_hook(doubling)
        torch.ones(1, requires_grad=True).register_hook(lambda grad: grad)
        compiled(x)
    assert burnish.stats(compiled).compiles == 1


def test_hooks_under_fullgraph(x):
    compiled = burnish.compile(make(), fullgraph=True)
    plain = compiled(x)
    compiled.register_forward_hook(doubling)
    torch.testing.assert_close(compiled(x), plain * 2)


# -- hooks of modules that a compiled function calls -------------------------------------------------------------------


class _Holder:
    def __init__(self, model: nn.Module) -> None:
        self.model = model


def _named(model):
    return lambda x: model(x) + 1


def _in_an_object(model):
    holder = _Holder(model)
    return lambda x: holder.model(x) + 1


def _bound(model):
    return model.forward


@pytest.mark.parametrize("function_of", [_named, _in_an_object, _bound])
def test_hooks_of_modules_that_a_function_calls(function_of, x):
    model = make()
    compiled, function = burnish.compile(function_of(model)), function_of(model)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    hook = model[1][1].register_forward_hook(doubling)
    torch.testing.assert_close(compiled(x), function(x))
    hook.remove()
    torch.testing.assert_close(compiled(x), function(x))
    assert burnish.stats(compiled).compiles == 2


@pytest.mark.parametrize("function_of", [_named, _bound])
def test_hooks_of_modules_that_a_sealed_function_names(function_of, x):
    model = make()
    compiled, function = burnish.compile(function_of(model)), function_of(model)
    with torch.no_grad():
        compiled(x)
        burnish.seal(compiled)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), function(x))
        hook = model[1][1].register_forward_hook(doubling)
        torch.testing.assert_close(compiled(x), function(x))
        hook.remove()
        torch.testing.assert_close(compiled(x), function(x))
    assert burnish.stats(compiled).compiles == 1
