"""From graph to loops: what once went wrong there, each with the program that showed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.errors import CompileError
from burnish.ir.expr import floordiv, sym
from burnish.lower.symbols import Symbols
from burnish.schedule.evaluate import evaluate_schedule
from burnish.schedule.kernels import ContractKernel
from burnish.schedule.lower import _Lowerer, lower_graph
from tests.programs import capture, compiled, copies, schedules


def same_as_eager(fn: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> None:
    ours, theirs = copies(inputs), copies(inputs)
    got, want = compiled(fn, dynamic=dynamic)(*ours), fn(*theirs)
    for g, w in zip([*got, *ours], [*want, *theirs], strict=True):
        torch.testing.assert_close(g, w)
        assert g.shape == w.shape


@pytest.mark.parametrize(
    "write",
    [
        lambda x, order: x.index_copy_(0, order, x.clone()),
        lambda x, order: x.index_put_((order,), x.clone()),
        lambda x, order: x.scatter_(0, order[:, None].expand(4, 3), x.clone()),
        lambda x, order: x.index_add_(0, order, x.clone()),
    ],
    ids=["index_copy", "index_put", "scatter", "index_add"],
)
def test_an_input_scattered_over_itself_is_read_first(write: Callable[..., Any]) -> None:
    """A copy is no operation of ours, so source and target are one node: written in place, it would read new values."""

    def fn(x: torch.Tensor, order: torch.Tensor) -> Any:
        write(x, order)
        return (order + 1,)

    same_as_eager(fn, torch.randn(4, 3), torch.tensor([1, 2, 3, 0]))


@pytest.mark.parametrize("more", [1, 2])
def test_an_updated_cache_copied_into_other_inputs(more: int) -> None:
    """One node is the new value of several inputs, and in place of only one of them."""

    def fn(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, *others: torch.Tensor) -> Any:
        cache.index_copy_(0, at, new)
        for other in others:
            other.copy_(cache)
        return (new + 1,)

    others = [torch.randn(5, 3) for _ in range(more)]
    same_as_eager(fn, torch.randn(5, 3), torch.tensor([1, 4]), torch.randn(2, 3), *others)


def test_a_read_of_an_input_already_overwritten_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a plan says about writing in place, a kernel that would read the old value after it is never made."""

    def reckless(lowerer: Any) -> None:
        lowerer.in_place = {v.id: t for t, v in lowerer.graph.mutations}

    def fn(x: torch.Tensor, at: torch.Tensor) -> Any:
        old = x.sum()
        x.index_copy_(0, at, torch.ones(2, 3))
        return old, x.sum()

    (got,) = capture(fn, torch.randn(5, 3), torch.tensor([1, 4]))
    monkeypatch.setattr(_Lowerer, "_plan_in_place", reckless)
    lower_graph(got.captured)  # the sum comes first: this order is a right one

    def late(x: torch.Tensor, at: torch.Tensor) -> Any:
        old = x * 2
        x.index_copy_(0, at, torch.ones(2, 3))
        return (x.sum() + old.sum(),)

    (got,) = capture(late, torch.randn(5, 3), torch.tensor([1, 4]))
    with pytest.raises(CompileError, match="read after it was overwritten"):
        lower_graph(got.captured)


def test_a_cache_update_still_writes_in_place() -> None:
    def fn(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> Any:
        cache.index_copy_(0, at, new * 2)
        return (new + 1,)

    inputs = [torch.randn(10, 3), torch.tensor([4, 7]), torch.randn(2, 3)]
    (got,) = capture(fn, *copies(inputs))
    _, joined = schedules(got.captured)
    assert not any(b.role == "temp" and b.shape == (10, 3) for b in joined.buffers.values())
    same_as_eager(fn, *inputs)


@pytest.mark.parametrize("strides", [(1, 0), (0, 1), (5, 1)])
def test_reductions_of_nothing(strides: tuple[int, int]) -> None:
    """Where a stride is 0 the offset is constant: hoisted out of a loop that never runs, the load would be astray."""

    def fn(x: torch.Tensor) -> Any:
        return x.sum(), x.prod(), (x > 0).any(), (x > 0).all(), x.sum(1), x.sum(0), x.amax(1)

    same_as_eager(fn, torch.empty(0).as_strided((0, 5), strides))


def test_a_result_of_nothing_that_an_aten_call_reads() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y.sort(0)[0]

    same_as_eager(fn, torch.empty(0, 3))


def test_what_only_an_empty_result_needs_is_not_computed() -> None:
    def fn(x: torch.Tensor) -> Any:
        v = x.var()
        return (torch.cat([v + x[:0], x[:0]]),)

    (got,) = capture(fn, torch.randn(6))
    apart, joined = schedules(got.captured)
    assert apart.kernels == joined.kernels == []
    same_as_eager(fn, torch.randn(6))


def test_where_the_only_element_lies_needs_nothing_computed() -> None:
    """A load that nothing uses kept its writer, whose store fusion then dropped: a loop that stores nothing."""
    (entry,) = capture(lambda x: ((x @ x.mT).softmax(-1).argmin(1),), torch.randn(1, 5), device="cuda")
    schedule = lower_graph(entry.captured)
    assert [k.reads for k in schedule.kernels] == [set()]


def test_a_product_nobody_wants() -> None:
    """The position of a single element's maximum is 0, whatever the product is."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return ((x @ y).sum(0).argmax(0),)

    inputs = [torch.randn(1, 4), torch.randn(4, 1)]
    (got,) = capture(fn, *inputs)
    _, joined = schedules(got.captured)
    assert not any(isinstance(k, ContractKernel) for k in joined.kernels)
    same_as_eager(fn, *inputs)


def test_an_input_with_an_offset_of_any_size() -> None:
    """A result that is a view of an argument is found by the argument's offset, which is a symbol too."""

    def fn(x: torch.Tensor) -> Any:
        return x * 2, x.t(), x[1:]

    for start in (3, 7):
        same_as_eager(fn, torch.randn(40)[start : start + 20].view(5, 4), dynamic=True)


def test_a_size_binds_only_the_symbol_it_is() -> None:
    symbols = Symbols()
    n = sym("s0", 2)
    symbols.bind_tensor(0, (floordiv(n, 2), n * 2), (1, 1), 0)
    assert symbols.sources == {}
    symbols.bind_tensor(1, (3, n), (n, 1), 0)
    assert symbols.sources == {"s0": (1, "size", 1)}


@pytest.mark.parametrize("strides", [(0, 1), (1, 0)])
def test_values_that_differ_never_get_one_place(strides):
    """Tracing may take a result for a view of an expanded argument where eager makes a tensor of its own."""
    x = torch.randn(3, 4)
    (entry,) = capture(lambda x: x * 2, x)
    entry.captured.graph.output_layouts[0] = strides
    (found,) = evaluate_schedule(lower_graph(entry.captured), [x])
    assert torch.equal(found, x * 2)


def test_windows_that_overlap_and_are_computed_are_eagers():
    (entry,) = capture(lambda x: x * 2, torch.randn(3, 4))
    entry.captured.graph.output_layouts[0] = (1, 1)
    with pytest.raises(CompileError, match="share memory"):
        lower_graph(entry.captured)


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.expand(5, 3, 4),
        lambda y: y.unfold(1, 3, 1),
        lambda y: y[:1].expand(6, 4),
        lambda y: F.pad(y, [-1, 1]).unsqueeze(-1).expand(3, 4, 2),
    ],
    ids=["expanded", "windows", "row", "padded"],
)
def test_results_that_repeat_elements_are_laid_out_as_in_eager(view):
    x = torch.randn(3, 4)
    (entry,) = capture(lambda x: view((x * 2).cumsum(0)), x)
    (found,) = evaluate_schedule(lower_graph(entry.captured), [x])
    assert found.stride() == view((x * 2).cumsum(0)).stride()
