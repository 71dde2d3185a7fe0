"""Who shares memory with whom: as in eager, between arguments, between results, and between the two."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch
import torch.nn.functional as F

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


# -- results over one memory -----------------------------------------------------------------------------------------

TWICE = {
    "itself": lambda y: y,
    "a cast to its type": lambda y: y.float(),
    "contiguous": lambda y: y.contiguous(),
    "the same device": lambda y: y.cpu(),
    "plus": lambda y: +y,
    "detached": lambda y: y.detach(),
    "all of it": lambda y: y[:],
    "reshaped to its shape": lambda y: y.reshape(y.shape),
    "a chunk of one": lambda y: y.chunk(1)[0],
    "reshaped": lambda y: y.reshape(-1),
    "a copy": lambda y: y.clone(),
}


WAYS = {"judged": {"gate": True}, "forced": {"gate": False, "verify": "off"}, "background": {"background": True}}


def waited_for(compiled, *args):
    """A call that a background compile may be behind."""
    compiled(*args)
    compiled.burnish.wait()
    return compiled


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("needs_gradient", [False, True], ids=["plain", "gradient"])
@pytest.mark.parametrize("name", TWICE)
def test_results_are_one_tensor_where_eagers_are(name, needs_gradient, way):
    """What is done to one of them afterwards is done to the other, or not."""

    def fn(x):
        y = x * 2
        return y, TWICE[name](y)

    def seen(call):
        first, second = call(torch.ones(2, 3, requires_grad=needs_gradient))
        with torch.no_grad():
            second.add_(1)
        is_one = first is second
        shares = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        second.t_() if second.dim() == 2 and not needs_gradient else None
        return is_one, shares, first.tolist(), second.tolist()

    compiled = burnish.compile(fn, options=WAYS[way])
    if way == "background":
        waited_for(compiled, torch.ones(2, 3, requires_grad=needs_gradient))
    for _ in range(2):
        assert seen(compiled) == seen(fn)
    assert not burnish.stats(compiled).fallbacks


@pytest.mark.parametrize("parts", ["both", "first", "second"])
@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_results_that_are_one_tensor(name, parts):
    def fn(x):
        y = x.sin()
        return y, TWICE[name](y)

    def gradient(call):
        x = torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_()
        first, second = call(x)
        loss = {"both": lambda: (first * 2).sum() + second.square().sum()}.get(
            parts, lambda: ((first if parts == "first" else second) * 3).sum()
        )()
        if loss.requires_grad:
            loss.backward()
        return x.grad

    compiled = burnish.compile(fn, gate=False, verify="off")
    for _ in range(2):
        torch.testing.assert_close(gradient(compiled), gradient(fn))
    assert not burnish.stats(compiled).fallbacks


@pytest.mark.parametrize("needs_gradient", [False, True], ids=["plain", "gradient"])
def test_sealed_results_are_one_tensor_where_eagers_are(needs_gradient):
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3), requires_grad=needs_gradient)

        def forward(self, x):
            y = x * self.scale
            return y, y.float(), y.detach(), y[1:]

    model, x = Twice(), torch.ones(2, 3)
    compiled = burnish.compile(model, gate=False, verify="off")
    compiled(x)
    compiled.burnish.seal(x)
    for _ in range(2):
        got, want = compiled(x), model(x)
        assert [[a is b for b in got] for a in got] == [[a is b for b in want] for a in want]
        assert all(shares(got[0], other) for other in got)
        for results in (got, want):
            with torch.no_grad():
                results[2].add_(1)
        assert [r.tolist() for r in got] == [r.tolist() for r in want]


def several(x):
    y, z = x * 2, x + 1
    return z, y, y.float(), y.contiguous()


@pytest.mark.parametrize("sizes", [False, True], ids=["static", "sizes that vary"])
def test_a_second_process_has_them_so(sizes, tmp_path):
    def objects(call, rows):
        results = call(torch.ones(rows, 3))
        results[3].add_(1)
        return [[a is b for b in results] for a in results], [r.tolist() for r in results]

    for again in (False, True):
        torch.compiler.reset()
        options = {"cache_dir": tmp_path, "warm_start": True}
        compiled = burnish.compile(several, gate=False, verify="off", dynamic=sizes, options=options)
        for rows in (4, 5) if sizes else (4, 4):
            assert objects(compiled, rows) == objects(several, rows)
        assert again == any("restored" in notice for notice in burnish.stats(compiled).notices)
        compiled.burnish.close()


def test_one_tensor_and_others_over_its_memory():
    def fn(x):
        y = (x * 2).exp()
        return y, y.float(), y.detach(), y.view(-1), y[:]

    compiled = burnish.compile(fn, gate=False, verify="off")
    x = torch.ones(3, 2)
    got, want = ([[a is b for b in results] for a in results] for results in (compiled(x), fn(x)))
    assert got == want


# -- results that lie in memory which is saved -----------------------------------------------------------------------

# What is returned, and the results of which there are losses. Eager has saved the log-softmax's own result; of `exp` it
# has saved the very memory that is changed.
SAVED = {
    "view": lambda h, y: (h.view(-1), F.cross_entropy(h, y)),
    "detached": lambda h, y: (h.detach(), F.cross_entropy(h, y)),
    "itself": lambda h, y: (h, F.cross_entropy(h, y)),
    "transposed": lambda h, y: (h.t(), F.cross_entropy(h, y)),
    "part": lambda h, y: (h[1:], F.cross_entropy(h, y)),
    "several": lambda h, y: (h.view(-1), h, F.cross_entropy(h, y)),
    "squared, in eager saved": lambda h, y: (h.view(-1), h.square().sum()),
    "detached, in eager saved": lambda h, y: (h.detach(), h.square().sum()),
    "part, in eager saved": lambda h, y: (h[1:], h.square().sum()),
}


def of_a_product(name):
    def fn(x, w, y):
        return SAVED[name](x @ w, y)

    return fn


def outcome(call, *, change, retain=False, again=False, with_first=False, hooks=None):
    """The gradient, or what autograd raises."""
    x, w = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 1, 24).reshape(4, 6).requires_grad_()
    with hooks() if hooks is not None else contextlib.nullcontext():
        first, *_, loss = call(x, w, torch.tensor([1, 2, 3]))
    found = []
    try:
        if retain:
            found += torch.autograd.grad(loss, [w], retain_graph=True)
        if change:
            with torch.no_grad():
                first.mul_(-3).clamp_(-1, 1)
        if with_first and first.requires_grad:
            loss = loss + (first * 2).sum()
        found += torch.autograd.grad(loss, [w], create_graph=again, retain_graph=retain or again)
        if again:
            found += torch.autograd.grad(found[-1].square().sum(), [w])
        if retain:
            found += torch.autograd.grad(loss, [w])
        if not again:
            torch.autograd.grad(loss, [w])
    except RuntimeError as error:
        found.append(re.sub(r"\[.*|, which is.*", "", str(error))[:90])
    return found


def same(ours, theirs):
    assert [type(x) for x in ours] == [type(x) for x in theirs], (ours, theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, str):
            assert a == b
        else:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("name", SAVED)
def test_a_result_in_saved_memory_changed_before_the_backward(name, gate):
    """The gradient is that of the old values, or autograd raises: as in eager."""
    fn = of_a_product(name)
    compiled = burnish.compile(fn, gate=gate, verify="off")
    for change in (False, True, True, False):
        for more in ({}, {"retain": True}, {"again": True}, {"with_first": True}):
            same(outcome(compiled, change=change, **more), outcome(fn, change=change, **more))
    assert not burnish.stats(compiled).fallbacks


def view(x, w, y):
    h = x @ w
    return h.view(-1), F.cross_entropy(h, y)


def detached(x, w, y):
    h = x @ w
    return h.detach(), F.cross_entropy(h, y)


def in_eager_saved(x, w, y):
    h = (x @ w).exp()
    return h.detach(), h.sum()


@pytest.mark.parametrize("fn", [view, detached, in_eager_saved])
def test_so_in_a_second_process(fn, tmp_path):
    for restored in (False, True):
        torch.compiler.reset()
        options = {"cache_dir": tmp_path, "warm_start": True}
        compiled = burnish.compile(fn, gate=False, verify="off", options=options)
        for change in (False, True):
            same(outcome(compiled, change=change), outcome(fn, change=change))
        assert restored == any("restored" in notice for notice in burnish.stats(compiled).notices)
        compiled.burnish.close()


@pytest.mark.parametrize("name", [name for name in SAVED if "eager" not in name])
@pytest.mark.parametrize(
    "hooks",
    [torch.autograd.graph.save_on_cpu, lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)],
)
def test_so_with_hooks_on_saved_tensors(name, hooks):
    fn = of_a_product(name)
    compiled = burnish.compile(fn, gate=False, verify="off")
    for change in (False, True, True):
        same(outcome(compiled, change=change, hooks=hooks), outcome(fn, change=change, hooks=hooks))


def test_losses_in_turns_behind_a_result_that_is_changed():
    """Each has its own backward; the second is taken when the first is over."""

    def fn(x, v, w, y):
        h, g = x @ v, x @ w
        return h.view(-1), F.cross_entropy(h, y), g.detach(), F.cross_entropy(g, y)

    def step(call, when):
        x, y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor([1, 2, 3])
        v, w = (torch.linspace(0, k, 24).reshape(4, 6).requires_grad_() for k in (1, 2))
        first, one, second, two = call(x, v, w, y)
        for k, loss in enumerate((one, two)):
            if k >= when:
                with torch.no_grad():
                    first.zero_(), second.zero_()
            loss.backward()
        return v.grad, w.grad

    compiled = burnish.compile(fn, gate=False, verify="off")
    for when in (2, 0, 1, 2):
        torch.testing.assert_close(step(compiled, when), step(fn, when))


def test_nothing_is_copied_or_watched_where_nothing_is_shared():
    x, w, y = torch.randn(3, 4), torch.randn(4, 6, requires_grad=True), torch.tensor([1, 2, 3])
    alone = burnish.compile(lambda x, w, y: F.cross_entropy(x @ w, y), gate=False, verify="off")
    shared = burnish.compile(of_a_product("view"), gate=False, verify="off")
    assert not alone(x, w, y).grad_fn.burnish_watched
    first, loss = shared(x, w, y)
    (watched,) = loss.grad_fn.burnish_watched
    assert shares(watched.tensor, first) and any(shares(first, x) for x in loss.grad_fn.saved_tensors)
    loss.backward()
    assert not loss.grad_fn.burnish_watched  # nor is its memory held after that
