"""Custom autograd functions whose backward is not what Dynamo traces of it, once it is differentiated itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import burnish

pytestmark = pytest.mark.filterwarnings("ignore")

FORCED = {"gate": False, "verify": "off"}
Call = Callable[[torch.Tensor], torch.Tensor]


def function(backward: Callable[..., Any], forward: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> Call:
    """One that saves its input, which `backward` is given beside the gradient."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return forward(x)

    def of_saved(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return backward(gradient, *ctx.saved_tensors)

    Made.backward = staticmethod(of_saved)
    return lambda x: Made.apply(x)


def _squares(x: torch.Tensor) -> torch.Tensor:
    return x**3


def _constant_factor(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        factor = x.abs() + 1
    return gradient * factor * x


def _nothing_recorded(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return gradient * 3 * x**2


@torch.no_grad()
def _decorated(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return gradient * 3 * x**2


def _switched(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    mode = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    factor = x.abs()
    torch.set_grad_enabled(mode)
    return gradient * factor * x


def _asks(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return gradient * 3 * x**2 if torch.is_grad_enabled() else gradient * x


def _differentiates(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        inner = x.detach().requires_grad_()
        y = inner**3
    return torch.autograd.grad(y, inner, gradient)[0]


_straight_through = function(lambda gradient, x: gradient, torch.round)


def _in_place(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    found = gradient.clone()
    found.clamp_(-0.5, 0.5)
    return found * x


def _fills(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    found = gradient.clone()
    found[x > 0.5] = 0.25
    return found


LEFT_TO_PYTHON: dict[str, Call] = {
    "clamp": function(lambda g, x: g.clamp(-0.5, 0.5)),
    "clamp in place": function(_in_place),
    "sign": function(lambda g, x: g.sign()),
    "times its norm": function(lambda g, x: g * g.norm()),
    "by its norm": function(lambda g, x: g / (g.norm() + 1) * x),
    "square": function(lambda g, x: g * g * x),
    "relu": function(lambda g, x: F.relu(g) * x),
    "a mask of its own": function(lambda g, x: torch.where(g > 0, g, 2 * g)),
    "more than linear": function(lambda g, x: g + x),
    "a constant": function(lambda g, x: x.cos()),
    "a constant put in": function(_fills),
    "rounded": function(lambda g, x: (g * 4).round() / 4),
    "a factor without history": function(_constant_factor, _squares),
    "no history": function(_nothing_recorded, _squares),
    "no history, decorated": function(_decorated, _squares),
    "grad mode switched": function(_switched, _squares),
    "asks for grad mode": function(_asks, _squares),
    "asks for a history": function(lambda g, x: g * 2 * x if g.requires_grad else g * x, _squares),
    "rounded to a byte": function(lambda g, x: g.to(torch.float8_e5m2).to(g.dtype)),
    "differentiates": function(_differentiates, _squares),
    "calls another": function(lambda g, x: g * _straight_through(x * 3)),
}


def _masked(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    found = gradient.clone()
    found[x > 0.5] = 0
    return found


def _scattered(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    found = torch.zeros_like(x)
    found[..., 1:] += gradient[..., 1:] * x[..., 1:]
    found.index_add_(0, torch.tensor([0, 2]), gradient[[1, 0]])
    return found


def _normalised(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1)
    return g * scale - x * scale**3 * (g * x).mean(-1, keepdim=True)


COMPILED: dict[str, Call] = {
    "reversed": function(lambda g, x: -g),
    "scaled": function(lambda g, x: g * 0.5 / (1 + x * x)),
    "straight through": _straight_through,
    "masked": function(_masked),
    "masked by where": function(lambda g, x: torch.where(x > 0, g, torch.zeros_like(g))),
    "masked by a method": function(lambda g, x: g.masked_fill(x < 0, 0) + g.where(x > 0, 0.1 * g)),
    "put together": function(_scattered),
    "normalised": function(_normalised, lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1)),
    "softmax": function(lambda g, x: x.softmax(-1) * (g - (g * x.softmax(-1)).sum(-1, keepdim=True))),
    "moved": function(lambda g, x: torch.cat([g[1:], g[:1]]).flip(0).reshape(x.shape).to(x.dtype)),
    "torch's own": function(lambda g, x: torch.ops.aten.sigmoid_backward(g, x.sigmoid()), torch.sigmoid),
    "a product": function(lambda g, x: torch.outer(x, x) @ g + F.linear(g, torch.outer(x, x.cos()))),
    "a convolution": function(
        lambda g, x: torch.nn.grad.conv1d_input((1, 1, 3), x.view(1, 1, 3), g.view(1, 1, 3), padding=1).view(3)
    ),
    "interpolated": function(lambda g, x: F.interpolate(g[None, None, :2], 3, mode="linear")[0, 0]),
}


def _through(made: Call) -> Call:
    weight = torch.tensor([0.7, -0.4, 1.1])
    return lambda x: (made((x * weight).sin() * 2) * 3).sin() * x


def _first(call: Call) -> Any:
    x = torch.tensor([0.3, 0.7, -1.2], requires_grad=True)
    call(x).square().sum().backward()
    return x.grad


def _penalised(call: Call) -> Any:
    x = torch.tensor([0.3, 0.7, -1.2], requires_grad=True)
    y = call(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (y.sum() + 10 * gradient.square().sum()).backward()
    return gradient.detach(), x.grad


def _twice(call: Call) -> Any:
    x = torch.tensor([0.3, 0.7, -1.2], requires_grad=True)
    (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    return gradient.detach(), torch.autograd.grad(gradient.sum(), x, allow_unused=True)


def _hessian(call: Call) -> Any:
    return torch.autograd.functional.hessian(lambda x: call(x).square().sum(), torch.tensor([0.3, 0.7, -1.2]))


def _outcome(derive: Callable[[Call], Any], call: Call) -> Any:
    try:
        return derive(call)
    except RuntimeError as error:
        return str(error)


def _compare(compiled: Call, eager: Call) -> None:
    for derive in (_first, _penalised, _twice, _hessian, _penalised):
        ours, eagers = _outcome(derive, compiled), _outcome(derive, eager)
        if isinstance(eagers, str):
            assert ours == eagers
        else:
            torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("name", LEFT_TO_PYTHON)
def test_a_backward_that_is_not_traced_as_it_runs_is_called_from_python(name, options):
    fn = _through(LEFT_TO_PYTHON[name])
    compiled = burnish.compile(fn, **options)
    _compare(compiled, fn)
    stats = burnish.stats(compiled)
    assert any("custom autograd function whose backward" in each.reason for each in stats.graph_breaks)
    assert stats.graphs and not stats.fallbacks


@pytest.mark.parametrize("name", COMPILED)
def test_a_backward_that_is_linear_is_compiled(name):
    fn = _through(COMPILED[name])
    compiled = burnish.compile(fn, **FORCED)
    _compare(compiled, fn)
    stats = burnish.stats(compiled)
    assert stats.graphs and not stats.graph_breaks and not stats.fallbacks


@torch.library.custom_op("burnish_tests::times_gradient", mutates_args=())
def times_gradient(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return gradient * x


@times_gradient.register_fake
def _(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_of_somebody_elses_is_compiled_around():
    """As libraries of attention kernels have for their backwards; who differentiates it is told by eager's error."""
    call = _through(function(lambda g, x: torch.ops.burnish_tests.times_gradient(g, x)))
    compiled = burnish.compile(call, options=FORCED)
    torch.testing.assert_close(_first(compiled), _first(call))
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        _penalised(compiled)
    assert burnish.stats(compiled).compiles == 1


@pytest.mark.parametrize("name", ["clamp", "a factor without history"])
def test_a_backward_that_is_not_traced_in_a_checkpoint(name):
    fn = _through(LEFT_TO_PYTHON[name])
    eager = lambda x: checkpoint(fn, x.sin(), use_reentrant=False) * x  # noqa: E731
    _compare(burnish.compile(eager, **FORCED), eager)


def test_random_numbers_in_a_backward_are_drawn_once():
    made = function(lambda g, x: g * (torch.rand_like(x) > 0.5))

    def run(call: Call) -> Any:
        torch.manual_seed(0)
        return _penalised(call), torch.rand(())

    fn = _through(made)
    torch.testing.assert_close(run(burnish.compile(fn, **FORCED)), run(fn))


# -- differentiable once -----------------------------------------------------------------------------------------------


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class OnceOfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _, w = ctx.saved_tensors
        return first * w + second, None


ONCE: dict[str, Call] = {
    "alone": Once.apply,
    "among others": _through(Once.apply),
    "of two results": lambda x: sum(OnceOfTwo.apply(x, torch.tensor([2.0, 3.0, 4.0]))),
    "in a checkpoint": lambda x: checkpoint(_through(Once.apply), x, use_reentrant=False),
}


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize("name", ONCE)
def test_what_is_differentiable_once_says_so(name, options):
    fn = ONCE[name]
    compiled = burnish.compile(lambda x: fn(x) * 1, **options)
    assert isinstance(_outcome(_penalised, fn), str)
    _compare(compiled, fn)
    stats = burnish.stats(compiled)
    assert stats.graphs and not stats.graph_breaks and not stats.fallbacks


# -- what else a backward is given -------------------------------------------------------------------------------------


class Marked(torch.autograd.Function):
    """Of its results two are not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask, place = (x > 0.5).float(), x.argmax(-1)
        ctx.mark_non_differentiable(mask, place)
        ctx.save_for_backward(x, mask)
        return x**2 * mask, mask, place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        x, mask = ctx.saved_tensors
        return gradient * 2 * x * mask


class Asked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * x * w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w = ctx.saved_tensors
        needs_x, needs_w = ctx.needs_input_grad
        return gradient * 2 * x * w if needs_x else None, gradient * x * x if needs_w else None


class Returned(torch.autograd.Function):
    """Saves what it returns, and something it has made."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        half = (x / 2).exp()
        y = half * half
        ctx.save_for_backward(y, half)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        y, half = ctx.saved_tensors
        return gradient * (y + half * half) / 2


def marked(x: torch.Tensor) -> torch.Tensor:
    y, mask, place = Marked.apply((x * 2).sin())
    return y * 3 + mask * x + place


class Both(torch.autograd.Function):
    """Its backward makes more than zeros of zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second.cos()


def test_a_backward_that_is_not_linear_is_given_zeros_for_what_is_left_out():
    fn = lambda x: Both.apply(x.sin())  # noqa: E731
    compiled = burnish.compile(fn, **FORCED)
    for k in (0, 1, 0):
        _compare(lambda x, k=k: compiled(x)[k], lambda x, k=k: fn(x)[k])


W = torch.tensor([0.7, -0.4, 1.1])
GIVEN: dict[str, Call] = {
    "non-differentiable results": marked,
    "needed: the first": lambda x: Asked.apply(x.sin(), W) * x,
    "needed: the second": lambda x: Asked.apply(W, x.sin()) * x,
    "needed: both": lambda x: Asked.apply(x.cos(), x.sin()) * x,
    "what it returns": lambda x: Returned.apply(x.sin()) * x,
}


@pytest.mark.parametrize("inside", [False, True], ids=["", "in a checkpoint"])
@pytest.mark.parametrize("name", GIVEN)
def test_what_a_backward_is_given_when_it_is_differentiated(name, inside):
    fn = (lambda x: checkpoint(GIVEN[name], x, use_reentrant=False)) if inside else GIVEN[name]
    compiled = burnish.compile(fn, **FORCED)
    _compare(compiled, fn)
    assert not burnish.stats(compiled).graph_breaks and not burnish.stats(compiled).fallbacks


# -- in transforms -----------------------------------------------------------------------------------------------------


class Transformable(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 5 * x**2


@pytest.mark.parametrize("options", [FORCED, {}], ids=["forced", "judged"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.vmap(lambda y: Transformable.apply(y.sin()) * 2)(x),
        lambda x: torch.func.grad(lambda y: Transformable.apply(y.sin()).sum())(x),
        lambda x: torch.func.vjp(lambda y: Transformable.apply(y.sin()), x)[1](x)[0],
        lambda x: torch.func.jacrev(lambda y: Transformable.apply(y.sin()))(x).sum(0),
        lambda x: torch.vmap(torch.func.grad(lambda y: Transformable.apply(y.sin()).sum()))(x[:, None]),
    ],
    ids=["vmap", "grad", "vjp", "jacrev", "vmap of grad"],
)
def test_a_function_in_a_transform(fn, options):
    compiled = burnish.compile(fn, **options)
    for _ in range(2):
        torch.testing.assert_close(_first(compiled), _first(fn))
    torch.testing.assert_close(compiled(torch.ones(3)), fn(torch.ones(3)))
    assert any("transform of torch.func" in each.reason for each in burnish.stats(compiled).graph_breaks)
