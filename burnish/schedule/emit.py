"""Emits the computation of one point of a loop: stored nodes are loaded, all others are inlined."""

from __future__ import annotations

from collections.abc import Callable, Set

from burnish.errors import CompileError
from burnish.ir.body import Apply, BodyBuilder, Checked, Load, Position, Store, const, value_symbol
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, Expr, dot, is_less, is_nonneg, substitute, symbols
from burnish.ir.graph import (
    Attend,
    Concat,
    Contract,
    Convolve,
    Full,
    Gather,
    Iota,
    Map,
    Node,
    Reduce,
    Scan,
    Scatter,
    View,
)
from burnish.ir.scalar import JUMPS, PICKS
from burnish.schedule.kernels import Buffer


class Emitter:
    """Writes one body: `value` reads a node at an index, loading it if stored and computing it if not."""

    def __init__(self, stored: Set[int], buffer_of: Callable[[Node], Buffer]) -> None:
        self.stored = stored
        self.buffer_of = buffer_of  # the buffer of a stored node
        self.body = BodyBuilder()
        self.guard: int | None = None  # where it is false, loads must not read
        self._memo: dict[tuple[int, tuple[Dim, ...], int | None], int] = {}
        self._more_bits: dict[int, bool] = {}  # by node

    def value(self, node: Node, index: tuple[Dim, ...]) -> int:
        if node.id in self.stored:
            return self.load(node, index)
        return self.compute(node, index)

    def load(self, node: Node, index: tuple[Dim, ...], guard: int | None = None, fill: bool | int | float = 0) -> int:
        return self.load_from(self.buffer_of(node), index, guard, fill)

    def load_from(
        self, buffer: Buffer, index: tuple[Dim, ...], guard: int | None = None, fill: bool | int | float = 0
    ) -> int:
        assert buffer.dtype is not None
        guard = self._both(self.guard, guard)
        return self.body.emit(Load(buffer.name, dot(index, buffer.strides), buffer.dtype, guard, fill))

    def _both(self, first: int | None, second: int | None) -> int | None:
        if first is None or second is None:
            return second if first is None else first
        return self.body.emit(Apply("and", (first, second), DType.bool))

    def store(self, buffer: Buffer, offset: Dim, value: int, mode: str = "set") -> None:
        assert buffer.dtype is not None
        self.body.emit(Store(buffer.name, offset, value, mode, buffer.dtype))

    def compute(self, node: Node, index: tuple[Dim, ...]) -> int:
        key = (node.id, index, self.guard)
        if key not in self._memo:
            self._memo[key] = self._compute(node, index)
        return self._memo[key]

    def _compute(self, node: Node, index: tuple[Dim, ...]) -> int:
        match node.op:
            case Full(value):
                if isinstance(value, Expr):
                    return self._converted(self.body.emit(Position(value)), DType.i64, node.dtype)
                return self.body.emit(const(value, node.dtype.compute))
            case Iota(axes, expr):
                at = substitute(expr, {a.name: i for a, i in zip(axes, index, strict=True)})
                return self.body.emit(Position(at))
            case Map("cast"):
                source = node.inputs[0]
                read = self.value if node.dtype.is_float else self._rounded
                return self._converted(read(source, index), source.dtype, node.dtype)
            case Map(fn):
                read = self._rounded if fn in JUMPS and not _is_sign_test(node) else self.value
                args = tuple(read(x, index) for x in node.inputs)
                return self.body.emit(Apply(fn, args, node.dtype.compute))
            case View():
                return self._view(node, index)
            case Concat(axis):
                return self._choice(node, axis, index)
            case Gather():
                source, *indices = node.inputs
                return self.load(source, self.indirect(node.op, source.shape, indices, index))
            case _:
                raise CompileError("schedule", f"{node.op} is not computed inside a loop")

    def _rounded(self, node: Node, index: tuple[Dim, ...]) -> int:
        """A node's value, rounded to its type."""
        value = self.value(node, index)
        return self.body.emit(Apply("cast", (value,), node.dtype)) if self._has_more_bits(node) else value

    def _has_more_bits(self, node: Node) -> bool:
        """Whether a node of a half type may be available as an unrounded float. (Stored nodes too: fusion may join a
        reader with the kernel that stores the node.)"""
        if node.id not in self._more_bits:
            self._more_bits[node.id] = node.dtype.compute is not node.dtype and self._is_unrounded(node)
        return self._more_bits[node.id]

    def _is_unrounded(self, node: Node) -> bool:
        match node.op:
            case Map("cast"):
                return False
            case Map(fn) if fn not in PICKS:
                return True
            case Map() | View() | Concat() | Gather():
                return any(self._has_more_bits(x) for x in node.inputs)
            case Contract() | Convolve() | Attend() | Reduce() | Scan() | Scatter():
                return True
        return False

    def _converted(self, value: int, have: DType, want: DType) -> int:
        if have is want or (want is have.compute and want.is_float):
            return value
        exact = have in (DType.i8, DType.u8) and want.is_float  # half types represent these exactly: no rounding
        return self.body.emit(Apply("cast", (value,), want.compute if exact else want))

    def _view(self, node: Node, index: tuple[Dim, ...]) -> int:
        assert isinstance(node.op, View)
        env = {a.name: i for a, i in zip(node.op.axes, index, strict=True)}
        at = tuple(substitute(i, env) for i in node.op.index)
        source = node.inputs[0]
        if node.op.fill is None:
            return self.value(source, at)
        guard = inside(self.body, at, source.shape)
        if guard is None:
            return self.value(source, at)
        return self.load(source, at, guard, node.op.fill)

    def _choice(self, node: Node, axis: int, index: tuple[Dim, ...]) -> int:
        """The part of a concatenation that contains the index; only that part is read."""
        here, outer, end = self.body.emit(Position(index[axis])), self.guard, node.shape[axis]
        chosen: int | None = None
        for part in reversed(node.inputs):
            start = end - part.shape[axis]
            begun = self.body.emit(Apply("ge", (here, _number(self.body, start)), DType.bool)) if start != 0 else None
            before = (
                self.body.emit(Apply("lt", (here, _number(self.body, end)), DType.bool)) if chosen is not None else None
            )
            self.guard = self._both(outer, self._both(begun, before))
            at = tuple(i - start if d == axis else i for d, i in enumerate(index))
            value = self.value(part, at)
            if before is not None:
                assert chosen is not None
                value = self.body.emit(Apply("where", (before, value, chosen), node.dtype.compute))
            chosen, end = value, start
        self.guard = outer
        assert chosen is not None
        return chosen

    def indirect(
        self, op: Gather | Scatter, shape: tuple[Dim, ...], indices: list[Node], index: tuple[Dim, ...]
    ) -> tuple[Dim, ...]:
        env: dict[str, Dim] = {a.name: i for a, i in zip(op.axes, index, strict=True)}
        for k, tensor in enumerate(indices):
            size = next(s for e, s in zip(op.index, shape, strict=True) if any(x.name == f"%{k}" for x in symbols(e)))
            if size == 0 and 0 not in tensor.shape:  # nor does the element exist that replaces one out of range
                raise CompileError("schedule", "an index into a dimension of no elements")
            place = self.body.emit(Checked(self.value(tensor, index), size, raises=op.raises))
            env[f"%{k}"] = value_symbol(place)
        # value symbols of the body reuse the %k spelling, so all are replaced at once
        return tuple(substitute(e, env) for e in op.index)


def _is_sign_test(node: Node) -> bool:
    """A comparison with zero, which rounding leaves alone."""
    return node.dtype is DType.bool and any(isinstance(x.op, Full) and x.op.value == 0 for x in node.inputs)


def inside(body: BodyBuilder, index: tuple[Dim, ...], shape: tuple[Dim, ...]) -> int | None:
    """Whether the index is within the shape, as a value; None if it always is."""
    checks: list[int] = []
    for i, size in zip(index, shape, strict=True):
        here = body.emit(Position(i))
        if not is_nonneg(i):
            checks.append(body.emit(Apply("ge", (here, body.emit(const(0, DType.i64))), DType.bool)))
        if not is_less(i, size):
            checks.append(body.emit(Apply("lt", (here, _number(body, size)), DType.bool)))
    if not checks:
        return None
    guard = checks[0]
    for c in checks[1:]:
        guard = body.emit(Apply("and", (guard, c), DType.bool))
    return guard


def _number(body: BodyBuilder, size: Dim) -> int:
    return body.emit(Position(size) if isinstance(size, Expr) else const(size, DType.i64))
