"""Who shares memory with whom: as in eager, between arguments, between results, and between the two."""

from __future__ import annotations

import pytest
import torch

import burnish
from tests.against_eager import agree, check, served_by_us


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.view(-1),
        lambda x: x[1:, ::2],
        lambda x: x[2],
        lambda x: x.unsqueeze(1).expand(4, 3, 6),
        lambda x: x.detach(),
        lambda x: x.diagonal(),
        lambda x: x.unfold(1, 3, 2),
        lambda x: x.view(torch.int32),
    ],
    ids="transpose flatten slice select expand detach diagonal unfold retype".split(),
)
def test_a_result_that_views_an_argument(view):
    def fn(x):
        return view(x), x.sin()

    compiled = burnish.compile(fn)
    x = torch.randn(4, 6)
    got, want = compiled(x)[0], view(x)
    assert shares(got, x) and got.data_ptr() == want.data_ptr() and got.stride() == want.stride()
    assert torch.equal(got, want)
    served_by_us(compiled)


def test_a_viewed_argument_somewhere_else_in_its_storage():
    """The storage offset is no part of what is compiled for."""

    def fn(x):
        return x.t(), x * 2

    compiled = burnish.compile(fn)
    base = torch.randn(10, 6)
    for start in (0, 3, 5):
        x = base[start : start + 4]
        view, doubled = compiled(x)
        assert torch.equal(view, x.t()) and shares(view, base) and torch.equal(doubled, x * 2)
    served_by_us(compiled)


def test_an_argument_returned_as_it_is():
    compiled = burnish.compile(lambda x, y: (x, y + 1, x))
    x = torch.randn(3)
    first, _, last = compiled(x, x.clone())
    assert first is x and last is x


def test_results_that_share_storage():
    def fn(x):
        y = x.exp()
        return y, y.t(), y[1:], y.view(-1)

    compiled = burnish.compile(fn)
    x = torch.randn(4, 6)
    whole, transposed, tail, flat = compiled(x)
    assert shares(whole, transposed) and shares(whole, tail) and shares(whole, flat)
    whole.zero_()
    assert not transposed.any() and not tail.any() and not flat.any()
    check(fn, x)


def test_one_result_twice():
    def fn(x):
        y = x + 1
        return y, y

    first, second = burnish.compile(fn)(torch.randn(3))
    first.zero_()
    assert shares(first, second) and not second.any()


def test_equal_results_are_separate():
    first, second = burnish.compile(lambda x: (x + 1, x + 1))(torch.randn(3))
    assert not shares(first, second)


def test_results_of_two_calls_are_separate():
    compiled = burnish.compile(lambda x: (x * 2).sum(-1))
    x = torch.randn(5, 4)
    first = compiled(x)
    kept = first.clone()
    compiled(x + 1)
    assert torch.equal(first, kept)


def test_a_tensor_and_its_transpose_as_arguments():
    def fn(a, b):
        return a + b, a @ b

    compiled = burnish.compile(fn)
    x = torch.randn(5, 5)
    for got, want in zip(compiled(x, x.t()), fn(x, x.t()), strict=True):
        torch.testing.assert_close(got, want)
    served_by_us(compiled)


def test_a_changed_argument_with_another_view_of_it():
    def fn(a, b):
        a.mul_(2)
        return a + b

    compiled = burnish.compile(fn)
    for make in (lambda x: x.t(), lambda x: x, lambda x: x.clone()):
        ours, theirs = torch.arange(9.0).reshape(3, 3), torch.arange(9.0).reshape(3, 3)
        got, want = compiled(ours, make(ours)), fn(theirs, make(theirs))
        assert torch.equal(got, want) and torch.equal(ours, theirs)


def test_overlapping_windows_of_one_tensor():
    def fn(a, b):
        a.add_(b)
        return b.sum()

    compiled = burnish.compile(fn)
    ours, theirs = torch.arange(6.0), torch.arange(6.0)
    torch.testing.assert_close(compiled(ours[:3], ours[3:]), fn(theirs[:3], theirs[3:]))
    assert torch.equal(ours, theirs)


def test_a_view_of_a_result_trains():
    def fn(x):
        y = (x * x).exp()
        return y, y.view(-1)[1:]

    check(fn, torch.randn(3, 4, requires_grad=True))


def test_a_view_of_an_argument_changed_by_the_caller():
    compiled = burnish.compile(lambda x: x.view(2, 3))
    x = torch.zeros(6)
    view = compiled(x)
    x.fill_(5)
    assert torch.equal(view, torch.full((2, 3), 5.0))


@pytest.mark.parametrize("grad", [False, True])
def test_views_of_parameters(grad):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.table(ids)), self.table.weight.t()

    model = Tied()
    compiled = burnish.compile(model)
    ids = torch.tensor([1, 5, 1])
    with torch.set_grad_enabled(grad):
        agree(lambda i: compiled(i)[0], lambda i: model(i)[0], ids)
        assert shares(compiled(ids)[1], model.table.weight)
    served_by_us(compiled)


@pytest.mark.parametrize("gate", [False, True])
def test_a_result_of_training_changed_in_place_by_the_caller(gate):
    """A linear layer's result is a window of a product's, and came with another."""
    layer = torch.nn.Linear(8, 8, bias=False)
    x = torch.randn(2, 8, 3)

    def fn(x):
        y = layer(x.transpose(1, 2))
        return y, y.exp()

    def step(call):
        layer.zero_grad()
        y, e = call(x)
        y[y > 0] = 0.5
        (y.square().sum() + e.sum()).backward()
        return layer.weight.grad.clone()

    compiled = burnish.compile(fn, gate=gate)
    for _ in range(2):
        torch.testing.assert_close(step(compiled), step(fn))
