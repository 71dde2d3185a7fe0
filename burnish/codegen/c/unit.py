"""Schedule → one C translation unit: each distinct kernel once, an entry point per run of kernels between ATen calls.

Every entry point takes one table of 64-bit words: buffer addresses and sizes by slot. Kernels are functions of their
own buffers and sizes with names given last, so two kernels that differ only in names are one function.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from burnish.codegen.c.compiled_unit import ERROR_SLOT, CUnit
from burnish.codegen.c.loop import CFunction, LoopPrinter
from burnish.codegen.c.scalar import MEMORY_TYPE
from burnish.codegen.signature import Signature
from burnish.ir.body import Instr, Load, Store, instr_args
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, product, render
from burnish.schedule.axes import normalise
from burnish.schedule.identical import Nameless, Printable, nameless
from burnish.schedule.kernels import (
    AttendKernel,
    Buffer,
    ContractKernel,
    ExternKernel,
    Kernel,
    LoopKernel,
    Operand,
    Schedule,
)

SMALL_WORK = 1 << 15  # multiplications in a product that is written out instead of handed to the library
SMALL_COLUMNS = 1024
_DTYPE_CODE = {
    DType.f32: "BN_F32",
    DType.f64: "BN_F64",
    DType.bf16: "BN_BF16",
    DType.f16: "BN_F16",
    DType.bool: "BN_BOOL",
}


@dataclass
class _Unit:
    functions: dict[str, str] = field(default_factory=dict)  # text with @ -> name
    slots: dict[str, int] = field(default_factory=lambda: {"error": ERROR_SLOT})
    checks: bool = False
    uses_library: bool = False
    uses_double: bool = False
    _known: dict[Hashable, tuple[Nameless, CFunction]] = field(default_factory=dict)  # with the first of each form

    def slot(self, name: str) -> int:
        return self.slots.setdefault(name, len(self.slots))

    def name(self, text: str) -> str:
        return self.functions.setdefault(text, f"k{len(self.functions)}")

    def function(self, kernel: Printable, buffers: dict[str, Buffer]) -> tuple[CFunction, tuple[str, ...]]:
        """The function, and the buffers to call it with. Kernels that differ only in their buffers' names are printed
        once."""
        asked = nameless(kernel)
        if asked.form not in self._known:
            self._known[asked.form] = asked, print_kernel(kernel, buffers)
        first, function = self._known[asked.form]
        return function, asked.instead_of(first, function.signature.buffers)


def generate(schedule: Schedule, timed: bool = False) -> CUnit:
    """`timed` adds a table of nanoseconds by kernel number, `bn_laps`, for `burnish explain`."""
    unit = _Unit()
    segments: list[list[int]] = []
    entries: list[list[str]] = []
    open_segment = False
    for n, kernel in enumerate(schedule.kernels):
        if isinstance(kernel, ExternKernel):
            open_segment = False
            continue
        if not open_segment:
            segments.append([])
            entries.append([])
            open_segment = True
        segments[-1].append(n)
        entries[-1].append("    " + _call(unit, schedule, kernel) + (f" bn_lap({n});" if timed else ""))
    parts = ['#include "bn_kernel.h"', "", *(_clock(len(schedule.kernels)) if timed else ())]
    parts += [text.replace("@", name) + "\n" for text, name in unit.functions.items()]
    for k, calls in enumerate(entries):
        start = ["    bn_last = bn_now();"] if timed else []
        parts += [f"void bn_run_{k}(int64_t *t)", "{", *start, *calls, "}", ""]
    text, uses = "\n".join(parts), (unit.uses_library, unit.uses_double)
    return CUnit(text, unit.slots, segments, len(unit.functions), unit.checks, *uses)


def _clock(kernels: int) -> list[str]:
    return [
        "#include <time.h>",
        f"int64_t bn_laps[{max(kernels, 1)}];",
        "static int64_t bn_last;",
        "static int64_t bn_now(void)",
        "{",
        "    struct timespec now;",
        "    clock_gettime(CLOCK_MONOTONIC, &now);",
        "    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;",
        "}",
        "static void bn_lap(int kernel)",
        "{",
        "    int64_t now = bn_now();",
        "    bn_laps[kernel] += now - bn_last;",
        "    bn_last = now;",
        "}",
        "",
    ]


def _call(unit: _Unit, schedule: Schedule, kernel: Printable) -> str:
    function, buffers = unit.function(kernel, schedule.buffers)
    name = unit.name(function.text)
    sig = function.signature
    unit.checks |= sig.checks
    called = kernel if isinstance(kernel, ContractKernel) and not is_small(kernel) else None
    unit.uses_library |= isinstance(kernel, AttendKernel) or called is not None
    unit.uses_double |= called is not None and called.dtype is DType.f64
    args = [f"(void *)t[{unit.slot(b)}]" for b in buffers] + [f"t[{unit.slot(s)}]" for s in sig.sizes]
    args += [f"&t[{ERROR_SLOT}]"] if sig.checks else []
    return f"{name}({', '.join(args)});"


def print_kernel(kernel: Kernel, buffers: dict[str, Buffer]) -> CFunction:
    match kernel:
        case LoopKernel(loop):
            return LoopPrinter(normalise(loop)).print()
        case ContractKernel():
            return _contract(kernel, buffers)
        case AttendKernel():
            return _attend(kernel)
    raise AssertionError("an ATen call has no C")


# --- library kernels --------------------------------------------------------------------------------------------


class _TilePrinter(LoopPrinter):
    """A contraction's epilogue: the body over the rows and columns of one tile of finished sums."""

    def __init__(self, kernel: ContractKernel) -> None:
        super().__init__(kernel.loop)
        self.acc = kernel.acc
        self.buffer_types.pop(kernel.acc)
        names = {a.name for a in kernel.loop.axes}
        rank = len(kernel.a.shape)
        for d, c in zip(range(rank), (["b1"] if rank == 3 else []) + ["m", "n"], strict=True):
            if f"i{d}" in names:
                self.axis_names[f"i{d}"] = c
        self.order = [a for a in kernel.loop.axes if self.axis_names[a.name] != "n"]

    def expression(self, i: Instr) -> str:
        if isinstance(i, Load) and i.buffer == self.acc:
            return "tile[(m - m0) * ld + (n - n0)]"
        return super().expression(i)

    def print_tile(self) -> list[str]:
        outer = self.depths([*self.order, *[a for a in self.loop.axes if a not in self.order]])
        inner = len(self.order) + 1
        early: list[int] = []
        late: list[int] = []
        for n, i in enumerate(self.body):
            deep = isinstance(i, Store) or outer[n] >= inner or (isinstance(i, Load) and i.buffer == self.acc)
            deep = deep or any(a in late for a in instr_args(i))
            (late if deep else early).append(n)
        self.open("for (int64_t m = m0; m < m1; m++)")
        for n in early:
            self.statement(n)
        self.line("#pragma omp simd")
        self.open("for (int64_t n = n0; n < n1; n++)")
        for n in late:
            self.statement(n)
        self.close()
        self.close()
        return self.lines


def _contract(kernel: ContractKernel, buffers: dict[str, Buffer]) -> CFunction:
    tile = _TilePrinter(kernel)
    lines = tile.print_tile()
    sig = tile.signature
    scalar = "double" if kernel.dtype is DType.f64 else "float"
    suffix = "f64" if kernel.dtype is DType.f64 else "f32"
    unpack = []
    for k, name in enumerate(sig.buffers):
        dtype, stored = tile.buffer_types[name]
        kind = f"{'' if stored else 'const '}{MEMORY_TYPE[dtype]}"
        unpack.append(f"    {kind} *restrict p{k} = c[{k}];")
    for k in range(len(sig.sizes)):
        unpack.append(f"    int64_t s{k} = (int64_t)c[{len(sig.buffers) + k}];")
    if sig.checks:
        unpack.append(f"    int64_t *error = c[{len(sig.buffers) + len(sig.sizes)}];")
    epilogue = [
        "static void @_tile(void *ctx, int64_t b0, int64_t b1, int64_t m0, int64_t m1, int64_t n0, int64_t n1,",
        f"                   const {scalar} *tile, int64_t ld)",
        "{",
        "    void **c = ctx;",
        *unpack,
        *lines,
        "}",
    ]
    context = [f"(void *)p{k}" for k in range(len(sig.buffers))] + [f"(void *)s{k}" for k in range(len(sig.sizes))]
    context += ["error"] if sig.checks else []
    call = _Call(sig, tile.buffer_types)
    inner = _small_product(kernel, call) if is_small(kernel) else _library_product(kernel, call, suffix)
    text = [
        *epilogue,
        "",
        f"static void @({', '.join(call.parameters())})",
        "{",
        f"    void *c[] = {{{', '.join(context) or '0'}}};",
        *("    " + line for line in inner),
        "}",
    ]
    return CFunction("\n".join(text), sig)


def is_small(kernel: ContractKernel) -> bool:
    """Products so small that a call into the library, or building the library, would outweigh them."""
    a, b = kernel.a, kernel.b
    dims = (*a.shape, b.shape[-1])
    if any(not isinstance(d, int) for d in dims) or {a.dtype, b.dtype} - {DType.f32, DType.f64}:
        return False
    work = product(dims)
    assert isinstance(work, int)
    return work <= SMALL_WORK and b.shape[-1] <= SMALL_COLUMNS  # type: ignore[operator]


def _small_product(kernel: ContractKernel, call: _Call) -> list[str]:
    """A row of the result at a time: dot products where k is contiguous in b, else sums of b's rows."""
    a, b = kernel.a, kernel.b
    rank = len(a.shape)
    kind = "double" if kernel.dtype is DType.f64 else "float"
    batch, (m, k), n = (a.shape[0] if rank == 3 else 1), a.shape[-2:], b.shape[-1]
    pa, pb = call.pointer(a), call.pointer(b)
    batch_a, batch_b = (call.dim(o.strides[0]) if rank == 3 else "0" for o in (a, b))
    sam, sak = (call.dim(x) for x in a.strides[-2:])
    sbk, sbn = (call.dim(x) for x in b.strides[-2:])
    product_term = f"x[{sak} * k] * y[{sbk} * k + {sbn} * n]"
    if b.strides[-2] == 1:
        loops = [
            f"for (int64_t n = 0; n < {n}; n++) {{",
            f"    {kind} sum = 0;",
            "#pragma omp simd reduction(+:sum)",
            f"    for (int64_t k = 0; k < {k}; k++) sum += {product_term};",
            "    row[n] = sum;",
            "}",
        ]
    else:
        loops = [
            f"for (int64_t n = 0; n < {n}; n++) row[n] = 0;",
            f"for (int64_t k = 0; k < {k}; k++) {{",
            "#pragma omp simd",
            f"    for (int64_t n = 0; n < {n}; n++) row[n] += {product_term};",
            "}",
        ]
    return [
        f"{kind} row[{n}] BN_ALIGN;",
        f"for (int64_t b1 = 0; b1 < {batch}; b1++) {{",
        f"    for (int64_t m = 0; m < {m}; m++) {{",
        f"        const {kind} *restrict x = {pa} + b1 * {batch_a} + m * {sam};",
        f"        const {kind} *restrict y = {pb} + b1 * {batch_b};",
        *(line if line.startswith("#") else "        " + line for line in loops),
        f"        @_tile(c, 0, b1, m, m + 1, 0, {n}, row, {n});",
        "    }",
        "}",
    ]


def _library_product(kernel: ContractKernel, call: _Call, suffix: str) -> list[str]:
    a, b = kernel.a, kernel.b
    rank = len(a.shape)
    fields = {
        "a": call.pointer(a), "b": call.pointer(b),
        "m": call.dim(a.shape[-2]), "n": call.dim(b.shape[-1]), "k": call.dim(a.shape[-1]),
        "sam": call.dim(a.strides[-2]), "sak": call.dim(a.strides[-1]),
        "sbk": call.dim(b.strides[-2]), "sbn": call.dim(b.strides[-1]),
        "nb0": "1", "nb1": call.dim(a.shape[0]) if rank == 3 else "1",
        "sa1": call.dim(a.strides[0]) if rank == 3 else "0", "sb1": call.dim(b.strides[0]) if rank == 3 else "0",
        "dtype_a": _code(a), "dtype_b": _code(b),
        **({"library": "1"} if kernel.library else {}),
    }  # fmt: skip
    return [
        f"bn_gemm_args args = {{{', '.join(f'.{k} = {v}' for k, v in fields.items())}}};",
        f"bn_gemm_{suffix}(&args, @_tile, c);",
    ]


class _Call:
    """Extends an epilogue's signature with what the library call itself needs."""

    def __init__(self, sig: Signature, types: dict[str, tuple[DType, bool]]) -> None:
        self.sig, self.types = sig, types

    def pointer(self, operand: Operand) -> str:
        assert operand.dtype is not None
        if operand.buffer not in self.sig.buffers:
            self.sig.buffers.append(operand.buffer)
            self.types[operand.buffer] = (operand.dtype, False)
        offset = "" if operand.offset == 0 else f" + {self.dim(operand.offset)}"
        return f"p{self.sig.buffers.index(operand.buffer)}{offset}"

    def written(self, operand: Operand) -> str:
        text = self.pointer(operand)
        self.types[operand.buffer] = (self.types[operand.buffer][0], True)
        return text

    def dim(self, value: Dim) -> str:
        def name(symbol: str) -> str:
            if symbol not in self.sig.sizes:
                self.sig.sizes.append(symbol)
            return f"s{self.sig.sizes.index(symbol)}"

        return render(value, name, python=False)

    def parameters(self) -> list[str]:
        out = []
        for k, name in enumerate(self.sig.buffers):
            dtype, stored = self.types[name]
            out.append(f"{'' if stored else 'const '}{MEMORY_TYPE[dtype]} *p{k}")
        out += [f"int64_t s{k}" for k in range(len(self.sig.sizes))]
        return out + (["int64_t *error"] if self.sig.checks else [])


def _code(operand: Operand) -> str:
    assert operand.dtype is not None
    return _DTYPE_CODE[operand.dtype]


def _attend(kernel: AttendKernel) -> CFunction:
    call = _Call(Signature(), {})
    q, k, v, *rest = kernel.inputs
    strides = {"sq": q, "sk": k, "sv": v, "so": kernel.out}
    fields = {
        "q": call.pointer(q), "k": call.pointer(k), "v": call.pointer(v),
        "out": call.written(kernel.out), "lse": call.written(kernel.lse),
        "batch": call.dim(q.shape[0]), "heads_q": call.dim(q.shape[1]), "heads_kv": call.dim(k.shape[1]),
        "len_q": call.dim(q.shape[2]), "len_k": call.dim(k.shape[2]),
        "dim": call.dim(q.shape[3]), "dim_v": call.dim(v.shape[3]),
        "scale": float(kernel.op.scale).hex() + "f", "causal": str(int(kernel.op.causal)),
        "dtype_q": _code(q), "dtype_k": _code(k), "dtype_v": _code(v), "dtype_out": _code(kernel.out),
    }  # fmt: skip
    if rest:
        fields |= {"mask": call.pointer(rest[0]), "dtype_mask": _code(rest[0])}
        strides["sm"] = rest[0]
    for name, operand in strides.items():
        fields[name] = "{" + ", ".join(call.dim(s) for s in operand.strides) + "}"
    fields["slse"] = "{" + ", ".join(call.dim(s) for s in kernel.lse.strides) + "}"
    text = [
        f"static void @({', '.join(call.parameters())})",
        "{",
        f"    bn_attend_args args = {{{', '.join(f'.{n} = {t}' for n, t in fields.items())}}};",
        "    bn_attend(&args);",
        "}",
    ]
    return CFunction("\n".join(text), call.sig)
