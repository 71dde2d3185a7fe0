"""Tensors as they come: strided, channels-last, expanded, empty, of no dimension; results in eager's strides."""

from __future__ import annotations

from math import nan

import pytest
import torch
from torch.nn import functional as F

import burnish
from burnish.errors import FallbackWarning
from tests.against_eager import agree, check, check_training, served_by_us


def pointwise(x):
    return x * 2 + 1, x.exp(), x.transpose(-1, -2) - 1


def reductions(x):
    return x.sum(-1), x.mean(0), x.amax((0, -1)), x.softmax(-1), x.softmax(0), x.argmax(-1), x.var(-1)


def rearranged(x):
    return (
        x.reshape(-1),
        x.permute(2, 0, 1),
        x[..., 1:],
        x.flip(0),
        torch.cat([x, x], 1),
        x.contiguous(),
        F.pad(x, (1, 2)),
    )


def products(x):
    return x @ x.transpose(-1, -2), torch.einsum("abc,abd->acd", x, x), x.reshape(-1, x.shape[-1]) @ x[0].t()


def with_kernels_of_their_own(x):
    """Operations that we take apart, or whose results fake tensors lay out otherwise than eager."""
    number = torch.tensor(0.5)
    return (
        F.logsigmoid(x),
        F.mish(x),
        F.hardswish(x),
        F.softplus(x),
        F.hardshrink(x),
        F.huber_loss(x, x * 2, reduction="none"),
        F.smooth_l1_loss(x, x * 2, reduction="none"),
        F.glu(x, 1),
        2**x,
        x.copysign(number),
        x // number,
        torch.div(x, number, rounding_mode="trunc"),
        torch.xlogy(x, x[0]),
        torch.lerp(x, x * 2, 0.3),
        torch.addcmul(x, x, x[0]),
        torch.logit(x, 0.1),
        torch.nan_to_num(x),
        x.slice_scatter(x[:, 1::2], 1, 1, None, 2),
        x.select_scatter(x[0], 0, 1),
    )


BASE = torch.arange(10 * 12 * 14, dtype=torch.float32).reshape(10, 12, 14).sin()
INPUTS = {
    "contiguous": BASE[:3, :4, :6].contiguous(),
    "strided": BASE[::3, ::3, ::2][:3, :4, :6],
    "offset": BASE[2:5, 3:7, 4:10],
    "permuted": BASE[:6, :3, :4].permute(1, 2, 0),
    "transposed": BASE[:3, :6, :4].transpose(1, 2),
    "expanded": BASE[:3, :1, :6].expand(3, 4, 6),
    "all expanded": BASE[0, 0, 0].expand(3, 4, 6),
    "unfolded": BASE[:3, 0, :9].unfold(1, 6, 1),
    "reversed": BASE[:3, :4, :6].flip(1),
}


@pytest.mark.parametrize("work", [pointwise, reductions, rearranged, products, with_kernels_of_their_own])
def test_inputs_in_any_layout(work):
    """One compile per layout, none left to eager."""
    compiled = burnish.compile(work, dynamic=False)
    for x in INPUTS.values():
        agree(compiled, work, x)
    served_by_us(compiled, burnish.stats(compiled).compiles)


def test_two_layouts_in_one_graph():
    def fn(x, y):
        return x + y, (x * y).sum(-1), x @ y.transpose(-1, -2)

    for other in ("strided", "permuted", "expanded"):
        check(fn, INPUTS["transposed"], INPUTS[other])


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3), (0, 0)])
def test_nothing(shape):
    def fn(x):
        return (
            x + 1, x.exp() * x, x.sum(), x.sum(-1), x.sum(0, keepdim=True), x.mean(), x.prod(0), x.any(0), x.all(-1),
            x.cumsum(-1), x.reshape(-1), x.t() if x.dim() == 2 else x, torch.cat([x, x]), x.softmax(-1), x > 0,
            x.unsqueeze(0).expand(2, *x.shape), F.relu(x), x.contiguous().view(torch.int32),
        )  # fmt: skip

    check(fn, torch.randn(shape))


def test_products_over_nothing():
    def fn(x, y, bias):
        return x @ y, torch.addmm(bias, x, y), F.linear(x, y.t(), bias)

    check(fn, torch.randn(3, 0), torch.randn(0, 5), torch.randn(5))
    check(fn, torch.randn(0, 4), torch.randn(4, 5), torch.randn(5))


def test_an_empty_tensor_joined():
    def fn(x, nothing):
        return torch.cat([x, nothing], 0), torch.cat([nothing, x, nothing], 0), torch.stack([nothing, nothing])

    check(fn, torch.randn(2, 3), torch.randn(0, 3))


def test_gradients_of_nothing():
    check(lambda x: (x * x).sum() + x.sum(0).sum(), torch.randn(0, 3, requires_grad=True))


@pytest.mark.parametrize("pick", [torch.argmin, torch.argmax])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int16])
def test_the_first_of_equals_in_memory_of_another_order(pick, dtype):
    """What is converted is written in its own order, in which the equal ones are met."""

    def fn(x):
        y = x.to(dtype)
        return y, pick(y)

    for seed in range(8):
        torch.manual_seed(seed)
        check(fn, torch.randint(0, 3, (128,)).float().as_strided((2, 2, 2, 2), (1, 32, 16, 64)))


def test_the_first_nan_in_memory_of_another_order():
    x = torch.zeros(128).as_strided((2, 2, 2, 2), (1, 32, 16, 64)).clone()
    x[0, 1, 0, 1] = x[1, 0, 0, 0] = x[0, 1, 1, 0] = nan
    check(lambda x: (x.double(), x.double().argmin(), x.double().argmax()), x)


def test_scalars():
    def fn(x, n, flag):
        return (
            x + 1, x * n, x.sum(), x.mean(0), x.max(), x.argmax(), x.softmax(0), x.cumsum(0), x.reshape(1, 1),
            torch.stack([x, x * 2]), x.expand(3), torch.where(flag, x, n), x.item() if False else x.exp(), n // 2,
        )  # fmt: skip

    check(fn, torch.tensor(2.5), torch.tensor(7), torch.tensor(True))


def test_gradients_of_scalars():
    def fn(x, w):
        return (w * x).exp(), w.sin().expand(4).sum()

    check(fn, torch.randn(3), torch.tensor(0.3, requires_grad=True))


BROADCASTS = [
    ((3, 4), (4,)), ((3, 4), (3, 1)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)), ((), (3, 4)), ((1,), (3, 4)),
    ((1, 1, 1), (4,)), ((2, 1, 3, 1), (5, 1, 4)), ((0, 3), (1, 3)), ((3, 0), (3, 1)), ((7,), ()),
]  # fmt: skip


def test_broadcasting():
    """Every pair of shapes in one graph, forward and backward."""

    def fn(*tensors):
        results = []
        for a, b in zip(tensors[::2], tensors[1::2], strict=True):
            results += [a + b, a * b, torch.where(a > b, a, b), torch.maximum(a, b)]
        return tuple(results)

    tensors = [torch.randn(shape, requires_grad=True) for pair in BROADCASTS for shape in pair]
    check(fn, *tensors)


def test_channels_last_in_and_out():
    def fn(x):
        return F.relu(x) + 1, x.mean((2, 3)), F.avg_pool2d(x, 2), x.permute(0, 2, 3, 1) * 2, x * x.sum(1, keepdim=True)

    x = torch.randn(2, 5, 6, 6).to(memory_format=torch.channels_last)
    check(fn, x)


def test_channels_last_convolution_and_norm():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(8)
            self.last = torch.nn.Conv2d(8, 4, 1, groups=2)

        def forward(self, x):
            return self.last(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2))

    model = Net().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    eager = model.eval()
    check(lambda x: eager(x), x, mode=torch.no_grad)
    check_training(model.train(), x)


def test_memory_formats_made_inside():
    def fn(x):
        y = (x + 1).to(memory_format=torch.channels_last)
        return y, y * 2, y.contiguous(), x.clone(memory_format=torch.channels_last), y.is_contiguous()

    check(fn, torch.randn(2, 3, 4, 5))


def test_results_in_eagers_strides():
    def fn(x, y):
        return (
            x.t() + 1, x.t() + y, x[:, :1] * y.t(), x.t().exp().sum(0, keepdim=True), torch.empty_like(x.t()).fill_(1),
            x.t() @ x, (x.t() @ x).t(), x.unsqueeze(0).transpose(0, 2) * 3, torch.zeros_like(x.t()),
        )  # fmt: skip

    check(fn, torch.randn(4, 6), torch.randn(6, 4))


def test_a_call_of_atens_sees_no_repeated_elements_that_eager_does_not_show_it():
    """`tile` copies; as a window with steps of 0 its result is one that `median` reads past."""
    fn = burnish.compile(lambda x: x.tile(2).median(1)[0], gate=False, verify="off")
    x = torch.tensor([[0.5], [0.75]])
    assert torch.equal(fn(x), x[:, 0])


@pytest.mark.parametrize("strides", [(0, 1), (1, 1)])
def test_a_call_of_atens_sees_a_copy_where_eager_has_made_one(strides):
    fn = lambda x: x.contiguous().median(0)[0]  # noqa: E731
    x = torch.tensor([0.5, 0.75, 2.0]).as_strided((2, 2), strides)
    assert torch.equal(burnish.compile(fn, gate=False, verify="off")(x), fn(x))


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.mT])
def test_a_call_of_atens_sees_a_copy_of_an_expanded_input_where_eager_shows_it_one(view):
    """The copy is no more than the input itself to our own kernels; `median` would read past that."""
    fn = burnish.compile(lambda x: view(x).contiguous().median(-1)[0], gate=False, verify="off")
    x = view(torch.arange(6.0)[:, None].expand(6, 3))
    assert torch.equal(fn(x), torch.arange(6.0))


@pytest.mark.parametrize("grad", [False, True])
def test_a_log_softmax_lies_in_memory_as_eagers_does(grad):
    x = torch.randn(2, 3, 4, requires_grad=grad)
    fn = lambda x: x.mT.log_softmax(0)  # noqa: E731
    assert burnish.compile(fn, gate=False)(x).stride() == fn(x).stride()


def _chosen(mask, x):
    return torch.where(mask, x, -2.0)


def _expanded(x):
    return x * (2 / x[..., ::2]).expand(2, 2, 4, 1)


AMBIGUOUS = {
    "dimensions of size 1": (
        _chosen,
        lambda: (torch.arange(8).reshape(2, 2, 2) % 3 == 0, torch.ones(3).as_strided((1, 1, 2, 1), (1, 1, 2, 1))),
    ),
    "dimensions without a stride": (_expanded, lambda: (torch.ones(4).as_strided((2, 2, 1, 1), (2, 1, 1, 1)),)),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_results_that_tracing_lays_out_otherwise_are_eagers(name):
    """Judged by the gate: torch's rules for fake tensors are not those of its loops where several orders would do."""
    function, make = AMBIGUOUS[name]
    compiled = burnish.compile(function)
    with pytest.warns(FallbackWarning, match="strides"):
        first = compiled(*make())
    for result in (first, compiled(*make())):
        assert result.stride() == function(*make()).stride()
        torch.testing.assert_close(result, function(*make()))
    assert burnish.stats(compiled).compiles == 1
