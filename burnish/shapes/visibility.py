"""Whether a NaN that comes from the padding can be seen in the results.

A proof may need that what lies in the padding is finite (`FINITE`): it is multiplied by zero. A call checks that in its
results, which is sound if each real element is either right or NaN. Where padding meets real elements, zero times what
is not finite makes a NaN. Most operations keep it: of operands of which some are NaN instead of what they should be,
they make NaN, or what they make in any case. Those that do not (`x > 0`, a cast to whole numbers, the place of the
greatest, the least two) make numbers that are wrong and look right: results of theirs need `unseen`, which nobody can
guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from burnish.ir.dtypes import DType
from burnish.ir.graph import Extern, Map, Node, Reduce
from burnish.shapes.analysis import Analysis
from burnish.shapes.content import FINITE, Content, Need, anything
from burnish.shapes.state import State

Transfer = Callable[[Analysis, Node], tuple[State, ...]]

# Of NaN these make a number. `copysign` takes the sign of one, which nobody knows.
_NUMBERS_OF_NAN = frozenset("eq ne lt le gt ge isnan isinf sign fmax fmin copysign".split())
_LOGIC = frozenset("not invert and or xor".split())
# The others are NaN wherever an operand is. (1 to the power of NaN is 1.)
_NOT_ALWAYS_NAN = _NUMBERS_OF_NAN | frozenset("where pow hypot".split())
# Calls whose results are NaN, or what they are in any case. Of their results only those that are floats.
_KEEP_NAN = frozenset(
    """
    mm bmm addmm baddbmm convolution arange slice_backward _softmax _log_softmax logsumexp var std var_mean std_mean
    amax amin max min median linalg_vector_norm norm prod sum mean cumsum cumprod logcumsumexp cummax cummin
    native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _fft_r2c _fft_c2r _fft_c2c lstm gru mkldnn_rnn_layer
    scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward
    erfinv digamma lerp frac logaddexp logaddexp2 xlogy addcmul addcdiv special_i0 special_i0e special_i1 special_i1e
    upsample_linear1d upsample_bilinear2d upsample_bicubic2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    """.split()
) | {
    f"{name}{rank}d{rest}"
    for rank in (1, 2, 3)
    for name, rest in (
        ("max_pool", "_with_indices"),
        ("avg_pool", ""),
        ("adaptive_avg_pool", ""),
        ("_adaptive_avg_pool", ""),
        ("adaptive_max_pool", ""),
        ("reflection_pad", ""),
        ("replication_pad", ""),
        ("upsample_nearest", ""),
    )
}
_DEEPEST = 12  # operations that a choice is followed through


def visible(ctx: Analysis, node: Node, transfer: Transfer) -> tuple[State, ...]:
    """The states that `transfer` finds, with the needs of what would hide a NaN."""
    if isinstance(node.op, Map) and node.op.fn == "where" and _shows(ctx, node):
        with _not_hiding(ctx, node.inputs[:1]):
            return transfer(ctx, node)
    states = transfer(ctx, node)
    if isinstance(node.op, Map) and node.op.fn in _LOGIC and any(x.id in ctx.unhidden for x in node.inputs):
        with _not_hiding(ctx, node.inputs):
            ctx.unhidden[node.id] = transfer(ctx, node)
    hiding = [_hides(node, k) for k in range(len(states))]
    if not any(hiding):
        return states
    ctx.unhidden[node.id] = states
    relies = any(FINITE in ctx.state(x).needs for x in node.inputs)
    return tuple(
        _hidden(ctx, node, k, s, relies) if h else s for k, (s, h) in enumerate(zip(states, hiding, strict=True))
    )


def _hides(node: Node, position: int) -> bool:
    """Whether a result may be a number that is wrong, where an operand is NaN instead of what it should be."""
    if not any(map(_is_float, (x.type.dtype for x in node.inputs))):
        return False
    op, out = node.op, node.types[position].dtype
    if isinstance(op, Map):
        return op.fn in _NUMBERS_OF_NAN or (op.fn == "cast" and not _is_float(out))
    if isinstance(op, Reduce):
        return not _is_float(out) or op.kind in ("any", "all")
    if isinstance(op, Extern):
        return not _is_float(out) or not _keeps_nan(op)
    return False


def _is_float(dtype: DType | None) -> bool:
    """Types that are not followed are complex."""
    return dtype is None or dtype.is_float


def _keeps_nan(op: Extern) -> bool:
    name = op.target._schema.name.split("::")[1]
    orders: tuple[Any, ...] = (*op.args[1:2], *dict(op.kwargs).values())
    if name in ("linalg_vector_norm", "norm") and any(type(each) in (int, float) and each == 0 for each in orders):
        return False  # which counts what is not zero
    return name in _KEEP_NAN


def _hidden(ctx: Analysis, node: Node, position: int, state: State, relies: bool) -> State:
    if state.mixed:
        return state
    line = ctx.facts.lines.get(node.id, "")
    operation = f"{node.origin or type(node.op).__name__.lower()}{f' ({line})' if line else ''}"
    unseen = Need(
        "unseen", f"{operation} makes numbers of a NaN: one from the padding could not be seen in the results"
    )
    contents = {region: _claimed(node, position, content, unseen) for region, content in state.contents.items()}
    return replace(state, contents=contents, needs=state.needs | {unseen} if relies else state.needs)


def _claimed(node: Node, position: int, content: Content, unseen: Need) -> Content:
    """That a number is one of its type needs nothing."""
    every = anything(node.types[position].dtype)
    if (content.low, content.high, content.nan) == (every.low, every.high, every.nan):
        return every
    return content.relying(unseen) if FINITE in content.needs else content


# --- choices --------------------------------------------------------------------------------------------------------


def _shows(ctx: Analysis, node: Node) -> bool:
    """Whether a choice, `where(x > 0, x, exp(x) - 1)`, is NaN where what decides it is."""
    cond, *branches = node.inputs
    if cond.id not in ctx.unhidden:
        return False
    deciding = set(_deciding(ctx, cond))
    return bool(deciding) and all(_spreads(branch, x, 0) for branch in branches for x in deciding)


def _deciding(ctx: Analysis, node: Node) -> Iterable[Node]:
    """What a truth value is computed of, element by element, and relies on finite numbers."""
    open_, seen = [node], set()
    while open_:
        each = open_.pop()
        if each.id in seen:
            continue
        seen.add(each.id)
        if isinstance(each.op, Map):
            open_ += each.inputs
            continue
        state = ctx.state(each)
        if FINITE in state.needs or any(FINITE in content.needs for content in state.contents.values()):
            yield each


def _spreads(node: Node, source: Node, depth: int) -> bool:
    """Whether a node is NaN wherever another is, of which it is computed element by element."""
    if node is source:
        return True
    if not isinstance(node.op, Map) or depth > _DEEPEST:
        return False
    if node.op.fn == "where":
        return all(_spreads(x, source, depth + 1) for x in node.inputs[1:])
    if node.op.fn in _NOT_ALWAYS_NAN or not _is_float(node.type.dtype):
        return False
    return any(_spreads(x, source, depth + 1) for x in node.inputs)


@contextmanager
def _not_hiding(ctx: Analysis, nodes: Iterable[Node]) -> Any:
    """With the states of these nodes as if they hid nothing, because what uses them shows it."""
    kept = {x.id: ctx.states[x.id] for x in nodes if x.id in ctx.unhidden}
    ctx.states.update((id_, ctx.unhidden[id_]) for id_ in kept)
    try:
        yield
    finally:
        ctx.states.update(kept)
