"""Loop → one C function.

Three shapes of loop nest, chosen by which axis runs contiguously through memory:
  map     no reduction; the contiguous axis is innermost and runs in vector lanes
  rows    the contiguous axis is reduced: per row, one pass per dependent reduction, lanes along the row
  columns the contiguous axis is kept: a strip of columns at a time, lanes across it, sums in arrays

Scans have a nest of their own: rows in parallel, the scanned axis in sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.codegen.c.scalar import (
    INTEGER_DIVISIONS,
    MEMORY_TYPE,
    VALUE_TYPE,
    apply_text,
    cast_text,
    combine_text,
    constant_text,
    divisor_text,
    load_text,
    reduction_identity,
    store_text,
)
from burnish.codegen.signature import Signature
from burnish.ir.body import (
    Apply,
    Axis,
    Checked,
    Const,
    Instr,
    Load,
    Loop,
    Position,
    Reduced,
    Scanned,
    Store,
    instr_args,
    instr_index,
    value_refs,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, coefficient, mentions, product, render, symbols
from burnish.ir.scalar import TRANSCENDENTAL
from burnish.schedule.axes import column_axis, counts_up, row_order
from burnish.schedule.phases import Phases, cost

_STRIP = 64  # columns handled together
_PARALLEL_WORK = 30_000  # scalar operations below which starting other threads costs more than it saves
_SCRATCH_ROW = 8192  # longest row whose values are kept on the stack between passes
_BLOCK = 1024  # a long float sum is a sum of block sums in double: as accurate as eager's cascade sum
_BLOCK_ROWS = 128  # the same for sums of columns, which have no lanes along the sum to share it out
_MISTAKES = {"IndexError": "BN_INDEX_OUT_OF_RANGE", "RuntimeError": "BN_PLACE_OUT_OF_RANGE"}  # by what eager raises
_KNOWN_BEST = ("pow", "floordiv", "mod", "fmod", "truncdiv")  # faster if the second operand is a known constant


@dataclass
class CFunction:
    text: str  # with `@` for the function's name, so equal kernels have equal text
    signature: Signature


class LoopPrinter:
    """Prints one loop. Subclasses print a contraction's epilogue (`unit.py`)."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.body = loop.body
        self.signature = Signature()
        self.lines: list[str] = []
        self.indent = 1
        self.axis_names: dict[str, str] = {}
        self.lane_values: dict[int, str] = {}  # value -> its C expression, if it is not the variable v<number>
        self.buffer_types: dict[str, tuple[DType, bool]] = {}
        for i in self.body:
            if isinstance(i, Load | Store):
                stored = isinstance(i, Store) or self.buffer_types.get(i.buffer, (DType.f32, False))[1]
                self.buffer_types[i.buffer] = (i.dtype, stored)
        self.signature.checks = any(self.may_raise(n) for n in range(len(self.body)))

    # --- names --------------------------------------------------------------------------------------------------

    def buffer(self, name: str) -> str:
        if name not in self.signature.buffers:
            self.signature.buffers.append(name)
        return f"p{self.signature.buffers.index(name)}"

    def symbol(self, name: str) -> str:
        if name.startswith("%"):
            return self.ref(int(name[1:]))
        if name in self.axis_names:
            return self.axis_names[name]
        if name not in self.signature.sizes:
            self.signature.sizes.append(name)
        return f"s{self.signature.sizes.index(name)}"

    def index(self, index: Dim) -> str:
        return render(index, self.symbol, python=False)

    def ref(self, value: int) -> str:
        return self.lane_values.get(value, f"v{value}")

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text if not text.startswith("#") else text)

    def open(self, text: str) -> None:
        self.line(text + " {")
        self.indent += 1

    def close(self) -> None:
        self.indent -= 1
        self.line("}")

    # --- instructions -------------------------------------------------------------------------------------------

    def dtype(self, value: int) -> DType:
        return self.body[value].dtype

    def expression(self, i: Instr) -> str:
        match i:
            case Load(buffer, index, dtype, guard, fill):
                text = load_text(dtype, f"{self.buffer(buffer)}[{self.index(index)}]")
                return text if guard is None else f"({self.ref(guard)} ? {text} : {constant_text(fill, dtype)})"
            case Const(value, dtype, _):
                return constant_text(value, dtype)
            case Position(expr, _):
                return f"(int64_t){self.index(expr)}"
            case Checked(arg, size, _, raises):
                return f"bn_checked({self.ref(arg)}, {self.index(size)}, {_MISTAKES[raises]}, error)"
            case Apply("cast", (arg,), dtype):
                return cast_text(self.dtype(arg), dtype, self.ref(arg))
            case Apply(fn, args, dtype):
                operand = self.dtype(args[1] if fn == "where" else args[0])
                return apply_text(fn, dtype, operand, [self.operand(fn, k, a) for k, a in enumerate(args)])
        raise AssertionError(f"{i} is not an expression")

    def operand(self, fn: str, position: int, value: int) -> str:
        """A constant divisor or exponent is printed inline: in a parallel loop GCC does not treat a variable set
        outside as a constant, and a division by a known constant needs no division instruction."""
        i = self.body[value]
        if position != 1 or fn not in _KNOWN_BEST:
            return self.ref(value)
        text = self.expression(i) if isinstance(i, Const) else self.ref(value)
        return divisor_text(text) if self._may_be_zero(fn, value) else text

    def _may_be_zero(self, fn: str, divisor: int) -> bool:
        """Whether an integer division by it may be a caller error."""
        i = self.body[divisor]
        known = isinstance(i, Const) and i.value != 0
        return fn in INTEGER_DIVISIONS and not i.dtype.is_float and not known

    def may_raise(self, n: int) -> bool:
        """Whether a value reports a caller error, which vector lanes cannot do."""
        i = self.body[n]
        return isinstance(i, Checked) or (isinstance(i, Apply) and self._may_be_zero(i.fn, i.args[-1]))

    def statement(self, n: int) -> None:
        i = self.body[n]
        if isinstance(i, Store):
            place = f"{self.buffer(i.buffer)}[{self.index(i.index)}]"
            value = self.ref(i.value)
            if i.mode != "set":
                value = combine_text(i.mode, i.dtype, load_text(i.dtype, place), value)
            self.line(f"{self._where_in_range(i)}{place} = {store_text(i.dtype, value)};")
        else:
            self.line(f"{VALUE_TYPE[i.dtype]} v{n} = {self.expression(i)};")

    def _where_in_range(self, store: Store) -> str:
        """A store with an index out of range raises and writes nothing: its replacement index 0 is another element,
        possibly of the caller's own tensor, which the caller may use after the exception."""
        places = [i for v in value_refs(store.index) if isinstance(i := self.body[v], Checked)]
        tests = [f"(uint64_t){self.ref(i.arg)} < (uint64_t){self.index(i.size)}" for i in places]
        return f"if ({' && '.join(tests)}) " if tests else ""

    # --- whole functions ----------------------------------------------------------------------------------------

    def print(self) -> CFunction:
        if self.loop.scans:
            self._scan_nest()
        elif not self.loop.reduction:
            self._map_nest()
        elif column_axis(self.loop) is not None:
            _ColumnNest(self).print()
        else:
            _RowNest(self).print()
        return CFunction(self.function_text(), self.signature)

    def parameters(self) -> list[str]:
        out = []
        for k, name in enumerate(self.signature.buffers):
            dtype, stored = self.buffer_types[name]
            out.append(f"{'' if stored else 'const '}{MEMORY_TYPE[dtype]} *restrict p{k}")
        out += [f"int64_t s{k}" for k in range(len(self.signature.sizes))]
        return out + (["int64_t *error"] if self.signature.checks else [])

    def function_text(self) -> str:
        head = f"static BN_NOINLINE void @({', '.join(self.parameters()) or 'void'})"
        return "\n".join([head, "{", *self.lines, "}"])

    def name_axes(self, axes: Sequence[Axis]) -> None:
        for a in axes:
            self.axis_names[a.name] = f"x{len(self.axis_names)}"

    def depths(self, order: Sequence[Axis]) -> list[int]:
        """For each value, the number of enclosing loops it depends on; it is computed at that depth."""
        level = {a.name: d + 1 for d, a in enumerate(order)}
        out: list[int] = []
        for i in self.body:
            own = max((level.get(s.name, 0) for s in symbols(instr_index(i))), default=0)
            out.append(max([own, *(out[a] for a in instr_args(i))]))
        return out

    def cost(self) -> int:
        return sum(cost(i) for i in self.body)

    def work_condition(self, axes: Sequence[Axis]) -> str | None:
        """`if` clause for going parallel; None when the loop is known to be too small, "" when known to be large."""
        elements = product([a.size for a in axes])
        per = max(self.cost(), 1)
        if isinstance(elements, int):
            return "" if elements * per >= _PARALLEL_WORK else None
        return f" if({self.index(elements)} > {_PARALLEL_WORK // per})"

    def _map_nest(self) -> None:
        axes = self.loop.axes
        self.name_axes(axes)
        depth = self.depths(axes)
        deepest = len(axes)
        stores_at = [depth[n] if not isinstance(i, Store) else deepest for n, i in enumerate(self.body)]
        condition = None if self.loop.sequential else self.work_condition(axes)
        collapse = self._collapsible(axes, depth)
        lanes = self._lanes_allowed(axes)
        for d in range(deepest + 1):
            for n in range(len(self.body)):
                if stores_at[n] == d:
                    self.statement(n)
            if d == deepest:
                break
            innermost = d == deepest - 1
            if d == 0 and condition is not None:
                simd = " simd" if deepest == 1 and lanes else ""
                self.line(_parallel_for(collapse, condition, simd))
            elif innermost and lanes:
                self.line("#pragma omp simd")
            x = self.axis_names[axes[d].name]
            self.open(f"for (int64_t {x} = 0; {x} < {self.index(axes[d].size)}; {x}++)")
        for _ in axes:
            self.close()

    def _collapsible(self, axes: Sequence[Axis], depth: list[int]) -> int:
        """Leading perfectly nested loops, except the innermost, which is vectorised."""
        most = max(len(axes) - 1, 1)
        between = [d for n, d in enumerate(depth) if not isinstance(self.body[n], Store)]
        count = 1
        while count < most and count not in between:
            count += 1
        return count

    def _lanes_allowed(self, axes: Sequence[Axis]) -> bool:
        if not self.loop.sequential:
            return True
        inner = axes[-1].name if axes else ""
        for s in self.loop.stores:
            c = coefficient(s.index, inner)
            moving = any(
                mentions(instr_index(self.body[v]), {inner}) or self._varies(v, inner) for v in value_refs(s.index)
            )
            if not c or moving:
                return False
        return True

    def _varies(self, value: int, axis: str) -> bool:
        i = self.body[value]
        return mentions(instr_index(i), {axis}) or any(self._varies(a, axis) for a in instr_args(i))

    def _scan_nest(self) -> None:
        rows, (along,) = self.loop.parallel, self.loop.reduction
        self.name_axes((*rows, along))
        condition = self.work_condition(self.loop.axes)
        if rows and condition is not None:
            self.line(_parallel_for(len(rows), condition))
        for a in rows:
            x = self.axis_names[a.name]
            self.open(f"for (int64_t {x} = 0; {x} < {self.index(a.size)}; {x}++)")
        for n, i in enumerate(self.body):
            if isinstance(i, Scanned):
                # float sums run in double: a running total has no tree to keep its error down
                kind = "double" if i.dtype is DType.f32 else VALUE_TYPE[i.dtype]
                self.line(f"{kind} a{n} = {reduction_identity(i.kind, i.dtype)};")
        x = self.axis_names[along.name]
        self.open(f"for (int64_t {x} = 0; {x} < {self.index(along.size)}; {x}++)")
        for n, i in enumerate(self.body):
            if isinstance(i, Scanned):
                self.line(f"a{n} = {combine_text(i.kind, i.dtype, f'a{n}', self.ref(i.arg))};")
                self.line(f"{VALUE_TYPE[i.dtype]} v{n} = a{n};")
            else:
                self.statement(n)
        self.close()
        for _ in rows:
            self.close()


class _Nest(Phases):
    """The common part of both reduction nests: the printer, and the values of each pass."""

    def __init__(self, printer: LoopPrinter) -> None:
        super().__init__(printer.loop)
        self.p = printer

    def long_sums(self, reductions: list[int], block: int) -> list[int]:
        """Sums of so many floats that their rounding error would exceed eager's."""
        length = product([a.size for a in self.p.loop.reduction])
        if isinstance(length, int) and length <= 2 * block:
            return []
        return [n for n in reductions if self.body[n].kind == "sum" and self.body[n].dtype is DType.f32]  # type: ignore[union-attr]


class _RowNest(_Nest):
    def print(self) -> None:
        p, loop = self.p, self.p.loop
        rows, along = loop.parallel, row_order(loop)
        p.name_axes((*rows, *along))
        condition = p.work_condition(loop.axes)
        if rows and condition is not None:
            p.line(_parallel_for(len(rows), condition))
        for a in rows:
            x = p.axis_names[a.name]
            p.open(f"for (int64_t {x} = 0; {x} < {p.index(a.size)}; {x}++)")
        self.along = along
        self.length = product([a.size for a in along])
        scratch = self._scratch()
        for n in scratch:
            p.line(f"{VALUE_TYPE[self.body[n].dtype]} t{n}[{self.length}] BN_ALIGN;")
        kept: set[int] = set()
        for phase in range(self.last + 1):
            for n in self.row_values(phase):
                p.statement(n)
            if self.reductions(phase) or self.element_stores(phase):
                self._pass(phase, scratch, kept)
        for _ in rows:
            p.close()

    def _scratch(self) -> list[int]:
        """Costly values that more than one pass reads, kept in an array along the row."""
        if not isinstance(self.length, int) or self.length > _SCRATCH_ROW:
            return []
        count: dict[int, int] = {}
        for phase in range(self.last + 1):
            for n in self.needed(self.pass_roots(phase), set()):
                count[n] = count.get(n, 0) + 1
        costly = [
            n
            for n, c in count.items()
            if c > 1 and not isinstance(self.body[n], Store) and self.full_cost(n) >= TRANSCENDENTAL
        ]
        used_by = {a for n, i in enumerate(self.body) if n not in costly for a in instr_args(i)}
        return [n for n in sorted(costly) if n in used_by and isinstance(self.body[n], Apply)]

    def _pass(self, phase: int, scratch: list[int], kept: set[int]) -> None:
        """One pass over the row. A long float sum is cut into blocks, whose sums are added up in double."""
        p = self.p
        reductions = self.reductions(phase)
        blocked = self.long_sums(reductions, _BLOCK)
        for n in reductions:
            if n in blocked:
                p.line(f"double d{n} = 0;")
            else:
                _declare_accumulator(p, n)
        *outer, inner = self.along
        for a in outer:
            x = p.axis_names[a.name]
            p.open(f"for (int64_t {x} = 0; {x} < {p.index(a.size)}; {x}++)")
        start, stop = "0", p.index(inner.size)
        cut = bool(blocked) and not (isinstance(inner.size, int) and inner.size <= 2 * _BLOCK)
        if cut:
            p.open(f"for (int64_t block = 0; block < {stop}; block += {_BLOCK})")
            p.line(f"int64_t stop = bn_min_i64(block + {_BLOCK}, {stop});")
            start, stop = "block", "stop"
        for n in blocked:
            p.line(f"{VALUE_TYPE[self.body[n].dtype]} b{n} = 0;")
        self._elements(phase, (start, stop), blocked, scratch, kept)
        for n in blocked:
            p.line(f"d{n} += b{n};")
        for _ in (*outer, *([inner] if cut else [])):
            p.close()
        for n in blocked:
            p.line(f"{VALUE_TYPE[self.body[n].dtype]} v{n} = d{n};")

    def _elements(
        self, phase: int, bounds: tuple[str, str], blocked: list[int], scratch: list[int], kept: set[int]
    ) -> None:
        """The innermost loop of a pass. Values in `scratch` are written to their arrays; those in `kept` are read from
        them."""
        p = self.p
        *_, inner = self.along
        reductions, values = self.reductions(phase), self.needed(self.pass_roots(phase), kept)
        place: Dim = 0
        for a in self.along:
            place = place * a.size + a.expr
        self._lanes(reductions, blocked, values)
        x, (start, stop) = p.axis_names[inner.name], bounds
        p.open(f"for (int64_t {x} = {start}; {x} < {stop}; {x}++)")
        saved = {n: p.lane_values[n] for n in kept if n in p.lane_values}
        for n in values:
            if n in kept:
                p.lane_values[n] = f"t{n}[{p.index(place)}]"
            elif n not in reductions:
                p.statement(n)
                if n in scratch:
                    p.line(f"t{n}[{p.index(place)}] = v{n};")
        for n in reductions:
            _accumulate(p, n, f"b{n}" if n in blocked else f"v{n}", self.along)
        p.close()
        for n in values:
            if n in kept:
                p.lane_values.pop(n, None)
        p.lane_values.update(saved)
        kept.update(n for n in values if n in scratch)

    def _lanes(self, reductions: list[int], blocked: list[int], values: list[int]) -> None:
        if any(self.body[n].kind.startswith("arg") for n in reductions):  # type: ignore[union-attr]
            return
        if any(self.p.may_raise(n) for n in values):
            return
        clauses = "".join(_reduction_clause(self.body[n], f"b{n}" if n in blocked else f"v{n}") for n in reductions)
        self.p.line(f"#pragma omp simd{clauses}")


class _ColumnNest(_Nest):
    def print(self) -> None:
        p, loop = self.p, self.p.loop
        lane = column_axis(loop)
        assert lane is not None
        rows = tuple(a for a in loop.parallel if a is not lane)
        p.name_axes((*rows, *loop.reduction))
        condition = p.work_condition(loop.axes)
        if condition is not None:
            p.line(_parallel_for(len(rows) + 1, condition))
        for a in rows:
            x = p.axis_names[a.name]
            p.open(f"for (int64_t {x} = 0; {x} < {p.index(a.size)}; {x}++)")
        size = p.index(lane.size)
        p.open(f"for (int64_t strip = 0; strip < {size}; strip += {_STRIP})")
        p.line(f"int64_t width = bn_min_i64({_STRIP}, {size} - strip);")
        p.axis_names[lane.name] = "(strip + l)"
        crossing = self._crossing()
        for n in crossing:
            p.line(f"{VALUE_TYPE[self.body[n].dtype]} w{n}[{_STRIP}] BN_ALIGN;")
        done: list[int] = []
        for phase in range(self.last + 1):
            self._row_stage(phase, crossing, done)
            if self.reductions(phase) or self.element_stores(phase):
                self._pass(phase)
                for n in self.reductions(phase):
                    p.lane_values[n] = f"w{n}[l]"
        p.close()
        for _ in rows:
            p.close()

    def _crossing(self) -> list[int]:
        """Row-level values that must outlive the lane loop that makes them."""
        used_late: set[int] = set()
        for n, i in enumerate(self.body):
            for a in (*instr_args(i), *self._tested(i)):
                if not self.level[a] and (self.level[n] or self.ready[n] > self.ready[a] or isinstance(i, Reduced)):
                    used_late.add(a)
        made = {n for n, i in enumerate(self.body) if isinstance(i, Reduced)}
        return sorted(made | {a for a in used_late if not isinstance(self.body[a], Const)})

    def _tested(self, i: Instr) -> list[int]:
        """The additional condition of a store: its index is within range."""
        places = [self.body[v] for v in value_refs(i.index)] if isinstance(i, Store) else []
        return [place.arg for place in places if isinstance(place, Checked)]

    def _row_stage(self, phase: int, crossing: list[int], done: list[int]) -> None:
        p = self.p
        values = self.row_values(phase)
        if not values:
            return
        p.line("#pragma omp simd" if not any(p.may_raise(n) for n in values) else "// values are checked one by one")
        p.open("for (int64_t l = 0; l < width; l++)")
        for n in values:
            p.statement(n)
            if n in crossing:
                p.line(f"w{n}[l] = v{n};")
        p.close()
        for n in values:
            if n in crossing:
                p.lane_values[n] = f"w{n}[l]"
            elif isinstance(self.body[n], Const):
                p.lane_values[n] = constant_text(self.body[n].value, self.body[n].dtype)  # type: ignore[union-attr]

    def _pass(self, phase: int) -> None:
        p = self.p
        reductions = self.reductions(phase)
        for n in reductions:
            self._start_reduction(n)
        blocked = self.long_sums(reductions, _BLOCK_ROWS)
        for n in blocked:
            p.line(f"double d{n}[{_STRIP}] BN_ALIGN = {{0}};")
        if blocked:
            p.line(f"int64_t rows{phase} = 0;")
        for a in p.loop.reduction:
            x = p.axis_names[a.name]
            p.open(f"for (int64_t {x} = 0; {x} < {p.index(a.size)}; {x}++)")
        self._reduce_lanes(phase, reductions)
        if blocked:
            p.open(f"if (++rows{phase} == {_BLOCK_ROWS})")
            p.line(f"rows{phase} = 0;")
            for n in blocked:
                p.line(f"for (int64_t l = 0; l < width; l++) {{ d{n}[l] += w{n}[l]; w{n}[l] = 0; }}")
            p.close()
        for _ in p.loop.reduction:
            p.close()
        for n in blocked:
            p.line(f"for (int64_t l = 0; l < width; l++) w{n}[l] += d{n}[l];")

    def _start_reduction(self, n: int) -> None:
        """Its value in every lane of the strip, before the first element."""
        i = self.body[n]
        assert isinstance(i, Reduced)
        if i.kind.startswith("arg"):
            best = self.body[i.arg].dtype
            start = reduction_identity(i.kind.removeprefix("arg"), best)
            self.p.line(f"{VALUE_TYPE[best]} m{n}[{_STRIP}] BN_ALIGN;")
            self.p.line(f"for (int64_t l = 0; l < width; l++) {{ m{n}[l] = {start}; w{n}[l] = 0; }}")
        else:
            start = reduction_identity(i.kind, i.dtype)
            self.p.line(f"for (int64_t l = 0; l < width; l++) w{n}[l] = {start};")

    def _reduce_lanes(self, phase: int, reductions: list[int]) -> None:
        """One element of each lane's row."""
        p = self.p
        values = self.needed(self.pass_roots(phase), set())
        if not any(p.may_raise(n) for n in values):
            p.line("#pragma omp simd")
        p.open("for (int64_t l = 0; l < width; l++)")
        for n in values:
            p.statement(n)
        for n in reductions:
            _accumulate(p, n, f"w{n}[l]", p.loop.reduction, best=f"m{n}[l]")
        p.close()


def _parallel_for(loops: int, condition: str, simd: str = "") -> str:
    collapse = f" collapse({loops})" if loops > 1 else ""
    return f"#pragma omp parallel for{simd}{collapse} schedule(static){condition}"


def _declare_accumulator(p: LoopPrinter, n: int) -> None:
    i = p.body[n]
    assert isinstance(i, Reduced)
    if i.kind.startswith("arg"):
        held = p.dtype(i.arg)
        p.line(f"{VALUE_TYPE[held]} m{n} = {reduction_identity(i.kind, held)};")
        p.line(f"int64_t v{n} = 0;")
    else:
        p.line(f"{VALUE_TYPE[i.dtype]} v{n} = {reduction_identity(i.kind, i.dtype)};")


def _accumulate(p: LoopPrinter, n: int, acc: str, order: Sequence[Axis], best: str | None = None) -> None:
    """`order` is that of the enclosing loops: of equal values the first in eager's order wins, whatever the order of
    the loops."""
    i = p.body[n]
    assert isinstance(i, Reduced)
    value = p.ref(i.arg)
    if not i.kind.startswith("arg"):
        p.line(f"{acc} = {combine_text(i.kind, i.dtype, acc, value)};")
        return
    m = best or f"m{n}"
    at = p.index(i.at)
    beats = f"{value} {'>' if i.kind == 'argmax' else '<'} {m}"
    ahead = "" if counts_up(i.at, order) else f"{at} < {acc}"
    if ahead:
        beats += f" || ({value} == {m} && {ahead})"
    if p.dtype(i.arg).is_float:  # the first NaN wins and stays
        beats = f"({m} == {m}) && ({beats} || {value} != {value})"
        if ahead:
            beats = f"({beats}) || ({m} != {m} && {value} != {value} && {ahead})"
    p.line(f"if ({beats}) {{ {m} = {value}; {acc} = {at}; }}")


def _reduction_clause(i: Instr, name: str) -> str:
    assert isinstance(i, Reduced)
    op = {"sum": "+", "prod": "*", "any": "|", "all": "&"}.get(i.kind)
    if op is None or (op in "+*" and i.dtype in (DType.i64, DType.i32)):  # integers wrap around, and OpenMP's do not
        op = f"bn_{i.kind}_{i.dtype.compute.value}"
    return f" reduction({op}:{name})"
