"""Body: the computation of one point of a kernel's iteration space, as an SSA list. All printers share it.

A `Loop` is an iteration space (parallel axes, reduction axes) and a body. Each value varies with some of the axes:
a reduction's result, and what is computed from such results alone, is at row level; everything that mentions a
reduction axis is at element level. A map after a reduction over the same row therefore simply follows it in the list.

Offsets are flat element offsets into buffers. The symbol `%7` inside an offset stands for value 7 (gathers).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, Sym, coefficient, mentions, substitute, sym, symbols
from burnish.ir.scalar import Mistake

_KEPT = 1 << 15  # cached answers: equal blocks of a model repeat the same queries


@dataclass(frozen=True)
class Load:
    buffer: str
    index: Dim
    dtype: DType
    guard: int | None = None  # a bool value; where it is false the result is `fill` and memory is not touched
    fill: bool | int | float = 0


@dataclass(frozen=True)
class Const:
    value: bool | int | float
    dtype: DType
    kind: str = ""  # keeps 1, 1.0, True, 0.0 and -0.0 apart when instructions are compared


@dataclass(frozen=True)
class Position:
    """An index expression as a number."""

    expr: Dim
    dtype: DType = DType.i64


@dataclass(frozen=True)
class Apply:
    fn: str
    args: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Checked:
    """args[0] if it lies in [0, size), else 0 with the program's error flag raised."""

    arg: int
    size: Dim
    dtype: DType = DType.i64
    raises: Mistake = "IndexError"


@dataclass(frozen=True)
class Reduced:
    """`kind` over every reduction axis. For argmax / argmin the result is `at`, the position along them."""

    kind: str
    arg: int
    dtype: DType
    at: Dim = 0


@dataclass(frozen=True)
class Scanned:
    """Running `kind` along the one reduction axis."""

    kind: str
    arg: int
    dtype: DType


@dataclass(frozen=True)
class Store:
    buffer: str
    index: Dim
    value: int
    mode: str = "set"  # set | add | prod | max | min | total: the sum over the points that store there, nothing else
    dtype: DType = DType.f32


Instr = Load | Const | Position | Apply | Checked | Reduced | Scanned | Store


def const(value: bool | int | float, dtype: DType) -> Const:
    return Const(value, dtype, f"{type(value).__name__}:{value!r}")


def instr_args(i: Instr) -> tuple[int, ...]:
    """Values an instruction uses, those inside its offset included."""
    if isinstance(i, Apply):
        return i.args
    if isinstance(i, Load):
        return value_refs(i.index) if i.guard is None else (*value_refs(i.index), i.guard)
    if isinstance(i, Store):
        return (i.value, *value_refs(i.index))
    if isinstance(i, Checked | Reduced | Scanned):
        return (i.arg,)
    return value_refs(i.expr) if isinstance(i, Position) else ()


def instr_index(i: Instr) -> Dim:
    if isinstance(i, Load | Store):
        return i.index
    return i.expr if isinstance(i, Position) else 0


def value_refs(index: Dim) -> tuple[int, ...]:
    return () if isinstance(index, int) else _value_refs(index)


@functools.lru_cache(maxsize=_KEPT)
def _value_refs(index: Expr) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(s.name[1:]) for s in symbols(index) if s.name.startswith("%")))


@functools.lru_cache(maxsize=_KEPT)
def value_symbol(value: int) -> Expr:
    return sym(f"%{value}")


def remap(i: Instr, values: Mapping[int, int], axes: Mapping[str, Dim]) -> Instr:
    """The instruction with its values renumbered and its axes replaced; itself, where that changes nothing."""
    match i:
        case Apply():
            args = tuple([values[a] for a in i.args])
            return i if args == i.args else Apply(i.fn, args, i.dtype)
        case Load():
            index, guard = _moved(i.index, values, axes), None if i.guard is None else values[i.guard]
            same = index is i.index and guard == i.guard
            return i if same else Load(i.buffer, index, i.dtype, guard, i.fill)
        case Store():
            return Store(i.buffer, _moved(i.index, values, axes), values[i.value], i.mode, i.dtype)
        case Reduced():
            return Reduced(i.kind, values[i.arg], i.dtype, substitute(i.at, axes))
        case Checked():
            return Checked(values[i.arg], i.size, i.dtype, i.raises)
        case Scanned():
            return Scanned(i.kind, values[i.arg], i.dtype)
        case Position():
            return Position(_moved(i.expr, values, axes), i.dtype)
        case _:
            return i


def _moved(index: Dim, values: Mapping[int, int], axes: Mapping[str, Dim]) -> Dim:
    refs = value_refs(index)
    return substitute(index, {**axes, **{f"%{v}": value_symbol(values[v]) for v in refs}} if refs else axes)


class BodyBuilder:
    """Appends instructions, reusing equal ones."""

    def __init__(self) -> None:
        self.instrs: list[Instr] = []
        self._memo: dict[Instr, int] = {}

    def emit(self, instr: Instr) -> int:
        if isinstance(instr, Store):
            self.instrs.append(instr)
            return len(self.instrs) - 1
        at = self._memo.get(instr)
        if at is None:
            at = self._memo[instr] = len(self.instrs)
            self.instrs.append(instr)
        return at


@dataclass(frozen=True)
class Axis:
    sym: Sym
    size: Dim
    reduce: bool = False

    @property
    def name(self) -> str:
        return self.sym.name

    @property
    def expr(self) -> Expr:
        """The position along the axis, as an index expression."""
        return Expr({(self.sym,): 1})


def make_axis(name: str, size: Dim, reduce: bool = False) -> Axis:
    return Axis(Sym(name, 0, size - 1), size, reduce)


@dataclass(frozen=True)
class Loop:
    axes: tuple[Axis, ...]
    body: tuple[Instr, ...]
    sequential: bool = False  # iterations may write the same element: keep their order

    # Properties are cached, because a loop is immutable.

    @functools.cached_property
    def parallel(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if not a.reduce)

    @functools.cached_property
    def reduction(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.reduce)

    @functools.cached_property
    def loads(self) -> tuple[Load, ...]:
        return tuple(i for i in self.body if isinstance(i, Load))

    @functools.cached_property
    def stores(self) -> tuple[Store, ...]:
        return tuple(i for i in self.body if isinstance(i, Store))

    @functools.cached_property
    def scans(self) -> bool:
        return any(isinstance(i, Scanned) for i in self.body)

    def element_level(self) -> list[bool]:
        """For each instruction, whether it varies with a reduction axis."""
        return self._element_level

    @functools.cached_property
    def _element_level(self) -> list[bool]:
        names = frozenset(a.name for a in self.reduction)
        level: list[bool] = []
        for i in self.body:
            if isinstance(i, Reduced):
                level.append(False)
            elif isinstance(i, Scanned):
                level.append(True)
            else:
                level.append(mentions(instr_index(i), names) or any(level[a] for a in instr_args(i)))
        return level

    @functools.cached_property
    def value_axes(self) -> tuple[frozenset[str], ...]:
        """The axes that each value depends on, directly or through an index that is loaded."""
        names = {a.name for a in self.axes}
        found: list[frozenset[str]] = []
        for i in self.body:
            own = frozenset(s.name for s in symbols(instr_index(i)) if s.name in names)
            found.append(own.union(*(found[a] for a in instr_args(i))))
        return tuple(found)

    def hazard(self) -> str | None:
        """The reason why points, or passes over a row, may not run in any order; None if they may.

        Every pass recomputes the element values it needs, and points run in lanes and threads. So an element that the
        loop overwrites may be read only by the point that overwrites it, before the write, and in one pass."""
        stores: dict[str, list[tuple[int, Store]]] = {}
        axes = {a.name for a in self.axes}
        for n, i in enumerate(self.body):
            if isinstance(i, Store):
                stores.setdefault(i.buffer, []).append((n, i))
        for name, written in stores.items():
            if len(written) > 1 and not never_meet([s.index for _, s in written], self.axes):
                return f"{name} is written twice"
        for n, i in enumerate(self.body):
            if not isinstance(i, Load) or i.buffer not in stores:
                continue
            (at, store), *others = stores[i.buffer]
            if n > at or others:
                return f"{i.buffer} is read after it was written"
            if i.index != store.index or self.sequential:
                return f"{i.buffer} is read at other points than the one that overwrites it"
            if self.reduction:
                return f"{i.buffer} is overwritten in one pass over a row and read in another"
            if not axes <= {s.name for s in symbols(i.index)}:
                return f"{i.buffer} is overwritten by several points"
        return None

    def __str__(self) -> str:
        head = ", ".join(f"{a.name}<{a.size}{' reduce' if a.reduce else ''}" for a in self.axes)
        lines = [f"loop [{head}]{' sequential' if self.sequential else ''}"]
        lines += [
            f"  %{n} = {show(i)}" if not isinstance(i, Store) else f"  {show(i)}" for n, i in enumerate(self.body)
        ]
        return "\n".join(lines)

    def verify(self) -> None:
        names = {a.name for a in self.axes}
        for n, i in enumerate(self.body):
            for a in instr_args(i):
                assert 0 <= a < n and not isinstance(self.body[a], Store), f"%{n} uses %{a}"
            for s in symbols(instr_index(i)):
                ok = s.name in names or s.name.startswith(("%", "s", "u"))
                assert ok, f"%{n} mentions {s.name}, which is no axis of this loop"
        level = self.element_level()
        for n, i in enumerate(self.body):
            if isinstance(i, Reduced):
                assert self.reduction, f"%{n} reduces over no axis"
            if isinstance(i, Store) and i.mode == "set" and not level[n]:
                assert not mentions(i.index, {a.name for a in self.reduction})
        assert self.stores, "a loop that stores nothing"
        hazard = self.hazard()
        assert hazard is None, hazard


def never_meet(offsets: Sequence[Dim], axes: Sequence[Axis]) -> bool:
    """Whether offsets, one a constant step after the other, name different elements at all points: the step is taken as
    one more axis, and each axis' stride must exceed all that the shorter ones reach. Symbols that are no axes (sizes,
    looked-up values) are the same for all."""
    starts = [o - offsets[0] for o in offsets]
    if not all(isinstance(s, int) for s in starts):
        return False
    numbers = sorted(s for s in starts if isinstance(s, int))
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(offsets) > 1 and len(steps) != 1:
        return False
    strides = [(coefficient(offsets[0], a.name), a.size) for a in axes if mentions(offsets[0], {a.name})]
    strides += [(step, len(offsets)) for step in steps]
    reached = 0
    for stride, size in sorted(strides, key=lambda s: s[0] if isinstance(s[0], int) else 0):
        if not isinstance(stride, int) or not isinstance(size, int) or stride <= reached:
            return False
        reached += stride * (size - 1)
    return True


def show(i: Instr) -> str:
    match i:
        case Load(buffer, index, dtype, guard, fill):
            tail = "" if guard is None else f" if %{guard} else {fill}"
            return f"load {buffer}[{index}]: {dtype.value}{tail}"
        case Const(value, dtype, _):
            return f"const {value}: {dtype.value}"
        case Position(expr, dtype):
            return f"position {expr}: {dtype.value}"
        case Apply(fn, args, dtype):
            return f"{fn}({', '.join(f'%{a}' for a in args)}): {dtype.value}"
        case Checked(arg, size):
            return f"checked %{arg} < {size}"
        case Reduced(kind, arg, dtype, _):
            return f"reduce_{kind}(%{arg}): {dtype.value}"
        case Scanned(kind, arg, dtype):
            return f"scan_{kind}(%{arg}): {dtype.value}"
        case Store(buffer, index, value, mode, _):
            return f"{buffer}[{index}] {'=' if mode == 'set' else mode + '='} %{value}"


def rebuild(
    body: Sequence[Instr], axes: Mapping[str, Dim], into: BodyBuilder, replaced: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Re-emit `body` into a builder under new axes; `replaced` gives values that exist there already."""
    values: dict[int, int] = dict(replaced or {})
    for n, i in enumerate(body):
        if n not in values:
            values[n] = into.emit(remap(i, values, axes))
    return values


def prune(body: Sequence[Instr]) -> tuple[Instr, ...]:
    """Drop values nothing stores."""
    live: set[int] = set()
    for n in range(len(body) - 1, -1, -1):
        if n in live or isinstance(body[n], Store):
            live.add(n)
            live.update(instr_args(body[n]))
    kept = BodyBuilder()
    values: dict[int, int] = {}
    for n, i in enumerate(body):
        if n in live:
            values[n] = kept.emit(remap(i, values, {}))
    return tuple(kept.instrs)
