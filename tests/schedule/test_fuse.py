"""Fusion: known patterns become as few kernels as they should, and mean what they meant before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.fuel import Fuel
from burnish.ir.body import Apply, Instr, Load, Loop, Reduced, Store, make_axis
from burnish.ir.dtypes import DType
from burnish.ir.evaluate import evaluate_loop
from burnish.ir.expr import Expr
from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.fuse import fuse, join, unify
from burnish.schedule.kernels import AttendKernel, ContractKernel, ExternKernel
from burnish.schedule.lower import lower_graph
from tests.programs import capture, copies, schedules, sizes_of

F32 = DType.f32


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


@dataclass(frozen=True)
class Pattern:
    name: str
    fn: Callable[..., Any]
    inputs: Callable[[], Sequence[torch.Tensor]]
    forward: int  # kernels allowed
    backward: int | None = None
    dynamic: bool = False


def silu_gate(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ w) * (x @ v)


def rms_by_hand(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def train_batch_norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, var, w, training=True)


def labels() -> list[torch.Tensor]:
    return [r(6, 9), torch.randint(0, 9, (6,))]


PATTERNS = [
    Pattern("pointwise", lambda x, y: ((x * y).tanh() + x).sin() * y.exp(), lambda: [r(6, 8), r(6, 8)], 1, 1),
    Pattern("broadcast", lambda x, y: (x + y).relu() * y, lambda: [r(6, 8), r(8)], 1),
    Pattern("softmax first", lambda x: x.softmax(0), lambda: [r(6, 7, 8)], 1, 1),
    Pattern("softmax middle", lambda x: x.softmax(1), lambda: [r(6, 7, 8)], 1, 1),
    Pattern("softmax last", lambda x: x.softmax(2), lambda: [r(6, 7, 8)], 1, 1),
    Pattern("softmax of any size", lambda x: x.softmax(-1), lambda: [r(6, 7, 8)], 1, dynamic=True),
    Pattern("log_softmax", lambda x: x.log_softmax(1), lambda: [r(6, 8)], 1, 1),
    Pattern("logsumexp", lambda x: (x * 2).logsumexp(1), lambda: [r(6, 8)], 1),
    Pattern("masked softmax", lambda x, m: x.masked_fill(m > 0, -1e9).softmax(1), lambda: [r(6, 8), r(6, 8)], 1),
    Pattern("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b), lambda: [r(4, 6, 8), r(8), r(8)], 1, 2),
    Pattern("residual layer_norm", lambda x, y: F.layer_norm(x + y, (8,)), lambda: [r(6, 8), r(6, 8)], 1, 1),
    Pattern("rms_norm", lambda x, w: F.rms_norm(x, (8,), w), lambda: [r(6, 8), r(8)], 1),
    Pattern("rms_norm by hand", rms_by_hand, lambda: [r(6, 8), r(8)], 1),
    Pattern("group_norm", lambda x: F.group_norm(x, 2), lambda: [r(3, 4, 5)], 1),
    Pattern("batch_norm", lambda x, m, v: F.batch_norm(x, m, v).relu(), lambda: [r(4, 3, 5), r(3), r(3).abs()], 2),
    Pattern("batch_norm training", train_batch_norm, lambda: [r(4, 3, 5), r(3), r(3).abs(), r(3)], 3),
    Pattern("cross_entropy", lambda x, t: F.cross_entropy(x, t), labels, 2, 4),
    Pattern("several sums", lambda x: (x.sum(1), x.amax(1), x.mean(1), (x * x).sum(1)), lambda: [r(6, 8)], 1),
    Pattern("sum and map", lambda x: (x.exp().sum(1), x.exp() * 2), lambda: [r(6, 8)], 1),
    Pattern("column sums", lambda x: (x * 2).sum(0), lambda: [r(6, 8)], 1),
    Pattern("dropout", lambda x: F.dropout(x.relu(), 0.5) * 2 + 1, lambda: [r(6, 8)], 3),
    Pattern("linear", lambda x, w, b: F.linear(x, w, b), lambda: [r(6, 8), r(5, 8), r(5)], 1),
    Pattern("linear gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: [r(6, 8), r(5, 8), r(5)], 1),
    Pattern("linear gelu in a batch", lambda x, w: F.gelu(F.linear(x, w)), lambda: [r(2, 6, 8), r(5, 8)], 1),
    Pattern(
        "linear gelu of any size", lambda x, w: F.gelu(F.linear(x, w)), lambda: [r(2, 6, 8), r(5, 8)], 1, dynamic=True
    ),
    Pattern("linear residual", lambda x, w, y: F.linear(x, w) + y, lambda: [r(6, 8), r(5, 8), r(6, 5)], 1),
    Pattern("linear layer_norm", lambda x, w: F.layer_norm(F.linear(x, w), (5,)), lambda: [r(6, 8), r(5, 8)], 2),
    Pattern("gated linear", silu_gate, lambda: [r(6, 8), r(8, 5), r(8, 5)], 2),
    Pattern("cat", lambda x, y: torch.cat([x * 2, y + 1], 1), lambda: [r(6, 8), r(6, 4)], 2),
    Pattern("embedding norm", lambda t, i: F.layer_norm(t[i], (8,)), lambda: [r(9, 8), torch.arange(4)], 1),
    Pattern("step", lambda p, g: p.sub_(g * 0.1), lambda: [r(6, 8), r(6, 8)], 1),
    Pattern("transposed", lambda x: x.t().contiguous() * 2, lambda: [r(6, 8)], 1),
    Pattern("attention", lambda q: F.scaled_dot_product_attention(q, q, q), lambda: [r(1, 2, 5, 8)], 2),
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_pattern(pattern: Pattern) -> None:
    torch.manual_seed(0)
    inputs = [t.requires_grad_(pattern.backward is not None and t.is_floating_point()) for t in pattern.inputs()]
    found = capture(pattern.fn, *inputs, dynamic=pattern.dynamic)
    for got, allowed in zip(found, (pattern.forward, pattern.backward or 0), strict=False):
        sizes = sizes_of(got.captured, got.inputs)
        apart, joined = schedules(got.captured)
        assert len(joined.kernels) <= allowed, f"{got.kind}: {joined}"
        assert len(joined.kernels) <= len(apart.kernels)
        eager = after(lambda given, got=got: got.module(*given), got.inputs)
        for schedule in (apart, joined):
            ours = after(lambda given, s=schedule, sizes=sizes: evaluate_schedule(s, given, sizes), got.inputs)
            for mine, theirs in zip(ours, eager, strict=True):
                if isinstance(theirs, torch.Tensor):
                    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def after(run: Callable[[list[Any]], Sequence[Any]], inputs: Sequence[Any]) -> list[Any]:
    """Results, and the inputs as they are left."""
    given = copies(inputs)
    torch.manual_seed(1)
    return [*run(given), *given]


def test_an_epilogue_is_inside_its_contraction() -> None:
    (got,) = capture(lambda x, w, b: F.gelu(F.linear(x, w, b)), r(6, 8), r(5, 8), r(5))
    _, joined = schedules(got.captured)
    (kernel,) = joined.kernels
    assert isinstance(kernel, ContractKernel)
    assert any(isinstance(i, Apply) and i.fn == "erf" for i in kernel.loop.body)
    assert all(b.role != "temp" for b in joined.buffers.values())


def test_what_nobody_reads_is_not_stored() -> None:
    (got,) = capture(lambda x: x.softmax(1), r(6, 8))
    apart, joined = schedules(got.captured)
    assert [b.role for b in joined.buffers.values()] == ["input", "output"]
    assert sum(b.role == "temp" for b in apart.buffers.values()) == 3


def test_no_fuel_no_fusion() -> None:
    (got,) = capture(lambda x: x.softmax(1), r(6, 8))
    apart = lower_graph(got.captured)
    assert [str(k) for k in fuse(lower_graph(got.captured), Fuel(0)).kernels] == [str(k) for k in apart.kernels]
    counts = [len(fuse(lower_graph(got.captured), Fuel(units)).kernels) for units in range(4)]
    assert counts == [4, 3, 2, 1]


def test_every_amount_of_fuel_means_the_same() -> None:
    """So a bisection over it finds the one rewrite that is wrong."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = F.gelu(x @ w)
        return F.layer_norm(h, (6,)).softmax(0), h.sum(1), torch.cat([h, x[:, :2]], 1).tanh()

    inputs = [r(5, 8), r(8, 6)]
    want = fn(*inputs)
    (got,) = capture(fn, *inputs)
    for units in range(0, 12, 2):
        for mine, eager in zip(
            evaluate_schedule(fuse(lower_graph(got.captured), Fuel(units)), inputs), want, strict=True
        ):
            torch.testing.assert_close(mine, eager)


# --- joining by hand --------------------------------------------------------------------------------------------


def at(axis: Any) -> Expr:
    return Expr({(axis.sym,): 1})


def mapped(source: str, target: str, *sizes: int, shift: int = 0) -> Loop:
    axes = tuple(make_axis(f"i{d}", n) for d, n in enumerate(sizes))
    offset: Any = 0
    for a in axes:
        offset = offset * a.size + at(a)
    body: tuple[Instr, ...] = (Load(source, offset + shift, F32), Apply("neg", (0,), F32), Store(target, offset, 1))
    return Loop(axes, body)


def summed(source: str, target: str, rows: int, columns: int) -> Loop:
    i, j = make_axis("i0", rows), make_axis("i1", columns, reduce=True)
    return Loop((i, j), (Load(source, at(i) * columns + at(j), F32), Reduced("sum", 0, F32), Store(target, at(i), 1)))


def test_spaces_meet_in_their_common_refinement() -> None:
    unified = next(unify(mapped("x", "y", 12, 8), mapped("y", "z", 12, 2, 4)))
    assert [a.size for a in unified.axes] == [12, 2, 4]
    assert next(unify(mapped("x", "y", 96), mapped("y", "z", 12, 8)), None) is not None
    assert next(unify(mapped("x", "y", 6, 10), mapped("y", "z", 10, 6)), None) is None


def test_joined_where_the_offsets_agree() -> None:
    joined = join(mapped("x", "y", 12, 8), mapped("y", "z", 96))
    assert joined is not None
    assert [i.buffer for i in joined.loads] == ["x"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (mapped("x", "y", 96), mapped("y", "z", 96, shift=1)),  # a neighbour's element is not there yet
        (mapped("x", "y", 96), mapped("x", "y", 96)),  # two writers of one buffer
        (mapped("x", "y", 96, shift=1), mapped("z", "x", 96)),  # overwrites what is still to be read
        (summed("x", "y", 12, 8), mapped("y", "z", 6)),  # other rows
    ],
    ids=["shifted", "written twice", "overwritten early", "other rows"],
)
def test_apart_where_they_must_be(first: Loop, second: Loop) -> None:
    assert join(first, second) is None


def test_a_map_follows_the_sum_of_its_row() -> None:
    joined = join(summed("x", "y", 12, 8), mapped("y", "z", 12))
    assert joined is not None
    assert [a.reduce for a in joined.axes] == [False, True]
    assert joined.element_level() == [True, False, False, False, False]


def test_a_guarded_load_finds_what_was_just_made_where_it_looks() -> None:
    """A rotation reads halves of a normed row, each under a condition: the row's sum is no reason for a kernel."""
    i = make_axis("i0", 12)
    condition = (Load("seen", at(i), DType.bool), Load("y", at(i), F32, guard=0, fill=-1))
    joined = join(summed("x", "y", 12, 8), Loop((i,), (*condition, Store("z", at(i), 1))))
    assert joined is not None and "y" not in {load.buffer for load in joined.loads}
    memory = {"x": torch.randn(96), "seen": torch.rand(12) < 0.5, "y": torch.zeros(12), "z": torch.zeros(12)}
    evaluate_loop(joined, memory, {})
    torch.testing.assert_close(memory["z"], torch.where(memory["seen"], memory["x"].view(12, 8).sum(1), -1.0))


def test_aten_calls_keep_their_order() -> None:
    """Each draws from the generator: another order would give other numbers."""

    def fn(x: torch.Tensor) -> Any:
        a = torch.rand_like(x) + 1
        b = torch.rand_like(x) * 2
        return b, a

    (got,) = capture(fn, r(4))
    _, joined = schedules(got.captured)
    assert sum(isinstance(k, ExternKernel) for k in joined.kernels) == 2
    torch.manual_seed(3)
    want = fn(torch.zeros(4))
    torch.manual_seed(3)
    for mine, eager in zip(evaluate_schedule(joined, [torch.zeros(4)]), want, strict=True):
        torch.testing.assert_close(mine, eager)


def test_a_schedule_prints_what_it_does() -> None:
    (got,) = capture(lambda q: F.scaled_dot_product_attention(q, q, q) * 2, r(1, 2, 5, 8))
    _, joined = schedules(got.captured)
    assert any(isinstance(k, AttendKernel) for k in joined.kernels)
    text = str(joined)
    assert "kernel 0" in text
    assert "attend(in0" in text
    assert text.splitlines()[-1].startswith("return ")
