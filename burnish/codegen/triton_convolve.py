"""Convolution → one Triton kernel: a matrix product whose left operand is gathered from x as it goes.

Rows are the places of the result (b, h, w), columns its channels, and the sum runs over taps and channels in the order
the weights have in memory, [r, s, c]. Each step takes channels of one tap: a row's pointer to its first tap is computed
once, a tap is a distance from there that all rows share. Only where padding lets a tap fall outside x are loads masked
for it; a 1 x 1 convolution of stride 1 reads x as the matrix it is.

Which tile: as for products (triton_contract.py) where latency decides; where memory does, tiles as wide as the
channels, so that x is read once or twice, and neighbouring programs share rows. What is a large matrix product has the
sweeping form of one.
"""

from __future__ import annotations

from burnish.codegen.triton_launch import Lane, Launch, Plan, cdiv
from burnish.codegen.triton_loop import AHEAD, TritonKernel
from burnish.codegen.triton_tile import ENOUGH, Tile, TilePrinter, static_size, sweep_launch
from burnish.ir.expr import Dim, Expr, product
from burnish.schedule.convolutions import depth, length, matrices, sweeps
from burnish.schedule.gpu import MOST_TILES
from burnish.schedule.kernels import ConvolveKernel, Operand


def print_convolve(kernel: ConvolveKernel, steady: frozenset[str] = frozenset()) -> TritonKernel:
    """`steady` are buffers that no kernel of the program writes."""
    if sweeps(kernel):
        return _print_sweep(kernel)
    tile = tile_of(kernel)
    programs = kernel.pieces * cdiv(_places(kernel), tile.rows) * cdiv(kernel.k.shape[0], tile.columns)
    launch = Launch(programs, tile.blocks, warps=tile.warps, stages=tile.stages)
    printer = _Convolution(kernel, launch)
    printer.place()
    printer.convolve(steady, fetch=kernel.k.buffer in steady and static_size(programs) <= MOST_TILES)
    printer.epilogue()
    return TritonKernel(printer.text(), printer.signature, printer.types(), (launch,), printer.reach)


def _print_sweep(kernel: ConvolveKernel) -> TritonKernel:
    operands = matrices(kernel)
    assert operands is not None
    launch = sweep_launch(*operands)
    printer = _Convolution(kernel, launch, operands)
    printer.sweep()
    return TritonKernel(printer.text(), printer.signature, printer.types(), (launch,), printer.reach)


def _places(kernel: ConvolveKernel) -> Dim:
    b, _, h, w = kernel.result_shape
    return product((b, h, w))


def tile_of(kernel: ConvolveKernel) -> Tile:
    m, n = static_size(_places(kernel)), static_size(kernel.k.shape[0])
    widest = max(16, 1 << (n - 1).bit_length())
    if -(-m // 64) * -(-n // 64) > MOST_TILES:
        across = min(widest, 128)
        return Tile(128, across, min(depth(kernel), 64), 3, 8 if across == 128 else 4)
    rows = 16 if m <= 16 else 32 if m <= 32 else 64
    across = min(widest, 64)
    while across > 16 and kernel.pieces * -(-m // rows) * -(-n // across) < ENOUGH:
        across //= 2
    return Tile(rows, across, depth(kernel), 4)


class _Convolution(TilePrinter):
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

    def convolve(self, steady: frozenset[str], fetch: bool) -> None:
        k = self.kernel.k
        piece = length(self.kernel) // self.kernel.pieces
        right = self._at(k, k.offset)
        first: Dim = 0
        if self.kernel.pieces > 1:
            first = piece * Expr({(self.plan.outside[0].sym,): 1})
        self._rows()
        self.line(f"pb = {right} + tl.arange(0, KBLOCK)[:, None] + x * {self._stride(k, 0)}")
        if fetch:
            base = right if first == 0 else f"{right} + {self.index(first)}"
            self.fetch(base, k, piece, k.shape[0], k.strides[0])
        self.vectors(steady)
        self.lines.append(AHEAD)
        self.line("acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        steps = piece // self._block("KBLOCK")
        begin: Dim = 0 if first == 0 else steps * Expr({(self.plan.outside[0].sym,): 1})
        self.line(f"for step in tl.range({self.index(begin)}, {self.index(begin + steps)}, num_stages=STAGES):")
        self.indent += 1
        distance, inside = self._tap()
        self._operand("a", f"pa + {distance}", [self._bounded("y", _places(self.kernel), "YBLOCK"), *inside])
        self._operand("b", "pb + step * KBLOCK", [self._bounded("x", k.shape[0], "XBLOCK")])
        self.line("acc = tl.dot(a, b, acc)")
        self.indent -= 1

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


def _plan(kernel: ConvolveKernel, launch: Launch) -> Plan:
    """Places and channels as lanes; pieces in the program's number. A dimension of size 1 has no axis."""
    named = {a.name: a for a in kernel.loop.axes}
    lead = 0 if kernel.pieces == 1 else 1
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
    return Plan("convolve", lanes, tuple(named["i0"] for _ in range(lead)), (launch,))
