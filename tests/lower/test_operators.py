"""Operators with more behaviour than a formula: attention, indexing, scans, windows, and what eager refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import burnish
from tests.against_eager import check, served_by_us

# --- attention --------------------------------------------------------------------------------------------------


def heads(count: int = 4, length: int = 6, width: int = 8, grad: bool = False) -> torch.Tensor:
    return torch.randn(2, count, length, width, requires_grad=grad)


ATTENTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "plain": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v),
    "causal": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scaled": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    "float mask": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask * 2),
    "bool mask": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask > -0.5),
    "mask of one head": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, :1] > -0.5),
    "transposed": lambda q, k, v, mask: F.scaled_dot_product_attention(
        *(t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    ),
    "repeated heads": lambda q, k, v, mask: F.scaled_dot_product_attention(
        q, k[:, :2].repeat_interleave(2, 1), v[:, 1:3].unsqueeze(2).expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8)
    ),
    "heads in turn": lambda q, k, v, mask: F.scaled_dot_product_attention(
        q, k[:, :2].repeat(1, 2, 1, 1), v[:, :1].expand(2, 4, 6, 8)
    ),
    "three dimensions": lambda q, k, v, mask: F.scaled_dot_product_attention(q[0], k[0], v[0]),
    "with work around it": lambda q, k, v, mask: F.scaled_dot_product_attention(q * 2, k + 1, v.exp()).relu() * 3,
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_attention(name, grad):
    check(
        ATTENTIONS[name], heads(grad=grad), heads(grad=grad), heads(grad=grad), torch.randn(2, 4, 6, 6), strides=False
    )


@pytest.mark.parametrize("grad", [False, True])
def test_attention_with_shared_key_heads(grad):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    check(fn, heads(4, grad=grad), heads(2, grad=grad), heads(2, grad=grad), strides=False)


def test_attention_over_a_longer_past():
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)

    check(fn, heads(length=3), heads(length=11), heads(length=11), strides=False)
    check(fn, heads(length=1), heads(length=70), heads(length=70), strides=False)


def test_attention_with_a_row_masked_out():
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[2] = False
    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), heads(), heads(), heads(), mask,
        strides=False,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_attention_in_other_types(dtype):
    q, k, v = (heads().to(dtype) for _ in range(3))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v, strides=False)


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9, 1e15])
def test_attention_of_large_scores(scale):
    """One key has all the weight. A score that is rounded in two ways has half a unit of it as an exponent."""
    q, k, v = (heads(length=40) * scale for _ in range(3))
    ours = burnish.compile(F.scaled_dot_product_attention, gate=False, verify="off")(q, k, v)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v))


def test_attention_at_many_lengths():
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    compiled = burnish.compile(fn, dynamic=True)
    for length in (5, 9, 17, 40):
        q, k, v = (heads(length=length) for _ in range(3))
        torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), atol=2e-6, rtol=2e-5)
    served_by_us(compiled, 1)


# --- reading and writing at positions ---------------------------------------------------------------------------

X = torch.randn(5, 6)
ROWS, COLUMNS = torch.tensor([4, 0, 0, -1]), torch.tensor([1, 5, -2, 1])
INDEXED: dict[str, Callable[[torch.Tensor], object]] = {
    "rows": lambda x: x[ROWS],
    "pairs": lambda x: x[ROWS, COLUMNS],
    "grid": lambda x: x[ROWS[:, None], COLUMNS],
    "mixed": lambda x: (x[1:, COLUMNS], x[None, ROWS], x[..., COLUMNS], x[ROWS, 1:4]),
    "mask": lambda x: torch.where(x > 0, x, 0),
    "gather": lambda x: x.gather(1, torch.tensor([[0, 3], [5, 5]])),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 3, 0])),
    "take": lambda x: x.take(torch.tensor([0, 29, 7])),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(1), 1),
    "embedding": lambda x: F.embedding(torch.tensor([[1, 4], [0, 0]]), x),
    "put": lambda x: x.index_put((ROWS, COLUMNS), torch.ones(4)),
    "put accumulating": lambda x: x.index_put((ROWS, COLUMNS), torch.arange(4.0), accumulate=True),
    "put rows accumulating": lambda x: x.index_put((ROWS,), torch.ones(4, 6), accumulate=True),
    "put into a mask": lambda x: x.index_put((torch.arange(30).reshape(5, 6) % 4 == 0,), torch.tensor(2.0)),
    "scatter": lambda x: x.scatter(1, torch.tensor([[0, 3], [5, 2]]), torch.ones(2, 2)),
    "scatter_add": lambda x: x.scatter_add(0, torch.tensor([[0, 0, 4], [0, 1, 4]]), torch.ones(2, 3)),
    "scatter reduce": lambda x: x.scatter_reduce(0, torch.tensor([[0, 0, 4], [0, 1, 4]]), torch.ones(2, 3), "amax"),
    "index_add": lambda x: x.index_add(0, torch.tensor([1, 1, 2]), torch.ones(3, 6), alpha=0.5),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([2, 0]), torch.ones(5, 2)),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([2, 0]), 7.0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, torch.arange(30.0)),
    "slice_scatter": lambda x: (x.slice_scatter(torch.ones(2, 6), 0, 1, 3), x.select_scatter(torch.ones(5), 1, -1)),
    "diagonal_scatter": lambda x: x.diagonal_scatter(torch.ones(5)),
    "roll": lambda x: (x.roll(2, 1), x.roll((1, -1), (0, 1)), x.roll(3)),
    "one_hot": lambda x: F.one_hot(x.argmax(1), 6) * x,
    "triangle": lambda x: (x.tril(), x.triu(1), torch.tril_indices(4, 4), x.diagonal(1)),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indexing(name):
    check(INDEXED[name], X)


@pytest.mark.parametrize("name", [n for n in INDEXED if n not in ("one_hot", "mask")])
def test_gradients_of_indexing(name):
    check(INDEXED[name], X.clone().requires_grad_())


REFUSED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda x, i: x[i],
    "embedding": lambda x, i: F.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "put": lambda x, i: x.index_put((i,), torch.ones(6)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_out_of_range(name):
    fn = REFUSED[name]
    compiled = burnish.compile(fn)
    good, bad = torch.tensor([1, 4]), torch.tensor([1, 5])
    torch.testing.assert_close(compiled(X, good), fn(X, good))
    for index in (bad, torch.tensor([-6, 0])):
        with pytest.raises(IndexError) as theirs:
            fn(X, index)
        with pytest.raises(IndexError) as ours:
            compiled(X, index)
        assert str(ours.value) == str(theirs.value)
    torch.testing.assert_close(compiled(X, good), fn(X, good), msg="a good call after a bad one")
    served_by_us(compiled)


@pytest.mark.parametrize("read", [lambda x, i: x[i], lambda x, i: x.index_select(0, i), lambda x, i: x.gather(0, i)])
def test_an_index_into_nothing(read):
    x, i = torch.empty(0), torch.tensor([0, -1])
    with pytest.raises((IndexError, RuntimeError)) as eagers:
        read(x, i)
    with pytest.raises(eagers.type):
        burnish.compile(lambda x, i: read(x + 1, i), gate=False, verify="off")(x, i)


def test_gather_out_of_range():
    compiled = burnish.compile(lambda x, i: x.gather(1, i))
    compiled(X, torch.tensor([[5]]))
    with pytest.raises(RuntimeError, match="index 6 is out of bounds for dimension 1 with size 6"):
        compiled(X, torch.tensor([[6]]))


# With the shape that indices have.
REFUSED_HALF_DONE: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "rows": ((2,), lambda x, i: x[i]),
    "embedding": ((2,), lambda x, i: F.embedding(i, x)),
    "put": ((2,), lambda x, i: x.index_put((i,), torch.ones(6))),
    "index_select": ((2,), lambda x, i: x.index_select(0, i)),
    "index_select of columns": ((2,), lambda x, i: x.index_select(1, i)),
    "index_select of a row": ((2,), lambda x, i: x[0].index_select(0, i)),
    "index_select behind": ((2,), lambda x, i: x[:, None].index_select(2, i)),
    "index_select between": ((2,), lambda x, i: x[:, None, :].mT.index_select(1, i)),
    "index_select of one element": ((2,), lambda x, i: x[:1, :1, None].index_select(2, i.clamp(max=0))),
    "index_select of what is expanded": ((2,), lambda x, i: x[:1].expand(5, 6).index_select(0, i)),
    "index_select by int32": ((2,), lambda x, i: x.mT.index_select(1, i.int())),
    "index_select of integers": ((2,), lambda x, i: x.int()[None].index_select(2, i)),
    "index_copy": ((2,), lambda x, i: x.index_copy(0, i, x[:2])),
    "index_add": ((2,), lambda x, i: x.index_add(0, i, x[:2])),
    "index_add by int32": ((2,), lambda x, i: x.index_add(0, i.int(), x[:2])),
    "index_add of twice as much": ((2,), lambda x, i: x.index_add(0, i, x[:2], alpha=2)),
    "index_add between": ((2,), lambda x, i: x[:, :, None].index_add(1, i, x[:, :2, None])),
    "index_add of a row": ((2,), lambda x, i: x[0].index_add(0, i, x[0, :2])),
    "gather": ((1, 2), lambda x, i: x.gather(1, i)),
    "scatter": ((1, 2), lambda x, i: x.scatter(1, i, x)),
    "scatter of a number": ((1, 2), lambda x, i: x.scatter(1, i, 2.0)),
    "scatter_add": ((1, 2), lambda x, i: x.scatter_add(1, i, x)),
}


@pytest.mark.parametrize("name", REFUSED_HALF_DONE)
def test_an_index_out_of_range_once_inputs_are_written(name):
    """Such a call cannot be repeated in eager: what is raised is ours, and of the type of eager's."""
    shape, look_up = REFUSED_HALF_DONE[name]

    def fn(x, y, index):
        y.add_(1)
        return look_up(x, index)

    compiled = burnish.compile(fn, gate=False, verify="off")
    good, evil = torch.tensor([1, 4]).reshape(shape), torch.tensor([1, -7]).reshape(shape)
    torch.testing.assert_close(compiled(X, torch.zeros(3), good), fn(X, torch.zeros(3), good))
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        fn(X, torch.zeros(3), evil)
    with pytest.raises(theirs.type):
        compiled(X, torch.zeros(3), evil)
    served_by_us(compiled)


def test_what_is_summed_up_goes_where_an_index_says():
    """The sum's loop and the one that tests the index are two in C."""

    def fn(x, index):
        return torch.zeros(5, 5).scatter(0, index[None], x.sum(0, keepdim=True) + index)

    compiled = burnish.compile(fn, gate=False, verify="off")
    x, index = torch.arange(25.0).reshape(5, 5), torch.tensor([4, 0, 1, 1, 3])
    assert torch.equal(compiled(x, index), fn(x, index))
    served_by_us(compiled)
    with pytest.raises(RuntimeError):
        compiled(x, index + 1)


def test_a_negated_tensor_that_is_expanded_for_a_call():
    """Its copy has the memory of the call's result: not every element is one."""
    compiled = burnish.compile(lambda x: x.repeat_interleave(2, -1), gate=False, verify="off")
    x = torch.tensor([3, 1, 2])
    for given in (x, torch._neg_view(x)):
        assert compiled(given).tolist() == [given[0], given[0], given[1], given[1], given[2], given[2]]
    assert not burnish.stats(compiled).fallbacks


def test_index_copy_takes_no_negative_index():
    compiled = burnish.compile(lambda x, i: x.index_copy(0, i, x[:1]))
    compiled(X, torch.tensor([4]))
    with pytest.raises(IndexError, match="index -1 is out of bounds"):
        compiled(X, torch.tensor([-1]))


# --- scans, windows, rearrangements -----------------------------------------------------------------------------

IMAGE = torch.randn(2, 3, 9, 8)
OPERATORS: dict[str, Callable[[torch.Tensor], object]] = {
    "cumsum": lambda x: (x.cumsum(0), x.cumsum(-1), x.flip(-1).cumsum(-1).flip(-1), x.exp().cumsum(2) * 2),
    "cumprod": lambda x: (x.cumprod(-1), (x + 1).cumprod(1)),
    "cummax": lambda x: x.cummax(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "max_pool": lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 3, 1, ceil_mode=True)),
    "max_pool with indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "avg_pool": lambda x: (
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    "adaptive pool": lambda x: (
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, (3, 4)),
        F.adaptive_max_pool2d(x, 2),
    ),
    "pool 1d": lambda x: (F.avg_pool1d(x[:, :, 0], 2), F.max_pool1d(x[:, :, 0], 3, 2), F.lp_pool2d(x.abs(), 2, 2)),
    "upsample nearest": lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(13, 5))),
    "upsample bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    "pad": lambda x: (
        F.pad(x, (1, 2, 0, 3)),
        F.pad(x, (-1, 1)),
        F.pad(x, (2, 1, 1, 2), "reflect"),
        F.pad(x[0], (1, 1), "replicate"),
    ),
    "pixel_shuffle": lambda x: (
        F.pixel_shuffle(x[:, :, :8, :8].repeat(1, 4, 1, 1), 2),
        F.pixel_unshuffle(x[:, :, :8], 2),
    ),
    "unfold": lambda x: (F.unfold(x, 3), x.unfold(2, 3, 2), x.unfold(-1, 2, 1).mean(-1)),
    "sort": lambda x: (*x.sort(-1), x.argsort(dim=1, stable=True), *x.topk(3)),
    "split": lambda x: (x.split(4, 2), x.chunk(3, 1), x.unbind(0), x.tensor_split(2, 3)),
    "join": lambda x: (
        torch.cat([x, x * 2], -1),
        torch.stack([x, x + 1], 1),
        torch.hstack([x, x]),
        x.repeat(1, 2, 1, 1),
    ),
    "repeat": lambda x: (x.repeat_interleave(2, 1), x.tile(2), x.expand(4, 2, 3, 9, 8).sum(0)),
    "einsum": lambda x: (torch.einsum("bchw,bdhw->bcd", x, x), torch.einsum("bchw->hc", x)),
    "norms": lambda x: (F.layer_norm(x, (9, 8)), F.group_norm(x, 3), F.normalize(x, dim=1), F.rms_norm(x, (8,))),
    "local norm": lambda x: F.local_response_norm(x, 3),
    "conv": lambda x: (
        F.conv2d(x, x[:2, :, :3, :3]),
        F.conv2d(x, x[:1, :, :3, :3], stride=2, padding=1, dilation=2),
        F.conv_transpose2d(x, x[:, :, :2, :2].transpose(0, 1), stride=2),
        F.conv1d(x[:, :, 0], x[:, :, 0, :3]),
    ),
    "fft": lambda x: torch.fft.rfft(x).abs(),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * 1j),
    "linalg": lambda x: torch.linalg.matrix_norm(x) + torch.linalg.det(x[..., :8, :]),
    "clamp": lambda x: (x.clamp(min=x.mean()), torch.clip(x, -0.5, 0.5), F.threshold(x, 0.1, 2.0)),
    "activations": lambda x: (
        F.mish(x),
        F.selu(x),
        F.celu(x),
        F.hardsigmoid(x),
        F.softsign(x),
        F.logsigmoid(x),
        F.glu(x),
    ),
    "statistics": lambda x: (
        x.std((2, 3)),
        *torch.var_mean(x, 1),
        x.median(-1).values,
        x.norm(p=1, dim=2),
    ),
    "quantile": lambda x: x.quantile(0.3) + x,  # torch 2.11 ends a graph there, which looks at values
    "counting": lambda x: (
        (x > 0).sum((1, 2)),
        x.count_nonzero(),
        torch.bincount((x > 0).long().flatten()),
        x.unique().numel(),
    ),
    "searching": lambda x: (torch.bucketize(x, torch.linspace(-1, 1, 5)), torch.isin(x, x[0]), x.argmax()),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    if name == "counting":  # a result whose size depends on the data ends a graph
        compiled = burnish.compile(OPERATORS[name])
        assert str(compiled(IMAGE)) == str(OPERATORS[name](IMAGE))
        assert burnish.stats(compiled).fallbacks == ()
        return
    check(OPERATORS[name], IMAGE)


@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in ("counting", "searching", "linalg", "sort")])
def test_gradients_of_operators(name):
    check(OPERATORS[name], IMAGE.clone().requires_grad_())


def test_rows_looked_up_behind_joined_dimensions():
    """The last row of each of two: its number is checked against the rows of one, though the product has both's."""

    def last_row(x, weight, row):
        h = (x.view(32, 32) @ weight).view(2, 16, 32) + x
        return torch.nn.functional.layer_norm(h, (32,))[:, row]

    compiled = burnish.compile(last_row)
    x, weight = torch.randn(2, 16, 32), torch.randn(32, 32)
    for number in (0, 15):
        row = torch.tensor([number])
        torch.testing.assert_close(compiled(x, weight, row), last_row(x, weight, row))
    assert burnish.stats(compiled).fallbacks == ()
    with pytest.raises(IndexError):
        compiled(x, weight, torch.tensor([16]))


@pytest.mark.parametrize("base", [-1, -2.5, -0.0])
def test_a_power_of_a_negative_number(base):
    """torch prints it, for eager's form of the graph, without parentheses: which is another number."""
    fn = lambda x: x * base ** torch.arange(1, 4)  # noqa: E731
    compiled = burnish.compile(fn, gate=True)
    x = torch.tensor([1.0, 2.0, 3.0])
    for _ in range(3):
        assert torch.equal(compiled(x), fn(x))
    assert burnish.stats(compiled).fallbacks == ()  # which are wrong results, too
