"""What compiled code takes for granted of its inputs holds, or eager serves the call: each assumption is violated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.assumptions import Assumptions, NumberInput, OtherInput, TensorInput
from burnish.ir.expr import sym
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.host.checks import native_check
from burnish.runtime.host.extension import Host, host_library

CPU = torch.device("cpu")
FORCED = {"gate": False, "verify": "off"}


@pytest.fixture(scope="module")
def host() -> Host:
    log = CompileLog()
    found = host_library(Options(), log)
    if found is None:
        pytest.skip(f"no native host path: {log.notices}")
    return found


def _tensor(name: str, *shape: Any, **facts: Any) -> TensorInput:
    strides = facts.pop("strides", None)
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step = size * step
    return TensorInput(name, "Tensor", facts.pop("dtype", torch.float32), CPU, shape, tuple(strides), **facts)


ROWS = sym("s0", 2)
STATED = Assumptions(
    (
        NumberInput("n", ROWS),
        _tensor("x", ROWS, 4, written=True),
        _tensor("w", 4, 4),
        OtherInput("flag"),
        _tensor("p", 3, offset=2),
        _tensor("y", ROWS, sym("s1", 2), strides=(sym("s2", 1), sym("s3", 1)), written=True),
    )
)


def _inputs(**others: Any) -> list[Any]:
    memory = torch.arange(64.0)
    values = {
        "n": 3,
        "x": torch.ones(3, 4),
        "w": torch.ones(4, 4),
        "flag": None,
        "p": memory[2:5],
        "y": torch.ones(3, 5),
        **others,
    }
    return list(values.values())


MEMORY = torch.arange(64.0)
VIOLATIONS: dict[str, dict[str, Any]] = {
    "a size that another input does not have": {"n": 4},
    "a size below the least": {"n": 1, "x": torch.ones(1, 4), "y": torch.ones(1, 5)},
    "other strides": {"w": torch.ones(4, 4).t()},
    "other strides of a size that is not fixed": {"x": torch.ones(4, 3).t()},
    "another type": {"w": torch.ones(4, 4, dtype=torch.float64)},
    "another number of dimensions": {"w": torch.ones(4, 4, 1)},
    "more dimensions than are noted in the tensor": {"w": torch.ones(1, 1, 1, 1, 4, 4)},
    "a size that is fixed": {"w": torch.ones(4, 5)},
    "negated": {"w": torch._neg_view(torch.ones(4, 4))},
    "a float for a size": {"n": 3.0},
    "nothing for a tensor": {"w": None},
    "a tensor for nothing": {"flag": torch.ones(1)},
    "sparse": {"w": torch.ones(4, 4).to_sparse()},
    "a subclass": {"w": torch.ones(4, 4).as_subclass(type("Own", (torch.Tensor,), {}))},
    "another device": {"w": torch.ones(4, 4, device="meta")},
    "a written input that overlaps": {"x": MEMORY[:12].view(3, 4), "w": MEMORY[8:24].view(4, 4)},
    "a written input inside another": {"x": MEMORY[4:16].view(3, 4), "w": MEMORY[:16].view(4, 4)},
    "a written input whose elements share memory": {"y": MEMORY.as_strided((3, 4), (2, 1))},
    "another place in the storage": {"p": MEMORY[3:6]},
}
MET: dict[str, dict[str, Any]] = {
    "as stated": {},
    "another size": {"n": 5, "x": torch.ones(5, 4), "y": torch.ones(5, 6)},
    "a parameter": {"w": nn.Parameter(torch.ones(4, 4))},
    "rows that lie apart": {"y": MEMORY.as_strided((3, 4), (9, 2))},
    "side by side in one storage": {"x": MEMORY[:12].view(3, 4), "w": MEMORY[12:28].view(4, 4)},
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_named(name):
    assert STATED.unmet(_inputs(**VIOLATIONS[name]))


@pytest.mark.parametrize("name", VIOLATIONS)
@pytest.mark.parametrize("first", [False, True], ids=["unseen", "after a call that fits"])
def test_a_violation_is_seen_natively(host, name, first):
    check = native_check(STATED, host)
    if first:
        assert check.hold(_inputs())
    assert not check.hold(_inputs(**VIOLATIONS[name]))


@pytest.mark.parametrize("name", MET)
def test_what_fits_is_let_through(host, name):
    check = native_check(STATED, host)
    assert check.hold(_inputs()) and check.hold(_inputs(**MET[name])) and not STATED.unmet(_inputs(**MET[name]))


def test_inputs_that_come_to_overlap_are_seen(host):
    check = native_check(STATED, host)
    apart = {"x": MEMORY[:12].view(3, 4), "w": MEMORY[12:28].view(4, 4)}
    over = {"x": MEMORY[:12].view(3, 4), "w": MEMORY[8:24].view(4, 4)}
    found = [check.hold(_inputs(**given)) for given in (apart, over, apart, over, over)]
    assert found == [True, False, True, False, False]


def test_gradients_count_where_they_are_recorded(host):
    check = native_check(Assumptions((_tensor("w", 4, requires_grad=True),), records_gradients=True), host)
    assert [check.hold([torch.ones(4, requires_grad=grad)]) for grad in (True, False)] == [True, False]


def test_a_changed_parameter_is_seen(host):
    check = native_check(Assumptions((_tensor("w", 4, 4),)), host)
    weight = nn.Parameter(torch.ones(4, 4))
    assert check.hold([weight])
    weight.data = torch.ones(2, 4)
    assert not check.hold([weight])


def test_they_are_printed():
    assert "x     float32[s0, 4] by (4, 1) on cpu, lies apart from the others" in str(STATED).splitlines()


# -- compiled functions -------------------------------------------------------------------------------------------


def _agrees(fn: Callable[..., Any], calls: list[Callable[[], tuple[Any, ...]]], **options: Any) -> Any:
    """Each call's arguments are made twice, for eager and for the compiled function: what it writes is compared."""
    compiled = burnish.compile(fn, options={**FORCED, **options})
    for make in calls:
        theirs, ours = make(), make()
        want, got = fn(*theirs), compiled(*ours)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours, theirs)
    return burnish.stats(compiled)


def _views(first: slice, second: slice) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        memory = torch.arange(64.0) / 7
        return memory[first], memory[second]

    return make


APART, OVER, OTHERWISE = (
    _views(slice(0, 32), slice(32, 64)),
    _views(slice(0, 32), slice(16, 48)),
    _views(slice(20, 52), slice(8, 40)),
)


@pytest.mark.parametrize("order", [(APART, OVER, OTHERWISE), (OVER, APART, OTHERWISE), (OVER, OTHERWISE, APART)])
def test_written_inputs_that_overlap(order):
    def both(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y

    stats = _agrees(both, list(order))
    assert stats.compiles == 1 and stats.variants[0].unmet == 2


def test_inputs_that_overlap_and_are_only_read():
    stats = _agrees(lambda x, y: x * 2 + y, [OVER, APART, OTHERWISE])
    assert stats.compiles == 1 and stats.variants[0].unmet == 0


def test_offsets_that_an_operation_counts_from():
    memory = torch.arange(64.0)
    calls = [lambda at=at: (memory[at : at + 10],) for at in (0, 5, 1)]
    stats = _agrees(lambda x: x.as_strided((3,), (1,), 2) * 2, calls)
    assert stats.variants[0].unmet == 2


@pytest.mark.parametrize("at", [0, 3, 32])
def test_views_of_intermediates_count_from_their_storage(at):
    def fn(x):
        return (x + 1)[at % 4 :].as_strided((3,), (1,), 1) * 2

    _agrees(fn, [lambda: (torch.arange(10.0),), lambda: (torch.arange(40.0)[5:15],)])


@pytest.mark.parametrize("made", [lambda x: x, lambda x: x * 2], ids=["input", "intermediate"])
@pytest.mark.parametrize("offset", [None, 3])
def test_windows_beyond_a_view_and_within_what_it_is_of(made, offset):
    memory = torch.arange(96.0).reshape(12, 8)

    def fn(x):
        return made(x).t()[1:].as_strided((3, 4), (4, 1), offset) * 2

    stats = _agrees(fn, [lambda at=at: (memory[at : at + 6],) for at in (0, 1, 3)])
    assert not stats.fallbacks


@pytest.mark.parametrize("make", [torch._neg_view, lambda x: torch.complex(x, x).conj().imag])
def test_inputs_whose_memory_holds_their_negatives(make):
    plain = torch.arange(8.0) + 1
    stats = _agrees(lambda x: ((x * 2).sin(), x + 1), [lambda: (plain,), lambda: (make(plain),), lambda: (plain,)])
    assert stats.compiles == 2


def test_negatives_of_another_input():
    def both():
        plain = torch.arange(8.0) + 1
        return plain, torch._neg_view(plain)

    _agrees(lambda x, y: (x + 1, y * 2, x - y), [both, lambda: both()[::-1], both])


class _Negating(nn.Module):
    """Blocks between which negatives are passed on: `regions` compiles such a block once."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(torch._neg_view(torch.relu(x) + x))
        return x


def test_negatives_passed_from_block_to_block():
    net, x = _Negating(), torch.randn(4, 8)
    compiled = burnish.compile(net, gate=False, verify="off")
    torch.testing.assert_close(compiled(x), net(x))


def test_negatives_inside_a_graph():
    def fn(x):
        return (x * 2).conj().imag * 3, (x.conj() + 1).imag.abs()

    _agrees(fn, [lambda: (torch.complex(torch.arange(6.0), torch.arange(6.0) - 2),)])


def _gradients(model: Any, net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


SLICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda z: z[32:48],
    "columns": lambda z: z[:16].repeat(1, 2)[:, 64:],
    "a window of the middle": lambda z: z[3:67:4],
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("first", [False, True], ids=["first", "after fresh ones"])
def test_gradients_of_slices(name, first):
    import copy

    data = torch.randn(256, 64)
    eager = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
    net = copy.deepcopy(eager)
    compiled = burnish.compile(net, options=FORCED)
    xs = [data[:16].clone()] * 2 if first else []
    for x in (*xs, SLICES[name](data), data[16:32].clone(), SLICES[name](data)):
        torch.testing.assert_close(_gradients(compiled, net, x), _gradients(eager, eager, x))


def test_gradients_of_slices_through_a_convolution():
    import copy

    data = torch.randn(8, 3, 12, 12)
    eager = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    net = copy.deepcopy(eager)
    compiled = burnish.compile(net, options=FORCED)
    for x in (data[:2].clone(), data[2:4], data[5:7], data[:2, :, 1:, 1:]):
        torch.testing.assert_close(_gradients(compiled, net, x), _gradients(eager, eager, x))


# -- what tracing says of operations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [lambda x: x.unbind(-1)[2], lambda x: x.split(2)[1], lambda x: x.chunk(2)[0]],
    ids=["unbind", "split", "chunk"],
)
def test_one_of_several_views_of_an_input_is_a_view(fn):
    x = torch.randn(4, 4, requires_grad=True) * 1
    got = burnish.compile(fn, options=FORCED)(x)
    assert got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_an_operation_that_returns_another_type_than_tracing_says():
    """Of bfloat16 statistics, tracing says float32."""
    import copy

    eager = nn.BatchNorm1d(3).bfloat16()
    net = copy.deepcopy(eager)
    x = torch.randn(5, 3).bfloat16()
    burnish.compile(net, options=FORCED)(x)
    eager(x)
    torch.testing.assert_close(dict(net.named_buffers()), dict(eager.named_buffers()))


_COMPLEX = torch.randn(9, dtype=torch.complex64)[2:7]
_REAL = torch.randn(9)[2:7]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: x[1:], torch._neg_view(_REAL)),
        (lambda x: x[1:], _COMPLEX.conj()),
        (lambda x: torch._neg_view(x)[1:], _REAL),
        (lambda x: x.conj()[1:], _COMPLEX),
        (lambda x: x.conj().imag[1:], _COMPLEX),
        (lambda x: torch.view_as_real(x)[1:], _COMPLEX),
        (lambda x: x.view(torch.int32)[1:], _REAL),
    ],
)
def test_a_result_that_shows_an_inputs_memory_in_another_way(fn, x, dynamic):
    """The storage begins before the input does."""
    ours, theirs = burnish.compile(fn, dynamic=dynamic, gate=False, verify="off")(x), fn(x)
    same_memory = ours.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(ours, theirs) and same_memory and ours.is_neg() == theirs.is_neg()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_that_views_an_input_which_the_call_changes(dynamic, grad):
    """The storage begins before the input does."""

    def fn(w, x):
        scaled = x * w
        x[1:] = 3
        return scaled, x.unsqueeze(-1).expand(*x.shape, 2)

    c = burnish.compile(fn, dynamic=dynamic, gate=False, verify="off")
    (w, x), (v, y) = ((torch.ones(4, requires_grad=grad), torch.arange(20.0)[16:]) for _ in range(2))
    ours, theirs = c(w, x)[1], fn(v, y)[1]
    assert torch.equal(ours, theirs) and ours.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize("n", [8, 9])
@pytest.mark.parametrize("size", [1, 2])
def test_what_is_written_through_windows_leaves_the_rest_as_it_is(n, size):
    def fn(x, y):
        y = y + 1
        for t in (x, y):
            t.unfold(0, size, 2)[..., 0] = 0
        return y * 2

    c = burnish.compile(fn, **FORCED)
    (x, y), (v, w) = ((torch.arange(1.0, n + 1), torch.arange(1.0, n + 1)) for _ in range(2))
    assert torch.equal(c(x, y), fn(v, w)) and torch.equal(x, v)


def test_what_is_written_through_a_window_whose_elements_share_memory():
    def fn(x):
        y = x + 1
        y.as_strided((2, 6), (1, 1)).div_(3)
        return y

    c, x = burnish.compile(fn, **FORCED), torch.arange(7.0)
    assert torch.equal(c(x), fn(x))
    assert "share memory" in burnish.stats(c).fallbacks[0].reason


def test_an_input_of_zeros_that_lie_in_no_memory():
    c = burnish.compile(lambda x: x + 1, gate=False, verify="off")
    c(torch.zeros(4))
    assert torch.equal(c(torch._efficientzerotensor(4)), torch.ones(4))


def test_a_sealed_input_of_zeros_that_lie_in_no_memory():
    c = burnish.compile(lambda x: x + 1, gate=False, verify="off")
    c(torch.zeros(4))
    burnish.seal(c)
    assert torch.equal(c(torch._efficientzerotensor(4)), torch.ones(4))


def _windows(*layouts: tuple[tuple[int, int], tuple[int, int]]) -> list[Any]:
    return [lambda shape=shape, by=by: (torch.arange(1.0, 200.0).as_strided(shape, by),) for shape, by in layouts]


@pytest.mark.parametrize(
    "layouts",
    [
        [((4, 5), (3, 1)), ((6, 5), (3, 1))],
        [((4, 5), (7, 1)), ((6, 9), (7, 1))],
        [((4, 4), (1, 1)), ((5, 5), (1, 1))],
    ],
    ids=["rows that overlap", "rows that come to overlap", "one step for both"],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_written_input_of_any_size_whose_elements_share_memory(layouts, sealed):
    def fn(x):
        x.mul_(2).add_(1)
        return x.sum()

    c = burnish.compile(fn, dynamic=True, **FORCED)
    c(torch.ones(3, 8)[:, :5])
    if sealed:
        burnish.seal(c)
    for make in _windows(*layouts):
        (ours,), (theirs,) = make(), make()
        assert torch.equal(c(ours), fn(theirs)) and torch.equal(ours, theirs)


@pytest.mark.parametrize("by", [(0, 1), (1, 1)], ids=["expanded", "unfolded"])
def test_gradients_through_a_view_of_memory_that_elements_share(by):
    def fn(x):
        return x.unsqueeze(-1).expand(*x.shape, 2)

    gradients = []
    for call in (fn, burnish.compile(fn, dynamic=True, **FORCED)):
        x = torch.arange(20.0).as_strided((4, 5), by).detach().requires_grad_()
        call(x).backward(torch.arange(40.0).reshape(4, 5, 2))
        gradients.append(x.grad)
    assert torch.equal(*gradients)
