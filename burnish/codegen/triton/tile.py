"""The common part of Triton kernels for products and convolutions: a tile of sums in registers, and the epilogue over
that tile.

The epilogue is printed by the loop printer: rows are its lane `y`, columns its lane `x`, and a load of the accumulator
is the tile.
"""

from __future__ import annotations

from typing import NamedTuple

from burnish.codegen.triton.launch import Launch, LaunchPlan, cdiv
from burnish.codegen.triton.loop import AHEAD, LoopPrinter
from burnish.device import Gpu
from burnish.ir.body import Apply, Const, Instr, Load, instr_args
from burnish.ir.expr import Dim
from burnish.schedule.form import Form
from burnish.schedule.kernels import ContractKernel, Operand, Product

ASSUMED = 4096  # rows, where their number is known only at launch
_CACHE_LINE = 128  # bytes
_MOST_TILES = 2  # held in registers next to the sums
_ROOM_LEFT = 7 << 10  # bytes of shared memory that Triton has for what passes between threads
_MOST_FORMS = 12


class Tile(NamedTuple):
    """What one program computes, `depth` elements of the sum at a time with `stages` loads in flight."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int = 4

    @property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        return (("YBLOCK", self.rows), ("XBLOCK", self.columns), ("KBLOCK", self.depth), ("STAGES", self.stages))

    @property
    def form(self) -> Form:
        return Form("tile", (*self.blocks, ("warps", self.warps)))

    @classmethod
    def of(cls, form: Form) -> Tile:
        return cls(*(form[name] for name in ("YBLOCK", "XBLOCK", "KBLOCK", "STAGES", "warps")))


class TilePrinter(LoopPrinter):
    """Prints one tile's epilogue, and what its product needs to find operands."""

    def __init__(self, kernel: Product, planned: LaunchPlan, operands: tuple[Operand, Operand]) -> None:
        names = list(kernel.products) if isinstance(kernel, ContractKernel) else [kernel.acc]
        self.sums = {name: f"acc{n or ''}" for n, name in enumerate(names)}  # product -> the variable that holds it
        self.operands = operands
        self.printed: set[int] = set()  # values that stand ahead of the product
        self.defined: set[str] = set()  # lanes whose masks and axes do
        super().__init__(kernel.loop, planned)

    def vectors(self, unwritten: frozenset[str]) -> None:
        """The epilogue's column vectors from `unwritten` buffers, loaded before the product so that they arrive in
        time."""
        if any(isinstance(i, Load) and i.buffer in unwritten for i in self.body):
            self._define_lane("x")
        for n, i in enumerate(self.body):
            if isinstance(i, Load):
                early = i.buffer in unwritten and not instr_args(i)
            else:
                early = isinstance(i, Const) or (isinstance(i, Apply) and self.printed.issuperset(i.args))
            if early and self.spans[n] <= {"x"}:
                self.statement(n)
                self.printed.add(n)

    def tiles(self) -> None:
        """The tiles that the epilogue combines with the sums (a residual), loaded before the product, so that the loads
        overlap with it."""
        loads = [n for n, i in enumerate(self.body) if isinstance(i, Load) and not self._is_tile(i)]
        early = [n for n in loads if not instr_args(self.body[n]) and self.spans[n] == {"y", "x"}]
        for name in "yx" if early else "":
            self._define_lane(name)
        for n in early[:_MOST_TILES]:
            self.statement(n)
            self.printed.add(n)

    def _define_lane(self, name: str) -> None:
        if name not in self.defined:
            self.define_mask(self.lane(name))
            self.define_axes(self.lane(name), self.body_values())
            self.defined.add(name)

    def epilogue(self) -> None:
        for lane in self.plan.lanes:
            self._define_lane(lane.name)
        for n in self.body_values():
            if n not in self.printed:
                self.statement(n)

    def expression(self, n: int) -> str:
        i = self.body[n]
        return self.sums[i.buffer] if isinstance(i, Load) and self._is_tile(i) else super().expression(n)

    def _is_tile(self, i: Instr) -> bool:
        return isinstance(i, Load) and i.buffer in self.sums

    def _span(self, i: Instr, index: Dim) -> frozenset[str]:
        return frozenset("yx") if self._is_tile(i) else super()._span(i, index)

    def _mentioned(self, n: int) -> list[Dim]:
        return [] if self._is_tile(self.body[n]) else super()._mentioned(n)

    def _reached(self) -> list[Dim | None]:
        """The last element of each operand, too."""
        return [*super()._reached(), *(o.last for o in self.operands)]

    def _block(self, name: str) -> int:
        return dict(self.plan.launch.blocks)[name]

    def _stride(self, operand: Operand, d: int) -> str:
        return self.index(operand.strides[d])

    def _bounded(self, lane: str, size: Dim, block: str) -> str:
        return "" if isinstance(size, int) and size % self._block(block) == 0 else f"({lane} < {self.index(size)})"

    def _at(self, o: Operand, offset: Dim) -> str:
        assert o.dtype is not None
        base = self.buffer(o.buffer, o.dtype)
        return base if offset == 0 else f"{base} + {self.index(offset)}"

    def fetch(self, base: str, o: Operand, length: Dim, columns: Dim, step: Dim) -> None:
        """Bring the program's columns of an operand, which are parameters, on their way into the cache: `length`
        elements next to one another in each column, and `step` from column to column."""
        assert o.dtype is not None
        line = _CACHE_LINE // o.dtype.itemsize
        if not isinstance(length, int) or not isinstance(columns, int) or length < line:
            return
        lines = 1 << (-(-length // line) - 1).bit_length()
        self.line(f"ahead = tl.minimum(tl.arange(0, {lines}) * {line}, {length - 1})[:, None]")
        self.line(f"bn.fetch({base} + ahead + tl.minimum(x, {columns - 1}) * {self.index(step)})")

    # --- the persistent form ------------------------------------------------------------------------------------

    def multiply_persistently(self) -> None:
        """The product of the operands, two matrices, tile by tile, each with its epilogue."""
        a, b = self.operands
        (m, k), n = a.shape, b.shape[-1]
        self._describe("left", a, -2, "YBLOCK")
        self._describe("right", b, -1, "XBLOCK")
        across, down = cdiv(n, self._block("XBLOCK")), cdiv(m, self._block("YBLOCK"))
        self.lines.append(AHEAD)
        self.line(f"for program in tl.range(tl.program_id(0), {self.index(across * down)}, PROGRAMS, flatten=True):")
        self.indent += 1
        # Neighbours share rows or columns: eight rows of tiles at a time.
        self.line(f"first = program // {self.index(8 * across)} * 8")
        self.line(f"rows = tl.minimum({self.index(down)} - first, 8)")
        self.line(f"top = (first + program % {self.index(8 * across)} % rows) * YBLOCK")
        self.line(f"side = program % {self.index(8 * across)} // rows * XBLOCK")
        self.line("acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        self.line(f"for start in tl.range(0, {self.index(k)}, KBLOCK, num_stages=STAGES):")
        tiles = self._tile_of("left", a, "top"), self._tile_of("right", b, "side", flipped=True)
        self.line(f"    acc = tl.dot({', '.join(tiles)}, acc)")
        self.line(f"y = {self.widened('(top + tl.arange(0, YBLOCK)[:, None])')}")
        self.line("x = side + tl.arange(0, XBLOCK)[None, :]")
        self.epilogue()
        self.indent -= 1

    def _describe(self, name: str, o: Operand, d: int, block: str) -> None:
        """The operand as a matrix whose inner dimension is contiguous. `d` is the one that is not k."""
        k = -3 - d  # the other of the last two
        order = (d, k) if o.strides[k] == 1 else (k, d)
        shape = ", ".join(self.index(o.shape[j]) for j in order)
        stride = self.index(o.strides[order[0]])
        blocks = ", ".join(block if j == d else "KBLOCK" for j in order)
        base = self._at(o, o.offset)
        self.line(f"{name} = tl.make_tensor_descriptor({base}, [{shape}], [{stride}, 1], [{blocks}])")

    @staticmethod
    def _tile_of(name: str, o: Operand, at: str, flipped: bool = False) -> str:
        """A tile as the product wants it: rows by k of the left operand, k by columns of the right one."""
        contiguous_k = o.strides[-2 if flipped else -1] == 1
        load = f"{name}.load([{at}, start])" if contiguous_k else f"{name}.load([start, {at}])"
        return f"{load}.T" if contiguous_k == flipped else load


def enough(gpu: Gpu) -> int:
    """Programs with which a chip is busy, when each has several loads in flight."""
    return gpu.multiprocessors // 2


def persistent_launch(a: Operand, b: Operand, gpu: Gpu, form: Form | None = None) -> Launch:
    """Two programs on each multiprocessor, while there are tiles for them."""
    form = form or _PERSISTENT[0]
    rows, columns, stages = form["YBLOCK"], form["XBLOCK"], form["STAGES"]
    tiles = cdiv(a.shape[-2], rows) * cdiv(b.shape[-1], columns)
    assert isinstance(tiles, int)
    programs = min(tiles, form["each"] * gpu.multiprocessors)
    blocks = (("YBLOCK", rows), ("XBLOCK", columns), ("KBLOCK", form["KBLOCK"]), ("STAGES", stages))
    return Launch(programs, (*blocks, ("PROGRAMS", programs)), warps=form["warps"], stages=stages)


# --- what a search tries ----------------------------------------------------------------------------------------


def _persistent(rows: int, columns: int, depth: int, stages: int, each: int, warps: int) -> Form:
    blocks = (("YBLOCK", rows), ("XBLOCK", columns), ("KBLOCK", depth), ("STAGES", stages))
    return Form("persistent", (*blocks, ("each", each), ("warps", warps)))


# Tiles of the persistent form, the one used without a search first. `each`: programs on a multiprocessor.
_PERSISTENT = (
    _persistent(128, 128, 64, 3, 2, 4), _persistent(128, 128, 64, 4, 1, 8), _persistent(128, 256, 64, 3, 1, 8),
    _persistent(128, 64, 64, 4, 2, 4), _persistent(64, 128, 64, 4, 2, 4),
)  # fmt: skip


def persistent_forms(whole: Dim = 0) -> list[Form]:
    """Those whose tiles are whole along this many columns."""
    return [form for form in _PERSISTENT if isinstance(whole, int) and whole % form["XBLOCK"] == 0]


def tile_forms(
    chosen: Tile, m: Dim, n: Dim, deepest: int, itemsize: int, gpu: Gpu, fixed_depth: bool = False
) -> list[Form]:
    """`chosen`, then the tiles of an m x n product that differ from it by few factors of two. Depths are powers of two
    up to `deepest`. Sizes known only at launch are not searched for."""
    if not isinstance(m, int) or not isinstance(n, int):
        return [chosen.form]
    tiles = [
        Tile(rows, columns, depth, stages, warps)
        for rows in (16, 32, 64, 128)
        for columns in (16, 32, 64, 128)
        for depth in ([chosen.depth] if fixed_depth else [d for d in (32, 64, 128) if d <= max(deepest, 16)])
        for stages in (2, 3, 4, 5)
        for warps in (4, 8)
        if rows < 2 * max(m, 16) and columns < 2 * max(n, 16)
    ]
    room = gpu.shared_memory - _ROOM_LEFT
    fitting = [t for t in tiles if t.stages * t.depth * (t.rows + t.columns) * itemsize <= room]
    worth = [t for t in fitting if t.warps == 4 or t.rows * t.columns >= 64 * 64]
    worth.sort(key=lambda t: (_apart(t, chosen), t))
    return list(dict.fromkeys([chosen.form, *(t.form for t in worth[:_MOST_FORMS])]))


def _apart(tile: Tile, other: Tile) -> int:
    """Factors of two between them; loads in flight count as what they are, a matter of taste."""
    bits = sum(abs(a.bit_length() - b.bit_length()) for a, b in zip(tile[:3], other[:3], strict=True))
    return bits + (tile.stages != other.stages) + (tile.warps != other.warps)


def static_size(d: Dim) -> int:
    return d if isinstance(d, int) else ASSUMED
