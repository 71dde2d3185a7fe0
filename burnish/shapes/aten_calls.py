"""ATen calls that the graph has no operation for: a table of those whose rows, images or elements are independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from burnish.ir.expr import Dim, Expr
from burnish.ir.graph import Extern, Node, Ref, View, axes_for, axis_exprs
from burnish.shapes.analysis import Analysis
from burnish.shapes.attention import Attention, attention, attention_backward
from burnish.shapes.content import FINITE_NUMBERS, LARGEST, UNKNOWN, Content, Need, anything, join
from burnish.shapes.reductions import product
from burnish.shapes.state import REAL, Digits, Region, State
from burnish.shapes.views import surrounded

Arguments = Mapping[str, Any]


def extern(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Extern)
    name = op.target._schema.name.split("::")[1]
    given = _arguments(op)
    if name in _ATTENTION and not given.get("dropout_p"):
        return _attention(ctx, node, given)
    if name in _ATTENTION_BACKWARD and not given.get("dropout_p"):
        return _attention_backward(ctx, node, given)
    if draws(op) and (ctx.drawn or _is_touched(ctx, node, op)):
        ctx.drawn = True
        return _refused(ctx, node, "draws random numbers, as many as the padded size: others follow in the stream")
    if (spoilt := ctx.spoilt(node, [ctx.state(x) for x in node.inputs])) is not None:
        return tuple(State(tuple((d,) for d in t.shape), mixed=spoilt.mixed) for t in node.types)
    if not _is_touched(ctx, node, op):
        return _untouched(ctx, node)
    if (handler := _HANDLERS.get(name)) is not None:
        return handler(ctx, node, given)
    if torch.Tag.pointwise in op.target.tags and not _mentions(ctx, (op.args, op.kwargs)):
        return _elementwise(ctx, node)
    return _refused(ctx, node, "is not known to keep padding apart")


def _untouched(ctx: Analysis, node: Node) -> tuple[State, ...]:
    """A call that padding does not reach."""
    operands = [ctx.state(x) for x in node.inputs]
    every = [ctx.axes_as(node, i) for i in range(len(node.types))]
    return tuple(ctx.made(node, axes, ctx.unknown(node, axes, i), operands) for i, axes in enumerate(every))


def draws(op: Extern) -> bool:
    return torch.Tag.nondeterministic_seeded in op.target.tags


def surely_draws(op: Extern) -> bool:
    """Attention does not without dropout."""
    name = op.target._schema.name.split("::")[1]
    return draws(op) and not (name in _ATTENTION | _ATTENTION_BACKWARD and not _arguments(op).get("dropout_p"))


def _arguments(op: Extern) -> dict[str, Any]:
    names = [a.name for a in op.target._schema.arguments]
    defaults = {a.name: a.default_value for a in op.target._schema.arguments if a.has_default_value()}
    return {**defaults, **dict(zip(names, op.args, strict=False)), **dict(op.kwargs)}


def _refused(ctx: Analysis, node: Node, reason: str) -> tuple[State, ...]:
    first = ctx.refused(node, reason)
    return tuple(State(tuple((d,) for d in t.shape), mixed=first.mixed) for t in node.types)


def _is_touched(ctx: Analysis, node: Node, op: Extern) -> bool:
    """Whether a padded size or a padded tensor goes in, or a padded one comes out."""
    shapes = [d for t in node.types for d in t.shape] + [d for x in node.inputs for d in x.shape]
    return any(map(ctx.padding.is_padded, shapes)) or _mentions(ctx, (op.args, op.kwargs))


def _mentions(ctx: Analysis, value: Any) -> bool:
    if isinstance(value, Expr):
        return ctx.padding.is_padded(value)
    return isinstance(value, list | tuple) and any(_mentions(ctx, v) for v in value)


def _node(node: Node, value: Any) -> Node | None:
    return node.inputs[value.position] if isinstance(value, Ref) else None


# --- element by element -----------------------------------------------------------------------------------------


def _elementwise(ctx: Analysis, node: Node) -> tuple[State, ...]:
    rank = len(node.shape)
    operands = [ctx.state(x) for x in node.inputs]
    axes = ctx.padding.joined([_broadcast(s, x.shape, node.shape) for s, x in zip(operands, node.inputs, strict=True)])
    if axes is None or any(len(t.shape) != rank for t in node.types):
        return _refused(ctx, node, "combines tensors whose padding lies in different places")
    return tuple(ctx.made(node, axes, ctx.unknown(node, axes, i), operands) for i in range(len(node.types)))


def _broadcast(x: State, shape: Sequence[Dim], out: Sequence[Dim]) -> tuple[Digits | None, ...]:
    lead = len(out) - len(shape)
    own = [None if size == 1 and out[lead + a] != 1 else x.axes[a] for a, size in enumerate(shape)]
    return (*(None,) * lead, *own)


def _slice_backward(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    """A gradient with zeros around it."""
    (grad,), dim, start = node.inputs, given["dim"], given["start"]
    if given["step"] != 1 or not isinstance(dim, int) or not isinstance(start, int) or start < 0:
        return _refused(ctx, node, "is not known to keep padding apart")
    axes = axes_for(node.shape)
    index = tuple(e - start if d == dim % len(axes) else e for d, e in enumerate(axis_exprs(axes)))
    return (surrounded(ctx, node, View(axes, index, 0.0), grad),)


def _range(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    """arange of floats."""
    if _mentions(ctx, [given.get("start"), given.get("step")]):
        return _refused(ctx, node, "starts or steps by a padded size")
    axes = ctx.axes_as(node)
    numbers = Content(-LARGEST, LARGEST) if node.types[0].dtype is not None and node.dtype.is_float else UNKNOWN
    return (ctx.made(node, axes, dict.fromkeys(ctx.padding.regions(axes), numbers)),)


# --- products ---------------------------------------------------------------------------------------------------


def _mm(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    a, b = node.inputs[given["self"].position], _node(node, given.get("mat2"))
    if b is None:
        return _refused(ctx, node, "is not known to keep padding apart")
    return (product(ctx, node, ctx.state(a), ctx.state(b), a.shape, b.shape),)


def _addmm(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    a, b = (_node(node, given.get(one) or given.get(other)) for one, other in (("mat1", "batch1"), ("mat2", "batch2")))
    bias = _node(node, given["self"])
    if a is None or b is None or bias is None:
        return _refused(ctx, node, "is not known to keep padding apart")
    made = product(ctx, node, ctx.state(a), ctx.state(b), a.shape, b.shape)
    extra = ctx.state(bias)
    if (spoilt := ctx.spoilt(node, [made, extra])) is not None:
        return (spoilt,)
    lead = len(node.shape) - len(bias.shape)
    axes = ctx.padding.joined([made.axes, _broadcast(extra, bias.shape, node.shape)])
    if axes is None:
        return _refused(ctx, node, "combines tensors whose padding lies in different places")
    moved = {i + lead: i for i in range(len(bias.shape)) if bias.shape[i] == node.shape[i + lead]}
    contents: dict[Region, Content] = {}
    for region in ctx.padding.regions(axes):
        parts = join((made.within(region), extra.within(region, moved)))
        contents[region] = FINITE_NUMBERS.relying(*parts.needs) if parts.is_finite else anything(node.types[0].dtype)
    return (ctx.made(node, axes, contents, [made, extra]),)


# --- attention --------------------------------------------------------------------------------------------------


def _attention(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    q, k, v = (_node(node, given[name]) for name in ("query", "key", "value"))
    mask = _node(node, given.get("attn_mask", given.get("attn_bias")))
    assert q is not None and k is not None and v is not None
    return attention(ctx, node, Attention(q, k, v, mask, bool(given.get("is_causal"))))


def _attention_backward(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    grad, q, k, v, out, sums = (
        _node(node, given.get(name, given.get(f"{name}_")))
        for name in ("grad_out", "query", "key", "value", "out", "logsumexp")
    )
    mask = _node(node, given.get("attn_mask", given.get("attn_bias")))
    if grad is None or q is None or k is None or v is None or out is None or sums is None:
        return _refused(ctx, node, "is not known to keep padding apart")
    call = Attention(q, k, v, mask, bool(given.get("is_causal")))
    return attention_backward(ctx, node, call, grad, [out, sums])


_ATTENTION_BACKWARD = frozenset(
    """
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward
    """.split()
)
_ATTENTION = frozenset(
    """
    scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    """.split()
)


# --- rows and images --------------------------------------------------------------------------------------------


def _along(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    """Of one tensor, along some of its dimensions, which are not padded: rows are independent."""
    source = _node(node, given.get("self", given.get("input")))
    if source is None or len(node.inputs) != 1 or _mentions(ctx, [v for k, v in given.items() if k != "self"]):
        return _refused(ctx, node, "is not known to keep padding apart")
    rank, dims = len(source.shape), given.get("dim")
    over = list(range(rank)) if dims is None or dims == [] else dims if isinstance(dims, list | tuple) else [dims]
    over = [d % max(rank, 1) for d in over]
    for d in over:
        if d < rank and ctx.padding.is_padded(source.shape[d]):
            label = ctx.padding.label(source.shape[d])
            return _refused(ctx, node, f"works along the padded dimension {label}, whose padding counts as real")
    return _per_row(ctx, node, ctx.state(source), over)


def _per_row(ctx: Analysis, node: Node, x: State, over: Sequence[int]) -> tuple[State, ...]:
    states = []
    for i, t in enumerate(node.types):
        if len(t.shape) == len(x.axes):
            axes = tuple((d,) if a in over else x.axes[a] for a, d in enumerate(t.shape))
        elif len(t.shape) == len(x.axes) - len(over):
            axes = tuple(digits for a, digits in enumerate(x.axes) if a not in over)
        else:
            return _refused(ctx, node, "is not known to keep padding apart")
        states.append(ctx.made(node, axes, ctx.unknown(node, axes, i), [x]))
    return tuple(states)


def _running(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    """A scan: what comes before the padding does not depend on it."""
    (source,), dim = node.inputs, given.get("dim")
    x = ctx.state(source)
    if not isinstance(dim, int) or len(x.axes[dim % len(source.shape)] or ()) > 1:
        return _refused(ctx, node, "runs over a dimension that is padded within")
    return _per_row(ctx, node, x, [dim % len(source.shape)])


def _images(rank: int) -> Callable[[Analysis, Node, Arguments], tuple[State, ...]]:
    def handle(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
        (source, *others), lead = node.inputs, len(node.inputs[0].shape) - rank
        spatial = [*source.shape[lead:], *node.shape[lead:]]
        if others or any(map(ctx.padding.is_padded, spatial)):
            label = ctx.padding.label(next((d for d in spatial if ctx.padding.is_padded(d)), 0)) or "of an image"
            return _refused(ctx, node, f"reads windows over the padded dimension {label}")
        return _per_row(ctx, node, ctx.state(source), range(lead, lead + rank))

    return handle


def _convolution(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    x, k, bias = (_node(node, given[name]) for name in ("input", "weight", "bias"))
    assert x is not None and k is not None
    others = [ctx.state(n) for n in (k, bias) if n is not None]
    if any(map(ctx.padding.is_padded, (*k.shape, x.shape[1]))) or len(x.shape) != len(k.shape):
        return _refused(ctx, node, "has padded channels or weights")
    state, needs = ctx.state(x), set[Need]()
    axes: list[Digits | None] = [state.axes[0], (node.shape[1],)]
    for d in range(2, len(x.shape)):
        axes.append((node.shape[d],))
        if not ctx.padding.is_padded(x.shape[d]):
            continue
        label = ctx.padding.label(x.shape[d])
        if given["transposed"]:
            return _refused(ctx, node, f"spreads the padding of {label} over real elements")
        if len(state.axes[d] or ()) > 1:
            return _refused(ctx, node, "convolves a dimension that is padded within")
        if not state.whole.is_finite:  # kernels transform neighbours together
            return _refused(ctx, node, f"convolves over {label}, whose padding may hold infinities or NaN")
        needs |= state.whole.needs
        if given["padding"][(d - 2) % len(given["padding"])] == 0:
            continue
        for region in (r for r in state.contents if (d, 0) in r) if state.axes[d] is not None else [REAL]:
            if not state.at(region).holds(0):
                return _refused(
                    ctx, node, f"convolves over the end of the padded dimension {label}, whose padding holds "
                    f"{state.at(region)} and not the zeros that it puts there itself",
                )  # fmt: skip
            needs |= state.at(region).needs
    whole = join([state.whole, *(s.whole for s in others)])
    content = FINITE_NUMBERS.relying(*whole.needs) if whole.is_finite else UNKNOWN
    contents = dict.fromkeys(ctx.padding.regions(axes), content)
    return (ctx.made(node, axes, contents, [state, *others], frozenset(needs)),)


def _statistics(ctx: Analysis, node: Node, given: Arguments) -> tuple[State, ...]:
    """A norm over the batch, in training."""
    label = ctx.padding.label(node.inputs[0].shape[0] * 1) or "that is padded"
    return _refused(ctx, node, f"takes the mean and variance over the dimension {label}, padding included")


_ROW_WISE = """
    sort argsort topk kthvalue median mode var std var_mean std_mean _softmax _log_softmax logsumexp argmax argmin
    amax amin max min linalg_vector_norm norm prod any all nansum count_nonzero
""".split()
_WINDOWS = """
    max_pool{0}d_with_indices avg_pool{0}d adaptive_avg_pool{0}d _adaptive_avg_pool{0}d adaptive_max_pool{0}d
    reflection_pad{0}d replication_pad{0}d upsample_nearest{0}d
""".split()
_SMOOTH = (
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
)

_HANDLERS: dict[str, Callable[[Analysis, Node, Arguments], tuple[State, ...]]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "convolution": _convolution,
    "arange": _range,
    "slice_backward": _slice_backward,
    "_native_batch_norm_legit_functional": _statistics,
    "native_batch_norm": _statistics,
    **dict.fromkeys(_ROW_WISE, _along),
    **dict.fromkeys(("cummax", "cummin", "logcumsumexp", "cumsum", "cumprod"), _running),
    **{name.format(rank): _images(rank) for name in _WINDOWS for rank in (1, 2, 3)},
    **{name: _images(1 if "1d" in name else 2) for name in _SMOOTH},
}
