"""Schedule: kernels in order over named buffers. The representation between Graph and source.

Five kinds of kernel: Loop (maps and reductions), Contract and Convolve (a matrix product, a convolution, whose results
go through a loop body), Attend, Extern (an ATen call); and, on a GPU, groups of loops or contractions that are one
launch, and split attention. Only buffers connect them, so a kernel's reads and writes are its only dependences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from burnish.device import REFERENCE, Gpu
from burnish.ir.body import Loop
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, contiguous_strides, floordiv, product
from burnish.ir.graph import Attend, Convolve, Extern
from burnish.schedule.form import Form

KEY_BLOCK = 64  # keys that split attention looks at together


@dataclass(frozen=True)
class Buffer:
    """Memory by name. role: input (an argument), constant, output (fresh for each call), temp (planned into the
    arena), extern (a tensor an ATen call returns)."""

    name: str
    dtype: DType | None
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    role: str
    position: int = 0

    @property
    def extent(self) -> Dim:
        """Elements from the first to the last, gaps included."""
        if any(d == 0 for d in self.shape):
            return 0
        total: Dim = 1
        for d, s in zip(self.shape, self.strides, strict=True):
            total = total + (d - 1) * s
        return total

    @property
    def elements(self) -> Dim:
        return product(self.shape)

    def __str__(self) -> str:
        dtype = self.dtype.value if self.dtype else "?"
        shape, strides = (", ".join(map(str, dims)) for dims in (self.shape, self.strides))
        return f"{self.name}: {self.role} {dtype}[{shape}] strides [{strides}]"


@dataclass(frozen=True)
class Operand:
    """A strided window into a buffer: what a library kernel reads."""

    buffer: str
    offset: Dim
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dtype: DType | None

    @property
    def last(self) -> Dim:
        """Where its last element is."""
        total: Dim = self.offset
        for d, s in zip(self.shape, self.strides, strict=True):
            total = total + (d - 1) * s
        return total

    def __str__(self) -> str:
        window = ", ".join(f"{d}:{s}" for d, s in zip(self.shape, self.strides, strict=True))
        return f"{self.buffer}+{self.offset}[{window}]"


@dataclass(frozen=True)
class LoopKernel:
    loop: Loop

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset(i.buffer for i in self.loop.loads)

    @cached_property
    def writes(self) -> frozenset[str]:
        return frozenset(i.buffer for i in self.loop.stores)

    def __str__(self) -> str:
        return str(self.loop)


class _ThroughLoop:
    """A kernel's reads and writes, if its sums go through a loop's body under the name `acc`."""

    acc: str
    loop: Loop

    @cached_property
    def operand_reads(self) -> frozenset[str]:
        raise NotImplementedError

    @cached_property
    def reads(self) -> frozenset[str]:
        return self.operand_reads | (frozenset(i.buffer for i in self.loop.loads) - {self.acc})

    @cached_property
    def writes(self) -> frozenset[str]:
        return frozenset(i.buffer for i in self.loop.stores)


@dataclass(frozen=True)
class ContractKernel(_ThroughLoop):
    """acc[*batch, m, n] = sum_k a[*batch, m, k] * b[*batch, k, n]; `loop`'s body loads `acc` and stores results.

    On a GPU, `others` are more right operands, of b's shape and strides: the body loads their products with `a` by
    their names."""

    a: Operand
    b: Operand
    acc: str
    dtype: DType
    loop: Loop
    library: bool = False  # on a CPU: BLAS multiplies, not our own code
    others: tuple[tuple[str, Operand], ...] = ()

    @property
    def products(self) -> dict[str, Operand]:
        """Every right operand, by the name of its product."""
        return {self.acc: self.b, **dict(self.others)}

    @cached_property
    def reads(self) -> frozenset[str]:
        return super().reads - {name for name, _ in self.others}

    @property
    def product_shape(self) -> tuple[Dim, ...]:
        return (*self.a.shape[:-1], self.b.shape[-1])

    @property
    def acc_strides(self) -> tuple[Dim, ...]:
        return contiguous_strides(self.product_shape)

    @cached_property
    def operand_reads(self) -> frozenset[str]:
        return frozenset({self.a.buffer, *(b.buffer for b in self.products.values())})

    def __str__(self) -> str:
        products = [f"{acc} = contract {self.a} x {b}" for acc, b in self.products.items()]
        return f"{', '.join(products)}{' by BLAS' if self.library else ''}\n{self.loop}"


@dataclass(frozen=True)
class ConvolveKernel(_ThroughLoop):
    """acc[b, o, h, w] as `op` says, from x [b, c, h, w] and k [o, c, r, s]; `loop`'s body loads `acc`, whose channels
    lie next to one another, and stores results.

    With several `splits`, acc[p, b, o, h, w] is the p-th part of the sum: of k's taps and channels in the order
    [r, s, c], equally many in a split."""

    op: Convolve
    x: Operand
    k: Operand
    acc: str
    dtype: DType
    loop: Loop
    splits: int = 1

    @property
    def result_shape(self) -> tuple[Dim, Dim, Dim, Dim]:
        op, (_, _, *size), (_, _, *taps) = self.op, self.x.shape, self.k.shape
        h, w = (
            floordiv(n + 2 * p - d * (t - 1) - 1, s) + 1
            for n, p, d, t, s in zip(size, op.padding, op.dilation, taps, op.stride, strict=True)
        )
        return (self.x.shape[0], self.k.shape[0], h, w)

    @property
    def product_shape(self) -> tuple[Dim, ...]:
        return self.result_shape if self.splits == 1 else (self.splits, *self.result_shape)

    @property
    def acc_strides(self) -> tuple[Dim, ...]:
        last = channels_last_strides(self.result_shape)
        return last if self.splits == 1 else (product(self.result_shape), *last)

    @cached_property
    def operand_reads(self) -> frozenset[str]:
        return frozenset({self.x.buffer, self.k.buffer})

    def __str__(self) -> str:
        splits = "" if self.splits == 1 else f" in {self.splits} pieces"
        return f"{self.acc} = convolve {self.x} x {self.k} {self.op}{splits}\n{self.loop}"


class _SideBySide:
    """Kernels that share one launch."""

    parts: tuple[LoopKernel, ...] | tuple[ContractKernel, ...]

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset().union(*(p.reads for p in self.parts))

    @cached_property
    def writes(self) -> frozenset[str]:
        return frozenset().union(*(p.writes for p in self.parts))

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts))


@dataclass(frozen=True)
class ContractGroup(_SideBySide):
    """Contractions without a batch that share their left operand and the strides of their right one, in one kernel."""

    parts: tuple[ContractKernel, ...]


@dataclass(frozen=True)
class LoopGroup(_SideBySide):
    """Independent loops in one kernel: each has its own programs."""

    parts: tuple[LoopKernel, ...]


@dataclass(frozen=True)
class AttendKernel:
    op: Attend
    inputs: tuple[Operand, ...]  # q, k, v[, mask]
    out: Operand
    lse: Operand

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset(o.buffer for o in self.inputs)

    @cached_property
    def writes(self) -> frozenset[str]:
        return frozenset({self.out.buffer, self.lse.buffer})

    def __str__(self) -> str:
        flags = f"causal={self.op.causal} scale={self.op.scale:.6g}" + (
            f" cap={self.op.cap:.6g}" if self.op.cap else ""
        )
        return f"{self.out}, {self.lse} = attend({', '.join(map(str, self.inputs))}) {flags}"


@dataclass(frozen=True)
class AttendSplits:
    """Attention over equal splits of the keys, to be put together: of split p, `sums`[p, *q.shape] are the values
    weighted by 2**(score - most), `totals`[p, *q.shape[:-1]] the weights' sum, `most` the highest score, all with
    scores in powers of two."""

    op: Attend
    inputs: tuple[Operand, ...]  # q, k, v[, mask]
    sums: Operand
    most: Operand
    totals: Operand

    @property
    def splits(self) -> int:
        splits = self.sums.shape[0]
        assert isinstance(splits, int)
        return splits

    @property
    def length(self) -> int:
        """Keys of a split; the last may have fewer."""
        keys = self.inputs[1].shape[2]
        assert isinstance(keys, int)
        return split_length(keys, self.splits)

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset(o.buffer for o in self.inputs)

    @cached_property
    def writes(self) -> frozenset[str]:
        return frozenset({self.sums.buffer, self.most.buffer, self.totals.buffer})

    def __str__(self) -> str:
        made = f"{self.sums}, {self.most}, {self.totals}"
        flags = f"scale={self.op.scale:.6g}" + (f" cap={self.op.cap:.6g}" if self.op.cap else "")
        return f"{made} = attend({', '.join(map(str, self.inputs))}) {flags} in {self.splits} pieces"


@dataclass(frozen=True)
class ExternKernel:
    op: Extern
    inputs: tuple[Operand, ...]
    outputs: tuple[str, ...]

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset(o.buffer for o in self.inputs)

    @cached_property
    def writes(self) -> frozenset[str]:
        return frozenset(self.outputs)

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {self.op.name}({', '.join(map(str, self.inputs))})"


Product = ContractKernel | ConvolveKernel
Kernel = LoopKernel | Product | ContractGroup | LoopGroup | AttendKernel | AttendSplits | ExternKernel


@dataclass(frozen=True)
class ResultBuffer:
    """A result that is a window of a buffer; `alias_of` names the argument whose storage it shares."""

    operand: Operand
    alias_of: int | None = None


@dataclass
class Schedule:
    buffers: dict[str, Buffer]
    kernels: list[Kernel]
    results: list[ResultBuffer | Dim | None]
    constants: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # fusions made and refused
    gpu: Gpu = REFERENCE  # the target, if it is a GPU
    forms: dict[int, Form] = field(default_factory=dict)  # kernel's number -> its launch form, if not the rule's
    objects: tuple[tuple[int, int, bool], ...] = ()  # a result, an earlier one, and whether both are one tensor

    def __str__(self) -> str:
        lines = [str(b) for b in self.buffers.values()]
        for n, k in enumerate(self.kernels):
            form = f" as {self.forms[n]}" if n in self.forms else ""
            lines += ["", f"kernel {n}{form}", *("  " + line for line in str(k).splitlines())]
        shown = [str(r.operand) if isinstance(r, ResultBuffer) else str(r) for r in self.results]
        return "\n".join([*lines, "", f"return {', '.join(shown)}"])

    def verify(self) -> None:
        written = {n for n, b in self.buffers.items() if b.role in ("input", "constant")}
        for k in self.kernels:
            for name in k.reads:
                empty = self.buffers[name].elements == 0
                assert name in written or empty, f"{name} is read before it is written"
            for name in k.writes if not isinstance(k, ExternKernel) else ():
                assert name in self.buffers, f"{name} is no buffer"
            parts = k.parts if isinstance(k, ContractGroup | LoopGroup) else (k,)
            for part in parts:
                if isinstance(part, LoopKernel | Product):
                    part.loop.verify()
                theirs = {name for other in parts if other is not part for name in (*other.reads, *other.writes)}
                assert not part.writes & theirs, f"{part.writes & theirs} is touched by another part of its launch"
            written |= k.writes
        for r in self.results:
            if isinstance(r, ResultBuffer) and r.alias_of is None and self.buffers[r.operand.buffer].elements != 0:
                assert r.operand.buffer in written, f"result {r.operand} is never written"

    @property
    def result_buffers(self) -> set[str]:
        """Those that results are windows of."""
        return {r.operand.buffer for r in self.results if isinstance(r, ResultBuffer)}

    def copy(self) -> Schedule:
        """A copy whose list of kernels can be changed independently; the kernels themselves are immutable."""
        return replace(self, buffers=dict(self.buffers), kernels=list(self.kernels), results=list(self.results))

    def with_kernels(self, kernels: Sequence[Kernel], buffers: Mapping[str, Buffer] | None = None) -> Schedule:
        """Another schedule, of these kernels; buffers that nothing uses any more are left out."""
        made = replace(self, buffers=dict(self.buffers if buffers is None else buffers), kernels=list(kernels))
        made.drop_unused_buffers()
        return made

    def drop_dead_kernels(self) -> None:
        """Remove kernels whose results have only readers without elements. ATen calls stay, because they have
        effects."""
        needed = self.result_buffers
        needed |= {n for n, b in self.buffers.items() if b.role == "input"}
        kept: list[Kernel] = []
        for k in reversed(self.kernels):
            if isinstance(k, ExternKernel) or k.writes & needed:
                kept.append(k)
                needed |= k.reads
        self.kernels = kept[::-1]

    def drop_unused_buffers(self) -> None:
        used = {n for k in self.kernels for n in (*k.reads, *(() if isinstance(k, ExternKernel) else k.writes))}
        used |= self.result_buffers
        self.buffers = {n: b for n, b in self.buffers.items() if n in used or b.role == "input"}


def made_by(kernel: Kernel) -> str:
    """A kernel's written buffers, as named in the steps of passes."""
    return ", ".join(sorted(kernel.writes))


def split_length(keys: int, splits: int) -> int:
    """The keys of each split, in whole blocks."""
    return -(-keys // (splits * KEY_BLOCK)) * KEY_BLOCK


def channels_last_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    _, c, *size = shape
    *spatial, step = (s * c for s in (product(size), *contiguous_strides(size)))
    return (spatial[0], 1, *spatial[1:], step)


def with_loop(kernel: LoopKernel | Product, loop: Loop) -> LoopKernel | Product:
    return replace(kernel, loop=loop)
