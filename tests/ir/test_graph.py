"""Graphs: verification notices what is wrong, and evaluation agrees with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.ir.dtypes import DType
from burnish.ir.expr import sym
from burnish.ir.graph import (
    Attend,
    Full,
    Gather,
    Graph,
    Input,
    Map,
    Node,
    Reduce,
    Scatter,
    TensorType,
    View,
    axes_for,
    axis_exprs,
)
from burnish.ir.reference import evaluate_graph
from tests.programs import capture, copies, sizes_of

F32 = DType.f32


def tensor(*shape: int, dtype: DType = F32) -> TensorType:
    return TensorType(dtype, shape)


def graph_with(*shapes: tuple[int, ...]) -> tuple[Graph, list[Node]]:
    graph = Graph()
    nodes = [graph.add(Input(k, ()), (), tensor(*shape)) for k, shape in enumerate(shapes)]
    graph.inputs = list(nodes)
    return graph, nodes


# --- construction and verification ------------------------------------------------------------------------------


def test_equal_nodes_are_one() -> None:
    graph, (x,) = graph_with((3,))
    assert graph.add(Map("exp"), [x], tensor(3)) is graph.add(Map("exp"), [x], tensor(3))
    assert graph.add(Full(0.0), (), tensor(3)) is not graph.add(Full(-0.0), (), tensor(3))
    assert graph.add(Full(1), (), tensor(3, dtype=DType.i64)) is not graph.add(Full(True), (), tensor(3))


def test_dead_nodes_go_and_inputs_stay() -> None:
    graph, (x, y) = graph_with((3,), (3,))
    graph.add(Map("exp"), [x], tensor(3))
    graph.outputs = [graph.add(Map("neg"), [x], tensor(3))]
    graph.eliminate_dead()
    assert [type(n.op) for n in graph.nodes] == [Input, Input, Map]
    assert y in graph.nodes
    graph.verify()


def bad_shapes(graph: Graph, x: Node, y: Node) -> None:
    graph.add(Map("add"), [x, y], x.type)


def bad_arity(graph: Graph, x: Node, y: Node) -> None:
    graph.add(Map("add"), [x], x.type)


def unknown_op(graph: Graph, x: Node, y: Node) -> None:
    graph.add(Map("frobnicate"), [x], x.type)


def index_leaves_source(graph: Graph, x: Node, y: Node) -> None:
    axes = axes_for((6,))
    graph.add(View(axes, (axis_exprs(axes)[0],)), [x], tensor(6))


def index_of_wrong_rank(graph: Graph, x: Node, y: Node) -> None:
    axes = axes_for((4,))
    graph.add(View(axes, (0, axis_exprs(axes)[0])), [x], tensor(4))


def axes_of_wrong_size(graph: Graph, x: Node, y: Node) -> None:
    axes = axes_for((3,))
    graph.add(View(axes, (axis_exprs(axes)[0],)), [x], tensor(4))


def gather_of_wrong_rank(graph: Graph, x: Node, y: Node) -> None:
    graph.add(Gather(axes_for((4,)), (sym("%0"), 0)), [x, x], tensor(4))


def scatter_axes_of_base(graph: Graph, x: Node, y: Node) -> None:
    graph.add(Scatter(axes_for((4,)), (sym("%0"),), "set"), [x, y, y], x.type)


def reduce_to_wrong_shape(graph: Graph, x: Node, y: Node) -> None:
    graph.add(Reduce("sum", (0,)), [x], tensor(4))


def unknown_reduction(graph: Graph, x: Node, y: Node) -> None:
    graph.add(Reduce("median", (0,)), [x], tensor())


def use_before_definition(graph: Graph, x: Node, y: Node) -> None:
    graph.add(Map("neg"), [x], x.type)
    graph.nodes.reverse()


def result_elsewhere(graph: Graph, x: Node, y: Node) -> None:
    graph.outputs = [Graph().add(Full(1.0), (), tensor(2))]
    graph.outputs[0].id = 99  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "spoil",
    [
        bad_shapes, bad_arity, unknown_op, index_leaves_source, index_of_wrong_rank, axes_of_wrong_size,
        gather_of_wrong_rank, scatter_axes_of_base, reduce_to_wrong_shape, unknown_reduction, use_before_definition,
        result_elsewhere,
    ],
)  # fmt: skip
def test_verify_refuses(spoil: Callable[[Graph, Node, Node], None]) -> None:
    graph, (x, y) = graph_with((4,), (3,))
    graph.verify()
    spoil(graph, x, y)
    with pytest.raises(AssertionError):
        graph.verify()


def test_padding_may_leave_its_source() -> None:
    graph, (x,) = graph_with((4,))
    axes = axes_for((6,))
    graph.outputs = [graph.add(View(axes, (axis_exprs(axes)[0] - 1,), 7.0), [x], tensor(6))]
    graph.verify()
    (got,) = evaluate_graph(graph, [torch.arange(4.0)])
    assert torch.equal(got, torch.tensor([7.0, 0, 1, 2, 3, 7]))


def test_printed_form_names_every_node() -> None:
    graph, (x, y) = graph_with((2, 3), (2,))
    total = graph.add(Reduce("sum", (1,)), [x], tensor(2))
    graph.outputs = [graph.add(Map("add"), [total, y], tensor(2)), sym("s0"), None]
    assert str(graph).splitlines() == [
        "%0: f32[2, 3] = input(0, strides=[])",
        "%1: f32[2] = input(1, strides=[])",
        "%2: f32[2] = sum(%0, over=[1])",
        "%3: f32[2] = add(%2, %1)",
        "return %3, s0, None",
    ]


# --- evaluation -------------------------------------------------------------------------------------------------


def elementwise(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.where(x > y, x.exp(), y.tanh() * 2), (x * y).to(torch.int64), x.isnan() | (y < 0)


def views(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.t().reshape(-1)[1::3].flip(0), y.unfold(1, 2, 1), x.roll(2, 1), y.expand(2, 4, 6), x.diagonal(1)


def reductions(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.sum((0, 1)), x.amax(0), y.argmin(1, keepdim=True), x.var(1), (y > 0).any(0), x.prod(1), y.logsumexp(1)


def products(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x @ y.t(), torch.bmm(x.unsqueeze(0), y.t().unsqueeze(0)), F.linear(x, y, y[:, 0])


def rearranged(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cat([x, y * 2], 1), F.pad(x, (1, 2, 0, 1), value=3.0), torch.stack([x, y]), x.tril(1)


def indexed(x: torch.Tensor, y: torch.Tensor) -> Any:
    at = torch.tensor([2, 0, 2])
    return x[at], x.index_add(0, at, y[:3]), x.gather(1, at.expand(4, 3)), x.index_put((at,), y[0] * 0 + 1)


def scanned(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.cumsum(0), y.cumprod(1), torch.arange(5).cumsum(0)


def called(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.sort(1), torch.linalg.svdvals(x @ y.t() + torch.eye(4) * 9), x.topk(2, 1)


def normalised(x: torch.Tensor, y: torch.Tensor) -> Any:
    return F.layer_norm(x, (6,), y[0]), x.softmax(0), F.gelu(y), F.batch_norm(x, y[0], y[1].abs())


FUNCTIONS = [elementwise, views, reductions, products, rearranged, indexed, scanned, called, normalised]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_evaluation_is_eager(fn: Callable[..., Any]) -> None:
    inputs = [torch.randn(4, 6), torch.randn(4, 6)]
    (got,) = capture(fn, *inputs)
    got.captured.graph.verify()
    results = evaluate_graph(got.captured.graph, got.inputs)
    want = torch.utils._pytree.tree_leaves(fn(*inputs))
    assert len(results) == len(want)
    for r, w in zip(results, want, strict=True):
        torch.testing.assert_close(r, w)


def test_evaluation_with_symbolic_sizes() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x @ y).reshape(-1).softmax(0), x.transpose(0, 1).flatten(), x.mean(0) + y.shape[0]

    (got,) = capture(fn, torch.randn(4, 6), torch.randn(6, 5), dynamic=True)
    for m, k, n in ((4, 6, 5), (3, 2, 7)):
        tensors = [torch.randn(m, k), torch.randn(k, n)]
        results = evaluate_graph(got.captured.graph, tensors, sizes_of(got.captured, tensors))
        for r, w in zip(results, fn(*tensors), strict=True):
            torch.testing.assert_close(r, w)


def test_backward_graphs_evaluate() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    w = torch.randn(6, requires_grad=True)
    forward, backward = capture(lambda x, w: F.layer_norm(x, (6,), w).tanh(), x, w)
    assert (forward.kind, backward.kind) == ("forward", "backward")
    results = evaluate_graph(backward.captured.graph, backward.inputs)
    for r, leaf in zip(results, (x, w), strict=True):
        torch.testing.assert_close(r, leaf.grad)


def test_mutations_come_last() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        old = x * 2
        x.copy_(y)
        y.add_(old)
        return old, x + 1

    inputs = [torch.randn(5), torch.randn(5)]
    ours, eager = copies(inputs), copies(inputs)
    (got,) = capture(fn, *copies(inputs))
    results = evaluate_graph(got.captured.graph, ours)
    for r, w in zip(results, fn(*eager), strict=False):
        torch.testing.assert_close(r, w)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b)


def test_attention_evaluates() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    inputs = [torch.randn(1, 2, 5, 8) for _ in range(3)]
    (got,) = capture(fn, *inputs)
    assert any(isinstance(n.op, Attend) for n in got.captured.graph.nodes)
    (result,) = evaluate_graph(got.captured.graph, got.inputs)
    torch.testing.assert_close(result, fn(*inputs))
