"""Sums over rows of small integers (weights of 8 or 4 bits), where instructions take as long as memory accesses.

Three techniques reduce the instructions. A thread first adds up the neighbours it holds, and a shared factor (a scale
for each 128 weights) multiplies that partial sum, not each element: the sum of x * (q * s + l) is, over the groups, the
sum of s * sum(x * q) + l * sum(x). A weight is converted by placing its bits into a float with a known exponent,
because the conversion instruction is slow; the exponent's contribution is subtracted from the partial sum. And all
loads of a row use the same thread layout: Triton would give a thread more adjacent bytes than elements of the vector,
and exchange the products through shared memory.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TypeGuard

from burnish.codegen.triton.body import BodyPrinter
from burnish.codegen.triton.scalar import load_text
from burnish.codegen.triton.shared_loads import shared_by
from burnish.ir.body import Apply, Const, Instr, Load, Reduced, Store, instr_args
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, coefficient, floordiv, substitute, sym
from burnish.schedule.gpu.vector_loops import is_of_bytes, vector_loads

_ACCESS = 16  # bytes that a thread loads at once
_MOST_TERMS = 16  # of one sum, once it is multiplied out


@dataclass(frozen=True)
class _Term:
    """A part of a sum: a number times values that neighbours share times elements, which may be halves of bytes."""

    number: float
    shared: tuple[int, ...]
    elements: tuple[int, ...]

    def times(self, other: _Term) -> _Term:
        shared, elements = sorted(self.shared + other.shared), sorted(self.elements + other.elements)
        return _Term(self.number * other.number, tuple(shared), tuple(elements))


class _NoTerms(Exception):
    pass


def small_weights(p: BodyPrinter) -> SmallWeights | None:
    """The loop's small weights, if it is a vector product whose matrices are of bytes."""
    loop, lane = p.loop, p.plan.lanes[-1]
    if not p.multiplies or len(lane.axes) != 1 or not isinstance(lane.size, int) or not is_of_bytes(loop):
        return None
    narrowest = min((i.dtype.itemsize for i in vector_loads(loop)), default=_ACCESS)
    width = _ACCESS // narrowest
    if width < 2 or lane.size % width != 0:
        return None
    try:
        return SmallWeights(p, width)
    except _NoTerms:
        return None


class SmallWeights:
    """Prints the sums of one loop. `live` are the values that must be printed for it."""

    def __init__(self, p: BodyPrinter, width: int) -> None:
        self.p = p
        self.width = width  # neighbours that a thread holds of each row
        self.block = f"{p.plan.lanes[-1].block} // {width}"
        self.shared: set[int] = set()
        self.terms = {n: self._expanded(i.arg) for n, i in enumerate(p.body) if self.is_sum(i)}
        self.live = self._reached()
        self._sums: dict[tuple[int, ...], str] = {}  # by elements: names of partial sums
        self._in_words: set[int] = set()  # loads whose bytes are spread over words

    @staticmethod
    def is_sum(i: Instr) -> TypeGuard[Reduced]:
        return isinstance(i, Reduced) and i.kind == "sum" and i.dtype is DType.f32

    # --- what is summed -----------------------------------------------------------------------------------------

    def _expanded(self, value: int) -> list[_Term]:
        """An element multiplied out: a sum of terms."""
        terms = self._multiplied_out(value)
        if len(terms) > _MOST_TERMS or not all(t.elements for t in terms):
            raise _NoTerms
        return terms

    def _multiplied_out(self, value: int) -> list[_Term]:
        i, level = self.p.body[value], self.p.loop.element_level()
        if not level[value] or self._is_shared(i, value):
            return [_Term(1.0, (value,), ())]
        if (half := self._half_of(value)) is not None:
            step = 64.0 if half[0] == "low" else 1024.0  # parts that `bn.low_half`, `bn.high_half` count in, from 2 on
            return [_Term(step, (), (value,)), _Term(-2 * step, (), ())]
        match i:
            case Apply("add", (a, b), DType.f32):
                return self._multiplied_out(a) + self._multiplied_out(b)
            case Apply("sub", (a, b), DType.f32):
                return self._multiplied_out(a) + [replace(t, number=-t.number) for t in self._multiplied_out(b)]
            case Apply("mul", (a, b), DType.f32) if a != b:
                both = itertools.product(self._multiplied_out(a), self._multiplied_out(b))
                return [x.times(y) for x, y in itertools.islice(both, _MOST_TERMS + 1)]
        if i.dtype.compute is not DType.f32:
            raise _NoTerms
        return [_Term(1.0, (), (value,))]

    def _is_shared(self, i: Instr, value: int) -> bool:
        if not isinstance(i, Load) or i.guard is not None:
            return False
        found = shared_by(self.p.indices[value], self.p.plan.lanes[-1].axes[0].name)
        if found is None or found % self.width != 0:
            return False
        self.shared.add(value)
        return True

    def _half_of(self, value: int) -> tuple[str, int] | None:
        """Which half, and of which byte, a value is, as a float."""
        body = self.p.body
        match body[value]:
            case Apply("cast", (arg,), DType.f32):
                match body[arg]:
                    case Apply("and" | "shr" as fn, (byte, by), DType.u8) if isinstance(body[byte], Load):
                        wanted = {"and": 15, "shr": 4}[fn]
                        number = body[by]
                        if isinstance(number, Const) and number.value == wanted:
                            return ("low" if fn == "and" else "high"), byte
        return None

    def _reached(self) -> set[int]:
        """The values that something other than a multiplied-out sum needs, and those sums' elements."""
        body, live = self.p.body, set[int]()
        stack = [n for n, i in enumerate(body) if isinstance(i, Store)]
        while stack:
            n = stack.pop()
            if n in live:
                continue
            live.add(n)
            if n not in self.terms:
                needed = set(instr_args(body[n]))
                if needed & self.shared:
                    raise _NoTerms  # an element for each of the group, too
                stack.extend(needed)
                continue
            for term in self.terms[n]:
                stack.extend(term.shared)
                stack.extend(half[1] if (half := self._half_of(e)) else e for e in term.elements)
        return live

    # --- loads --------------------------------------------------------------------------------------------------

    def open_chunks(self) -> None:
        """Count a row's partial sums, where something is loaded for each."""
        if self.shared:
            self.p.line(f"chunk = {self.p.widened(f'tl.arange(0, {self.block})[None, :]')}")

    def pointer(self, n: int, load: Load) -> str:
        """Where a load along the row goes, with as many neighbours in a thread as of the other loads."""
        hint = f"tl.max_contiguous({{}}, [1, {self.width}])" if load.dtype.itemsize * self.width < _ACCESS else "{}"
        return self._place(load, self.p.indices[n], hint)

    def shared_load(self, n: int, load: Load) -> str:
        """One element for each partial sum. What it says of its neighbours is to have them in a row, as the sums are;
        that they are apart by what divides nothing keeps Triton from taking two at once."""
        p, lane = self.p, self.p.plan.lanes[-1]
        assert isinstance(lane.size, int)
        chunk = self.width * sym("@chunk", 0, floordiv(lane.size, self.width) - 1)
        index = substitute(p.indices[n], {lane.axes[0].name: chunk})
        hint = "tl.multiple_of(tl.max_contiguous({}, [1, 2]), [1, 1])" if "x" in p.spans[n] else "{}"
        mask = p.mask(p.spans[n] - {"r"}) + ([f"(chunk < {lane.size // self.width})"] if p.mask("r") else [])
        given = [self._place(load, index, hint), *([" & ".join(mask), "other=0.0"] if mask else [])]
        return load_text(load.dtype, f"tl.load({', '.join(given)})")

    def _place(self, load: Load, index: Dim, hint: str) -> str:
        """The first of a program's rows, and from there so many rows on, which is a constant in each access."""
        p, lane = self.p, self.p.lane("x")
        buffer = p.buffer(load.buffer, load.dtype)
        row = lane.axes[0].name if len(lane.axes) == 1 else "@x"
        step = coefficient(index, row)
        if not isinstance(step, int) or step == 0:
            return f"{buffer} + {hint.format(p.index(index))}"
        first = p.index(substitute(index, {row: sym("@first")}))
        return f"{buffer} + {hint.format(first)} + rows * {step}"

    # --- sums ---------------------------------------------------------------------------------------------------

    def partial(self, n: int, whole: bool) -> str:
        """A sum's parts, one for each thread's neighbours; of all rows, where it is `whole`."""
        by_factor: dict[tuple[int, ...], list[str]] = {}
        for term in self.terms[n]:
            number = "" if term.number == 1.0 else f"{term.number} * "
            by_factor.setdefault(term.shared, []).append(f"{number}{self._sum_of(term.elements)}")
        parts = []
        for shared, sums in by_factor.items():
            added = " + ".join(sums)
            factors = " * ".join(self.p.tensor(v) for v in shared)
            parts.append(f"{factors} * ({added})" if factors else added)
        text = " + ".join(parts)
        return f"tl.broadcast_to({text}, [XBLOCK, {self.block}])" if whole else text

    def _sum_of(self, elements: tuple[int, ...]) -> str:
        if elements not in self._sums:
            p = self.p
            product = " * ".join(self._element(e) for e in elements)
            if p.mask("r"):
                product = f"tl.where(rm, {product}, 0.0)"
            rows = "XBLOCK" if any("x" in p.spans[e] for e in elements) else "1"
            name = self._sums[elements] = f"c{len(self._sums)}"
            p.line(f"{name} = tl.sum(tl.reshape({product}, [{rows}, {self.block}, {self.width}]), 2)")
        return self._sums[elements]

    def _element(self, value: int) -> str:
        half = self._half_of(value)
        if half is None:
            return self.p.tensor(value)
        which, byte = half
        if byte not in self._in_words:
            self._in_words.add(byte)
            self.p.line(f"w{byte} = bn.halves_in_words({self.p.value(byte)})")
        return f"bn.{which}_half(w{byte})"

    def cast(self, arg: int) -> str | None:
        """A byte as a float."""
        kind = self.p.dtype(arg)
        if kind not in (DType.i8, DType.u8) or not isinstance(self.p.body[arg], Load):
            return None
        return f"bn.{'signed' if kind is DType.i8 else 'unsigned'}_byte({self.p.value(arg)})"
