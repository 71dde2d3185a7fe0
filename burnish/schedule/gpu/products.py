"""Backend selection for each matrix product on a GPU: our kernel, our kernel with split-K, or the vendor's library.

The rule, from measurements on an H200 (bf16, in a chain of dependent kernels):
- A product whose 64 x 64 tiles are too many to be in flight at once, or that has 2**30 multiplications and more, is
  bound by the tensor cores: the library, except for one whose epilogue no later loop can take over (our kernel overlaps
  it with the products), and one whose rows have odd length (for which the library only has slow kernels) and cannot be
  padded (`row_padding.py`).
- A smaller one is bound by latency: our kernel, whose fused epilogue costs no extra time.
- Where there are few tiles and k is long, one program per tile would leave multiprocessors idle: k is split (split-K),
  each split stores its part of the sum, and the kernel that reads the product adds the parts (a normalisation after it
  does so in its first pass).
- A product of one row is bound by the memory its matrix comes from: a loop (`vector_products.py`), fused as others are.
- A product of a few rows is also bound by memory, but needs tensor cores: our kernel, with a program for a strip of
  columns over all of k (`has_few_rows`). It is never split: its programs read all of the matrix at once anyway.
- Full-precision products are the library's unless tiny: our kernel has no tensor cores for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from burnish.device import Gpu
from burnish.fuel import Fuel
from burnish.ir.body import Apply, BodyBuilder, Instr, Load, Loop, Store, const
from burnish.ir.dtypes import DType
from burnish.ir.expr import coefficient, contiguous_strides, mentions, product, substitute
from burnish.ir.graph import Extern, Ref
from burnish.schedule.epilogue import (
    accumulator_loads,
    is_cast,
    looks_up,
    reading,
    uses,
    with_values,
)
from burnish.schedule.form import LIBRARY, Form, ours
from burnish.schedule.gpu.limits import describable, most_tiles
from burnish.schedule.gpu.row_padding import even_part, is_ragged, rest_of_sum, with_more_rows
from burnish.schedule.gpu.split_k import TILE, Sums, in_splits, tiles_of
from burnish.schedule.kernels import (
    Buffer,
    ContractGroup,
    ContractKernel,
    ExternKernel,
    Kernel,
    LoopKernel,
    Operand,
    Schedule,
)
from burnish.schedule.order import launched_together, side_by_side

_QUICK = 1 << 30  # multiplications that take the tensor cores about as long as a kernel takes to start
_TINY = 1 << 22  # multiplications of a full-precision product that is over before a library call would be
FEW_ROWS = 32  # rows of a product whose time is that of reading its matrix
_LONG = 512  # k-elements, and columns, from which that read takes longer than a kernel launch


def can_be_persistent(kernel: ContractKernel) -> bool:
    """Whether the operands are ones a tensor descriptor can describe, as the form for large products needs them."""
    return len(kernel.a.shape) == 2 and all(describable(o) for o in (kernel.a, kernel.b))


def is_large(kernel: ContractKernel, gpu: Gpu) -> bool:
    """Whether throughput, not latency, bounds a product's time."""
    tiles, work = _tiles(kernel), _work(kernel)
    return tiles is None or work is None or tiles > most_tiles(gpu) or work > _QUICK


def has_few_rows(kernel: ContractKernel) -> bool:
    """Whether the time to read the right operand bounds the product; the operand's columns are contiguous in memory."""
    a, b = kernel.a, kernel.b
    if len(a.shape) != 2 or a.dtype is None or a.dtype.itemsize != 2 or a.strides[1] != 1 or b.strides[0] != 1:
        return False
    (m, k), n = a.shape, b.shape[1]
    if not isinstance(m, int) or not isinstance(n, int) or not isinstance(k, int):
        return False
    return m <= FEW_ROWS and min(n, k) >= _LONG


def _tiles(kernel: ContractKernel) -> int | None:
    """How many 64 x 64 tiles the product has, if its sizes are known."""
    *batch, m, n = kernel.product_shape
    return tiles_of(m, n, product(batch))


def _sums(kernel: ContractKernel) -> Sums | None:
    tiles, k = _tiles(kernel), kernel.a.shape[-1]
    return None if tiles is None or not isinstance(k, int) else Sums(tiles, k, TILE)


def _work(kernel: ContractKernel) -> int | None:
    """How many multiplications it takes, if its sizes are known."""
    work = product((*kernel.product_shape, kernel.a.shape[-1]))
    return work if isinstance(work, int) else None


@dataclass
class ProductBackend:
    schedule: Schedule
    kernel: ContractKernel

    def __post_init__(self) -> None:
        self.given = self.kernel  # as it stands in the schedule

    def kernels(self, form: Form) -> list[Kernel]:
        if form == LIBRARY:
            return self._library()
        return self._split(form["splits"]) if form["splits"] > 1 else [self.kernel]

    def forms(self) -> list[Form]:
        sums, work = _sums(self.kernel), _work(self.kernel)
        if sums is None or work is None:
            return [self.rule()]
        own = not looks_up(self.kernel.loop) and self.kernel.a.dtype is not DType.f64
        slow = self.kernel.a.dtype is DType.f32 and work > 16 * _TINY
        splits = [1, *sums.to_measure(self.schedule.gpu)] if own and not slow else []
        library = [LIBRARY] if self.kernel.b.dtype is self.kernel.a.dtype else []
        return list(dict.fromkeys([self.rule(), *library, *map(ours, splits)]))

    # --- the rule -----------------------------------------------------------------------------------------------

    def rule(self) -> Form:
        return ours(self._splits()) if self._is_ours() else LIBRARY

    def _is_ours(self) -> bool:
        work = _work(self.kernel)
        if has_few_rows(self.kernel):
            return True
        if work is None or looks_up(self.kernel.loop):
            return False
        if self.kernel.a.dtype is DType.f32:
            return work <= _TINY
        if not is_large(self.kernel, self.schedule.gpu):
            return True
        return can_be_persistent(self.kernel) and (self._works_after() or self._library_is_slow())

    def _library_is_slow(self) -> bool:
        """Whether rows have odd length and cannot be padded."""
        return is_ragged(self.kernel) and not even_part(self.kernel) and not with_more_rows(self.schedule, self.kernel)

    def _works_after(self) -> bool:
        """Whether the epilogue is more than a bias, and a library call or a product is the next reader of its
        result."""
        stored = self.kernel.writes
        readers = [k for k in self.schedule.kernels if k.reads & stored and k is not self.kernel]
        if any(isinstance(k, LoopKernel) for k in readers):
            return False  # it computes the epilogue itself
        return sum(isinstance(i, Apply) and i.fn != "cast" for i in self.kernel.loop.body) > 1

    def _splits(self) -> int:
        sums = _sums(self.kernel)
        return 1 if sums is None or has_few_rows(self.kernel) else sums.splits(self.schedule.gpu)

    # --- split along k ------------------------------------------------------------------------------------------

    def _split(self, splits: int) -> list[Kernel]:
        kernel = self.kernel
        a, b = _split_along(kernel.a, -1, splits), _split_along(kernel.b, -2, splits)
        return in_splits(self.schedule, kernel, splits, lambda acc, loop: ContractKernel(a, b, acc, kernel.dtype, loop))

    # --- the library --------------------------------------------------------------------------------------------

    def _library(self) -> list[Kernel]:
        kernel = self.kernel
        even = even_part(kernel) if is_ragged(kernel) else None
        if even is not None:
            return self._with_rest(*even)
        more = with_more_rows(self.schedule, kernel) if is_ragged(kernel) else None
        if more is not None:
            operand, memory = more
            self.schedule.buffers[memory.name] = memory
            kernel = self.kernel = replace(kernel, a=operand)
        bias = self._bias()
        half = kernel.a.dtype
        assert half is not None
        if bias is not None:
            add, operand, made = bias
            values = uses(kernel.loop, add)
            return [*made, *self._called("addmm", (operand, kernel.a, kernel.b), half, values)]
        acc = accumulator_loads(kernel)
        casts = [u for n in acc for u in uses(kernel.loop, n)]
        name = "mm" if len(kernel.a.shape) == 2 else "bmm"
        if half.compute is half:
            return self._called(name, (kernel.a, kernel.b), half, acc)
        if all(is_cast(kernel.loop.body[u], half) for u in casts):
            if self._is_widened(casts):  # rounded for nothing: the library stores the sum
                return self._called(name, (kernel.a, kernel.b), half.compute, casts)
            return self._called(name, (kernel.a, kernel.b), half, casts)
        return self._called(name, (kernel.a, kernel.b), half.compute, acc)  # the sum itself is wanted, not rounded

    def _with_rest(self, a: Operand, b: Operand) -> list[Kernel]:
        kernel = self.kernel
        strides = contiguous_strides(kernel.product_shape)
        result = Buffer(f"{kernel.acc}_product", kernel.dtype, kernel.product_shape, strides, "extern")
        self.schedule.buffers[result.name] = result
        args = (Ref(0), Ref(1), kernel.dtype.torch)
        op = Extern(torch.ops.aten.mm.dtype, args, (), (strides,), "aten.mm.dtype")
        first = a.shape[1]
        assert isinstance(first, int)
        loop = reading(kernel, lambda body, load: rest_of_sum(kernel, body, load, result, first))
        return [ExternKernel(op, (a, b), (result.name,)), LoopKernel(loop)]

    def _bias(self) -> tuple[int, Operand, list[Kernel]] | None:
        """The addition of a bias vector along the columns, if the accumulator has no other reader and the sum is
        rounded at once: the library does both. A bias that is itself rounded is computed first."""
        kernel, body = self.kernel, self.kernel.loop.body
        half = kernel.a.dtype
        loads = accumulator_loads(kernel)
        if len(kernel.a.shape) != 2 or len(loads) != 1 or half is None or half.compute is half:
            return None
        readers = uses(kernel.loop, loads[0])
        if len(readers) != 1 or not _is_add(body[readers[0]]):
            return None
        add = body[readers[0]]
        assert isinstance(add, Apply)
        if len(set(add.args)) != 2 or not all(is_cast(body[u], half) for u in uses(kernel.loop, readers[0])):
            return None
        vector = self._vector(next(a for a in add.args if a != loads[0]), half)
        return None if vector is None else (readers[0], *vector)

    def _vector(self, value: int, half: DType) -> tuple[Operand, list[Kernel]] | None:
        """A value per column in memory, and the kernel that puts it there if it is not yet."""
        loop, n = self.kernel.loop, self.kernel.b.shape[-1]
        column = f"i{len(self.kernel.a.shape) - 1}"
        held = loop.body[value]
        rounded = isinstance(held, Apply) and held.fn == "cast" and held.dtype is half
        source = loop.body[held.args[0]] if isinstance(held, Apply) and rounded else held
        if not isinstance(source, Load) or source.guard is not None:
            return None
        rows = {a.name for a in loop.axes} - {column}
        if coefficient(source.index, column) != 1 or mentions(source.index, rows):
            return None
        if source.dtype is half:
            return Operand(source.buffer, substitute(source.index, {column: 0}), (n,), (1,), half), []
        if not rounded:
            return None
        made = Buffer(f"{self.kernel.acc}_bias", half, (n,), (1,), "temp")
        self.schedule.buffers[made.name] = made
        body = BodyBuilder()
        at = body.emit(source)
        axis = next(a for a in loop.axes if a.name == column)
        body.emit(Store(made.name, axis.expr, body.emit(Apply("cast", (at,), half)), "set", half))
        return Operand(made.name, 0, (n,), (1,), half), [LoopKernel(Loop((axis,), tuple(body.instrs)))]

    def _called(self, name: str, inputs: tuple[Operand, ...], dtype: DType, values: list[int]) -> list[Kernel]:
        """The call, and the epilogue as a loop that reads its result where `values` stood."""
        kernel = self.kernel
        shape = kernel.product_shape
        strides = contiguous_strides(shape)
        widened = dtype is not kernel.a.dtype
        overload = getattr(torch.ops.aten, name)
        target = overload.dtype if widened else overload.default
        args: tuple[object, ...] = tuple(Ref(k) for k in range(len(inputs)))
        args = (*args, dtype.torch) if widened else args
        op = Extern(target, args, (), (strides,), f"aten.{name}.{'dtype' if widened else 'default'}")
        copy = self._copy(values, dtype)
        result = Buffer(copy.buffer if copy else f"{kernel.acc}_product", dtype, shape, strides, "extern")
        self.schedule.buffers[result.name] = result
        if copy is not None and len(kernel.loop.stores) == 1:
            return [ExternKernel(op, inputs, (result.name,))]
        place = next(i.index for i in kernel.loop.body if isinstance(i, Load) and i.buffer == kernel.acc)
        body = BodyBuilder()
        read = body.emit(Load(result.name, place, dtype))
        replaced = dict.fromkeys(values, read)
        hidden = dict.fromkeys(accumulator_loads(kernel), read)
        hole = const(False, DType.bool)  # values keep their numbers
        rest = replace(kernel.loop, body=tuple(hole if i is copy else i for i in kernel.loop.body))
        loop = with_values(rest, {**hidden, **replaced}, body)
        return [ExternKernel(op, inputs, (result.name,)), LoopKernel(loop)]

    def _is_widened(self, casts: list[int]) -> bool:
        """Whether the rounded product is only stored in the accumulator's type."""
        loop, wide = self.kernel.loop, self.kernel.dtype
        read = {u for n in casts for u in uses(loop, n)}
        return read == {n for n, i in enumerate(loop.body) if isinstance(i, Store)} and all(
            s.dtype is wide for s in loop.stores
        )

    def _copy(self, values: list[int], dtype: DType) -> Store | None:
        """The store of the product itself, if its layout is the library's and its memory is not written before: then
        the library can write there directly."""
        loop = self.kernel.loop
        place = next(i.index for i in loop.loads if i.buffer == self.kernel.acc)
        for store in loop.stores:
            buffer = self.schedule.buffers[store.buffer]
            plain = store.value in values and store.mode == "set" and store.index == place and store.dtype is dtype
            (rows, *rest), (all_rows, *of_all) = buffer.shape, self.kernel.product_shape
            fits = rest == of_all and (rows == all_rows or self.kernel.a is not self.given.a)
            first = next(k for k in self.schedule.kernels if buffer.name in k.writes)
            if plain and fits and first is self.given and buffer.role in ("temp", "output"):
                return store
        return None


def _split_along(o: Operand, d: int, splits: int) -> Operand:
    """The operand with its dimension d cut into splits, which become a batch in front."""
    size = o.shape[d]
    assert isinstance(size, int)
    shape = list(o.shape)
    shape[d] = size // splits
    return replace(o, shape=(splits, *shape), strides=(o.strides[d] * (size // splits), *o.strides))


def _is_add(i: Instr) -> bool:
    return isinstance(i, Apply) and i.fn == "add"


# --- siblings ---------------------------------------------------------------------------------------------------


def group_siblings(schedule: Schedule, fuel: Fuel | None = None) -> Schedule:
    """Products of one matrix with several (queries, keys and values; gate and up) become one kernel."""
    kinds = [_kind(k) if isinstance(k, ContractKernel) else None for k in schedule.kernels]
    groups = side_by_side(schedule.kernels, kinds)
    return schedule.with_kernels(launched_together(groups, ContractKernel, ContractGroup, "group products", fuel))


def alike(first: ContractKernel, other: ContractKernel) -> bool:
    """Whether two products can share one kernel."""
    kind = _kind(first)
    return kind is not None and kind == _kind(other)


def _kind(kernel: ContractKernel) -> object:
    """The key of a product's group; None for a product that is not grouped, such as one with several right operands."""
    if kernel.others or len(kernel.a.shape) != 2:
        return None
    return kernel.a, kernel.b.strides, kernel.b.dtype, kernel.b.shape[0]
