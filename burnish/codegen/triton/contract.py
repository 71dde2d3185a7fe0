"""Contraction → one Triton kernel: a tile of the product in registers, then the epilogue's body over that tile.

The epilogue is printed by the loop printer: rows are its lane `y`, columns its lane `x`, and a load of the accumulator
is the tile. Several contractions that read the same left operand share one kernel: the programs of each follow those
of the one before, only the right operand and the epilogue differ.

Which tile. Measured on an H200 with bf16 operands, in a chain of dependent kernels: a small product ends before the
memory system is saturated. So nearly every multiprocessor should have a program, with several loads of 128 k-elements
in flight: 64 x 64 tiles where there are enough of them, 64 x 32 where not.

A product with more tiles than that gets the persistent form: two programs on each multiprocessor, each taking one
128 x 128 tile after another, operands through tensor descriptors. While one program is at its epilogue, the other
keeps the tensor cores busy. Measured at 4096 x 3072 x 768: 33.5 µs, as the library's; with a GELU after it 39.5
against 52 for the library and a kernel behind it.

A product of few rows is bound by reading its matrix, so it has the strip form: each program takes a few columns over
all of k, with some 128 KB of loads into shared memory in flight. The warps of a program split k, not the columns,
because with such a small tile each warp would read the same operands again. Every program reads the rows from the
cache, so strips are as wide as possible with a program for nearly each multiprocessor. Measured in a step of 28 layers
with 8 rows: 2.31 ms; with 64 KB on their way 2.70, also prefetched before the wait for the previous kernel, 2.72.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from burnish.codegen.triton.body import NotPrintable
from burnish.codegen.triton.launch import Lane, Launch, LaunchPlan, cdiv, power_of_two
from burnish.codegen.triton.loop import AHEAD, TritonKernel
from burnish.codegen.triton.scalar import STORED_TYPE
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
from burnish.ir.body import Axis
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, product
from burnish.schedule.form import Form
from burnish.schedule.gpu.products import can_be_persistent, has_few_rows, is_large
from burnish.schedule.kernels import ContractGroup, ContractKernel, Operand

_UNDER_WAY = 16384  # elements of its columns that a program of the strip form asks for at once
_STEPS = 4  # at least, through k: as many as are under way at once
_ROOM_LEFT = 27 << 10  # bytes of shared memory that they and the rows leave for the sums of the parts of k


class Strip(NamedTuple):
    """The columns that one program takes; `cuts` parts of k are multiplied side by side, each by its own warps."""

    rows: int
    columns: int
    depth: int
    stages: int = 5
    cuts: int = 4
    warps: int = 4

    @property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        names = ("YBLOCK", "XBLOCK", "KBLOCK", "STAGES", "CUTS")
        return tuple(zip(names, self[:5], strict=True))

    def shared(self, matrices: int) -> int:
        """Bytes of half-type operands on their way, while another stage is multiplied."""
        return (self.stages - 1) * self.depth * (self.rows + self.columns * matrices) * 2

    @property
    def form(self) -> Form:
        return Form("strip", (*self.blocks, ("warps", self.warps)))

    @classmethod
    def of(cls, form: Form) -> Strip:
        return cls(*(form[name] for name in ("YBLOCK", "XBLOCK", "KBLOCK", "STAGES", "CUTS", "warps")))


def print_contract(
    kernel: ContractKernel, gpu: Gpu, unwritten: frozenset[str] = frozenset(), form: Form | None = None
) -> TritonKernel:
    return print_group(ContractGroup((kernel,)), gpu, unwritten, form)


def print_group(
    group: ContractGroup, gpu: Gpu, unwritten: frozenset[str] = frozenset(), form: Form | None = None
) -> TritonKernel:
    """One kernel for contractions of one left operand. `unwritten` are buffers that no kernel of the program writes;
    `form` is one of `group_forms`."""
    if group.parts[0].a.dtype is DType.f64:
        raise NotPrintable("a product in double precision")
    if form.name == "persistent" if form else is_persistent(group, gpu):
        return _print_persistent(group.parts[0], gpu, form)
    tile = _chosen(group, gpu, form)
    launch = Launch(
        sum_dims([_programs(k, tile.rows, tile.columns) for k in group.parts]),
        tile.blocks,
        warps=tile.warps,
        stages=tile.stages,
    )
    head = (_Strip if isinstance(tile, Strip) else _Tile)(group.parts[0], launch)
    head.open_group(group)
    matrices = [b.buffer for part in group.parts for b in part.products.values()]
    head.multiply(group, fetch=unwritten.issuperset(matrices))
    if len(group.parts) == 1:
        head.finish(group.parts[0], launch, "")
    else:
        for n, part in enumerate(group.parts):
            head.line(f"{'if' if n == 0 else 'elif'} part == {n}:")
            head.finish(part, launch, f"_{n}_")
    return TritonKernel(head.text(), head.signature, head.types(), launch, head.reach)


def _chosen(group: ContractGroup, gpu: Gpu, form: Form | None) -> Tile | Strip:
    if form is not None:
        return Strip.of(form) if form.name == "strip" else Tile.of(form)
    return _strip(group, gpu) if has_few_rows(group.parts[0]) else _tile(group, gpu)


def group_forms(group: ContractGroup, gpu: Gpu) -> list[Form]:
    """The forms that a search tries, the rule's first."""
    first = group.parts[0]
    if has_few_rows(first):
        return _strip_forms(group, gpu)
    sizes = (*first.product_shape, first.a.shape[-1])
    can_be = len(group.parts) == 1 and can_be_persistent(first) and all(isinstance(d, int) for d in sizes)
    found = persistent_forms() if can_be else []  # ragged columns are masked
    if not is_persistent(group, gpu) or not isinstance(first.product_shape[-2], int):
        assert first.a.dtype is not None
        tile, columns = _tile(group, gpu), min(static_size(part.b.shape[-1]) for part in group.parts)
        tiles = tile_forms(tile, sizes[-3], columns, tile.depth, first.a.dtype.itemsize, gpu)
        return tiles + (found if is_large(first, gpu) else found[:2])
    return found


def _print_persistent(kernel: ContractKernel, gpu: Gpu, form: Form | None = None) -> TritonKernel:
    launch = persistent_launch(kernel.a, kernel.b, gpu, form)
    printer = _Tile(kernel, launch)
    printer.multiply_persistently()
    return TritonKernel(printer.text(), printer.signature, printer.types(), launch, printer.reach)


def is_persistent(group: ContractGroup, gpu: Gpu) -> bool:
    """Whether a product is large, and its operands are ones a tensor descriptor can describe."""
    kernel = group.parts[0]
    return len(group.parts) == 1 and not has_few_rows(kernel) and is_large(kernel, gpu) and can_be_persistent(kernel)


def sum_dims(dims: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for d in dims:
        total = total + d
    return total


def _programs(k: ContractKernel, rows: int, columns: int) -> Dim:
    *batch, m, n = k.product_shape
    return product(batch) * cdiv(m, rows) * cdiv(n, columns)


def _tile(group: ContractGroup, gpu: Gpu) -> Tile:
    first = group.parts[0]
    m, k = (static_size(first.a.shape[d]) for d in (-2, -1))
    columns = sum(static_size(part.b.shape[-1]) for part in group.parts)
    batch = static_size(product(first.a.shape[:-2]))
    rows = 16 if m <= 16 else 32 if m <= 32 else 64
    across = 64
    while across > 16 and batch * -(-m // rows) * -(-columns // across) < enough(gpu):
        across //= 2
    narrowest = min(static_size(part.b.shape[-1]) for part in group.parts)
    across = max(16, min(across, 1 << max(narrowest - 1, 0).bit_length()))
    wide = first.a.dtype is DType.f32
    depth = max(16, min(64 if wide else 128, 1 << max(k - 1, 0).bit_length()))
    return Tile(rows, across, depth, 3 if wide else 4)


def _strip(group: ContractGroup, gpu: Gpu) -> Strip:
    across, nearly_all = 64, gpu.multiprocessors * 9 // 10
    while across > 16 and _strips(group, across) < nearly_all:
        across //= 2
    return _fitting(group, across, gpu)


def _fitting(group: ContractGroup, columns: int, gpu: Gpu) -> Strip:
    """The depth that saturates the memory."""
    m, k = (static_size(d) for d in group.parts[0].a.shape)
    rows, matrices = max(8, power_of_two(m)), len(group.parts[0].products)
    depth = min(_UNDER_WAY // (columns * matrices), power_of_two(k) // _STEPS)
    while Strip(rows, columns, depth).shared(matrices) > gpu.shared_memory - _ROOM_LEFT:
        depth //= 2
    return Strip(rows, columns, depth)


def _strips(group: ContractGroup, columns: int) -> int:
    return sum(-(-static_size(part.b.shape[-1]) // columns) for part in group.parts)


def _strip_forms(group: ContractGroup, gpu: Gpu) -> list[Form]:
    chosen = _strip(group, gpu)
    near = [_fitting(group, columns, gpu) for columns in (16, 32, 64) if columns != chosen.columns]
    for strip in (chosen, *near):
        near.append(strip._replace(warps=8, cuts=8))
        near += [strip._replace(depth=strip.depth // 2), strip._replace(stages=4)]
    return list(dict.fromkeys(s.form for s in (chosen, *near) if s.depth >= 16 * s.cuts))


class _Tile(TilePrinter):
    """Prints the product and its epilogues. One object per epilogue, all writing to the first one's lines."""

    def __init__(self, kernel: ContractKernel, launch: Launch) -> None:
        self.kernel = kernel
        blocks = dict(launch.blocks)
        planned = _plan(kernel, launch, blocks["YBLOCK"], blocks["XBLOCK"])
        super().__init__(kernel, planned, (kernel.a, kernel.b))

    # --- the product --------------------------------------------------------------------------------------------

    def open_group(self, group: ContractGroup) -> None:
        """Which tile of which part this program has. Programs next to one another share columns of `b`, the larger
        operand of a product with few rows."""
        m = self.kernel.a.shape[-2]
        self.line(f"program = {self.widened('tl.program_id(0)')}")
        self.line(f"down = {self.index(cdiv(m, self._block('YBLOCK')))}")
        if len(group.parts) > 1:
            before: Dim = 0
            self.line("part = 0")
            self.line("first = 0")
            for n, part in enumerate(group.parts[:-1]):
                before = before + _programs(part, self._block("YBLOCK"), self._block("XBLOCK"))
                self.line(f"if program >= {self.index(before)}:")
                self.line(f"    part = {n + 1}")
                self.line(f"    first = {self.index(before)}")
            self.line("program -= first")
        batch = self.plan.outside
        if batch:
            tiles = cdiv(m, self._block("YBLOCK")) * cdiv(self.kernel.b.shape[-1], self._block("XBLOCK"))
            self.line(f"tiles = {self.index(tiles)}")
            self.define_outside("program // tiles")
            self.line("program = program % tiles")
        self.line("y = program % down * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
        self.line("x = program // down * XBLOCK + tl.arange(0, XBLOCK)[None, :]")

    def multiply(self, group: ContractGroup, fetch: bool) -> None:
        a, b = self.kernel.a, self.kernel.b
        k = a.shape[-1]
        ragged = not (isinstance(k, int) and k % self._block("KBLOCK") == 0)
        ym = self._bounded("y", a.shape[-2], "YBLOCK")
        xm = self._column_mask(group)
        left, right = self._operand_base(a), self._right_base(group)
        self.line("k = tl.arange(0, KBLOCK)")
        self.line(f"pa = {left} + y * {self._stride(a, -2)} + k[None, :] * {self._stride(a, -1)}")
        self.line(f"pb = {right} + k[:, None] * {self._stride(b, -2)} + x * {self._stride(b, -1)}")
        if fetch and b.strides[-2] == 1:
            self.fetch(right, b, b.shape[-2], b.shape[-1], b.strides[-1])
        self.lines.append(AHEAD)
        self.line("acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        self.line(f"for start in tl.range(0, {self.index(k)}, KBLOCK, num_stages=STAGES):")
        inside = f"k < {self.index(k)} - start" if ragged else ""
        if ragged:
            self.line(f"    inside = {inside}")
        masks = [[ym, "inside[None, :]" if ragged else ""], [xm, "inside[:, None]" if ragged else ""]]
        for name, parts in zip(("pa", "pb"), masks, strict=True):
            mask = " & ".join(p for p in parts if p)
            self.line(f"    {name[1]} = tl.load({name}{f', {mask}, other=0.0' if mask else ''})")
        exact = ', input_precision="ieee"' if a.dtype is DType.f32 else ""
        self.line(f"    acc = tl.dot(a, b, acc{exact})")
        self.line(f"    pa += KBLOCK * {self._stride(a, -1)}")
        self.line(f"    pb += KBLOCK * {self._stride(b, -2)}")

    def _column_mask(self, group: ContractGroup, x: str = "x") -> str:
        sizes = [part.b.shape[-1] for part in group.parts]
        if all(isinstance(n, int) and n % self._block("XBLOCK") == 0 for n in sizes):
            return ""
        if len(set(sizes)) == 1:
            return f"({x} < {self.index(sizes[0])})"
        self.line(f"columns = {self.index(sizes[0])}")
        for n, size in enumerate(sizes[1:], 1):
            self.line(f"if part == {n}:")
            self.line(f"    columns = {self.index(size)}")
        return f"({x} < columns)"

    def _operand_base(self, operand: Operand) -> str:
        offset: Dim = operand.offset
        for axis, stride in zip(self._batch_axes(), operand.strides[:-2], strict=True):
            if axis is not None:
                offset = offset + stride * axis.expr
        return self._at(operand, offset)

    def _batch_axes(self) -> list[Axis | None]:
        named = {axis.name: axis for axis in self.loop.axes}
        return [named.get(f"i{d}") for d in range(len(self.kernel.a.shape) - 2)]

    def _right_base(self, group: ContractGroup) -> str:
        if len(group.parts) == 1:
            return self._operand_base(self.kernel.b)
        self.line(f"right = {self._at(group.parts[0].b, group.parts[0].b.offset)}")
        for n, part in enumerate(group.parts[1:], 1):
            self.line(f"if part == {n}:")
            self.line(f"    right = {self._at(part.b, part.b.offset)}")
        return "right"

    # --- the epilogue -------------------------------------------------------------------------------------------

    def finish(self, part: ContractKernel, launch: Launch, prefix: str) -> None:
        """One part's body over the tile; `prefix` keeps its values apart from the other parts'."""
        body = self if part is self.kernel and not prefix else _Tile(part, launch)
        body.signature, body.kinds, body.lines, body.prefix = self.signature, self.kinds, self.lines, prefix
        body.indent = self.indent + (1 if prefix else 0)
        body.epilogue()


class _Strip(_Tile):
    """A few columns over all of k. The matrix is the left operand: tensor cores take 16 of its columns by 8 rows."""

    def multiply(self, group: ContractGroup, fetch: bool) -> None:
        a, b = self.kernel.a, self.kernel.b
        k = a.shape[-1]
        rights = [self._right_base(group), *(self._operand_base(o) for _, o in self.kernel.others)]
        self.lines.append(AHEAD)
        if len(group.parts) == 1:
            self.tiles()
        self.line("column = (program // down * XBLOCK + tl.arange(0, XBLOCK))[None, :, None]")
        self.line("row = tl.arange(0, YBLOCK)[None, None, :]")
        self.line("cut = tl.arange(0, CUTS)[:, None, None] * (KBLOCK // CUTS)")
        self.line("k = tl.arange(0, KBLOCK // CUTS)")
        self.line(f"pa = {self._operand_base(a)} + row * {self._stride(a, -2)} + cut + k[None, :, None]")
        self.line(f"at = column * {self._stride(b, -1)} + cut + k[None, None, :]")
        accs = list(self.sums.values())
        for acc, right in zip(accs, rights, strict=True):
            self.line(f"{acc} = tl.zeros([CUTS, XBLOCK, YBLOCK], tl.float32)")
            self.line(f"p{acc} = {right} + at")
        row = self._masked(self._bounded("row", a.shape[-2], "YBLOCK"), k, "k[None, :, None]")
        column = self._masked(self._column_mask(group, "column"), k, "k[None, None, :]")
        self.line(f"for start in tl.range(0, {self.index(k)}, KBLOCK, num_stages=STAGES):")
        self.line(f"    a = tl.load(pa{row})")
        assert a.dtype is not None
        widened = f".to(tl.float32).to({STORED_TYPE[a.dtype]})" if b.dtype is not a.dtype else ""
        for acc in accs:
            self.line(f"    {acc} = tl.dot(tl.load(p{acc}{column}){widened}, a, {acc})")
        for name in ("a", *accs):
            self.line(f"    p{name} += KBLOCK")
        for acc in accs:
            self.line(f"{acc} = tl.trans(tl.sum({acc}, 0))")

    def _masked(self, lane: str, k: Dim, place: str) -> str:
        """The mask that limits a load to the operand, as trailing arguments."""
        ragged = not (isinstance(k, int) and k % self._block("KBLOCK") == 0)
        inside = f"(cut + {place} < {self.index(k)} - start)" if ragged else ""
        mask = " & ".join(m for m in (lane, inside) if m)
        return f", {mask}, other=0.0" if mask else ""


def _plan(kernel: ContractKernel, launch: Launch, rows: int, columns: int) -> LaunchPlan:
    """Rows and columns as lanes; the batch in the program's number. A dimension of size 1 has no axis."""
    rank = len(kernel.a.shape)
    *_, m, n = kernel.product_shape
    named = {a.name: a for a in kernel.loop.axes}
    lanes = []
    for name, d, size, block in (("y", rank - 2, m, rows), ("x", rank - 1, n, columns)):
        axes = (named[f"i{d}"],) if f"i{d}" in named else ()
        lanes.append(Lane(name, axes, masked=not (isinstance(size, int) and size % block == 0)))
    outside = tuple(named[f"i{d}"] for d in range(rank - 2) if f"i{d}" in named)
    return LaunchPlan("contract", tuple(lanes), outside, launch)
