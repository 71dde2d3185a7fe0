"""Convolution → one Triton kernel: a matrix product whose left operand is gathered from x (implicit GEMM).

Rows are the positions of the result (b, h, w), columns its channels, and the sum runs over taps and channels in the
order the weights have in memory, [r, s, c]. Each step takes channels of one tap: a row's pointer to its first tap is
computed once, a tap is a distance from there that all rows share. Only where padding lets a tap fall outside x are
loads masked for it; a 1 x 1 convolution of stride 1 reads x as the matrix it is.

Which tile: as for products (contract.py) where latency decides; where memory does, one of which several fit on a
multiprocessor, and neighbouring programs share rows. A convolution that is a large matrix product uses that product's
persistent form.
"""

from __future__ import annotations

from burnish.codegen.triton.launch import Lane, Launch, LaunchPlan, cdiv
from burnish.codegen.triton.loop import AHEAD, TritonKernel
from burnish.codegen.triton.tile import (
    Tile,
    TilePrinter,
    enough,
    persistent_forms,
    persistent_launch,
    static_size,
    tile_forms,
)
from burnish.device import Gpu
from burnish.ir.expr import Dim, Expr, product
from burnish.schedule.form import Form
from burnish.schedule.gpu.convolutions import depth, is_persistent, length, matrices, row_of_taps, takes_rows
from burnish.schedule.gpu.limits import describable, most_tiles
from burnish.schedule.kernels import ConvolveKernel, Operand


def print_convolve(
    kernel: ConvolveKernel, gpu: Gpu, unwritten: frozenset[str] = frozenset(), form: Form | None = None
) -> TritonKernel:
    """`unwritten` are buffers that no kernel of the program writes; `form` is one of `convolve_forms`."""
    if form.name == "persistent" if form else is_persistent(kernel, gpu):
        return _print_persistent(kernel, gpu, form)
    tile = Tile.of(form) if form else tile_of(kernel, gpu)
    programs = kernel.splits * cdiv(_places(kernel), tile.rows) * cdiv(kernel.k.shape[0], tile.columns)
    launch = Launch(programs, tile.blocks, warps=tile.warps, stages=tile.stages)
    printer = (_ConvolutionOfRows if takes_rows(kernel) else _Convolution)(kernel, launch)
    printer.place()
    printer.convolve(unwritten, fetch=kernel.k.buffer in unwritten and static_size(programs) <= most_tiles(gpu))
    printer.epilogue()
    return TritonKernel(printer.text(), printer.signature, printer.types(), launch, printer.reach)


def convolve_forms(kernel: ConvolveKernel, gpu: Gpu) -> list[Form]:
    """The forms that a search tries, the rule's first."""
    operands = matrices(kernel)
    static = isinstance(_places(kernel), int) and isinstance(kernel.k.shape[0], int)
    flat = operands is not None and kernel.splits == 1 and all(map(describable, operands)) and static
    persistent = persistent_forms(kernel.k.shape[0]) if flat else []
    tile = tile_of(kernel, gpu)
    assert kernel.x.dtype is not None
    tiles = tile_forms(
        tile, _places(kernel), kernel.k.shape[0], depth(kernel), kernel.x.dtype.itemsize, gpu, takes_rows(kernel)
    )
    return persistent + tiles if is_persistent(kernel, gpu) else tiles + persistent[:2]


def _print_persistent(kernel: ConvolveKernel, gpu: Gpu, form: Form | None = None) -> TritonKernel:
    operands = matrices(kernel)
    assert operands is not None
    launch = persistent_launch(*operands, gpu, form)
    printer = _Convolution(kernel, launch, operands)
    printer.multiply_persistently()
    return TritonKernel(printer.text(), printer.signature, printer.types(), launch, printer.reach)


def _places(kernel: ConvolveKernel) -> Dim:
    b, _, h, w = kernel.result_shape
    return product((b, h, w))


def tile_of(kernel: ConvolveKernel, gpu: Gpu) -> Tile:
    m, n = static_size(_places(kernel)), static_size(kernel.k.shape[0])
    widest = max(16, 1 << (n - 1).bit_length())
    many = -(-m // 64) * -(-n // 64) > most_tiles(gpu)
    if takes_rows(kernel):  # loads of single elements: many threads have them all in flight at once
        return Tile(64, min(widest, 64), depth(kernel), 2, 8)
    if many:
        return Tile(128, min(widest, 64), min(depth(kernel), 64), 3)
    rows = 16 if m <= 16 else 32 if m <= 32 else 64
    across = min(widest, 64)
    while across > 16 and kernel.splits * -(-m // rows) * -(-n // across) < enough(gpu):
        across //= 2
    return Tile(rows, across, depth(kernel), 4)


class _Convolution(TilePrinter):
    along_weights = "tl.arange(0, KBLOCK)[:, None]"

    def __init__(self, kernel: ConvolveKernel, launch: Launch, operands: tuple[Operand, Operand] | None = None) -> None:
        self.kernel = kernel
        self.taps = kernel.k.shape[2] * kernel.k.shape[3]
        super().__init__(kernel, _plan(kernel, launch), operands or (kernel.x, kernel.k))

    def place(self) -> None:
        """Which tile this program has. Programs next to one another share rows, the larger operand's."""
        rows, columns = (cdiv(d, self._block(b)) for d, b in self._sides())
        self.line(f"program = {self.widened('tl.program_id(0)')}")
        if self.plan.outside:
            self.line(f"tiles = {self.index(rows * columns)}")
            self.define_outside("program // tiles")
            self.line("program = program % tiles")
        self.line(f"across = {self.index(columns)}")
        self.line("y = program // across * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
        self.line("x = program % across * XBLOCK + tl.arange(0, XBLOCK)[None, :]")

    def _sides(self) -> tuple[tuple[Dim, str], tuple[Dim, str]]:
        return (_places(self.kernel), "YBLOCK"), (self.kernel.k.shape[0], "XBLOCK")

    def convolve(self, unwritten: frozenset[str], fetch: bool) -> None:
        k = self.kernel.k
        split = length(self.kernel) // self.kernel.splits
        right = self._at(k, k.offset)
        first: Dim = 0
        if self.kernel.splits > 1:
            first = split * Expr({(self.plan.outside[0].sym,): 1})
        self._rows()
        self.line(f"pb = {right} + {self.along_weights} + x * {self._stride(k, 0)}")
        if fetch:
            base = right if first == 0 else f"{right} + {self.index(first)}"
            self.fetch(base, k, split, k.shape[0], k.strides[0])
        self.vectors(unwritten)
        self.lines.append(AHEAD)
        self.tiles()
        self.line("acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        steps = self._steps(split)
        begin: Dim = 0 if first == 0 else steps * Expr({(self.plan.outside[0].sym,): 1})
        self.line(f"for step in tl.range({self.index(begin)}, {self.index(begin + steps)}, num_stages=STAGES):")
        self.indent += 1
        distance, inside = self._tap()
        self._operand("a", f"pa + {distance}", [self._bounded("y", _places(self.kernel), "YBLOCK"), *inside])
        distance, inside = self._weights()
        self._operand("b", f"pb + {distance}", [self._bounded("x", k.shape[0], "XBLOCK"), *inside])
        self.line("acc = tl.dot(a, b, acc)")
        self.indent -= 1

    def _steps(self, split: int) -> int:
        return split // self._block("KBLOCK")

    def _weights(self) -> tuple[str, list[str]]:
        return "step * KBLOCK", []

    def _operand(self, name: str, at: str, conditions: list[str]) -> None:
        mask = " & ".join(c for c in conditions if c)
        self.line(f"{name} = tl.load({at}{f', {mask}, other=0.0' if mask else ''})")

    def _rows(self) -> None:
        """Each row's pointer to its first tap, which padding may put outside of x."""
        x, op = self.kernel.x, self.kernel.op
        base, along = self._at(x, x.offset), "tl.arange(0, KBLOCK)[None, :]"
        if matrices(self.kernel) is not None:
            self.line(f"pa = {base} + y * {self._stride(x, 3)} + {along}")
            return
        _, _, h, w = self.kernel.result_shape
        self.line(f"top = y // {w} % {h} * {op.stride[0]} - {op.padding[0]}")
        self.line(f"side = y % {w} * {op.stride[1]} - {op.padding[1]}")
        steps = " + ".join(f"{name} * {self._stride(x, d)}" for name, d in (("top", 2), ("side", 3)))
        self.line(f"pa = {base} + y // {product((h, w))} * {self._stride(x, 0)} + {steps} + {along}")

    def _tap(self) -> tuple[str, list[str]]:
        """The distance from a row's first tap to the channels of this step, and what holds if they are inside x."""
        x, op = self.kernel.x, self.kernel.op
        _, channels, _, across = self.kernel.k.shape
        _, _, h, w = x.shape
        assert isinstance(channels, int)
        each = channels // self._block("KBLOCK")
        at, distance = ("top", "side"), "step * KBLOCK"
        if self.taps != 1:
            # Multiples of KBLOCK, and not the remainder of a sum, so that Triton sees aligned loads.
            self.line(f"down = step // {each * across} * {op.dilation[0]}")
            self.line(f"right = step // {each} % {across} * {op.dilation[1]}")
            at = ("top + down", "side + right")
            distance = f"(down * {self._stride(x, 2)} + right * {self._stride(x, 3)} + step % {each} * KBLOCK)"
        limits = [f"({a} >= 0) & ({a} < {n})" for a, n, p in zip(at, (h, w), op.padding, strict=True) if p]
        return distance, limits


class _ConvolutionOfRows(_Convolution):
    """A step takes several rows of taps, each in a power of two of places of which the last are empty."""

    def __init__(self, kernel: ConvolveKernel, launch: Launch) -> None:
        self.row, self.room = row_of_taps(kernel)
        self.along_weights = f"(row * {self.row} + column)[:, None]"
        super().__init__(kernel, launch)
        self.each = self._block("KBLOCK") // self.room

    def _rows(self) -> None:
        x, op, channels = self.kernel.x, self.kernel.op, self.kernel.k.shape[1]
        _, _, h, w = self.kernel.result_shape
        self.line(f"row = tl.arange(0, KBLOCK) // {self.room}")
        self.line(f"column = tl.arange(0, KBLOCK) % {self.room}")
        self.line(f"top = y // {w} % {h} * {op.stride[0]} - {op.padding[0]} + row[None, :] * {op.dilation[0]}")
        self.line(f"side = (y % {w} * {op.stride[1]} - {op.padding[1]}) * {channels} + column[None, :]")
        steps = f"top * {self._stride(x, 2)} + side"
        self.line(f"pa = {self._at(x, x.offset)} + y // {product((h, w))} * {self._stride(x, 0)} + {steps}")

    def _steps(self, split: int) -> int:
        rows = self.kernel.k.shape[2]
        assert isinstance(rows, int)
        return -(-rows // self.each)

    def _filled(self, lane: str) -> list[str]:
        """Places of a step that hold a tap."""
        rows = self.kernel.k.shape[2]
        whole = isinstance(rows, int) and rows % self.each == 0
        filled = [] if self.row == self.room else [f"(column < {self.row}){lane}"]
        return filled if whole else [*filled, f"(row + step * {self.each} < {rows}){lane}"]

    def _tap(self) -> tuple[str, list[str]]:
        x, op, channels = self.kernel.x, self.kernel.op, self.kernel.k.shape[1]
        _, _, h, w = x.shape
        self.line(f"down = step * {self.each * op.dilation[0]}")
        at = ("top + down", "side")
        limits = zip(at, (h, w * channels), op.padding, strict=True)
        inside = [f"({a} >= 0) & ({a} < {n})" for a, n, p in limits if p]
        return f"down * {self._stride(x, 2)}", [*self._filled("[None, :]"), *inside]

    def _weights(self) -> tuple[str, list[str]]:
        return f"step * {self.each * self.row}", self._filled("[:, None]")


def _plan(kernel: ConvolveKernel, launch: Launch) -> LaunchPlan:
    """Places and channels as lanes; splits in the program's number. A dimension of size 1 has no axis."""
    named = {a.name: a for a in kernel.loop.axes}
    lead = 0 if kernel.splits == 1 else 1
    b, o, h, w = (f"i{lead + d}" for d in range(4))
    blocks = dict(launch.blocks)
    places, channels = _places(kernel), kernel.k.shape[0]
    lanes = tuple(
        Lane(name, tuple(named[a] for a in axes if a in named), not (isinstance(size, int) and size % block == 0))
        for name, axes, size, block in (
            ("y", (b, h, w), places, blocks["YBLOCK"]),
            ("x", (o,), channels, blocks["XBLOCK"]),
        )
    )
    return LaunchPlan("convolve", lanes, tuple(named["i0"] for _ in range(lead)), launch)
