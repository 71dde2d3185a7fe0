"""Reference evaluation of a Graph in torch: passes and schedules are tested against it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from burnish.ir.evaluate import SCATTER_REDUCE, grid_value, reduced
from burnish.ir.expr import Dim, Expr, Sym, evaluate
from burnish.ir.graph import (
    Attend,
    Concat,
    Constant,
    Contract,
    Convolve,
    Extern,
    Full,
    Gather,
    Graph,
    Input,
    Iota,
    Map,
    Node,
    Pick,
    Reduce,
    Ref,
    Scan,
    Scatter,
    View,
)
from burnish.ir.scalar import SCALAR_OPS

Tensors = tuple[torch.Tensor, ...]


def evaluate_graph(
    graph: Graph, inputs: Sequence[torch.Tensor | int | None], sizes: Mapping[str, int] | None = None
) -> list[torch.Tensor | int | None]:
    """The graph's results; inputs it mutates are changed in place, after every value has been computed."""
    sizes = sizes or {}
    values: dict[int, Tensors] = {}
    for node in graph.nodes:
        values[node.id] = evaluate_node(node, [values[x.id][0] for x in node.inputs], inputs, sizes, values)
    results: list[torch.Tensor | int | None] = []
    for out in graph.outputs:
        if isinstance(out, Node):
            results.append(values[out.id][0].clone())
        else:
            results.append(None if out is None else evaluate(out, sizes))
    written = [(target, values[value.id][0].clone()) for target, value in graph.mutations]
    for target, value in written:
        values[target.id][0].copy_(value)
    return results


def evaluate_node(
    node: Node,
    args: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor | int | None],
    sizes: Mapping[str, int],
    values: Mapping[int, Tensors],
) -> Tensors:
    """Everything a node returns. `args` are its inputs' first results; only Pick looks at the others."""
    match node.op:
        case Input(position, _):
            given = inputs[position]
            assert isinstance(given, torch.Tensor), f"argument {position} is no tensor"
            return (given,)
        case Constant(tensor, _):
            return (tensor,)
        case Pick(position):
            return (values[node.inputs[0].id][position],)
        case Extern():
            return evaluate_extern(node.op, args, sizes)
        case Attend():
            return attention(node.op, args)
    shape = [evaluate(d, sizes) for d in node.shape]
    out = _computed(node, args, shape, sizes)
    assert list(out.shape) == shape, f"{node!r} evaluates to {list(out.shape)}, its type says {shape}"
    return (out.to(node.dtype.torch),)


def _computed(node: Node, args: Sequence[torch.Tensor], shape: list[int], sizes: Mapping[str, int]) -> torch.Tensor:
    match node.op:
        case Full(value):
            held = evaluate(value, sizes) if isinstance(value, Expr) else value
            return torch.full(shape, held, dtype=node.dtype.torch)
        case Iota(axes, expr):
            return _positions((expr,), axes, shape, sizes)[0]
        case Map(fn):
            out: torch.Tensor = SCALAR_OPS[fn].reference(*args)
            return out
        case View(axes, index, fill):
            return _viewed(args[0], _positions(index, axes, shape, sizes), shape, fill)
        case Gather(axes, index):
            return args[0][tuple(_positions(index, axes, shape, sizes, args[1:]))]
        case Reduce(kind, over):
            return reduced(kind, args[0], list(over))
        case Scan(kind, axis):
            return (torch.cumsum if kind == "sum" else torch.cumprod)(args[0], axis)
        case Concat(axis):
            return torch.cat(list(args), axis)
        case Scatter():
            return _scattered(node.op, args, sizes)
        case Contract():
            wide = node.dtype.torch
            return args[0].to(wide) @ args[1].to(wide)
        case Convolve():
            return convolution(node.op, args[0].to(node.dtype.torch), args[1].to(node.dtype.torch))
    raise AssertionError(f"{node.op} has no meaning")


def _positions(
    index: Sequence[Dim],
    axes: Sequence[Sym],
    shape: Sequence[int],
    sizes: Mapping[str, int],
    tensors: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """Each index expression over the whole of `shape`; `%k` is the k-th tensor's element."""
    env: dict[str, torch.Tensor] = {k: torch.tensor(v) for k, v in sizes.items()}
    for d, axis in enumerate(axes):
        env[axis.name] = torch.arange(shape[d]).reshape([-1 if e == d else 1 for e in range(len(shape))])
    for k, tensor in enumerate(tensors):
        env[f"%{k}"] = tensor
    return [torch.as_tensor(grid_value(i, env)).broadcast_to(list(shape)) for i in index]


def _viewed(x: torch.Tensor, at: list[torch.Tensor], shape: list[int], fill: bool | int | float | None) -> torch.Tensor:
    if fill is None:
        return x[tuple(at)].broadcast_to(shape)
    inside = torch.ones(shape, dtype=torch.bool)
    for i, size in zip(at, x.shape, strict=True):
        inside &= (i >= 0) & (i < size)
    if not inside.any():
        return torch.full(shape, fill, dtype=x.dtype)
    return torch.where(inside, x[tuple(torch.where(inside, i, 0) for i in at)], torch.tensor(fill, dtype=x.dtype))


def _scattered(op: Scatter, args: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    base, src, *tensors = args
    out = base.clone(memory_format=torch.contiguous_format)
    linear = torch.zeros(src.shape, dtype=torch.int64)
    for i, size in zip(_positions(op.index, op.axes, src.shape, sizes, tensors), base.shape, strict=True):
        if bool(((i < 0) | (i >= size)).any()):
            raise IndexError(f"index out of range for a dimension of size {size}")
        linear = linear * size + i
    flat, values = out.view(-1), src.to(base.dtype).flatten()
    if op.mode == "set":
        flat[linear.flatten()] = values
    else:
        flat.scatter_reduce_(0, linear.flatten(), values, SCATTER_REDUCE[op.mode])
    return out


def convolution(op: Convolve, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(x, k, None, op.stride, op.padding, op.dilation)


def attention(op: Attend, args: Sequence[torch.Tensor]) -> Tensors:
    """softmax(q k^T * scale + mask) v and the logarithm of the softmax's denominators."""
    scores, v = _scores(op, args)
    out = torch.nan_to_num(torch.softmax(scores, -1)) @ v
    return out.to(args[0].dtype), torch.logsumexp(scores, -1)


UNSEEN = -30000.0  # no score comes back from this: masks of numbers have the least of float16 or less


def split_attention_results(op: Attend, args: Sequence[torch.Tensor], length: int) -> Tensors:
    """The same over splits of `length` keys, not yet put together: weighted values, highest scores and sums of
    weights, where a weight is 2**(score - highest) of scores in powers of two. What a mask takes UNSEEN from does not
    count."""
    scores, v = _scores(op, args)
    for mask in args[3:]:
        scores = scores if mask.dtype is torch.bool else scores.masked_fill(mask <= UNSEEN, float("-inf"))
    found = []
    for part, values in zip(torch.split(scores / math.log(2), length, -1), torch.split(v, length, -2), strict=True):
        most = part.amax(-1)
        weights = torch.exp2(part - torch.where(most.isinf(), 0.0, most)[..., None])
        found.append((weights @ values, most, weights.sum(-1)))
    return tuple(map(torch.stack, zip(*found, strict=True)))


def _scores(op: Attend, args: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, *masks = args
    if k.shape[1] != q.shape[1]:  # grouped queries share a key
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q.float() @ k.float().transpose(-1, -2) * op.scale
    scores = torch.tanh(scores / op.cap) * op.cap if op.cap else scores
    if op.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    for mask in masks:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    return scores, v.float()


def evaluate_extern(op: Extern, args: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> Tensors:
    results = op.target(*filled(op.args, args, sizes), **{k: filled(v, args, sizes) for k, v in op.kwargs})
    return tuple(results[p] for p in op.positions) if op.many else (results,) if op.positions else ()


def filled(template: Any, args: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> Any:
    """An Extern's argument with tensors and sizes in their places."""
    if isinstance(template, Ref):
        return args[template.position]
    if isinstance(template, Expr):
        return evaluate(template, sizes)
    if isinstance(template, list | tuple):
        return type(template)(filled(t, args, sizes) for t in template)
    return template
