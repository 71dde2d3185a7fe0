"""Attention as one operation: the padding of its keys must be hidden, by a mask or by causality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.ir.expr import Dim, is_nonneg
from burnish.ir.graph import Attend, Node
from burnish.shapes.analysis import Analysis
from burnish.shapes.content import FINITE_NUMBERS, MASKED, UNKNOWN, UNMASKED, Content, Need, anything, join
from burnish.shapes.reductions import subsets
from burnish.shapes.state import REAL, Digits, Region, State


@dataclass(frozen=True)
class Attention:
    """One call of scaled dot-product attention, of whichever operation."""

    q: Node
    k: Node
    v: Node
    mask: Node | None
    causal: bool


def attend(ctx: Analysis, node: Node) -> tuple[State, ...]:
    op = node.op
    assert isinstance(op, Attend)
    q, k, v, *masks = node.inputs
    return attention(ctx, node, Attention(q, k, v, masks[0] if masks else None, op.causal))


def attention(ctx: Analysis, node: Node, call: Attention) -> tuple[State, ...]:
    """The results: values of the queries' shape, then one number a query, and whatever else (not followed)."""
    q, k, v = map(ctx.state, (call.q, call.k, call.v))
    mask = None if call.mask is None else _aligned(ctx.state(call.mask), len(call.q.shape))
    operands = [q, k, v, *([] if mask is None else [mask])]
    if (spoilt := ctx.spoilt(node, operands)) is not None:
        return (spoilt, *(_other(ctx, node, i, [spoilt]) for i in range(1, len(node.types))))
    rank = len(call.q.shape)
    found = _attention_axes(ctx, call, q, k, v, mask)
    if found is None or any(map(ctx.padding.is_padded, (call.q.shape[-1], call.v.shape[-1]))):
        refused = ctx.refused(node, "attends between tensors whose padding lies in different places")
        return (refused,) * len(node.types)
    axes = found
    needs: set[Need] = set()
    hidden = [p for p in ctx.padding.places(axes) if p[0] == rank - 1]
    for region in subsets(hidden):
        why = _unseen(ctx, call, axes, region, q, k, v, mask, needs)
        if why is not None:
            label = ctx.padding.label(call.k.shape[-2])
            return (ctx.refused(node, f"attends to the padding of the dimension {label}: {why}"),) * len(node.types)
    value_axes = (*axes[:-2], axes[-2], v.axes[-1])
    contents = _attended(ctx, node, axes, value_axes, q, k, v, mask, rank)
    states = [ctx.made(node, value_axes, contents, operands, frozenset(needs))]
    for i in range(1, len(node.types)):
        if len(node.types[i].shape) == rank - 1 and tuple(node.types[i].shape) == tuple(call.q.shape[:-1]):
            rows = axes[:-1]
            sums = {r: _denominators(r, contents[r], mask) for r in ctx.padding.regions(rows)}
            states.append(ctx.made(node, rows, sums, operands, frozenset(needs)))
        else:
            states.append(_other(ctx, node, i, []))
    return tuple(states)


def _denominators(region: Region, values: Content, mask: State | None) -> Content:
    """The logarithms of the softmax's denominators: infinite where a row sees nothing."""
    if not values.is_finite:
        return UNKNOWN
    if mask is None:
        return FINITE_NUMBERS.relying(*values.needs)
    alike = all(mask.axes[axis] is None for axis, _ in region)
    if alike or mask.within(region).low > -math.inf:
        return FINITE_NUMBERS.relying(*values.needs, UNMASKED)
    return UNKNOWN


def attention_backward(
    ctx: Analysis, node: Node, call: Attention, grad: Node, saved: Sequence[Node]
) -> tuple[State, ...]:
    """Gradients of queries, keys, values. That of the result must be zero in the padding: so are these, then."""
    q, k, v, g, *held = map(ctx.state, (call.q, call.k, call.v, grad, *saved))
    mask = None if call.mask is None else _aligned(ctx.state(call.mask), len(call.q.shape))
    operands = [q, k, v, g, *held, *([] if mask is None else [mask])]
    if (spoilt := ctx.spoilt(node, operands)) is not None:
        return tuple(_other(ctx, node, i, [spoilt]) for i in range(len(node.types)))
    axes = _attention_axes(ctx, call, q, k, v, mask)
    refused = "attends between tensors whose padding lies in different places" if axes is None else None
    needs: set[Need] = set()
    if axes is not None:
        refused = _unlearnt(ctx, call, axes, q, k, v, g, held, mask, needs)
    if refused is not None:
        return (ctx.refused(node, refused),) * len(node.types)
    states: list[State] = []
    for i, state in enumerate((q, k, v)):
        contents = {
            r: Content(0.0, 0.0, needs=frozenset(needs)) if r else FINITE_NUMBERS.relying(*needs)
            for r in ctx.padding.regions(state.axes)
        }
        states.append(ctx.made(node, ctx.full_axes(node, i, state.axes), contents, operands, frozenset(needs)))
    return (*states, *(_other(ctx, node, i, []) for i in range(3, len(node.types))))


def _unlearnt(
    ctx: Analysis, call: Attention, axes: Sequence[Digits | None], q: State, k: State, v: State, g: State,
    saved: Sequence[State], mask: State | None, needs: set[Need],
) -> str | None:  # fmt: skip
    """Why the padding has a part in gradients; None if it has not."""
    for region in subsets([p for p in ctx.padding.places(axes) if p[0] == len(axes) - 1]):
        if (why := _unseen(ctx, call, axes, region, q, k, v, mask, needs)) is not None:
            return f"attends to the padding of the dimension {ctx.padding.label(call.k.shape[-2])}: {why}"
    for region, content in g.contents.items():
        if region and not content.holds(0):
            return f"gets a gradient of the padding, which holds {content}"
        needs |= content.needs if region else frozenset()
    for state in (q, k, v, *saved):
        for content in state.contents.values():
            if not content.is_finite:
                return "multiplies zero gradients of the padding with what may be infinite or NaN"
            needs |= content.needs
    return None


def _aligned(mask: State, rank: int) -> State:
    """A mask with all leading dimensions."""
    lead = rank - len(mask.axes)
    if lead == 0 or mask.mixed:
        return mask
    contents = {frozenset((a + lead, d) for a, d in r): c for r, c in mask.contents.items()}
    return State((*(None,) * lead, *mask.axes), contents, mask.needs, mask.mixed, None, mask.given)


def _other(ctx: Analysis, node: Node, position: int, spoilt: Sequence[State]) -> State:
    """A result that is not followed, such as a generator's state."""
    if any(s.mixed for s in spoilt):
        return State(tuple((d,) for d in node.types[position].shape), mixed=spoilt[0].mixed)
    if any(map(ctx.padding.is_padded, node.types[position].shape)):
        return ctx.refused(node, "has a second result that is not followed")
    return State(tuple((d,) for d in node.types[position].shape), {REAL: anything(node.types[position].dtype)})


def _attention_axes(
    ctx: Analysis, call: Attention, q: State, k: State, v: State, mask: State | None
) -> tuple[Digits | None, ...] | None:
    """The axes of the scores: batch and heads, queries, keys."""
    rank = len(call.q.shape)
    shared = [s.axes[: rank - 2] for s in (q, k, v)] + ([] if mask is None else [mask.axes[: rank - 2]])
    lead = ctx.padding.joined(_without_groups(call, shared, ctx))
    queries = ctx.padding.joined([(q.axes[-2],), *([] if mask is None else [(mask.axes[-2],)])])
    keys = ctx.padding.joined([(k.axes[-2],), (v.axes[-2],), *([] if mask is None else [(mask.axes[-1],)])])
    if lead is None or queries is None or keys is None:
        return None
    last = keys[0]
    if last is None and ctx.padding.is_padded(call.k.shape[-2]):
        last = (call.k.shape[-2],)
    first = queries[0]
    if first is None and ctx.padding.is_padded(call.q.shape[-2]):  # equal queries see different keys, if causal
        first = (call.q.shape[-2],)
    axes = (*_unpadded(ctx, lead, call.q.shape), first, last)
    return None if ctx.padding.too_many(axes) or any(len(a or ()) > 1 for a in axes[-2:]) else axes


def _unpadded(ctx: Analysis, axes: Sequence[Digits | None], shape: Sequence[Dim]) -> tuple[Digits | None, ...]:
    """Results differ along batch and heads: constant is only what all operands are constant along."""
    return tuple((d,) if a is None and not ctx.padding.is_padded(d) else a for a, d in zip(axes, shape, strict=False))


def _without_groups(
    call: Attention, shared: Sequence[Sequence[Digits | None]], ctx: Analysis
) -> list[tuple[Digits | None, ...]]:
    """Heads of keys that groups of queries share are fewer than those of the queries."""
    return [tuple(a if a is not None and any(map(ctx.padding.is_padded, a)) else None for a in axes) for axes in shared]


def _unseen(
    ctx: Analysis, call: Attention, axes: Sequence[Digits | None], region: Region,
    q: State, k: State, v: State, mask: State | None, needs: set[Need],
) -> str | None:  # fmt: skip
    """Why keys in the padding count; None if they do not. Even unseen ones are multiplied: they must be finite."""
    keys = {len(axes) - 1: len(axes) - 2}
    lead = {i: i for i in range(len(axes) - 2)}
    held, values = k.within(region, {**lead, **keys}), v.within(region, {**lead, **keys})
    queries = q.within(REAL)
    if not (held.is_finite and queries.is_finite and values.is_finite):
        return "what it holds may be infinite or NaN, which no mask hides"
    needs |= held.needs | values.needs | queries.needs
    if call.causal and is_nonneg(call.k.shape[-2] - call.q.shape[-2]) and len(axes[-1] or ()) == 1:
        return None
    if mask is None:
        return "there is no mask that hides it"
    content = mask.within(region)
    if call.mask is not None and call.mask.type.dtype is not None and not call.mask.dtype.is_float:
        if not content.holds(0):
            return f"the mask holds {content} there"
    elif not content.nan and content.high == -math.inf:
        pass
    elif not content.nan and content.high <= 2 * MASKED:
        needs |= {
            UNMASKED,
            Need("unmasked", f"no attention score reaches {-content.high / 2:.4g}, half of what hides the padding"),
        }
    else:
        return f"the mask holds {content} there"
    needs |= content.needs
    return None


def _attended(
    ctx: Analysis, node: Node, axes: Sequence[Digits | None], value_axes: Sequence[Digits | None],
    q: State, k: State, v: State, mask: State | None, rank: int,
) -> dict[Region, Content]:  # fmt: skip
    """Means of values are finite where all that goes into them is."""
    contents: dict[Region, Content] = {}
    hidden = [p for p in ctx.padding.places(axes) if p[0] == rank - 1]
    for region in ctx.padding.regions(value_axes):
        scored = frozenset(p for p in region if p[0] < rank - 1)
        parts = [q.within(scored)]
        for some in (REAL, *subsets(hidden)):
            at = frozenset(p for p in scored if p[0] < rank - 2) | some
            keys = {**{i: i for i in range(rank - 2)}, rank - 1: rank - 2}
            parts += [k.within(at, keys), v.within(at, keys)]
            if mask is not None:
                there = mask.within(scored | some)
                parts += [Content(0, 0, there.nan, needs=there.needs)]
        whole = join(parts)
        known = whole.is_finite and (mask is None or not whole.nan)
        contents[region] = FINITE_NUMBERS.relying(*whole.needs) if known else UNKNOWN
    return contents
