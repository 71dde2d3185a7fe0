"""Fusion: join kernels that share data, so that it stays in registers or in a row's scratch memory.

Two loops join if their iteration spaces can be unified (`unify`) so that every element of the first's results that the
second reads has the same offset expression as the store, and so was computed at the same point. A result without other
readers is then not stored.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from burnish.fuel import Fuel
from burnish.ir.body import (
    Apply,
    Axis,
    BodyBuilder,
    Instr,
    Load,
    Loop,
    Store,
    const,
    instr_index,
    make_axis,
    prune,
    rebuild,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, coefficient, floordiv, mod, product, substitute, symbols
from burnish.schedule.fusion_report import FusionReport, Refusal
from burnish.schedule.kernels import ExternKernel, Kernel, LoopKernel, Product, Schedule, with_loop
from burnish.schedule.order import dependences, require_kept
from burnish.schedule.splice import Written, splice

_MOST_INSTRS = 400
_MOST_BUFFERS = 32
_FEW_ROWS = 8  # fewer rows than this leave threads idle: large element-wise work stays outside such a reduction
_LARGE = 1 << 16


@dataclass(frozen=True)
class Unified:
    """One iteration space for two loops: the axes, and each loop's own axes in terms of them."""

    axes: tuple[Axis, ...]
    first: dict[str, Dim]
    second: dict[str, Dim]


def unify(a: Loop, b: Loop) -> Iterator[Unified]:
    """The ways to unify two iteration spaces, most specific first."""
    a_reduces, b_reduces = bool(a.reduction), bool(b.reduction)
    whole = _refine(a.axes, b.axes, free_a=not a_reduces, free_b=not b_reduces)
    if whole is not None:
        yield whole
    if a_reduces and not b_reduces:  # b works on a's rows
        rows = _refine(a.parallel, b.axes, True, True)
        if rows is not None:
            yield _with_reduction(rows, a, first=True)
    if b_reduces and not a_reduces:
        rows = _refine(a.axes, b.parallel, True, True)
        if rows is not None:
            yield _with_reduction(rows, b, first=False)


def _with_reduction(rows: Unified, owner: Loop, first: bool) -> Unified:
    """Restore the positions of the owner's reduction axes, so that later loops still match axis by axis."""
    mine = rows.first if first else rows.second
    kept = {a.name: a for a in rows.axes}
    axes: list[Axis] = []
    renamed: dict[str, Dim] = {}
    owned: dict[str, Dim] = {}
    for axis in owner.axes:
        if axis.reduce:
            axes.append(make_axis(f"i{len(axes)}", axis.size, True))
            owned[axis.name] = axes[-1].expr
            continue
        for s in sorted({x.name for x in symbols(mine[axis.name])}, key=list(kept).index):
            axes.append(make_axis(f"i{len(axes)}", kept[s].size))
            renamed[s] = axes[-1].expr
    moved = [{k: substitute(v, renamed) for k, v in side.items()} for side in (rows.first, rows.second)]
    moved[0 if first else 1].update(owned)
    return Unified(tuple(axes), moved[0], moved[1])


def _refine(first: tuple[Axis, ...], second: tuple[Axis, ...], free_a: bool, free_b: bool) -> Unified | None:
    """Split the axes of both into a common sequence: [128, 768] and [128, 12, 64] have the latter as common
    refinement."""
    axes: list[Axis] = []
    factors_a: list[list[Axis]] = [[] for _ in first]
    factors_b: list[list[Axis]] = [[] for _ in second]
    i = j = 0
    left_a: Dim = first[0].size if first else 1
    left_b: Dim = second[0].size if second else 1
    while i < len(first) and j < len(second):
        factor = left_a if left_a == left_b else _common(left_a, left_b)
        if factor is None:
            return None
        reduce_a, reduce_b = first[i].reduce, second[j].reduce
        if reduce_a != reduce_b and not (free_a or free_b):
            return None
        axis = make_axis(f"i{len(axes)}", factor, reduce_b if free_a else reduce_a)
        axes.append(axis)
        factors_a[i].append(axis)
        factors_b[j].append(axis)
        left_a, left_b = _quotient(left_a, factor), _quotient(left_b, factor)
        if left_a == 1:
            i += 1
            left_a = first[i].size if i < len(first) else 1
        if left_b == 1:
            j += 1
            left_b = second[j].size if j < len(second) else 1
    if i < len(first) or j < len(second):
        return None
    return Unified(tuple(axes), _joined(first, factors_a), _joined(second, factors_b))


def _common(a: Dim, b: Dim) -> Dim | None:
    """The leading factor, split off first, is the smaller of the two if it divides the larger."""
    for small, large in ((a, b), (b, a)):
        if small != 0 and floordiv(large, small) * small == large:
            return small
    return None


def _quotient(x: Dim, factor: Dim) -> Dim:
    return 1 if x == factor else floordiv(x, factor)


def _joined(axes: tuple[Axis, ...], factors: list[list[Axis]]) -> dict[str, Dim]:
    out: dict[str, Dim] = {}
    for axis, parts in zip(axes, factors, strict=True):
        value: Dim = 0
        for p in parts:
            value = value * p.size + p.expr
        out[axis.name] = value
    return out


# --- joining two loops ------------------------------------------------------------------------------------------


def join(a: Loop, b: Loop, pseudo: str | None = None, why: list[str] | None = None) -> Loop | None:
    """`a` then `b` as one loop, or None; then `why` gets the reason. `pseudo` names a contraction's accumulator (no
    row structure allowed)."""
    why = [] if why is None else why
    why.append("their loops do not lie on one another: other sizes, or rows reduced differently")
    for unified in unify(a, b):
        if pseudo is not None and any(x.reduce for x in unified.axes):
            why.append("a product's tiles cannot be reduced over as they are finished")
            continue
        joined = _join_under(a, b, unified, why)
        if joined is not None:
            return joined
    return None


def _join_under(a: Loop, b: Loop, u: Unified, why: list[str]) -> Loop | None:
    body = BodyBuilder()
    rebuild(a.body, u.first, body)
    written = Written(body.instrs)

    def stored(load: Load) -> int | None:
        value = written.value(load)
        if value is None:
            why.append(f"the second reads {load.buffer} elsewhere than where the first has just written it")
            return None
        return value if load.guard is None else _if_seen(body, load, value)

    if splice(body, b.body, u.second, written, stored) is None:
        return None
    if len(body.instrs) > _MOST_INSTRS:
        why.append(f"together they have more than {_MOST_INSTRS} instructions")
        return None
    loop = Loop(u.axes, tuple(body.instrs))
    if len({x.buffer for x in loop.loads} | {x.buffer for x in loop.stores}) > _MOST_BUFFERS:
        why.append(f"together they use more than {_MOST_BUFFERS} buffers")
        return None
    hazard = loop.hazard()
    if hazard is not None:
        why.append(hazard)
        return None
    return loop


def _if_seen(body: BodyBuilder, load: Load, value: int) -> int:
    """The value of a guarded load, if it reads this stored value."""
    assert load.guard is not None
    fill = float(load.fill) if load.dtype.is_float else load.fill
    other = body.emit(const(fill, load.dtype.compute))
    return body.emit(Apply("where", (load.guard, value, other), load.dtype.compute))


# --- the pass ---------------------------------------------------------------------------------------------------


def fuse(
    schedule: Schedule, fuel: Fuel | None = None, report: FusionReport | None = None, only_products: bool = False
) -> Schedule:
    """`report` is filled with the joined pairs and the refusals. `only_products` joins products with what follows them
    and leaves the rest for a later round."""
    return _Fuser(schedule, fuel or Fuel(), report or FusionReport()).run(only_products)


class _Fuser:
    def __init__(self, schedule: Schedule, fuel: Fuel, report: FusionReport) -> None:
        self.schedule = schedule
        self.fuel = fuel
        self.report = report
        self.kernels: dict[int, Kernel] = dict(enumerate(schedule.kernels))
        self.members: dict[int, tuple[int, ...]] = {k: (k,) for k in self.kernels}
        self.position = {k: k for k in self.kernels}
        self.line: list[int | None] = list(self.kernels)  # an order that keeps all dependences, with gaps
        self.place = {k: k for k in self.kernels}  # kernel -> its place in `line`
        self.touched = {k: {*kernel.reads, *kernel.writes} for k, kernel in self.kernels.items()}
        self.earlier = dependences(schedule.kernels)
        self.before: dict[int, set[int]] = defaultdict(set)
        self.after: dict[int, set[int]] = defaultdict(set)
        self.readers: dict[str, set[int]] = defaultdict(set)
        self.writers: dict[str, set[int]] = defaultdict(set)
        self._connect()
        self.results = schedule.result_buffers

    def _connect(self) -> None:
        for k, kernel in self.kernels.items():
            for name in kernel.reads:
                self.readers[name].add(k)
            for name in kernel.writes:
                self.writers[name].add(k)
            for d in self.earlier[k]:
                self.before[k].add(d)
                self.after[d].add(k)

    def run(self, only_products: bool = False) -> Schedule:
        for contracts_only in (True,) if only_products else (True, False):
            for k in sorted(self.kernels, key=lambda k: self.position[k]):
                if k in self.kernels:
                    self._absorb_producers(k, contracts_only)
        if not only_products:
            self._join_siblings()
        order = self._ordered()
        require_kept(self.earlier, [self.members[k] for k in order])
        self._write_report(order)
        return self.schedule.with_kernels([self.kernels[k] for k in order])

    def _absorb_producers(self, k: int, contracts_only: bool) -> None:
        changed = True
        while changed:
            changed = False
            reads = self.kernels[k].reads
            producers = {p for name in reads for p in self.writers[name] if p in self.before[k]}
            for p in sorted(producers, key=lambda p: -self.position[p]):
                if contracts_only and not isinstance(self.kernels[p], Product):
                    continue
                if self._merge(p, k):
                    changed = True
                    break

    def _merge(self, p: int, k: int) -> bool:
        first, second = self.kernels[p], self.kernels[k]
        why: list[str] = []
        merged = _join_kernels(first, second, why)
        if merged is None:
            return self._refuse(p, k, why[-1])
        following = None if p in self.after[k] else self._following(p, k)
        if following is None:
            return self._refuse(p, k, "another kernel has to run between them")
        if not self._worthwhile(first, second, merged):
            return self._refuse(p, k, f"a loop of fewer than {_FEW_ROWS} rows would leave threads idle")
        if not self.fuel.spend(f"fuse: {_named(self.members[p])} + {_named(self.members[k])}"):
            return self._refuse(p, k, "the fuel is out")
        self._reorder(p, k, following)
        self._replace(p, k, merged)
        self.members[k] = (*self.members.pop(p), *self.members[k])
        return True

    def _refuse(self, p: int, k: int, reason: str) -> bool:
        self.report.considered[p, k] = reason
        return False

    def _write_report(self, order: list[int]) -> None:
        place = {k: n for n, k in enumerate(order)}
        self.report.members = [tuple(sorted(self.members[k])) for k in order]
        for (p, k), reason in self.report.considered.items():
            if p in place and k in place:  # both still exist: kernels that were joined otherwise are not refusals
                first, second = self.kernels[p], self.kernels[k]
                shared = (first.reads | first.writes) & second.reads
                self.report.refused.append(Refusal(place[p], place[k], tuple(sorted(shared)), reason))

    def _worthwhile(self, first: Kernel, second: Kernel, merged: LoopKernel | Product) -> bool:
        """Element-wise work over many elements must not be fused into a reduction with too few rows for parallelism."""
        loop = merged.loop
        if not loop.reduction or (not loop.parallel and _static(product([a.size for a in loop.axes])) < _LARGE):
            return True
        rows = _static(product([a.size for a in loop.parallel]))
        if rows >= _FEW_ROWS or _static(product([a.size for a in loop.axes])) < _LARGE:
            return True
        both_reduce = all(isinstance(x, LoopKernel) and x.loop.reduction for x in (first, second))
        row_work = all(
            isinstance(x, LoopKernel) and _static(product([a.size for a in x.loop.parallel])) == rows
            for x in (first, second)
        )
        return both_reduce or row_work

    def _following(self, p: int, k: int) -> set[int] | None:
        """The kernels between the two that depend on the first, and so must follow the joined kernel. None if the
        second depends on one of them. (`line` is an order that keeps all dependences, so other kernels do not matter.)
        """
        first, last = sorted((p, k), key=self.place.__getitem__)
        end = self.place[last]
        found: set[int] = set()
        stack = [n for n in self.after[first] if self.place[n] < end]
        while stack:
            n = stack.pop()
            if n in found:
                continue
            found.add(n)
            if last in self.after[n]:
                return None
            stack.extend(m for m in self.after[n] if self.place[m] < end)
        return found

    def _reorder(self, p: int, k: int, following: set[int]) -> None:
        """The line with p and k merged as k: before the kernels that must follow them, after the others between
        them."""
        first, last = sorted((self.place[p], self.place[k]))
        between = [n for n in self.line[first + 1 : last] if n is not None]
        moved = [*(n for n in between if n not in following), k, *(n for n in between if n in following)]
        start = last + 1 - len(moved)
        self.line[first:start] = [None] * (start - first)
        for at, n in enumerate(moved, start):
            self.line[at], self.place[n] = n, at
        del self.place[p]

    def _replace(self, p: int, k: int, merged: LoopKernel | Product) -> None:
        for n in self.before[p]:
            self.after[n].discard(p)
            if n != k:
                self.after[n].add(k)
                self.before[k].add(n)
        for n in self.after[p]:
            self.before[n].discard(p)
            if n != k:
                self.before[n].add(k)
                self.after[k].add(n)
        self.before[k].discard(p)
        self.after[k].discard(p)
        del self.kernels[p]
        for name in self.touched[p]:
            for members in (self.readers[name], self.writers[name]):
                if p in members:
                    members.discard(p)
                    members.add(k)
        self.touched[k] |= self.touched.pop(p)
        kept = self._without_dead_stores(k, merged)
        self.kernels[k] = kept
        for name in self.touched[k] - kept.reads:
            self.readers[name].discard(k)

    def _without_dead_stores(self, k: int, merged: LoopKernel | Product) -> LoopKernel | Product:
        def needed(s: Store) -> bool:
            buffer = self.schedule.buffers[s.buffer]
            elsewhere = (self.readers[s.buffer] | self.writers[s.buffer]) - {k}
            return buffer.role == "input" or s.buffer in self.results or bool(elsewhere)

        loop = merged.loop
        dropped = {s.buffer for s in loop.stores if not needed(s)}
        body = [i for i in loop.body if isinstance(i, Store) and i.buffer in dropped]
        if not body:
            return merged
        kept = Loop(loop.axes, prune(_without(loop, dropped)), loop.sequential)
        if isinstance(merged, Product) and not any(i.buffer == merged.acc for i in kept.loads):
            return LoopKernel(kept)  # the product has no reader
        return with_loop(merged, kept)

    def _join_siblings(self) -> None:
        """Join kernels over the same space that read the same data: one pass over it instead of several."""
        by_space: dict[object, list[int]] = defaultdict(list)
        for k in sorted(self.kernels, key=lambda k: self.position[k]):
            kernel = self.kernels[k]
            if isinstance(kernel, LoopKernel) and not kernel.loop.sequential:
                by_space[tuple((a.size, a.reduce) for a in kernel.loop.axes)].append(k)
        for members in by_space.values():
            head: list[int] = []
            for k in members:
                for h in head:
                    if self._shares_reads(h, k) and self._merge(h, k):
                        head.remove(h)
                        break
                head.append(k)

    def _shares_reads(self, a: int, b: int) -> bool:
        space = product([x.size for x in self.kernels[a].loop.axes])  # type: ignore[union-attr]
        shared = self.kernels[a].reads & self.kernels[b].reads
        return any(n in self.schedule.buffers and self.schedule.buffers[n].elements == space for n in shared)

    def _ordered(self) -> list[int]:
        waiting = {k: len(self.before[k]) for k in self.kernels}
        ready = [(self.position[k], k) for k, n in waiting.items() if n == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, k = heapq.heappop(ready)
            order.append(k)
            for n in self.after[k]:
                waiting[n] -= 1
                if waiting[n] == 0:
                    heapq.heappush(ready, (self.position[n], n))
        assert len(order) == len(self.kernels), "fusion made a cycle"
        return order


def _without(loop: Loop, dropped: set[str]) -> list[Instr]:
    """The body less the stores to `dropped`; values keep their numbers because a constant takes the place."""
    hole = const(False, DType.bool)
    return [hole if isinstance(i, Store) and i.buffer in dropped else i for i in loop.body]


def _join_kernels(first: Kernel, second: Kernel, why: list[str]) -> LoopKernel | Product | None:
    if isinstance(first, LoopKernel) and isinstance(second, LoopKernel):
        if first.loop.sequential or second.loop.sequential or first.loop.scans or second.loop.scans:
            why.append("a scatter or a running sum keeps the order of its iterations")
            return None
        loop = join(first.loop, second.loop, why=why)
        return None if loop is None else LoopKernel(loop)
    if isinstance(first, Product) and isinstance(second, LoopKernel):
        return _join_contract(first, second.loop, True, why)
    if isinstance(first, LoopKernel) and isinstance(second, Product):
        if first.writes & second.operand_reads:
            why.append("a matrix product reads its operands from memory")
            return None
        return _join_contract(second, first.loop, False, why)
    why.append(_standing_alone(first, second))
    return None


def _standing_alone(first: Kernel, second: Kernel) -> str:
    for kernel in (first, second):
        if isinstance(kernel, ExternKernel):
            return f"{kernel.op.name} is an ATen call"
    if isinstance(first, Product) and isinstance(second, Product):
        return "two matrix products are two library calls"
    return "attention is one library call"


def _named(members: tuple[int, ...]) -> str:
    first, *others = sorted(members)
    return f"k{first}" if not others else f"k{first}(with {', '.join(f'k{n}' for n in others)})"


def _join_contract(contract: Product, loop: Loop, contract_first: bool, why: list[str]) -> Product | None:
    why.append("the loop reduces, or writes what the product reads")
    if loop.sequential or loop.reduction or (frozenset(s.buffer for s in loop.stores) & contract.operand_reads):
        return None
    a, b = (contract.loop, loop) if contract_first else (loop, contract.loop)
    joined = join(a, b, contract.acc, why)
    env = None if joined is None else _whole(joined.axes, contract.loop.axes)
    if joined is None or env is None:
        why += ["the loop cuts the product's rows or columns into parts"] if joined is not None else []
        return None
    body = BodyBuilder()
    rebuild(joined.body, env, body)
    if any(coefficient(instr_index(i), a.name) is None for i in body.instrs for a in contract.loop.axes[-1:]):
        why.append("the loop finds its column by a division")
        return None  # columns are vectorised: a row index may need a division, a column index may not
    return with_loop(contract, Loop(contract.loop.axes, tuple(body.instrs)))  # type: ignore[return-value]


def _whole(factors: tuple[Axis, ...], axes: tuple[Axis, ...]) -> dict[str, Dim] | None:
    """Keep the tile's rows and columns unsplit: express the axes into which the other loop split them by their
    positions."""
    env: dict[str, Dim] = {}
    left = list(factors)
    for axis in axes:
        mine: list[Axis] = []
        while left and product([p.size for p in mine]) != axis.size:
            mine.append(left.pop(0))
        if product([p.size for p in mine]) != axis.size:
            return None
        position: Dim = axis.expr
        for p in reversed(mine[1:]):
            env[p.name] = mod(position, p.size)
            position = floordiv(position, p.size)
        env |= {p.name: position for p in mine[:1]}
    return None if left else env


def _static(size: Dim) -> int:
    return size if isinstance(size, int) else _LARGE


__all__ = ["Unified", "fuse", "join", "unify"]
