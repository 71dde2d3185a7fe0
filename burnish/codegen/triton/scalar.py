"""The Triton spelling of each scalar operation, type, constant and index.

Three vocabularies appear in the text: `tl` is Triton's own; `bn` is burnish/runtime/triton/device_functions.py, where
torch's meaning takes more than one operation; `libdevice` is CUDA's math library, for which the interpreter gets a
stand-in.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from burnish.ir.dtypes import DType
from burnish.ir.expr import Atom, Dim, Div, Extreme, Sym, is_nonneg

# As Triton's signatures name what a pointer points to.
MEMORY_TYPE = {
    DType.f64: "fp64", DType.f32: "fp32", DType.f16: "fp16", DType.bf16: "bf16",
    DType.i64: "i64", DType.i32: "i32", DType.i16: "i16", DType.i8: "i8",
    DType.u8: "u8", DType.bool: "i1",
}  # fmt: skip

STORED_TYPE = {
    DType.f64: "tl.float64", DType.f32: "tl.float32", DType.f16: "tl.float16", DType.bf16: "tl.bfloat16",
    DType.i64: "tl.int64", DType.i32: "tl.int32", DType.i16: "tl.int16", DType.i8: "tl.int8",
    DType.u8: "tl.uint8", DType.bool: "tl.int1",
}  # fmt: skip

VALUE_TYPE = {d: STORED_TYPE[d.compute] for d in DType}

_SMALLEST_NORMAL = 2.0**-126


def load_text(dtype: DType, call: str) -> str:
    return f"{call}.to(tl.float32)" if dtype.compute is not dtype else call


# --- constants --------------------------------------------------------------------------------------------------


def constant_text(value: bool | int | float, dtype: DType) -> str:
    """A literal. It takes the type of what it is combined with; alone it would be a float32, an int32 or a bool."""
    if dtype.is_float:
        return _float_literal(float(value), dtype)
    return str(bool(value)) if dtype is DType.bool else str(int(value))


def typed_text(value: bool | int | float, dtype: DType) -> str:
    """A constant that has its type wherever it stands."""
    literal = constant_text(value, dtype)
    if dtype is DType.bool or (dtype is DType.i32 and abs(value) < 2**31):
        return literal
    if dtype.compute is DType.f32 and ("(" in literal or value == 0 or abs(float(value)) >= _SMALLEST_NORMAL):
        return literal
    return f"tl.full([], {literal}, {VALUE_TYPE[dtype]})"


def _float_literal(x: float, dtype: DType) -> str:
    if dtype is not DType.f64:
        try:
            struct.pack("f", x)
        except OverflowError:
            x = math.copysign(math.inf, x)
    if math.isnan(x) or math.isinf(x):
        return f'float("{x}")'
    if x == 0 and math.copysign(1, x) < 0:
        return f"bn.negative_zero({VALUE_TYPE[dtype]})"  # a literal that equals 0 would become a positive zero
    return repr(x)


# --- casts ------------------------------------------------------------------------------------------------------


def cast_text(have: DType, want: DType, value: str) -> str:
    if want is DType.bool:
        return f"({value} != 0)"
    if want.compute is not want:  # rounded to the half type, held in float
        single = value if have.compute is DType.f32 else f"{value}.to(tl.float32)"
        return f"{single}.to({STORED_TYPE[want]}).to(tl.float32)"
    if have.is_float and not want.is_float:
        # What fits no integer is undefined to LLVM, and defined by the instruction. Small types go through the widest.
        held = f"bn.i32_of_{have.compute.value}" if want is DType.i32 else f"bn.i64_of_{have.compute.value}"
        small = want not in (DType.i32, DType.i64)
        return f"{held}({value}).to({STORED_TYPE[want]})" if small else f"{held}({value})"
    if have in (DType.i32, DType.i64) and want is DType.i16:
        return f"bn.short({value}.to(tl.int32))"
    return f"{value}.to({VALUE_TYPE[want]})"


# --- operations -------------------------------------------------------------------------------------------------

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_MAY_NEGATE = frozenset("add sub mul neg abs floordiv truncdiv mod fmod".split())  # in LLVM's hands; see bn.short
_ON_BOOL = {"add": "|", "mul": "&", "maximum": "|", "minimum": "&", "fmax": "|", "fmin": "&"}
_TRITON = frozenset("abs floor ceil rsqrt exp2 log log2 sin cos erf".split())

# Operations CUDA's library computes, under its names.
LIBDEVICE = {
    "trunc": "trunc",
    "round": "rint",
    **{
        n: n
        for n in (
            "exp expm1 log10 log1p tan asin acos atan sinh cosh tanh asinh acosh atanh erfc lgamma "
            "fmod pow atan2 hypot copysign nextafter"
        ).split()
    },
}


def takes_literals(fn: str) -> bool:
    """Whether a literal operand takes the other operand's type."""
    return fn in _INFIX or fn in ("where", "div")


def apply_text(fn: str, dtype: DType, operand: DType, args: list[str]) -> str:
    """`dtype` is the result's type, `operand` the type the operation works in."""
    kind = operand.compute
    if fn == "where":
        return f"tl.where({', '.join(args)})"
    if kind is DType.bool and fn in _ON_BOOL:
        return f"({args[0]} {_ON_BOOL[fn]} {args[1]})"
    if kind is DType.i16 and fn in _MAY_NEGATE:
        words = [f"tl.cast({a}, tl.int32)" for a in args]
        return f"bn.short({apply_text(fn, DType.i32, DType.i32, words)})"
    if fn in _INFIX:
        return f"({args[0]} {_INFIX[fn]} {args[1]})"
    if fn == "not" or (fn == "invert" and kind is DType.bool):
        return f"({args[0]} == 0)"
    if fn == "neg":  # Triton's own takes x from zero, which leaves a zero positive
        return f"({args[0]} * -1.0)" if kind.is_float else f"(-{args[0]})"
    if fn == "sign":
        return f"(({args[0]} > 0).to({STORED_TYPE[kind]}) - ({args[0]} < 0).to({STORED_TYPE[kind]}))"
    return _float_text(fn, kind, args) if kind.is_float else _integer_text(fn, kind, args)


def _float_text(fn: str, kind: DType, args: list[str]) -> str:
    listed = ", ".join(args)
    match fn:
        case "div":
            return _quotient(kind, *args)
        case "reciprocal":
            return _quotient(kind, typed_text(1.0, kind), args[0])
        case "sqrt":
            return f"tl.sqrt_rn({listed})" if kind is DType.f32 else f"tl.sqrt({listed})"
        case "sigmoid":
            return _quotient(kind, typed_text(1.0, kind), f"(1.0 + libdevice.exp(-{args[0]}))")
        case "isnan":
            return f"({args[0]} != {args[0]})"
        case "isinf":
            return f'(tl.abs({args[0]}) == float("inf"))'
        case "maximum" | "minimum" | "fmax" | "fmin":
            return f"bn.{fn}({listed})"
        case "truncdiv":
            return f"libdevice.trunc({_quotient(kind, *args)})"
        case "floordiv":
            return f"bn.floor_divide({listed}, {_quotient(kind, *args)}, libdevice.fmod({listed}))"
        case "mod":
            return f"bn.remainder(libdevice.fmod({listed}), {args[1]})"
    if fn in _TRITON:
        return f"tl.{fn}({listed})"
    if fn in LIBDEVICE:
        return f"libdevice.{LIBDEVICE[fn]}({listed})"
    raise KeyError(f"no Triton for {fn} in {kind.value}")


def _quotient(kind: DType, a: str, b: str) -> str:
    """Rounded as eager's: Triton's own division of floats is off by up to two units in the last place."""
    return f"tl.div_rn({a}, {b})" if kind is DType.f32 else f"({a} / {b})"


def _integer_text(fn: str, kind: DType, args: list[str]) -> str:
    listed = ", ".join(args)
    match fn:
        case "abs":
            return f"tl.abs({listed})"
        case "invert":
            return f"({args[0]} ^ {255 if kind is DType.u8 else -1})"
        case "floor" | "ceil" | "trunc" | "round":
            return args[0]
        case "maximum" | "fmax":
            return f"tl.maximum({listed})"
        case "minimum" | "fmin":
            return f"tl.minimum({listed})"
        case "floordiv":
            return f"({args[0]} // {args[1]})" if kind is DType.u8 else f"bn.floor_quotient({listed})"
        case "mod":
            return f"({args[0]} % {args[1]})" if kind is DType.u8 else f"bn.mod({listed})"
        case "truncdiv":
            return f"({args[0]} // {args[1]})" if kind is DType.u8 else f"bn.trunc_quotient({listed})"
        case "fmod":
            return f"({args[0]} % {args[1]})"
        case "shl" | "shr":
            return f"bn.{fn}({listed}, {8 * kind.itemsize})"
    raise KeyError(f"no Triton for {fn} in {kind.value}")


# --- reductions -------------------------------------------------------------------------------------------------


def reduction_identity(kind: str, dtype: DType) -> str:
    if kind in ("sum", "any"):
        return constant_text(0, dtype)
    if kind in ("prod", "all"):
        return constant_text(1, dtype)
    low = kind in ("max", "argmax")
    if dtype.is_float:
        return constant_text(-math.inf if low else math.inf, dtype)
    if dtype is DType.bool:
        return str(not low)
    if dtype is DType.u8:
        return "0" if low else "255"
    bits = 8 * dtype.itemsize
    return str(-(2 ** (bits - 1))) if low else str(2 ** (bits - 1) - 1)


def combine_text(kind: str, dtype: DType, acc: str, value: str) -> str:
    """One step of a reduction, lane by lane."""
    if kind in ("max", "min"):
        return apply_text(f"{kind}imum", dtype, dtype, [acc, value])
    return f"{acc} {({'sum': '+', 'prod': '*', 'any': '|', 'all': '&'})[kind]} {value}"


def reduce_text(kind: str, dtype: DType, value: str) -> str:
    """A tile's reduction along its last dimension, which stays with size 1."""
    if dtype is DType.bool:  # the hardware reduces words, not bits
        pick = {"any": "max", "max": "max", "all": "min", "min": "min"}[kind]
        return f"(tl.{pick}({value}.to(tl.int32), 1, keep_dims=True) != 0)"
    if kind == "sum":
        text = f"tl.sum({value}, 1, keep_dims=True)"
        return text if dtype.itemsize >= 4 else f"{text}.to({VALUE_TYPE[dtype]})"
    if kind in ("max", "min") and not dtype.is_float:
        return f"tl.{kind}({value}, 1, keep_dims=True).to({VALUE_TYPE[dtype]})"
    combine = {"prod": "product", "max": "maximum", "min": "minimum"}[kind]
    return f"tl.reduce({value}, 1, bn.{combine}, keep_dims=True)"


# --- indices ----------------------------------------------------------------------------------------------------


def index_text(x: Dim, name: Callable[[str], str]) -> str:
    """An index expression. Triton's // and % truncate as C's do, so a quotient that may be negative takes a helper."""
    if isinstance(x, int):
        return str(x)
    parts: list[str] = []
    for mono, coef in sorted(x.terms.items(), key=lambda term: (term[0] == (), [_order(a) for a in term[0]])):
        factors = [_atom_text(a, name) for a in mono]
        if coef != 1 or not factors:
            factors.append(str(coef) if coef >= 0 else f"({coef})")
        parts.append(" * ".join(factors))
    return parts[0] if len(parts) == 1 and "*" not in parts[0] else f"({' + '.join(parts)})"


def _order(atom: Atom) -> str:
    return atom.name if isinstance(atom, Sym) else repr(atom)


def _atom_text(atom: Atom, name: Callable[[str], str]) -> str:
    if isinstance(atom, Sym):
        return name(atom.name)
    if isinstance(atom, Extreme):
        return f"tl.{atom.kind}imum({index_text(atom.a, name)}, {index_text(atom.b, name)})"
    num, den = index_text(atom.num, name), index_text(atom.den, name)
    quotient = isinstance(atom, Div)
    if is_nonneg(atom.num):
        return f"({num} {'//' if quotient else '%'} {den})"
    return f"bn.{'floordiv' if quotient else 'mod'}({num}, {den})"
