"""Prints the body of a loop in Triton: values, pointers and masks.

`triton_launch.plan` says which axes are lanes of the tile and how many of each a program takes. A value's shape follows
from the lanes it varies with, so one printer serves every form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from burnish.codegen.signature import Signature
from burnish.codegen.triton.launch import Lane, LaunchPlan, plan
from burnish.codegen.triton.scalar import (
    MEMORY_TYPE,
    STORED_TYPE,
    VALUE_TYPE,
    apply_text,
    cast_text,
    constant_text,
    index_text,
    load_text,
    reduce_text,
    reduction_identity,
    takes_literals,
    typed_text,
)
from burnish.device import REFERENCE
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
from burnish.ir.expr import Dim, Div, Expr, Mod, floordiv, lower, mod, substitute, sym, symbols, upper
from burnish.schedule.gpu.vector_products import is_vector_product
from burnish.schedule.phases import Phases
from burnish.schedule.precision import rounded_values

_INT32 = 2**31 - 1
_SLACK = 1 << 16  # the last block of a lane may reach this far past its end
_ATOMIC = {
    "add": (DType.f32, DType.f64, DType.f16, DType.bf16, DType.i32, DType.i64),
    "max": (DType.i32, DType.i64),
    "min": (DType.i32, DType.i64),
}


class NotPrintable(Exception):
    """A loop without a Triton form; the program runs it op by op."""


class BodyPrinter:
    """Prints the values of one normalised loop."""

    def __init__(self, loop: Loop, planned: LaunchPlan | None = None, unwritten: frozenset[str] = frozenset()) -> None:
        self.loop = loop
        self.unwritten = unwritten
        self.body = loop.body
        self.plan: LaunchPlan = planned or plan(loop, REFERENCE)
        self.signature = Signature()
        self.kinds: dict[str, DType] = {}  # what each buffer holds
        # Every stored element has eight bits of precision, and sums are sums of such elements, so functions need only
        # eleven bits.
        level = loop.element_level()
        elements = [i for n, i in enumerate(loop.body) if isinstance(i, Store) and (level[n] or not loop.reduction)]
        self.rounds = bool(elements) and all(s.dtype is DType.bf16 or s.mode == "total" for s in elements)
        # In an exponential, half a unit of a large argument is a large factor. So products there are rounded like those
        # of other elements (the maximum), which a fused multiply-add would not do.
        self.exponents = {i.args[0] for i in loop.body if isinstance(i, Apply) and i.fn in ("exp", "exp2", "expm1")}
        self.inside: set[str] = set()  # lanes whose current block is known to end before they do
        self.prefix = ""  # of the values' names, where several bodies stand in one function
        self.program = "tl.program_id(0)"  # the program's number among those of this loop
        self.signature.checks = any(isinstance(i, Checked) for i in self.body)
        self.lines: list[str] = []
        self.indent = 1
        self.lane_of = {a.name: lane for lane in self.plan.lanes for a in lane.axes}
        self.axis_names = self._axis_names()
        self.env = self._linear_forms()
        self.indices = [self._flattened(instr_index(i)) for i in self.body]
        self.width, self.reach = self._index_width()
        self.spans: list[frozenset[str]] = []
        for i, index in zip(self.body, self.indices, strict=True):
            self.spans.append(self._span(i, index))
        self.multiplies = self.plan.form == "row" and is_vector_product(loop)

    @functools.cached_property
    def rounded(self) -> frozenset[int]:
        return rounded_values(self.loop)

    # --- lanes and axes -----------------------------------------------------------------------------------------

    def _axis_names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for lane in self.plan.lanes:
            for k, a in enumerate(lane.axes):
                names[a.name] = lane.name if len(lane.axes) == 1 else f"{lane.name}{k}"
        for k, a in enumerate(self.plan.outside):
            names[a.name] = f"z{k}"
        return names

    def _linear_forms(self) -> dict[str, Dim]:
        """Each axis of a lane with several, in terms of the lane."""
        env: dict[str, Dim] = {}
        for lane in self.plan.lanes:
            if len(lane.axes) > 1:
                env |= _digits(lane.axes, sym(f"@{lane.name}", 0, lane.size - 1))
        return env

    def _flattened(self, index: Dim) -> Dim:
        """The index over lanes, where that needs no division; else over the axes."""
        flat = substitute(index, self.env)
        plain = isinstance(flat, int) or not any(isinstance(a, Div | Mod) for mono in flat.terms for a in mono)
        return flat if plain else index

    def _lanes_in(self, index: Dim) -> set[str]:
        found: set[str] = set()
        for s in symbols(index):
            if s.name in self.lane_of:
                found.add(self.lane_of[s.name].name)
            elif s.name.startswith("@"):
                found.add(s.name[1:])
        return found

    def _span(self, i: Instr, index: Dim) -> frozenset[str]:
        """The lanes a value varies with: its shape."""
        if isinstance(i, Reduced):
            return frozenset("x")
        if isinstance(i, Scanned):
            return frozenset("xr")
        return frozenset(self._lanes_in(index)).union(*(self.spans[a] for a in instr_args(i)))

    def index_span(self, n: int) -> frozenset[str]:
        refs = value_refs(self.indices[n])
        return frozenset(self._lanes_in(self.indices[n])).union(*(self.spans[v] for v in refs))

    def shape(self, span: Iterable[str]) -> str:
        return f"[{', '.join(lane.block if lane.name in span else '1' for lane in self.plan.lanes)}]"

    def mask(self, span: Iterable[str]) -> list[str]:
        masked = [lane.name for lane in self.plan.lanes if lane.masked and lane.name not in self.inside]
        return [f"{name}m" for name in masked if name in span]

    def _index_width(self) -> tuple[str, tuple[Dim, ...]]:
        """The type indices are computed in, and what decides it at launch where sizes are not known before."""
        reach = self._reached()
        if any(r is None or any(s.name.startswith("%") for s in symbols(r)) for r in reach):
            return "tl.int64", ()
        known = [r for r in reach if isinstance(r, int)]
        undecided = tuple(dict.fromkeys(r + _SLACK for r in reach if isinstance(r, Expr)))
        if any(r > _INT32 - _SLACK for r in known):
            return "tl.int64", ()
        return ("INDEX", undecided) if undecided else ("tl.int32", ())

    def _reached(self) -> list[Dim | None]:
        """The largest value of everything that is computed with as an index."""
        reach: list[Dim | None] = [lane.size for lane in self.plan.lanes]
        bounds = {f"%{n}": sym(f"%{n}", 0, i.size - 1) for n, i in enumerate(self.body) if isinstance(i, Checked)}
        for i in self.body:
            for index in (instr_index(i), i.at if isinstance(i, Reduced) else 0):
                bounded = substitute(index, dict(bounds))
                low = lower(bounded)
                reach += [upper(bounded), None if low is None else -low]
        return reach

    # --- names --------------------------------------------------------------------------------------------------

    def buffer(self, name: str, dtype: DType) -> str:
        self.kinds[name] = dtype
        if name not in self.signature.buffers:
            self.signature.buffers.append(name)
        return f"p{self.signature.buffers.index(name)}"

    def symbol(self, name: str) -> str:
        if name.startswith("%"):
            value = self.value(int(name[1:]))
            return value if self.width == "tl.int64" else f"{value}.to({self.width})"
        if name.startswith("@"):
            return name[1:]
        if name in self.axis_names:
            return self.axis_names[name]
        if name not in self.signature.sizes:
            self.signature.sizes.append(name)
        return f"s{self.signature.sizes.index(name)}"

    def index(self, index: Dim) -> str:
        return index_text(index, self.symbol)

    def value(self, n: int) -> str:
        return f"v{self.prefix}{n}"

    def ref(self, value: int) -> str:
        """A value's name; a constant's text."""
        i = self.body[value]
        return typed_text(i.value, i.dtype) if isinstance(i, Const) else self.value(value)

    def tensor(self, value: int) -> str:
        """A value as a tensor, where Triton requires one."""
        i = self.body[value]
        if isinstance(i, Const):
            return f"tl.full([], {constant_text(i.value, i.dtype)}, {VALUE_TYPE[i.dtype]})"
        return self.value(value)

    def dtype(self, value: int) -> DType:
        return self.body[value].dtype

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    # --- instructions -------------------------------------------------------------------------------------------

    def pointer(self, n: int, span: frozenset[str]) -> str:
        """The pointers of an access, as a tile over `span`."""
        i = self.body[n]
        assert isinstance(i, Load | Store)
        text = f"{self.buffer(i.buffer, i.dtype)} + {self.index(self.indices[n])}"
        return text if self.index_span(n) == span else f"{text} + tl.zeros({self.shape(span)}, tl.int32)"

    def expression(self, n: int) -> str:
        i = self.body[n]
        match i:
            case Load():
                return self.load(n, i)
            case Position(expr, dtype):
                if isinstance(expr, int):
                    return typed_text(expr, dtype)
                return f"tl.cast({self.index(self.indices[n])}, {VALUE_TYPE[dtype]})"
            case Checked(arg, size):
                mask = " & ".join(self.mask(self.spans[n])) or "True"
                return f"bn.checked({self._wide(arg)}, {self.index(size)}, {mask}, error)"
            case Apply("erf" | "tanh" as fn, (arg,), DType.f32) if self.rounds:
                return f"bn.{fn}_to_bf16({self.tensor(arg)})"
            case Apply("cast", (arg,), dtype):
                return cast_text(self.dtype(arg), dtype, self.tensor(arg))
            case Apply("div", (a, b), DType.f32) if (power := self._power_of_two(b)) is not None:
                return f"({self.tensor(a)} * {1 / power!r})"  # the same to the last bit
            case Apply("div", (a, b), DType.f32) if n in self.rounded:
                return f"({self.tensor(a)} / {self.tensor(b)})"
            case Apply("exp" | "sigmoid" as fn, (arg,), DType.f32) if n in self.rounded:
                return f"tl.{fn}({self.tensor(arg)})"  # whose error is relative to its operand, and is lost in rounding
            case Apply("sub", (a, b), DType.f32 | DType.f64) if n in self.exponents and self._is_product(a, b):
                return f"libdevice.sub_rn({self.tensor(a)}, {self.tensor(b)})"
            case Apply(fn, args, dtype):
                operand = self.dtype(args[1] if fn == "where" else args[0])
                return apply_text(fn, dtype, operand, self._operands(fn, args))
            case Reduced(kind, arg, dtype, _):
                return reduce_text(kind, dtype, self.masked(arg, dtype, reduction_identity(kind, dtype), whole=False))
            case Scanned(kind, arg, dtype):
                return f"tl.cum{kind}({self._whole(arg)}, 1).to({VALUE_TYPE[dtype]})"
        raise AssertionError(f"{i} is not an expression")

    def load(self, n: int, i: Load) -> str:
        mask = self.mask(self.spans[n]) + ([] if i.guard is None else [self.ref(i.guard)])
        parts = [self.pointer(n, self.spans[n])]
        if mask:
            parts.append(" & ".join(mask))
        filled_later = i.guard is not None and self._fills_later(i, i.guard)
        if i.guard is not None and not filled_later:
            parts.append(f"other={constant_text(i.fill, i.dtype)}")
        call = f"tl.load({', '.join(parts)})"
        if i.guard is not None and filled_later:
            filled = DType.f32 if i.dtype.is_float else i.dtype
            return f"tl.where({self.ref(i.guard)}, {load_text(i.dtype, call)}, {constant_text(i.fill, filled)})"
        counted = self.multiplies and "r" in self.spans[n]  # each instruction
        return f"bn.widened({call})" if counted and i.dtype is DType.bf16 else load_text(i.dtype, call)

    def _fills_later(self, load: Load, guard: int) -> bool:
        """Whether what a guarded load finds elsewhere is filled in later, of halves once they are floats. CUDA's
        assembler before 12.9 (that of Triton 3.6) computes with two neighbouring halves at a time and, where it knows
        one half of one operand and the other half of the other for the same negative constant, may take it for a
        positive one: it must not see the constant among the halves. Two conditions that tell neighbours apart are what
        that takes.

        Of negative integers of 8 or 16 bits, Triton 3.6 puts several into a register with their signs extended: all but
        the first are -1 then."""
        if load.dtype in (DType.i8, DType.i16):
            return load.fill < 0
        return _is_negative_half(load) and bool(self._between_neighbours([guard])) and len(self._told_apart) > 1

    @functools.cached_property
    def _told_apart(self) -> set[int]:
        guarded = [i for i in self.body if isinstance(i, Load) and i.guard is not None and _is_negative_half(i)]
        return self._between_neighbours([i.guard for i in guarded if i.guard is not None])

    def _between_neighbours(self, guards: list[int]) -> set[int]:
        """The conditions behind these that may change from one element of a lane to the next."""
        nearest = {lane.axes[-1].name for lane in self.plan.lanes if lane.axes}
        varies: list[bool] = []
        for i in self.body:
            here = any(s.name in nearest for s in symbols(instr_index(i)))
            varies.append(here or any(varies[a] for a in instr_args(i)))
        found: set[int] = set()
        behind, left = set(guards), list(guards)
        while left:
            n = left.pop()
            i = self.body[n]
            joins = isinstance(i, Apply) and i.fn in ("and", "or", "not")
            if varies[n] and not joins:
                found.add(n)
            more = [a for a in instr_args(i) if joins and a not in behind]
            behind.update(more)
            left += more
        return found

    def _operands(self, fn: str, args: Sequence[int]) -> list[str]:
        """Constants as literals where the other operand gives them their type."""
        values = args[1:] if fn == "where" else args
        literal = takes_literals(fn) and any(not isinstance(self.body[a], Const) for a in values)
        texts = [self._literal(a) if literal else self.tensor(a) for a in values]
        return [self.ref(args[0]), *texts] if fn == "where" else texts

    def _power_of_two(self, value: int) -> float | None:
        """The value, where it is a constant power of two whose inverse is one, too."""
        i = self.body[value]
        if not isinstance(i, Const) or not i.dtype.is_float or math.frexp(i.value)[0] != 0.5:
            return None
        return float(i.value) if 2.0**-100 < i.value < 2.0**100 else None

    def _is_product(self, *values: int) -> bool:
        return any(isinstance(i, Apply) and i.fn == "mul" for i in (self.body[v] for v in values))

    def _literal(self, value: int) -> str:
        i = self.body[value]
        return constant_text(i.value, i.dtype) if isinstance(i, Const) else self.value(value)

    def statement(self, n: int) -> None:
        i = self.body[n]
        if isinstance(i, Const):
            return  # written where it is used
        if isinstance(i, Store):
            self._store(n, i)
        elif isinstance(i, Reduced) and i.kind.startswith("arg"):
            value, place = self.pair(i)
            self.line(f"a{n} = {value}")
            self.line(f"at{n} = {place}")
            self.reduce_pair(n, i)
        else:
            self.line(f"{self.value(n)} = {_bare(self.expression(n))}")

    def _store(self, n: int, i: Store) -> None:
        span = self.spans[n]
        if i.mode != "set":  # every point of the tile contributes, also along lanes with which it does not vary
            span |= {"x", "r"} if self.loop.element_level()[n] else {lane.name for lane in self.plan.lanes} - {"r"}
            if i.dtype not in _ATOMIC.get(i.mode, ()):
                raise NotPrintable(f"no atomic {i.mode} for {i.dtype.value}")
        parts = [self.pointer(n, span), self.ref(i.value)]
        mask = [*self.mask(span), *self._in_range(i)]
        if mask:
            parts.append(" & ".join(mask))
        if i.mode == "set":
            self.line(f"tl.store({', '.join(parts)})")
        else:
            parts[1] = f"tl.broadcast_to({self.tensor(i.value)}, {self.shape(span)}).to({STORED_TYPE[i.dtype]})"
            self.line(f'tl.atomic_{i.mode}({", ".join(parts)}, sem="relaxed")')

    def _in_range(self, store: Store) -> list[str]:
        """An index out of range raises, and writes nothing: its replacement index 0 may be an element of the caller's
        tensor, which the caller may use after the exception."""
        indices = [i for v in value_refs(store.index) if isinstance(i := self.body[v], Checked)]
        return [f"({self._wide(i.arg)} >= 0) & ({self._wide(i.arg)} < {self.index(i.size)})" for i in indices]

    def _wide(self, value: int) -> str:
        """An index from memory: an int8 cannot be compared with a size of 1000."""
        return self.tensor(value) if self.dtype(value) is DType.i64 else f"{self.tensor(value)}.to(tl.int64)"

    # --- reductions ---------------------------------------------------------------------------------------------

    def _whole(self, arg: int) -> str:
        """A value over the whole tile."""
        text = self.tensor(arg)
        return text if self.spans[arg] == {"x", "r"} else f"tl.broadcast_to({text}, {self.shape('xr')})"

    def masked(self, arg: int, dtype: DType, identity: str, whole: bool = True) -> str:
        """A value over the whole tile, or over one row of it, with `identity` where it reaches past the row."""
        text = self._whole(arg) if whole or self.spans[arg] != {"r"} else self.tensor(arg)
        if self.dtype(arg).compute is not dtype.compute:
            text = f"{text}.to({VALUE_TYPE[dtype]})"
        row = self.mask("r")
        return f"tl.where({row[0]}, {text}, {identity})" if row else text

    def pair(self, i: Reduced) -> tuple[str, str]:
        """A value and its place, over the whole tile; past the row, one that never wins."""
        held = self.dtype(i.arg)
        place = f"tl.broadcast_to({self.index(self._flattened(i.at))}, {self.shape('xr')})"
        row = self.mask("r")
        if row:
            place = f"tl.where({row[0]}, {place}, {_INT32})"
        value = self.masked(i.arg, held, reduction_identity(i.kind, held))
        return (f"{value}.to(tl.int32)" if held is DType.bool else value), place

    def reduce_pair(self, n: int, i: Reduced) -> None:
        self.line(f"_, v{n} = tl.reduce((a{n}, at{n}), 1, bn.{i.kind}, keep_dims=True)")
        self.line(f"v{n} = v{n}.to({VALUE_TYPE[i.dtype]})")

    def asked_first(self) -> list[int]:
        """Loads that depend on no reduction, with their operands: a reduction is a barrier, and loads issued after it
        would wait for memory again."""
        phases = Phases(self.loop)
        if phases.last == 0 or self.loop.sequential:
            return []
        wanted = {n for n, i in enumerate(self.body) if isinstance(i, Load) and phases.ready[n] == 0}
        for n in range(len(self.body) - 1, -1, -1):
            if n in wanted:
                wanted.update(instr_args(self.body[n]))
        return sorted(wanted)

    def body_values(self) -> list[int]:
        return list(range(len(self.body)))

    def lane(self, name: str) -> Lane:
        return next(lane for lane in self.plan.lanes if lane.name == name)

    def arange(self, lane: Lane) -> str:
        text = f"tl.arange(0, {lane.block})"
        if len(self.plan.lanes) == 1:
            return text
        return f"{text}[:, None]" if self.plan.lanes.index(lane) == 0 else f"{text}[None, :]"

    def widened(self, text: str) -> str:
        return text if self.width == "tl.int32" else f"{text}.to({self.width})"

    def define_outside(self, number: str) -> None:
        """The axes that only the program's number runs over."""
        axes = self.plan.outside
        if len(axes) == 1:
            self.line(f"z0 = {number}")
        elif axes:
            self.line(f"z = {number}")
            for a, digit in _digits(axes, sym("@z")).items():
                self.line(f"{self.axis_names[a]} = {_bare(self.index(digit))}")

    def define_mask(self, lane: Lane) -> None:
        if lane.masked and lane.name not in self.inside:
            self.line(f"{lane.name}m = {lane.name} < {self.index(lane.size)}")

    def open_lane(self, name: str, start: str, values: list[int]) -> None:
        """The r lane, from `start` on, with its mask and those of its axes that `values` mention."""
        lane = self.lane(name)
        self.line(f"{name} = {start}{self.widened(self.arange(lane))}")
        self.define_mask(lane)
        self.define_axes(lane, values)

    def define_axes(self, lane: Lane, values: Iterable[int]) -> None:
        if len(lane.axes) < 2:
            return
        used = {s.name for n in values for index in self._mentioned(n) for s in symbols(index)}
        for a in lane.axes:
            if a.name in used:
                self.line(f"{self.axis_names[a.name]} = {_bare(self.index(self.env[a.name]))}")

    def _mentioned(self, n: int) -> list[Dim]:
        i = self.body[n]
        return [self.indices[n], self._flattened(i.at)] if isinstance(i, Reduced) else [self.indices[n]]

    def types(self) -> tuple[str, ...]:
        out = [f"*{MEMORY_TYPE[self.kinds[b]]}" for b in self.signature.buffers]
        out += ["i64"] * len(self.signature.sizes)  # a number of Python's may be any; cast to `width` where it fits
        return (*out, *(["*i64"] if self.signature.checks else []))

    def text(self) -> str:
        names = [f"p{k}" for k in range(len(self.signature.buffers))]
        names += [f"s{k}" for k in range(len(self.signature.sizes))]
        names += ["error"] if self.signature.checks else []
        constants = ["INDEX"] if self.reach else []
        constants += [name for name, _ in self.plan.launch.blocks]
        names += [f"{c}: tl.constexpr" for c in constants]
        casts = [f"    s{k} = tl.cast(s{k}, {self.width})" for k in range(len(self.signature.sizes))]
        return "\n".join(["@triton.jit", f"def @({', '.join(names)}):", *casts, *self.lines])


def _is_negative_half(load: Load) -> bool:
    return load.dtype.compute is not load.dtype and load.fill < 0


def _digits(axes: Sequence[Axis], number: Expr) -> dict[str, Dim]:
    """The axes of a flattened space, given the position in it."""
    out: dict[str, Dim] = {}
    inner: Dim = 1
    for k, a in reversed(list(enumerate(axes))):
        digit = floordiv(number, inner)
        out[a.name] = digit if k == 0 else mod(digit, a.size)
        inner = inner * a.size
    return out


def _bare(text: str) -> str:
    """The text without parentheses around the whole of it."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text
