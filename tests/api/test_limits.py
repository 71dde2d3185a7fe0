"""Features of torch that users meet: eager's result each, and what the stats say of it (docs/limits.md)."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, parametrize, prune

import burnish

pytestmark = pytest.mark.filterwarnings("ignore")


@torch.library.custom_op("burnish_limits::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


@torch.library.custom_op("burnish_limits::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, gradient: gradient * 2)


class TimesSeven(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7


def _tell(ctx):
    ctx.set_materialize_grads(False)


class LooksForNone(torch.autograd.Function):
    """Two results; its gradients say which of them a loss has left out."""

    @staticmethod
    def forward(ctx, x):
        _tell(ctx)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        if first is None or second is None:
            return (first if second is None else second) * 100
        return first * 2 + second * 3


class LooksForNoneByField(LooksForNone):
    @staticmethod
    def forward(ctx, x):
        ctx.materialize_grads = False
        return x * 2, x * 3


class LooksForNoneAfterwards(LooksForNone):
    @staticmethod
    def forward(x):
        return x * 2, x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)


class AddsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x, x * 2

    @staticmethod
    def backward(ctx, first, second):
        return first * 7 + second * 5


class Labelled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def cond(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def while_loop(x):
    from torch._higher_order_ops import while_loop

    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]


def flex(x):
    from torch.nn.attention.flex_attention import flex_attention

    heads = x.reshape(1, 1, 4, 4).expand(1, 1, 4, 4).contiguous()
    return flex_attention(heads, heads, heads, score_mod=lambda score, b, h, i, j: score + (i - j) * 0.1)


def writing_op(x):
    y = x * 1
    scale_(y, 3.0)
    return y + 1


def branches(x):
    return x * 2 if x.sum().item() > 0 else x - 1


def prints(x):
    print("", end="")
    return x * 2


def generated(x):
    def parts():
        for factor in range(3):
            yield x * factor

    return sum(parts())


def fourier(x):
    return (torch.fft.fft(x) * 2).abs()


FUNCTIONS = {
    "cond": (cond, "fallback", "cond runs a graph of its own"),
    "while_loop": (while_loop, "fallback", "while_loop runs a graph of its own"),
    "flex_attention": (flex, "fallback", "flex_attention runs a graph of its own"),
    "mutating custom op": (writing_op, "fallback", "burnish_limits::scale_, which writes its arguments"),
    "nonzero": (lambda x: (x > 0).nonzero() * 2, "break", "nonzero"),
    "unique": (lambda x: x.unique() + 1, "break", "unique"),
    "boolean mask": (lambda x: x[x > 0] * 2, "break", "nonzero"),
    "item": (branches, "break", "item"),
    "print": (prints, "break", "print"),
    "custom op": (lambda x: twice(x.sin()) + 1, "aten", "burnish_limits::twice.default"),
    "complex": (fourier, "aten", "aten::_fft_r2c.default"),
    "float8": (lambda x: x.to(torch.float8_e4m3fn).float() * 2, "aten", "aten::_to_copy.default"),
    "autograd function": (lambda x: TimesSeven.apply(x * 2), "compiled", ""),
    "vmap inside": (lambda x: torch.vmap(lambda row: (row * 2).sin())(x), "compiled", ""),
    "grad inside": (lambda x: torch.func.grad(lambda y: y.sin().sum())(x), "compiled", ""),
    "generator inside": (generated, "compiled", ""),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name):
    function, how, said = FUNCTIONS[name]
    compiled = burnish.compile(function)
    x = torch.linspace(-1, 2, 16)
    for inputs in (x, x, -x):
        torch.testing.assert_close(compiled(inputs.clone()), function(inputs.clone()))
    stats = burnish.stats(compiled)
    told = {
        "fallback": [entry.reason for entry in stats.fallbacks],
        "break": [entry.reason for entry in stats.graph_breaks],
        "aten": list(stats.aten_calls),
        "compiled": [""] if stats.graphs and not stats.fallbacks and not stats.graph_breaks else [],
    }[how]
    assert any(said in entry for entry in told), stats


@pytest.mark.parametrize("options", [{}, {"gate": False, "verify": "off"}], ids=["judged", "forced"])
@pytest.mark.parametrize("function", [LooksForNone, LooksForNoneByField, LooksForNoneAfterwards, AddsInPlace])
def test_an_autograd_function_is_given_what_eager_gives_it(function, options):
    def call(x):
        y = x.sin()
        first, second = function.apply(y)
        return first.exp(), second, y * 2

    compiled = burnish.compile(call, **options)
    for used in ([0], [1], [0, 1], [0, 1, 2]):
        found = []
        for each in (compiled, call):
            x = torch.linspace(-1, 2, 16, dtype=torch.float64).requires_grad_()
            results = each(x)
            sum(results[k].sum() for k in used).backward()
            found.append([x.grad, *(result.detach() for result in results)])
        torch.testing.assert_close(found[0], found[1])
    stats = burnish.stats(compiled)
    assert any("autograd.Function context" in entry.reason for entry in stats.graph_breaks), stats.graph_breaks


@pytest.mark.parametrize("name", ["cond", "boolean mask", "custom op", "complex", "autograd function", "vmap inside"])
def test_its_gradients(name):
    function = FUNCTIONS[name][0]
    compiled = burnish.compile(function)
    for _ in range(3):
        grads = []
        for call in (compiled, function):
            x = torch.linspace(-1, 2, 16).requires_grad_()
            call(x).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


# -- around a compiled function ----------------------------------------------------------------------------------------


def cube(x):
    return (x**3).sum()


AROUND = {
    "vmap": lambda f, x: torch.vmap(f)(x.reshape(2, 2)),
    "grad": lambda f, x: torch.func.grad(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones(4),)),
    "hessian": lambda f, x: torch.func.hessian(f)(x),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_transform_around_it(name):
    compiled, x = burnish.compile(cube), torch.arange(1.0, 5.0)
    for _ in range(3):
        torch.testing.assert_close(AROUND[name](compiled, x), AROUND[name](cube, x))
        torch.testing.assert_close(compiled(x), cube(x))
    assert burnish.stats(compiled).fallbacks == ()


@pytest.mark.parametrize("sealed", [False, True])
def test_forward_mode_keeps_its_tangents(sealed):
    def function(x):
        return x.sin() * 2

    compiled = burnish.compile(function)
    x, tangent = torch.randn(4), torch.randn(4)
    for _ in range(4):
        compiled(x)
    if sealed:
        burnish.seal(compiled)
        compiled(x)
        compiled(x)
    for _ in range(3):
        with forward_ad.dual_level():
            result = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, tangent)))
        torch.testing.assert_close(result.tangent, 2 * x.cos() * tangent)
    torch.testing.assert_close(compiled(x), function(x))
    if not sealed:
        assert any("forward-mode" in notice for notice in burnish.stats(compiled).notices)


# -- other kinds of tensors ------------------------------------------------------------------------------------------


def nested(layout):
    return torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout)


TENSORS = {
    "jagged": (lambda: nested(torch.jagged), lambda n: (n * 2).sin().values()),
    "nested": (lambda: nested(torch.strided), lambda n: (n * 2).unbind()[1]),
    "sparse": (lambda: torch.eye(4).to_sparse(), lambda s: torch.sparse.mm(s, torch.ones(4, 4)) + 1),
    "compressed sparse": (lambda: torch.eye(4).to_sparse_csr(), lambda s: s @ torch.ones(4, 4) + 1),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
        lambda q: q.dequantize() + 1,
    ),
    "complex": (lambda: torch.randn(4, dtype=torch.complex64), lambda c: (c * c.conj()).real + c.imag),
    "subclass": (lambda: torch.ones(4).as_subclass(Labelled), lambda x: x.sin() + 1),
    "scripted": (lambda: torch.ones(4), lambda x: torch.jit.script(nn.ReLU())(x) + 1),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_kind_of_tensor(name):
    make, function = TENSORS[name]
    compiled, x = burnish.compile(function), make()
    for _ in range(3):
        got, want = compiled(x), function(x)
        assert type(got) is type(want)
        torch.testing.assert_close(got.as_subclass(torch.Tensor), want.as_subclass(torch.Tensor))
    stats = burnish.stats(compiled)
    assert stats.graphs or stats.graph_breaks or stats.fallbacks, "what is left to eager is said"


def test_meta_tensors():
    compiled = burnish.compile(nn.Linear(4, 4, device="meta"))
    for _ in range(3):
        assert compiled(torch.empty(2, 4, device="meta")).device.type == "meta"
    assert "meta" in burnish.stats(compiled).fallbacks[0].reason


def test_a_generator_function_says_that_it_runs_later():
    def parts(x):
        for factor in range(3):
            yield x * factor

    compiled, x = burnish.compile(parts), torch.ones(3)
    torch.testing.assert_close(list(compiled(x)), list(parts(x)))
    assert "generator" in burnish.stats(compiled).graph_breaks[0].reason


# -- modules that change after they were compiled --------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.low = base, nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return self.base(x) + x @ self.low


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


CHANGES = {
    "adapter": lambda net: setattr(net, "a", Adapter(net.a)),
    "pruning": lambda net: prune.l1_unstructured(net.a, "weight", amount=0.5),
    "parametrisation": lambda net: parametrize.register_parametrization(net.a, "weight", Symmetric()),
    "weight norm": lambda net: parametrizations.weight_norm(net.a),
    "tied": lambda net: setattr(net.a, "weight", net.b.weight),
    "shared": lambda net: net.share_memory(),
    "frozen": lambda net: net.a.requires_grad_(False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_module_that_changes(name):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 4)
    compiled = burnish.compile(net)
    compiled(x).sum().backward()
    CHANGES[name](net)
    for _ in range(2):
        grads = []
        for call in (net, compiled):
            net.zero_grad()
            out = call(x)
            out.square().sum().backward()
            grads.append([out.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)])
        torch.testing.assert_close(grads[1], grads[0])


def test_lazy_modules():
    compiled = burnish.compile(nn.Sequential(nn.LazyLinear(4), nn.ReLU()))
    x = torch.randn(2, 5)
    first = compiled(x)
    torch.testing.assert_close(compiled(x), first)
    assert burnish.stats(compiled).fallbacks == () and burnish.stats(compiled).graphs


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"budget": 60.0}, {"background": True}], ids=str)
def test_lazy_weights_are_drawn_where_eager_draws_them(options):
    """After the dropout's numbers, and nothing is put back."""
    x, drawn = torch.ones(6, 5), []
    for prepare in (lambda net: net, lambda net: burnish.compile(net, **options)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Dropout(0.5), nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Sigmoid())
        called = prepare(net)
        drawn.append([called(x).detach(), called(x).detach(), torch.rand(3), *net.state_dict().values()])
    torch.testing.assert_close(drawn[1], drawn[0])


def test_averaged_weights():
    net, x = Net(), torch.randn(3, 4)
    averaged = torch.optim.swa_utils.AveragedModel(burnish.compile(net))
    for _ in range(3):
        averaged.update_parameters(net)
        torch.testing.assert_close(averaged(x), averaged.module.eager(x))


def test_copies_are_their_own():
    net, x = Net(), torch.randn(3, 4)
    compiled = burnish.compile(net)
    before = compiled(x).detach()
    copies = [copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))]
    with torch.no_grad():
        net.a.weight.add_(1)
    for each in copies:
        torch.testing.assert_close(each(x).detach(), before)


def test_export_takes_the_model_as_written():
    net, x = Net(), torch.randn(3, 4)
    compiled = burnish.compile(net)
    compiled(x)
    torch.testing.assert_close(torch.export.export(compiled, (x,)).module()(x), net(x))


def test_inference_mode():
    compiled, x = burnish.compile(Net()), torch.randn(3, 4)
    with torch.inference_mode():
        assert compiled(x).is_inference()
    assert compiled(x).requires_grad


def test_anomaly_mode_finds_what_eager_does():
    compiled = burnish.compile(torch.sqrt)
    for call in (torch.sqrt, compiled, compiled):
        x = torch.tensor([-1.0], requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            result = call(x).sum()
            with pytest.raises(RuntimeError, match="nan"):
                result.backward()


def _asserts(x):
    assert x.sum() > 0, "not positive"
    return x + 1


# What looks at values, with arguments that it takes and such as it refuses.
CHECKED = {
    "assert": (_asserts, lambda: (torch.ones(3),), lambda: (-torch.ones(3),)),
    "one_hot": (
        lambda i: torch.nn.functional.one_hot(i, 5),
        lambda: (torch.tensor([0, 4]),),
        lambda: (torch.tensor([0, 9]),),
    ),
    "binary_cross_entropy": (
        lambda x: torch.nn.functional.binary_cross_entropy(x, torch.ones_like(x)),
        lambda: (torch.full((4,), 0.5),),
        lambda: (torch.full((4,), 2.0),),
    ),
    "max_unpool1d": (
        lambda x, i: torch.nn.functional.max_unpool1d(x, i, 2),
        lambda: (torch.ones(1, 1, 2), torch.tensor([[[0, 2]]])),
        lambda: (torch.ones(1, 1, 2), torch.tensor([[[0, -1]]])),
    ),
}


@pytest.mark.parametrize("options", [{}, {"gate": False, "verify": "off"}], ids=["judged", "forced"])
@pytest.mark.parametrize("name", CHECKED)
def test_what_looks_at_values_refuses_what_eager_refuses(name, options):
    function, good, bad = CHECKED[name]
    compiled = burnish.compile(function, **options)
    with pytest.raises(Exception) as theirs:
        function(*bad())
    for _ in range(2):
        torch.testing.assert_close(compiled(*good()), function(*good()))
        with pytest.raises(theirs.type, match=str(theirs.value)[:20]):
            compiled(*bad())


class _Ring:
    """Holds itself."""

    def __init__(self):
        self.next, self.items, self.weight = self, [self], torch.ones(2)


def test_objects_that_hold_each_other():
    def function(ring, x):
        torch._dynamo.graph_break()
        return ring.next.weight * x

    compiled = burnish.compile(lambda x: function(_Ring(), x), gate=False, verify="off")
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2))
