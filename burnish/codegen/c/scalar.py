"""The C spelling of each scalar operation, type and constant."""

from __future__ import annotations

import math

from burnish.ir.dtypes import DType

MEMORY_TYPE = {
    DType.f64: "double", DType.f32: "float", DType.f16: "uint16_t", DType.bf16: "uint16_t",
    DType.i64: "int64_t", DType.i32: "int32_t", DType.i16: "int16_t", DType.i8: "int8_t",
    DType.u8: "uint8_t", DType.bool: "uint8_t",
}  # fmt: skip

# A truth value in a register is as wide as a float, so a vector of them needs no narrowing between compare and select.
VALUE_TYPE = {**MEMORY_TYPE, DType.f16: "float", DType.bf16: "float", DType.bool: "int32_t"}

_SUFFIX = {DType.f64: "f64", DType.f32: "f32"}


def load_text(dtype: DType, place: str) -> str:
    if dtype is DType.bf16:
        return f"bn_bf16_to_f32({place})"
    if dtype is DType.f16:
        return f"bn_f16_to_f32({place})"
    return place


def store_text(dtype: DType, value: str) -> str:
    if dtype is DType.bf16:
        return f"bn_f32_to_bf16({value})"
    if dtype is DType.f16:
        return f"bn_f32_to_f16({value})"
    return value


def constant_text(value: bool | int | float, dtype: DType) -> str:
    if dtype.is_float:
        x = float(value)
        if math.isnan(x):
            return "BN_NAN"
        if math.isinf(x):
            return "BN_INF" if x > 0 else "(-BN_INF)"
        if dtype is DType.f64:
            return x.hex() if x >= 0 and not _negative_zero(x) else f"({x.hex()})"
        text = x.hex() + "f"
        return text if not text.startswith("-") else f"({text})"
    if dtype is DType.bool:
        return "1" if value else "0"
    if dtype is DType.i64:
        return f"INT64_C({value})" if value > -(2**63) else "INT64_MIN"
    return f"({value})" if value < 0 else str(value)


def _negative_zero(x: float) -> bool:
    return x == 0 and math.copysign(1, x) < 0


def cast_text(have: DType, want: DType, value: str) -> str:
    if want is DType.bool:
        return f"({value} != 0)"
    if want is DType.bf16:
        return f"bn_bf16_to_f32(bn_f32_to_bf16((float){value}))"
    if want is DType.f16:
        return f"bn_f16_to_f32(bn_f32_to_f16((float){value}))"
    if have.is_float and not want.is_float:
        through = DType.i32 if want in (DType.i16, DType.i8) else want  # as in eager, whose low bits they are
        text = f"bn_{have.compute.value}_to_{through.value}({value})"
        return text if want is through else f"({MEMORY_TYPE[want]}){text}"
    return f"({VALUE_TYPE[want]}){value}"


_OURS_F32 = frozenset("exp log log2 log10 log1p expm1 exp2 tanh sigmoid erf sin cos".split())
_LIBM = (
    frozenset("tan asin acos atan sinh cosh asinh acosh atanh erfc lgamma floor ceil trunc sqrt".split()) | _OURS_F32
)
_FLOAT_HELPER = {
    "maximum": "bn_fmax", "minimum": "bn_fmin", "floordiv": "bn_floor_divide", "mod": "bn_remainder",
    "fmax": "bn_larger_number", "fmin": "bn_smaller_number", "truncdiv": "bn_truncdiv",
}  # fmt: skip
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
_WRAPPING = ("add", "sub", "mul", "neg", "abs")  # narrower integers are computed in int, which holds their results
INTEGER_DIVISIONS = ("floordiv", "mod", "truncdiv", "fmod")


def divisor_text(value: str) -> str:
    """An integer divisor that may be zero: a zero sets the caller's error."""
    return f"bn_divisor({value}, error)"


def apply_text(fn: str, dtype: DType, operand: DType, args: list[str]) -> str:
    """`dtype` is the result's type, `operand` the type the operation works in."""
    kind = operand.compute
    if fn in _WRAPPING and kind in (DType.i64, DType.i32):
        return f"bn_{fn}_{kind.value}({', '.join(args)})"
    if fn in _INFIX:
        if fn in ("and", "or", "xor") and kind is DType.bool:
            return f"({args[0]} {_INFIX[fn]} {args[1]})"
        return _narrow(f"({args[0]} {_INFIX[fn]} {args[1]})", dtype)
    if fn == "where":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    if kind.is_float:
        return _float_text(fn, kind, args)
    return _narrow(_integer_text(fn, kind, args), dtype)


def _narrow(text: str, dtype: DType) -> str:
    """C computes in int: bring small integers back to their width so they wrap as eager's do."""
    if dtype in (DType.i8, DType.i16, DType.u8):
        return f"({MEMORY_TYPE[dtype]}){text}"
    return text


def _float_text(fn: str, kind: DType, args: list[str]) -> str:
    single = kind is DType.f32
    f = "f" if single else ""
    suffix = _SUFFIX[kind]
    match fn:
        case "neg":
            return f"(-{args[0]})"
        case "div":
            return f"({args[0]} / {args[1]})"
        case "abs":
            return f"__builtin_fabs{f}({args[0]})"
        case "round":
            return f"__builtin_rint{f}({args[0]})"
        case "reciprocal":
            return f"(1 / {args[0]})"
        case "rsqrt":
            return f"(1 / __builtin_sqrt{f}({args[0]}))"
        case "sign":
            return f"(({VALUE_TYPE[kind]})(({args[0]} > 0) - ({args[0]} < 0)))"
        case "sigmoid" if not single:
            return f"(1 / (1 + __builtin_exp(-{args[0]})))"
        case "isnan":
            return f"({args[0]} != {args[0]})"
        case "isinf":
            return f"(__builtin_fabs{f}({args[0]}) == BN_INF)"
        case "not":
            return f"({args[0]} == 0)"
        case "maximum" | "minimum" | "floordiv" | "mod":
            return f"{_FLOAT_HELPER[fn]}{'' if single else '_f64'}({', '.join(args)})"
        case "fmax" | "fmin" | "truncdiv":
            return f"{_FLOAT_HELPER[fn]}_{suffix}({', '.join(args)})"
        case "pow" if single:
            return f"bn_powf({args[0]}, {args[1]})"
        case "fmod" | "pow" | "atan2" | "hypot" | "copysign" | "nextafter":
            return f"__builtin_{fn}{f}({', '.join(args)})"
    if single and fn in _OURS_F32:
        return f"bn_{fn}f({args[0]})"
    if fn in _LIBM:
        return f"__builtin_{fn}{f}({args[0]})"
    raise KeyError(f"no C for {fn} in {kind.value}")


def _integer_text(fn: str, kind: DType, args: list[str]) -> str:
    match fn:
        case "neg":
            return f"(-{args[0]})"
        case "abs":
            return f"({args[0]} < 0 ? -{args[0]} : {args[0]})"
        case "sign":
            return f"(({args[0]} > 0) - ({args[0]} < 0))"
        case "invert":
            return f"(~{args[0]})"
        case "not":
            return f"(!{args[0]})"
        case "maximum" | "fmax":
            return f"({args[0]} > {args[1]} ? {args[0]} : {args[1]})"
        case "minimum" | "fmin":
            return f"({args[0]} < {args[1]} ? {args[0]} : {args[1]})"
        case "floordiv":
            return f"bn_floordiv_i64({args[0]}, {args[1]})"
        case "mod":
            return f"bn_mod_i64({args[0]}, {args[1]})"
        case "truncdiv":
            return f"bn_truncdiv_i64({args[0]}, {args[1]})"
        case "fmod":
            return f"bn_rem_i64({args[0]}, {args[1]})"
        case "shl" | "shr":
            return f"bn_{fn}_i64({args[0]}, {args[1]}, {8 * kind.itemsize})"
    raise KeyError(f"no C for {fn} in {kind.value}")


def reduction_identity(kind: str, dtype: DType) -> str:
    if kind == "sum" or kind == "any":
        return "0"
    if kind in ("prod", "all"):
        return "1"
    low = kind in ("max", "argmax")
    if dtype.is_float:
        return "(-BN_INF)" if low else "BN_INF"
    if dtype is DType.bool:
        return "0" if low else "1"
    bits = 8 * dtype.itemsize
    if dtype is DType.u8:
        return "0" if low else "255"
    if bits == 64:
        return "INT64_MIN" if low else "INT64_MAX"
    return f"({-(2 ** (bits - 1))})" if low else str(2 ** (bits - 1) - 1)


def combine_text(kind: str, dtype: DType, acc: str, value: str) -> str:
    """One step of a reduction, as an expression."""
    match kind:
        case "sum" | "add":
            return apply_text("add", dtype, dtype, [acc, value])
        case "prod":
            return apply_text("mul", dtype, dtype, [acc, value])
        case "any":
            return f"({acc} | {value})"
        case "all":
            return f"({acc} & {value})"
        case "max" | "min":
            sign = ">" if kind == "max" else "<"
            nan = f" || {value} != {value}" if dtype.is_float else ""
            return f"(({value} {sign} {acc}{nan}) ? {value} : {acc})"
    raise KeyError(f"no C for reduction {kind}")
