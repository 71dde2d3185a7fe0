"""Selects the form of a loop's Triton kernel and its block sizes: the tile of each program, and the number of programs.

Five forms. Lanes are the dimensions of the tile; each runs over some of the loop's axes, flattened.
  map    x: every axis                                       nothing is reduced
  tile   y, x: two axes, the others in the program's number  a load runs along one axis, a store along another
  row    x: rows, r: the whole row                           every value is computed once and stays in registers
  long   x: rows, r: a chunk of the row                      one pass over the row per dependent reduction
  mixed  x: rows, a few at a time, r: the whole row          one program takes many rows and adds up their columns

The cost model. Loops are bound by memory, so the launch is the one whose threads each move 16 bytes of the
narrowest type at once along the contiguous axis, provided that leaves a few programs for every multiprocessor; a loop
too small for that takes smaller blocks until it does.

Outside `max-autotune` nothing is measured: the model's choice is used. There, `loop_forms` is what is tried: blocks up
to a factor of four from the model's, more and fewer threads, and rows in chunks instead of held whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from burnish.device import Gpu
from burnish.ir.body import Apply, Axis, Load, Loop, Store, instr_args
from burnish.ir.expr import Dim, coefficient, floordiv, mentions, product
from burnish.schedule.axes import column_axis, row_order
from burnish.schedule.form import Form
from burnish.schedule.gpu.vector_loops import choosing_axes, is_of_bytes, is_vector_product, matrices, matrix_loads

_BUSY = 2  # programs that keep a multiprocessor occupied
_ACCESS = 16  # bytes a thread moves in one instruction
LONGEST_ROW = 16384  # elements of a row that one program holds
_FEW_HELD = 4  # values of an element, of which a thread can hold those of 32
_HELD = 49152  # values one program can hold in registers between two reductions
_ASSUMED = 1 << 30  # elements of a dimension whose size is known only when the kernel is launched
_LONG_VECTOR = 512  # elements from which memory bandwidth bounds a vector product
_IN_FLIGHT = 8192  # elements of its matrices that one program loads at once
_WEIGHTS_OF_A_THREAD = 256  # small integers that fit in a thread's registers
_PROGRAMS_ENOUGH = 1024
_AT_ONCE = 1 << 24  # elements of matrices that all resident programs hold together
_TILE = 16  # axes shorter than this are not worth a tile


@dataclass(frozen=True)
class Lane:
    """One dimension of the tile."""

    name: str
    axes: tuple[Axis, ...]
    masked: bool = False  # the last block may reach past the end

    @property
    def size(self) -> Dim:
        return product([a.size for a in self.axes])

    @property
    def block(self) -> str:
        return f"{self.name.upper()}BLOCK"


@dataclass(frozen=True)
class Launch:
    """One way to run a kernel: the number of programs (over the loop's sizes), and its compile-time parameters."""

    programs: Dim
    blocks: tuple[tuple[str, int], ...]
    warps: int
    stages: int = 1

    @property
    def grid(self) -> tuple[Dim, ...]:
        return (self.programs,)


@dataclass(frozen=True)
class LaunchPlan:
    form: str  # map | tile | row | long | mixed
    lanes: tuple[Lane, ...]
    outside: tuple[Axis, ...]  # axes that only the program's number runs over
    launch: Launch


Shape = tuple[list[int], int]  # the block of each lane, and the warps


def plan(loop: Loop, gpu: Gpu, form: Form | None = None) -> LaunchPlan:
    """The form and launch of a normalised loop's kernel: those of the cost model, or `form`."""
    if any(s.mode == "total" for s in loop.stores):
        return _plan_mixed(loop, form)
    if form is not None:
        return _plan_form(loop, form)
    if loop.reduction:
        return _plan_rows(loop, gpu)
    crossed = _crossed_axes(loop)
    return _plan_tile(loop, gpu, *crossed) if crossed else _plan_map(loop, gpu)


def _plan_form(loop: Loop, form: Form) -> LaunchPlan:
    lanes, outside = _lanes(loop, form.name)
    return _finish(form.name, lanes, outside, ([form[lane.block] for lane in lanes], form["warps"]))


def _lanes(loop: Loop, form: str) -> tuple[tuple[Lane, ...], tuple[Axis, ...]]:
    """The lanes of a kernel of this form, and the axes that only the program's number runs over."""
    if form == "map":
        return (Lane("x", loop.axes),), ()
    if form == "tile":
        crossed = _crossed_axes(loop)
        assert crossed is not None
        return (Lane("y", crossed[:1]), Lane("x", crossed[1:])), tuple(a for a in loop.axes if a not in crossed)
    column = column_axis(loop)
    kept = tuple(a for a in loop.parallel if a is not column) + ((column,) if column else ())
    outside = tuple(a for a in kept[:-1] if form == "row" and a.name in choosing_axes(loop))
    inside = tuple(a for a in kept if a not in outside)
    return (Lane("x", inside), Lane("r", loop.reduction if loop.scans else row_order(loop))), outside


def _finish(form: str, lanes: tuple[Lane, ...], outside: tuple[Axis, ...], shape: Shape) -> LaunchPlan:
    blocks, warps = shape
    masked, named = [], []
    programs: Dim = product([a.size for a in outside])
    for lane, block in zip(lanes, blocks, strict=True):
        masked.append(Lane(lane.name, lane.axes, not _divides(block, lane.size)))
        named.append((lane.block, block))
        if lane.name != "r":
            programs = programs * cdiv(lane.size, block)
    return LaunchPlan(form, tuple(masked), outside, Launch(programs, tuple(named), warps))


def cdiv(size: Dim, block: int) -> Dim:
    return floordiv(size + (block - 1), block)


def _divides(block: int, size: Dim) -> bool:
    return isinstance(size, int) and size % block == 0


def _static(size: Dim) -> int:
    return size if isinstance(size, int) else _ASSUMED


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def _clamp(n: int, least: int, most: int) -> int:
    return max(least, min(n, most))


def _per_access(loop: Loop) -> int:
    """Elements of the narrowest type moved that fill one access."""
    narrowest = min((i.dtype.itemsize for i in loop.body if isinstance(i, Load | Store)), default=4)
    return _clamp(_ACCESS // narrowest, 2, 8)


def _warps(elements: int, per_thread: int) -> int:
    return _clamp(power_of_two(elements // (32 * per_thread)), 1, 8 if elements <= 4096 else 16)


# --- maps -------------------------------------------------------------------------------------------------------


def _plan_map(loop: Loop, gpu: Gpu) -> LaunchPlan:
    (lane,), _ = _lanes(loop, "map")
    if not loop.axes:
        return _finish("map", (lane,), (), ([1], 1))
    elements, each = _static(lane.size), _per_access(loop)
    block, busy = 32 * 4 * each, _BUSY * gpu.multiprocessors
    while block > 128 and elements < block * busy:
        block //= 2
    return _finish("map", (lane,), (), ([block], _warps(block, each)))


def _crossed_axes(loop: Loop) -> tuple[Axis, Axis] | None:
    """An axis some load runs along and the one the stores run along, where they differ."""
    inner = next((a for a in reversed(loop.axes) if any(coefficient(s.index, a.name) == 1 for s in loop.stores)), None)
    if inner is None or _static(inner.size) < _TILE:
        return None
    for i in loop.loads:
        if coefficient(i.index, inner.name) in (0, 1, None):
            continue
        for a in loop.axes:
            if a is not inner and coefficient(i.index, a.name) == 1 and _static(a.size) >= _TILE:
                return a, inner
    return None


def _plan_tile(loop: Loop, gpu: Gpu, outer: Axis, inner: Axis) -> LaunchPlan:
    lanes, outside = _lanes(loop, "tile")
    elements = _static(product([a.size for a in loop.axes]))
    roomy = min(_static(outer.size), _static(inner.size)) >= 64 and elements >= 64 * 64 * _BUSY * gpu.multiprocessors
    return _finish("tile", lanes, outside, ([64, 64], 8) if roomy else ([32, 32], 4))


# --- reductions -------------------------------------------------------------------------------------------------


def _plan_rows(loop: Loop, gpu: Gpu) -> LaunchPlan:
    lanes, outside = _lanes(loop, "row")
    columns = column_axis(loop) is not None
    rows, length = _static(lanes[0].size), lanes[1].size
    if isinstance(length, int) and _fits(loop, length, columns):
        return _finish("row", lanes, outside, _whole_row_shape(loop, gpu, rows, power_of_two(length), columns))
    lanes, _ = _lanes(loop, "long")
    return _finish("long", lanes, (), _long_row_shape(loop, gpu, rows, _static(length), columns))


def _fits(loop: Loop, length: int, columns: bool) -> bool:
    """Whether one program can hold whole rows; for columns, enough neighbours to fill its accesses besides."""
    held = _strip(loop, columns) * power_of_two(length)
    return held <= (4096 if columns else LONGEST_ROW) and held * _held(loop) <= _HELD


def _strip(loop: Loop, columns: bool) -> int:
    """The fewest rows a program takes: neighbouring columns fill a few accesses."""
    return 4 * _per_access(loop) if columns else 1


def _held(loop: Loop) -> int:
    """Element-level values alive at once, at most."""
    level = loop.element_level()
    last = {a: n for n, i in enumerate(loop.body) for a in instr_args(i)}
    alive, most = 0, 1
    for n, i in enumerate(loop.body):
        alive += level[n] and n in last
        most = max(most, alive)
        alive -= sum(1 for a in set(instr_args(i)) if level[a] and last[a] == n)
    return most


def _whole_row_shape(loop: Loop, gpu: Gpu, rows: int, length: int, columns: bool) -> Shape:
    if length >= _LONG_VECTOR and is_vector_product(loop):
        read = matrices(loop)
        if is_of_bytes(loop):
            return _small_integer_shape(rows, length * _weights_in_a_byte(loop), length, read)
        half = all(i.dtype.itemsize == 2 for i in matrix_loads(loop)) and not choosing_axes(loop)
        few = half and (read > 1 or rows * length <= _AT_ONCE)
        return (_row_at_a_time if few else _vector_shape)(rows, length, read)
    each, least, busy = _per_access(loop), _strip(loop, columns), _BUSY * gpu.multiprocessors
    block = max(least, min(2048 // length, power_of_two(rows)))
    while block > least and rows < block * busy:
        block //= 2
    warps = _warps(block * length, each if block * length <= 2048 else 2 * each)
    if columns or rows < 2 * block * busy or 2 * block * length > 4096 or _held(loop) > _FEW_HELD:
        return [block, length], warps
    # Many rows: few threads with several accesses each have shorter reductions.
    return [2 * block, length], max(1, warps // 2)


def _vector_shape(rows: int, length: int, read: int) -> Shape:
    """For a vector times the rows of `read` matrices. Each thread issues all its loads at once, and successive
    programs keep the memory busy."""
    block = _clamp(_IN_FLIGHT // (length * read), 1, power_of_two(rows))
    whole = block * length * 2 // (32 * _ACCESS)  # warps whose threads read a row in whole accesses
    return [block, length], _clamp(min(block * length * read // (32 * 32), whole), 1, 8)


def _row_at_a_time(rows: int, length: int, read: int) -> Shape:
    """The same for programs of few threads. If all of them are resident at once, their matrix has been loaded when the
    previous kernel ends, and a sum over few warps is quick. If two matrices are read, a row of each is enough."""
    block = read if rows * length * read <= _AT_ONCE else 1
    return [min(block, power_of_two(rows)), length], _clamp(length // (32 * 32), 1, 8)


def _small_integer_shape(rows: int, weights: int, length: int, read: int) -> Shape:
    """The same for weights of a byte or less, whose time the number of instructions bounds. If there are enough
    programs, each thread has many weights, to share what a program does once (the vector's norm, the sum over its
    threads)."""
    warps = _clamp(weights // 1024, 1, 8)
    enough = power_of_two(max(1, rows // _PROGRAMS_ENOUGH))
    return [_clamp(_WEIGHTS_OF_A_THREAD * 32 * warps // (weights * read), 1, enough), length], warps


def _weights_in_a_byte(loop: Loop) -> int:
    """Two, where the loop takes the upper half of what it reads apart."""
    read = {n for n, i in enumerate(loop.body) if isinstance(i, Load) and i.dtype.itemsize == 1}
    return 2 if any(isinstance(i, Apply) and i.fn == "shr" and i.args[0] in read for i in loop.body) else 1


def _long_row_shape(loop: Loop, gpu: Gpu, rows: int, length: int, columns: bool) -> Shape:
    if columns:
        across = _clamp(power_of_two(rows // gpu.multiprocessors), _strip(loop, columns), 64)
        return [across, 32], 4
    chunk = _clamp(power_of_two(length), 64, 2048)
    return [1, chunk], _warps(chunk, 2 * _per_access(loop))


def _plan_mixed(loop: Loop, form: Form | None) -> LaunchPlan:
    """Rows along the axis that no total mentions, by one program; the other axes count the programs."""
    totals = [s.index for s in loop.stores if s.mode == "total"]
    (along,) = (a for a in loop.parallel if not any(mentions(index, {a.name}) for index in totals))
    outside = tuple(a for a in loop.parallel if a is not along)
    lanes = (Lane("x", (along,)), Lane("r", row_order(loop)))
    if form is None:
        length = power_of_two(_static(lanes[1].size))
        dividing = [n for n in (1, 2, 4, 8) if _divides(n, along.size)]  # rows taken at once
        rows = max(n for n in dividing if n == 1 or n * length <= 1024)
        shape = [rows, length], _warps(rows * length, _per_access(loop))
    else:
        shape = [form["XBLOCK"], form["RBLOCK"]], form["warps"]
    planned = _finish("mixed", lanes, outside, shape)
    return replace(planned, launch=replace(planned.launch, programs=product([a.size for a in outside])))


# --- every form -------------------------------------------------------------------------------------------------

_MOST_FORMS = 12


def loop_forms(loop: Loop, gpu: Gpu) -> list[Form]:
    """What a search tries for a normalised loop: the cost model's choice first, then the others by their distance
    from it. One, where the loop has no more than one element or its sizes are known only at launch."""
    planned = plan(loop, gpu)
    lanes, first = planned.lanes, planned.launch
    chosen = _form(planned.form, [block for _, block in first.blocks], lanes, first.warps)
    if not loop.axes or not all(isinstance(a.size, int) for a in loop.axes):
        return [chosen]
    shapes = {
        "map": _map_shapes, "tile": _tile_shapes, "row": _row_shapes, "long": _chunk_shapes, "mixed": _mixed_shapes
    }[planned.form]  # fmt: skip
    near = [_form(planned.form, blocks, lanes, warps) for blocks, warps in shapes(loop, first)]
    near.sort(key=lambda f: _distance(f, chosen))
    others: list[Form] = []
    if planned.form == "tile":
        others = [_form("map", [128 * each], lanes[1:], 4) for each in (2, 8)]
    elif planned.form == "row" and first.blocks[1][1] >= 2048 and not loop.scans:
        others = [_form("long", [1, chunk], lanes, 8) for chunk in (1024, 2048)]
    return list(dict.fromkeys([chosen, *near[: _MOST_FORMS - len(others)], *others]))


def _form(name: str, blocks: list[int], lanes: tuple[Lane, ...], warps: int) -> Form:
    named = ((lane.block, block) for lane, block in zip(lanes, blocks, strict=True))
    return Form(name, (*named, ("warps", warps)))


def _distance(form: Form, other: Form) -> tuple[int, tuple[tuple[str, int], ...]]:
    """How many factors of two two forms with the same numbers are apart; then anything, so that it is an order."""
    steps = (abs(a.bit_length() - b.bit_length()) for (_, a), (_, b) in zip(form.numbers, other.numbers, strict=True))
    return sum(steps), form.numbers


def _around(n: int, least: int, most: int) -> list[int]:
    return [b for b in (n // 4, n // 2, n, 2 * n, 4 * n) if least <= b <= most]


def _threads(elements: int, most: int = 16) -> list[int]:
    """Warps with which a thread has from 1 to 64 of them."""
    return [w for w in (1, 2, 4, 8, 16) if w <= most and 32 * w <= max(elements, 32) and elements <= 64 * 32 * w]


def _map_shapes(loop: Loop, first: Launch) -> list[Shape]:
    return [([b], w) for b in _around(first.blocks[0][1], 32, 8192) for w in _threads(b, 8)]


def _tile_shapes(loop: Loop, first: Launch) -> list[Shape]:
    sides = (16, 32, 64, 128)
    return [([y, x], w) for y in sides for x in sides if 512 <= y * x <= 8192 for w in (2, 4, 8) if y * x >= 64 * w]


def _row_shapes(loop: Loop, first: Launch) -> list[Shape]:
    (_, rows), (_, length) = first.blocks
    least = _strip(loop, column_axis(loop) is not None)
    most = max(rows, LONGEST_ROW // length)
    return [([x, length], w) for x in _around(rows, least, most) for w in _threads(x * length)]


def _mixed_shapes(loop: Loop, first: Launch) -> list[Shape]:
    (_, rows), (_, length) = first.blocks
    (along,) = _plan_mixed(loop, None).lanes[0].axes
    return [([x, length], w) for x in _around(rows, 1, 8) if _divides(x, along.size) for w in _threads(x * length)]


def _chunk_shapes(loop: Loop, first: Launch) -> list[Shape]:
    (_, rows), (_, chunk) = first.blocks
    pairs = [(x, r) for x in _around(rows, 1, 128) for r in _around(chunk, 16, 8192) if x * r <= 16384]
    return [([x, r], w) for x, r in pairs for w in _threads(x * r)]
