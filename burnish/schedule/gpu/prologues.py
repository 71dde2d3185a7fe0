"""Prologues of vector products on a GPU: operands are computed where they are read, results where they are used.

`inline_matrices`: a matrix that a map computes (rows gathered by an expert's number, small integers times a scale) is
never stored: the product's loop computes each element from the map's inputs. `inline_products`: a map that reads a
product at several places (the two halves of a gated layer), or adds up a few of its rows (the experts of a token),
computes the products itself, if none is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from burnish.fuel import Fuel
from burnish.ir.body import (
    Apply,
    Axis,
    BodyBuilder,
    Load,
    Loop,
    Reduced,
    Store,
    make_axis,
    prune,
    remap,
)
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, coefficient, mentions, product, substitute, symbols
from burnish.schedule.gpu.products import has_few_rows
from burnish.schedule.gpu.vector_loops import is_vector_product, matrices
from burnish.schedule.kernels import ContractKernel, Kernel, LoopKernel, Schedule, made_by
from burnish.schedule.splice import Producer, Readers, sets_each_once, splice

_MOST_READ = 16  # matrices of one loop, and terms of a sum that is written out
_COMBINED = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


# --- matrices ---------------------------------------------------------------------------------------------------


def inline_matrices(schedule: Schedule, products: Sequence[LoopKernel], fuel: Fuel) -> Schedule:
    """The schedule whose vector products, freshly written as loops, compute their matrices' elements themselves."""
    kernels = list(schedule.kernels)
    for loop_kernel in products:
        at = next(n for n, k in enumerate(kernels) if k is loop_kernel)
        readers = Readers(schedule, kernels)
        gone: set[int] = set()
        loop = loop_kernel.loop
        for name in dict.fromkeys(i.buffer for i in loop.loads if mentions(i.index, {a.name for a in loop.reduction})):
            parts = readers.producers(name, at)
            inlined = _with_parts(loop, name, parts) if parts and not any(p.loop.reduction for p in parts) else None
            if inlined is not None and fuel.spend(f"matrices: {name}"):
                loop, gone = inlined, gone | {p.at for p in parts}
        if gone:
            kernels[at] = LoopKernel(loop)
            kernels = [k for n, k in enumerate(kernels) if n not in gone]
    return schedule.with_kernels(kernels)


def read_narrow(schedule: Schedule, fuel: Fuel) -> Schedule:
    """Let products of few rows read matrices of small integers in their stored type: each program widens the elements
    of its strip to the rows' type."""
    kernels = list(schedule.kernels)
    for kernel in schedule.kernels:
        if not isinstance(kernel, ContractKernel) or not has_few_rows(kernel):
            continue
        at = next(n for n, k in enumerate(kernels) if k is kernel)
        parts = Readers(schedule, kernels).producers(kernel.b.buffer, at)
        narrow = _widened_from(parts[0]) if len(parts) == 1 else None
        if narrow is not None and fuel.spend(f"narrow: {narrow.buffer}"):
            kernels[at] = replace(kernel, b=replace(kernel.b, buffer=narrow.buffer, dtype=narrow.dtype))
            del kernels[parts[0].at]
    return schedule.with_kernels(kernels)


def _widened_from(part: Producer) -> Load | None:
    """The load of a map that only converts small integers to another type, element by element."""
    match part.loop.body:
        case (Load() as load, Apply(fn="cast"), Store(index=index)):
            same = load.guard is None and load.index == index and not part.loop.reduction
            return load if same and load.dtype in (DType.i8, DType.u8) else None
    return None


def _with_parts(loop: Loop, name: str, parts: list[Producer]) -> Loop | None:
    """The product's loop with the elements of one of its operands computed; a matrix whose rows are put together from
    equal parts is read part by part, all at once."""
    reads = [i for i in loop.loads if i.buffer == name]
    kept = {a.name for a in loop.parallel}
    if not all(_is_free(p.loop) for p in parts) and not all(kept <= {s.name for s in symbols(i.index)} for i in reads):
        return None  # an element that several columns read would be computed for each of them
    return _folded(loop, name, parts) if len(parts) > 1 else _replaced(loop, parts[0])


def _is_free(loop: Loop) -> bool:
    """Whether the map costs nothing beyond its loads."""
    return all(isinstance(i, Load | Store) and getattr(i, "guard", None) is None for i in loop.body)


def _replaced(loop: Loop, part: Producer) -> Loop | None:
    body = BodyBuilder()

    def stored(load: Load) -> int | None:
        return part.value(body, load.index) if load.guard is None else None

    if splice(body, loop.body, {}, (part.store.buffer,), stored) is None:
        return None
    return replace(loop, body=prune(body.instrs))


def _folded(loop: Loop, name: str, parts: list[Producer]) -> Loop | None:
    """The sum over a row as that over equal parts of it, which are taken side by side."""
    (along,) = loop.reduction
    level = loop.element_level()
    if not isinstance(along.size, int) or any(isinstance(i, Store) and level[n] for n, i in enumerate(loop.body)):
        return None
    length = along.size // len(parts)
    guarded = any(i.guard is not None for i in loop.loads if i.buffer == name)
    if guarded or length * len(parts) != along.size or not all(_covers(p, n, length) for n, p in enumerate(parts)):
        return None
    short = make_axis(along.name, length, reduce=True)
    body = BodyBuilder()

    def made(side: int, load: Load) -> int | None:
        return parts[side].value(body, load.index) if load.buffer == name else None

    if side_by_side(body, loop, short, len(parts), made) is None or any(i.buffer == name for i in _loads(body)):
        return None
    axes = tuple(short if a is along else a for a in loop.axes)
    return replace(loop, axes=axes, body=prune(body.instrs))


def _loads(body: BodyBuilder) -> list[Load]:
    return [i for i in body.instrs if isinstance(i, Load)]


def side_by_side(
    body: BodyBuilder, loop: Loop, short: Axis, count: int, made: Callable[[int, Load], int | None] = lambda k, i: None
) -> list[dict[int, int]] | None:
    """Emit a loop whose row is cut into `count` parts, side by side: a point computes an element of each. Returns the
    values of each part. What the loop would store at the points of a row is left to the caller; `made` may give the
    value of a load of a part."""
    (along,) = loop.reduction
    level = loop.element_level()
    sides: list[dict[int, int]] = [{} for _ in range(count)]
    for n, i in enumerate(loop.body):
        if isinstance(i, Reduced):
            if i.kind not in _COMBINED:
                return None
            total = sides[0][i.arg]
            for values in sides[1:]:
                total = body.emit(Apply(_COMBINED[i.kind], (total, values[i.arg]), i.dtype))
            total = body.emit(replace(i, arg=total))
            for values in sides:
                values[n] = total
        elif not level[n]:
            value = body.emit(remap(i, sides[0], {}))
            for values in sides:
                values[n] = value
        elif not isinstance(i, Store):
            for k, values in enumerate(sides):
                moved = remap(i, values, {along.name: short.expr + k * short.size})
                known = made(k, moved) if isinstance(moved, Load) else None
                values[n] = body.emit(moved) if known is None else known
    return sides


def _covers(part: Producer, number: int, length: int) -> bool:
    """Whether a part is this one of the equal parts of each row, in order."""
    start = substitute(part.store.index, {a.name: 0 for a in part.loop.axes})
    along = [a for a in part.loop.parallel if coefficient(part.store.index, a.name) == 1]
    return start == number * length and len(along) == 1 and along[0].size == length


# --- products ---------------------------------------------------------------------------------------------------


def inline_products(schedule: Schedule, fuel: Fuel | None = None) -> Schedule:
    """Maps that read a vector product's results at several places, or add up a few of them, are joined with it."""
    fuel = fuel or Fuel()
    kernels = list(schedule.kernels)
    for kernel in schedule.kernels:
        at = next((n for n, k in enumerate(kernels) if k is kernel), None)
        if at is None or not isinstance(kernel, LoopKernel) or not is_vector_product(kernel.loop):
            continue
        if len(kernel.loop.stores) != 1:
            continue
        (store,), readers_of = kernel.loop.stores, Readers(schedule, kernels)
        readers = readers_of(store.buffer)
        if len(readers) != 1:
            continue
        reader = kernels[readers[0]]
        parts = readers_of.producers(store.buffer, readers[0])
        joined = _joined(reader.loop, parts[0]) if len(parts) == 1 and isinstance(reader, LoopKernel) else None
        if joined is not None and fuel.spend(f"inline products: {made_by(kernel)}"):
            kernels[readers[0]] = LoopKernel(joined)
            del kernels[at]
    return schedule.with_kernels(_without_small_sums(schedule, kernels, fuel))


def _without_small_sums(schedule: Schedule, kernels: list[Kernel], fuel: Fuel) -> list[Kernel]:
    """If only vector products read a sum of a few terms, each of their programs computes the sum."""
    readers_of = Readers(schedule, kernels)
    for kernel in list(kernels):
        if not isinstance(kernel, LoopKernel) or not kernel.loop.reduction or not sets_each_once(kernel.loop):
            continue
        flat, (store,) = written_out(kernel.loop), kernel.loop.stores
        if flat is None or not readers_of.are_all(store.buffer):
            continue
        at = next(n for n, k in enumerate(kernels) if k is kernel)
        readers = readers_of(store.buffer)
        if not readers or not readers_of.can_compute(at, max(readers)):
            continue
        found = [_with_sums(kernels[n], Producer(at, flat, flat.stores[0])) for n in readers]
        joined = [k for k in found if k is not None]
        if len(joined) == len(readers) and fuel.spend(f"inline sums: {store.buffer}"):
            for n, reader in zip(readers, joined, strict=True):
                kernels[n] = reader
            del kernels[at]
    return kernels


def _with_sums(kernel: Kernel, part: Producer) -> LoopKernel | None:
    if not isinstance(kernel, LoopKernel) or not is_vector_product(kernel.loop):
        return None
    level = kernel.loop.element_level()
    reads = [n for n, i in enumerate(kernel.loop.body) if isinstance(i, Load) and i.buffer == part.store.buffer]
    if any(level[n] for n in reads):
        return None
    loop = _replaced(kernel.loop, part)
    return None if loop is None else LoopKernel(loop)


def _joined(reader: Loop, part: Producer) -> Loop | None:
    if reader.sequential or reader.scans or len(part.loop.reduction) != 1:
        return None
    flat = written_out(reader) if reader.reduction else reader
    if flat is None:
        return None
    reads = [i for i in flat.loads if i.buffer == part.store.buffer]
    once = len(reads) * product([a.size for a in flat.axes]) == product([a.size for a in part.loop.parallel])
    if not once or len(reads) * matrices(part.loop) > _MOST_READ or any(i.guard is not None for i in reads):
        return None
    along = make_axis(_unused(flat.axes), part.loop.reduction[0].size, reduce=True)
    reduced: dict[str, Dim] = {part.loop.reduction[0].name: along.expr}
    body = BodyBuilder()
    if splice(body, flat.body, {}, (part.store.buffer,), lambda i: part.value(body, i.index, reduced)) is None:
        return None
    loop = replace(flat, axes=(*flat.axes, along), body=prune(body.instrs))
    return loop if loop.hazard() is None else None


def _unused(axes: Sequence[Axis]) -> str:
    taken = {a.name for a in axes}
    return next(f"i{n}" for n in range(len(axes) + 1) if f"i{n}" not in taken)


def written_out(loop: Loop) -> Loop | None:
    """A loop whose short reductions are written out, term by term; None, if they are not short or it stores terms."""
    if len(loop.reduction) != 1:
        return None
    (along,) = loop.reduction
    level = loop.element_level()
    stores_terms = any(isinstance(i, Store) and level[n] for n, i in enumerate(loop.body))
    if not isinstance(along.size, int) or along.size > _MOST_READ or stores_terms:
        return None
    if any(isinstance(i, Reduced) and i.kind not in _COMBINED for i in loop.body):
        return None
    body = BodyBuilder()
    terms: list[dict[int, int]] = [{} for _ in range(along.size)]
    for n, i in enumerate(loop.body):
        if isinstance(i, Reduced):
            total = terms[0][i.arg]
            for values in terms[1:]:
                total = body.emit(Apply(_COMBINED[i.kind], (total, values[i.arg]), i.dtype))
            for values in terms:
                values[n] = total
            continue
        for k, values in enumerate(terms):
            same = k > 0 and not level[n]
            values[n] = terms[0][n] if same else body.emit(remap(i, values, {along.name: k}))
    return Loop(loop.parallel, prune(body.instrs))
