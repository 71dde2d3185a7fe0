"""Gradients with formulas of our own: the loss of a class, and a slice's place among zeros."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import burnish
from burnish.errors import FallbackWarning
from burnish.ir.dtypes import DType
from burnish.schedule.kernels import LoopKernel, ResultBuffer
from tests.programs import capture, compiled, schedules


def check(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    mine, theirs = ([x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs] for _ in range(2))
    compiled(fn)(*mine).sum().backward()
    fn(*theirs).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        assert (a.grad is None) == (not a.is_floating_point())
        torch.testing.assert_close(a.grad, b.grad)


TARGET = torch.tensor([1, 0, -100, 3, 3])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_of_a_class(reduction: str, weighted: bool) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        weight = torch.arange(1.0, 8.0) if weighted else None
        return F.nll_loss(x.log_softmax(-1), target, weight, reduction=reduction)

    check(loss, torch.randn(5, 7), TARGET)


def test_loss_of_one_sample() -> None:
    check(lambda x, target: F.nll_loss(x.log_softmax(-1), target), torch.randn(7), torch.tensor(2))


def test_smoothed_cross_entropy_of_shifted_tokens() -> None:
    def loss(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)

    check(loss, torch.randn(3, 6, 11), torch.randint(0, 11, (3, 6)))


@pytest.mark.parametrize("part", [slice(0, 2), slice(-3, None), slice(1, 9), slice(2, 8, 2), slice(0, 10), slice(4, 4)])
@pytest.mark.parametrize("dim", [0, 1])
def test_slice(part: slice, dim: int) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2)[part] if dim == 0 else (x * 2)[:, part]).exp()

    check(fn, torch.randn(10, 10))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "shared",
    [
        lambda x: (x * 2).unfold(-1, 3, 1),
        lambda x: (x * 2).as_strided((2, 3), (1, 1)),
        lambda x: (x * 2).expand(3, 4),
        lambda x: x.sin().unfold(0, 2, 1).t(),
        lambda x: x.unfold(0, 3, 1),
    ],
    ids="unfolded strided expanded transposed unfolded-input".split(),
)
def test_gradients_of_results_whose_elements_share_memory(shared, dynamic) -> None:
    """Each element has a gradient of its own, though one place in memory holds several of them."""
    fn = burnish.compile(shared, dynamic=dynamic, gate=False)
    for _ in range(2):
        mine, theirs = (torch.arange(4.0).requires_grad_() for _ in range(2))
        result = fn(mine)
        gradient = torch.randn(result.shape)
        result.backward(gradient)
        shared(theirs).backward(gradient)
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_slices_that_meet() -> None:
    check(lambda x: torch.cat([x[:, 4:] * 2, x[:, :4].sin()], 1) * x[:, 1:9].mean(), torch.randn(5, 10))


def shifted_loss(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    logits = (x @ w).to(torch.bfloat16)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def test_a_loss_keeps_narrow_logits_and_numbers_per_row() -> None:
    forward, backward = capture(
        shifted_loss, torch.randn(3, 6, 8, requires_grad=True), torch.randn(8, 50, requires_grad=True),
        torch.randint(0, 50, (3, 6)),
    )  # fmt: skip
    _, schedule = schedules(forward.captured)
    kept = [r.operand for r in schedule.results if isinstance(r, ResultBuffer)]
    assert not [o for o in kept if o.dtype is DType.f32 and o.shape == (15, 50)], "log-probabilities"
    assert [o for o in kept if o.dtype is DType.bf16]
    written = {s.buffer for k in schedule.kernels if isinstance(k, LoopKernel) for s in k.loop.stores}
    wide = [n for n in written if schedule.buffers[n].dtype is DType.f32 and schedule.buffers[n].elements == 15 * 50]
    assert not wide, "the loss looks its few elements up among the logits"
    assert backward.kind == "backward"


def test_what_the_backward_wants_transposed_is_not_copied() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w) @ v

    forward, _ = capture(fn, *(torch.randn(6, 6, requires_grad=True) for _ in range(3)))
    _, schedule = schedules(forward.captured)
    assert not [k for k in schedule.kernels if isinstance(k, LoopKernel)]


def test_rows_of_odd_length_are_padded_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.capture.autograd.partition._PADDED_ON", ("cpu",))
    monkeypatch.setattr("burnish.capture.autograd.partition._LONG_ROW", 16)
    inputs = [torch.randn(n, 8).to(torch.bfloat16).requires_grad_() for n in (6, 51)]

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w).float().log_softmax(-1)[:, 3].sum()

    check(loss, *inputs)
    forward, _ = capture(loss, *inputs)
    _, schedule = schedules(forward.captured)
    kept = [r.operand.shape for r in schedule.results if isinstance(r, ResultBuffer)]
    assert (6, 64) in kept and (6, 51) not in kept


def test_a_padded_weight_is_cast_once_and_kept_as_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.capture.autograd.partition._PADDED_ON", ("cpu",))
    monkeypatch.setattr("burnish.capture.autograd.partition._LONG_ROW", 16)
    inputs = [torch.randn(n, 8).requires_grad_() for n in (6, 51)]

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = F.linear(x, w)
        return logits.float().log_softmax(-1)[:, 3].sum()

    check(loss, *inputs)
    forward, backward = capture(loss, *inputs)
    _, schedule = schedules(forward.captured)
    weights = [b for b in schedule.buffers.values() if b.dtype is DType.bf16 and b.elements in (51 * 8, 64 * 8)]
    assert [(b.shape, b.strides) for b in weights] == [((64, 8), (8, 1))]
    _, schedule = schedules(backward.captured)
    assert not [b for b in schedule.buffers.values() if b.role == "temp" and b.elements in (51 * 8, 64 * 8)]


def test_a_tied_embeddings_gradient_goes_onto_the_output_layers() -> None:
    def loss(ids: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(F.embedding(ids, w)) @ w.t()).square().sum()

    inputs = (torch.tensor([3, 1, 3, 0, 3]), torch.randn(7, 6, requires_grad=True))
    check(loss, *inputs)
    _, backward = capture(loss, *inputs)
    _, schedule = schedules(backward.captured)
    assert not [b for b in schedule.buffers.values() if b.role == "temp" and b.shape == (7, 6)], "zeros to add onto"


def test_a_lookup_through_a_view_that_needs_fewer_indices() -> None:
    def fn(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return (x.sin().unsqueeze(1).expand(40, 30, 8) * 2)[rows, columns]

    args = (torch.randn(40, 8), torch.tensor([3, 1, 0]), torch.tensor([5, 6, 7]))
    torch.testing.assert_close(compiled(fn)(*args), fn(*args))


@pytest.mark.parametrize("fn", [F.hardshrink, F.softshrink])
def test_gradients_at_nan(fn):
    """They are ATen's, which gives other ones in the last few elements than before."""
    x = torch.full((67,), float("nan"), requires_grad=True)
    (want,) = torch.autograd.grad(fn(x).sum(), x)
    (found,) = torch.autograd.grad(burnish.compile(fn, options={"gate": False, "verify": "off"})(x).sum(), x)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("elements", [[1e20, 1e-20, 3.0], [float("inf"), 0.0, 0.0], [1e30, 1e30, 2.0]])
def test_gradient_of_a_product_of_elements(elements):
    compiled = burnish.compile(lambda x: x.prod(), options={"gate": False, "verify": "off"})
    x = torch.tensor(elements, requires_grad=True)
    (want,) = torch.autograd.grad(x.prod(), x)
    with pytest.warns(FallbackWarning, match="whether one of them is zero"):
        (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)


# Behind the first -1 of a row nothing counts, not even what is no class.
ENDED = [[[3, 0, -1, 1], [2, -1, 0, 0]], [[-1, 2, 0, 0], [1, 2, 3, -1]], [[-1, -1, -1, -1], [0, 1, 2, 3]]]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("targets", ENDED)
def test_a_loss_of_many_labels_ends_at_the_first_minus_one(targets, reduction):
    x = torch.linspace(-1, 2, 8, dtype=torch.float64).reshape(2, 4).sin()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x * 2, torch.tensor(targets), reduction=reduction)

    def found(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        leaf = x.clone().requires_grad_()
        result = call(leaf)
        return [result.detach(), *torch.autograd.grad(result.sum(), leaf)]

    ours = burnish.compile(loss, gate=False, verify="off")
    torch.testing.assert_close(found(ours), found(loss))
    assert burnish.stats(ours).fallbacks == ()


class _Ended(nn.Module):
    """A block that is traced once for all of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        return F.hardshrink(h) + F.multilabel_margin_loss(h, targets)


class _EndedStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Ended() for _ in range(3))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, targets)
        return x


def test_equal_blocks_have_the_derivatives_of_whole_operations():
    torch.manual_seed(0)
    model = _EndedStack().double()
    compiled = burnish.compile(model, regions=[_Ended], gate=False, verify="off")
    x, weights = torch.linspace(-1, 2, 8, dtype=torch.float64).reshape(2, 4), list(model.parameters())
    results = [call(x, torch.tensor(ENDED[0])) for call in (compiled, model)]
    torch.testing.assert_close(*results)
    got, want = (torch.autograd.grad(result.square().sum(), weights) for result in results)
    torch.testing.assert_close(got, want)


# -- gradients lie in memory of their own: to a leaf's, autograd adds the next one in place ----------------------------

SHARED = {
    "a sum": (lambda x, a: x + a, (2, 2)),
    "a sum with a view": (lambda x, a: x.view(2, 2) + a, (4,)),
    "a product behind it": (lambda x, a: (x.view(2, 2) + a) * 2, (4,)),
    "a function behind it": (lambda x, a: (x.view(2, 2) + a).exp(), (4,)),
    "a transpose": (lambda x, a: (x.t() + a).sin(), (2, 2)),
    "a row and a square": (lambda x, a: (x[0] + a).exp(), (1, 2, 2)),
    "parts": (lambda x, a: torch.cat([x, a]).exp(), (2, 2)),
    "parts that overlap": (lambda x, a: (torch.cat([x, a]) + torch.cat([a, x])).exp(), (2, 2)),
    "one of two results": (lambda x, a: (x + a, (x * a).exp()), (2, 2)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", SHARED)
def test_gradients_of_leaves_add_up_apart(name, dynamic):
    fn, shape = SHARED[name]

    def added_up(call):
        x, a = torch.ones(shape, requires_grad=True), torch.ones(2, 2, requires_grad=True)
        for step in range(3):
            found = call(x, a)
            found = found[0] if isinstance(found, tuple) else found
            found.backward(given := torch.full_like(found, 2.0 + step))
        return x.grad, a.grad, given

    compiled = burnish.compile(fn, dynamic=dynamic, options={"gate": False, "verify": "off"})
    torch.testing.assert_close(added_up(compiled), added_up(fn))
    assert not burnish.stats(compiled).fallbacks


def test_windows_of_one_gradient_are_not_copied():
    """The parts of a matrix that a product gives at once."""
    compiled = burnish.compile(lambda x, a, b: torch.cat([a, b]) @ x, options={"gate": False, "verify": "off"})
    x, a, b = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
    compiled(x, a, b).sum().backward()
    assert a.grad.untyped_storage().data_ptr() == b.grad.untyped_storage().data_ptr()
