"""Elementwise ATen ops."""

from __future__ import annotations

import math
from typing import Any

import torch

from burnish.ir.dtypes import DType, from_torch
from burnish.ir.expr import Expr, is_nonneg
from burnish.ir.graph import Full, Map, Node
from burnish.lower.builder import Builder, NotLowered, Operand, promote, rounded
from burnish.lower.registry import lowering


def as_type(b: Builder, x: Operand, dtype: DType) -> Operand:
    return b.cast(x, dtype) if isinstance(x, Node) else x


def tensor_of(b: Builder, x: Operand, dtype: DType) -> Node:
    return b.cast(x, dtype) if isinstance(x, Node) else b.full(x, (), dtype)


def operand_of(b: Builder, x: Operand, dtype: DType, fn: str = "") -> Node:
    """As `tensor_of`, for arithmetic and comparisons: a number need not fit the type."""
    if isinstance(x, Node):
        return b.cast(x, dtype)
    keeps = fn in _KEEP_NUMBERS or (b.device == "cuda" and fn in _KEEP_NUMBERS_ON_CUDA)
    return b.number(x if keeps else rounded(x, dtype), (), dtype)


# Eager computes these of half types in float with the number as it was written; all others with what a tensor of the
# half type would hold of it, so that x == 0.1 is true where x was made from 0.1.
_KEEP_NUMBERS = ("mul", "div", "floordiv", "truncdiv")
_KEEP_NUMBERS_ON_CUDA = ("add", "sub", "pow")


def apply(b: Builder, fn: str, *args: Operand, compute: DType | None = None) -> Node:
    """Compute in `compute` (default: the result's type) and return the result's type."""
    compute = compute or b.out_dtype
    ready = [operand_of(b, a, compute, fn) for a in args]
    return b.cast(b.map(fn, *ready), b.out_dtype)


def _unary(name: str, fn: str) -> None:
    def lower(b: Builder, x: Node) -> Node:
        return apply(b, fn, x)

    lowering(name)(lower)


_FLOAT_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid "
    "lgamma sqrt rsqrt reciprocal"
).split()
for _name in _FLOAT_UNARY:
    _unary(f"{_name}.default", _name)


def _numeric_unary(name: str, fn: str, identity_on_ints: bool = False) -> None:
    def lower(b: Builder, x: Node) -> Node:
        if x.dtype is DType.bool and fn in ("neg", "abs", "sign"):
            if fn == "neg":
                raise NotLowered("neg of bool")
            return x
        if identity_on_ints and not x.dtype.is_float:
            return x
        return apply(b, fn, x)

    lowering(name)(lower)


for _name in ("neg", "abs", "sign"):
    _numeric_unary(f"{_name}.default", _name)
for _name in ("floor", "ceil", "trunc", "round"):
    _numeric_unary(f"{_name}.default", _name, identity_on_ints=True)


@lowering("isnan.default")
def isnan(b: Builder, x: Node) -> Node:
    return b.map("isnan", x, dtype=DType.bool) if x.dtype.is_float else b.full(False, x.shape, DType.bool)


@lowering("isinf.default")
def isinf(b: Builder, x: Node) -> Node:
    return b.map("isinf", x, dtype=DType.bool) if x.dtype.is_float else b.full(False, x.shape, DType.bool)


@lowering("signbit.default")
def signbit(b: Builder, x: Node) -> Node:
    if x.dtype is DType.bool:
        return b.full(False, x.shape, DType.bool)
    signed = b.map("copysign", b.full(1, (), x.dtype), x) if x.dtype.is_float else x  # -0.0 is not below zero
    return b.compare("lt", signed, 0)


@lowering("add.Tensor", "add.Scalar")
def add(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    dtype = b.out_dtype
    if dtype is DType.bool:
        return apply(b, "or", x, y)
    scaled = y if alpha == 1 else b.map("mul", operand_of(b, y, dtype), b.full(alpha, (), dtype))
    return apply(b, "add", x, scaled)


@lowering("sub.Tensor", "sub.Scalar")
def sub(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    dtype = b.out_dtype
    scaled = y if alpha == 1 else b.map("mul", operand_of(b, y, dtype), b.full(alpha, (), dtype))
    return apply(b, "sub", x, scaled)


@lowering("rsub.Tensor", "rsub.Scalar")
def rsub(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    return sub(b, y, x, alpha)


@lowering("mul.Tensor", "mul.Scalar")
def mul(b: Builder, x: Operand, y: Operand) -> Node:
    return apply(b, "and" if b.out_dtype is DType.bool else "mul", x, y)


@lowering("div.Tensor", "div.Scalar")
def div(b: Builder, x: Operand, y: Operand) -> Node:
    return apply(b, "div", x, y)


def divide(b: Builder, fn: str, x: Operand, y: Operand) -> Node:
    """A quotient that is a whole number, or a remainder. For an integer divided by zero, a CPU's kernels raise. On a
    GPU the result depends on the vendor's compiler, so eager's kernel computes it."""
    divisor = operand_of(b, y, b.out_dtype, fn)
    if b.device == "cuda" and not b.out_dtype.is_float and not _is_never_zero(divisor):
        raise NotLowered("an integer divided by what may be zero")
    return apply(b, fn, x, divisor)


def _is_never_zero(x: Node) -> bool:
    return isinstance(x.op, Full) and (is_nonneg(x.op.value - 1) if isinstance(x.op.value, Expr) else x.op.value != 0)


@lowering("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return apply(b, "div", x, y)
    return divide(b, {"floor": "floordiv", "trunc": "truncdiv"}[rounding_mode], x, y)


@lowering("floor_divide.default", "floor_divide.Scalar")
def floor_divide(b: Builder, x: Operand, y: Operand) -> Node:
    return divide(b, "floordiv", x, y)


@lowering("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(b: Builder, x: Operand, y: Operand) -> Node:
    return divide(b, "mod", x, y)


@lowering("fmod.Tensor", "fmod.Scalar")
def fmod(b: Builder, x: Operand, y: Operand) -> Node:
    return divide(b, "fmod", x, y)


@lowering("pow.Tensor_Scalar")
def pow_scalar(b: Builder, x: Node, exponent: Any) -> Node:
    dtype = b.out_dtype
    x = b.cast(x, dtype)
    if exponent == 2:
        return b.map("mul", x, x)
    if exponent == 1:
        return x
    is_root = exponent in (0.5, -0.5)
    if is_root and dtype is DType.f16 and b.device == "cpu":  # where eager has no root of its own for it
        return b.map("pow", x, operand_of(b, float(exponent), dtype, "pow"))
    if dtype.is_float and (is_root or exponent in (3, -1, -2)):
        if exponent == 3:
            return b.map("mul", b.map("mul", x, x), x)
        if exponent == 0.5:
            return b.map("sqrt", x)
        if exponent == -0.5:
            return b.map("rsqrt", x)
        return b.map("reciprocal", x if exponent == -1 else b.map("mul", x, x))
    if not dtype.is_float:
        raise NotLowered("integer power")
    return b.map("pow", x, operand_of(b, float(exponent), dtype, "pow"))


@lowering("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(b: Builder, x: Operand, y: Operand) -> Node:
    if not b.out_dtype.is_float:
        raise NotLowered("integer power")
    return apply(b, "pow", x, y)


def _binary(name: str, fn: str) -> None:
    def lower(b: Builder, x: Operand, y: Operand) -> Node:
        return apply(b, fn, x, y)

    lowering(name)(lower)


for _name in ("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign"):
    _binary(f"{_name}.default", _name)
for _aten, _fn in (("bitwise_and", "and"), ("bitwise_or", "or"), ("bitwise_xor", "xor")):
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        _binary(f"{_aten}.{_overload}", _fn)
for _aten, _fn in (("bitwise_left_shift", "shl"), ("bitwise_right_shift", "shr")):
    for _overload in ("Tensor", "Tensor_Scalar"):
        _binary(f"{_aten}.{_overload}", _fn)
_binary("copysign.Tensor", "copysign")


@lowering("nextafter.default")
def nextafter(b: Builder, x: Operand, y: Operand) -> Node:
    if b.out_dtype.compute is not b.out_dtype:  # the next float is not the next half
        raise NotLowered("nextafter of a half type")
    return apply(b, "nextafter", x, y)


def _shift(name: str, fn: str) -> None:
    def lower(b: Builder, x: Operand, y: Operand) -> Node:
        if b.out_dtype.is_float:  # these multiply by a power of two
            raise NotLowered("a shift of a float")
        return apply(b, fn, x, y)

    lowering(name)(lower)


for _aten, _fn in (("__lshift__", "shl"), ("__rshift__", "shr")):
    for _overload in ("Tensor", "Scalar"):
        _shift(f"{_aten}.{_overload}", _fn)


@lowering("bitwise_not.default")
def bitwise_not(b: Builder, x: Node) -> Node:
    return b.map("not", x, dtype=DType.bool) if x.dtype is DType.bool else b.map("invert", x)


def truth(b: Builder, x: Operand) -> Node:
    if not isinstance(x, Node):
        return b.full(bool(x), (), DType.bool)
    return b.cast(x, DType.bool)


@lowering("logical_not.default")
def logical_not(b: Builder, x: Node) -> Node:
    return b.map("not", truth(b, x), dtype=DType.bool)


def _logical(name: str, fn: str) -> None:
    def lower(b: Builder, x: Node, y: Node) -> Node:
        return b.map(fn, truth(b, x), truth(b, y))

    lowering(name)(lower)


for _aten, _fn in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "xor")):
    _logical(f"{_aten}.default", _fn)


def _comparison(name: str) -> None:
    def lower(b: Builder, x: Operand, y: Operand) -> Node:
        compute = promote(x, y)
        return b.compare(name, operand_of(b, x, compute), operand_of(b, y, compute))

    for overload in ("Tensor", "Scalar"):
        lowering(f"{name}.{overload}")(lower)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


@lowering("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(b: Builder, cond: Node, x: Operand, y: Operand) -> Node:
    dtype = b.out_dtype
    return b.map("where", truth(b, cond), tensor_of(b, x, dtype), tensor_of(b, y, dtype), dtype=dtype)


@lowering("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Builder, x: Node, mask: Node, value: Operand) -> Node:
    return b.map("where", truth(b, mask), tensor_of(b, value, x.dtype), x, dtype=x.dtype)


@lowering("clamp.default", "clamp.Tensor")
def clamp(b: Builder, x: Node, low: Operand | None = None, high: Operand | None = None) -> Node:
    dtype = b.out_dtype
    x = b.cast(x, dtype)
    if low is not None:
        x = b.map("maximum", x, tensor_of(b, low, dtype))
    if high is not None:
        x = b.map("minimum", x, tensor_of(b, high, dtype))
    return x


@lowering("clamp_min.default", "clamp_min.Tensor")
def clamp_min(b: Builder, x: Node, low: Operand) -> Node:
    return clamp(b, x, low, None)


@lowering("clamp_max.default", "clamp_max.Tensor")
def clamp_max(b: Builder, x: Node, high: Operand) -> Node:
    return clamp(b, x, None, high)


@lowering("_to_copy.default")
def to_copy(b: Builder, x: Node, dtype: torch.dtype | None = None, **placement: Any) -> Node:
    device = placement.get("device")
    if (device is not None and device.type != b.device) or placement.get("layout") not in (None, torch.strided):
        raise NotLowered("moves between devices")
    return converted(b, x, b.out_dtype)


def converted(b: Builder, x: Node, dtype: DType) -> Node:
    """A cast that the user wrote. On a GPU, the result for a float out of a narrow integer's range depends on the
    vendor's compiler, so eager's kernel computes it."""
    if b.device == "cuda" and x.dtype.is_float and dtype in (DType.i8, DType.i16) and not _is_within(x, *dtype.range):
        raise NotLowered("a float that may not fit a narrow integer")
    return b.cast(x, dtype)


def _is_within(x: Node, low: float, high: float) -> bool:
    """Whether a node's values, except NaN, are known to lie between two numbers because they were clamped."""
    least, most = _bounds(x)
    return low <= least and most <= high


def _bounds(x: Node) -> tuple[float, float]:
    match x.op:
        case Full(value) if not isinstance(value, Expr):
            return value, value
        case Map("cast") if x.dtype.is_float and x.inputs[0].dtype.is_float:
            least, most = torch.tensor(_bounds(x.inputs[0]), dtype=torch.float64).to(x.dtype.torch).tolist()
            return least, most
        case Map("round" | "floor" | "ceil" | "trunc"):
            least, most = _bounds(x.inputs[0])
            return (math.floor(least), math.ceil(most)) if math.isfinite(least + most) else (least, most)
        case Map("minimum" | "maximum" as fn):
            pick = min if fn == "minimum" else max
            ends = zip(*map(_bounds, x.inputs), strict=True)
            least, most = map(pick, ends)
            return least, most
    return -math.inf, math.inf


@lowering("prims::convert_element_type.default")
def convert_element_type(b: Builder, x: Node, dtype: torch.dtype) -> Node:
    held = from_torch(dtype)
    if held is None:
        raise NotLowered(f"type {dtype}")
    return converted(b, x, held)


@lowering(
    "clone.default",
    "alias.default",
    "detach.default",
    "lift_fresh_copy.default",
    "contiguous.default",
    "lift_fresh.default",
)
def identity(b: Builder, x: Node, memory_format: Any = None) -> Node:
    return x


@lowering("copy.default")
def copy(b: Builder, x: Node, src: Node, non_blocking: bool = False) -> Node:
    return b.expand(converted(b, src, x.dtype), x.shape)


# --- activations ------------------------------------------------------------------------------------------------


@lowering("relu.default")
def relu(b: Builder, x: Node) -> Node:
    return b.map("maximum", x, 0)


@lowering("silu.default")
def silu(b: Builder, x: Node) -> Node:
    return b.map("div", x, b.map("add", b.map("exp", b.map("neg", x)), 1.0))


@lowering("silu_backward.default")
def silu_backward(b: Builder, grad: Node, x: Node) -> Node:
    s = b.map("sigmoid", x)
    inner = b.map("add", b.map("mul", x, b.map("sub", b.full(1, (), x.dtype), s)), 1)
    return b.map("mul", grad, b.map("mul", s, inner))


_SQRT_HALF, _TANH_SCALE, _TANH_CUBIC = math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715


@lowering("gelu.default")
def gelu(b: Builder, x: Node, approximate: str = "none") -> Node:
    half = b.map("mul", x, 0.5)
    if approximate == "none":
        return b.map("mul", half, b.map("add", b.map("erf", b.map("mul", x, _SQRT_HALF)), 1.0))
    return b.map("mul", half, b.map("add", b.map("tanh", _gelu_inner(b, x)), 1.0))


def _gelu_inner(b: Builder, x: Node) -> Node:
    cube = b.map("mul", b.map("mul", x, x), x)
    return b.map("mul", b.map("add", x, b.map("mul", cube, _TANH_CUBIC)), _TANH_SCALE)


@lowering("gelu_backward.default")
def gelu_backward(b: Builder, grad: Node, x: Node, approximate: str = "none") -> Node:
    if approximate == "none":
        cdf = b.map("mul", b.map("add", b.map("erf", b.map("mul", x, _SQRT_HALF)), 1.0), 0.5)
        pdf = b.map("mul", b.map("exp", b.map("mul", b.map("mul", x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
        return b.map("mul", grad, b.map("add", cdf, b.map("mul", x, pdf)))
    t = b.map("tanh", _gelu_inner(b, x))
    left = b.map("mul", b.map("add", t, 1.0), 0.5)
    slope = b.map("sub", b.full(1.0, (), x.dtype), b.map("mul", t, t))
    inner = b.map("mul", b.map("add", b.map("mul", b.map("mul", x, x), 3 * _TANH_CUBIC), 1.0), _TANH_SCALE)
    right = b.map("mul", b.map("mul", b.map("mul", x, 0.5), slope), inner)
    return b.map("mul", grad, b.map("add", left, right))


@lowering("leaky_relu.default")
def leaky_relu(b: Builder, x: Node, slope: float = 0.01) -> Node:
    return b.where(b.compare("gt", x, 0), x, b.map("mul", x, slope))


@lowering("threshold_backward.default")
def threshold_backward(b: Builder, grad: Node, x: Node, threshold: float) -> Node:
    return b.where(b.compare("le", x, threshold), b.full(0, (), grad.dtype), grad)


@lowering("tanh_backward.default")
def tanh_backward(b: Builder, grad: Node, out: Node) -> Node:
    return b.map("mul", grad, b.map("sub", b.full(1, (), out.dtype), b.map("mul", out, out)))


@lowering("sigmoid_backward.default")
def sigmoid_backward(b: Builder, grad: Node, out: Node) -> Node:
    return b.map("mul", grad, b.map("mul", b.map("sub", b.full(1, (), out.dtype), out), out))


@lowering("hardtanh.default")
def hardtanh(b: Builder, x: Node, low: float = -1, high: float = 1) -> Node:
    return clamp(b, x, low, high)


_SIXTH = torch.tensor(1 / 6, dtype=torch.float32).item()  # as eager writes it, in double, too: 1.0f / 6.0f


def _sixth(b: Builder, x: Node) -> Node:
    """A division by six on a CPU, a multiplication by 1/6 on a GPU, as in eager's kernels."""
    return b.map("div", x, 6.0) if b.device == "cpu" else b.map("mul", x, _SIXTH)


@lowering("hardsigmoid.default")
def hardsigmoid(b: Builder, x: Node) -> Node:
    return _sixth(b, clamp(b, b.map("add", x, 3.0), 0.0, 6.0))


@lowering("hardsigmoid_backward.default")
def hardsigmoid_backward(b: Builder, grad: Node, x: Node) -> Node:
    between = b.map("and", b.compare("gt", x, -3.0), b.compare("lt", x, 3.0))
    return b.where(between, b.map("mul", grad, _SIXTH), b.full(0, (), grad.dtype))


@lowering("hardswish.default")
def hardswish(b: Builder, x: Node) -> Node:
    return _sixth(b, b.map("mul", x, clamp(b, b.map("add", x, 3.0), 0.0, 6.0)))


@lowering("elu.default")
def elu(b: Builder, x: Node, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Node:
    negative = b.map("mul", b.map("expm1", b.map("mul", x, input_scale)), alpha * scale)
    return b.where(b.compare("gt", x, 0), b.map("mul", x, scale), negative)


@lowering("scalar_tensor.default")
def scalar_tensor(b: Builder, value: Any, **options: Any) -> Node:
    return b.full(value, (), b.out_dtype)


@lowering("full.default")
def full(b: Builder, size: Any, value: Any, **options: Any) -> Node:
    return b.full(value, b.out[0].shape, b.out_dtype)


@lowering("full_like.default")
def full_like(b: Builder, x: Node, value: Any, **options: Any) -> Node:
    return b.full(value, b.out[0].shape, b.out_dtype)


@lowering("new_full.default")
def new_full(b: Builder, x: Node, size: Any, value: Any, **options: Any) -> Node:
    return b.full(value, b.out[0].shape, b.out_dtype)


def _filled(name: str, value: int, leading: int) -> None:
    def lower(b: Builder, *args: Any, **options: Any) -> Node:
        return b.full(value, b.out[0].shape, b.out_dtype)

    lowering(name)(lower)


for _kind, _value in (("zeros", 0), ("ones", 1)):
    _filled(f"{_kind}.default", _value, 1)
    _filled(f"{_kind}_like.default", _value, 1)
    _filled(f"new_{_kind}.default", _value, 2)
_filled("_efficientzerotensor.default", 0, 1)


@lowering("fill.Scalar", "fill.Tensor")
def fill(b: Builder, x: Node, value: Operand) -> Node:
    if isinstance(value, Node):
        return b.expand(b.cast(value, x.dtype), x.shape)
    return b.full(value, x.shape, x.dtype)


@lowering("arange.start_step", "arange.start", "arange.default")
def arange(b: Builder, *bounds: Any, **options: Any) -> Node:
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    if isinstance(start, float) or isinstance(step, float):
        raise NotLowered("a range of floats")
    return _range(b, start, step)


@lowering("prims::iota.default")
def iota(b: Builder, length: Any, start: Any = 0, step: Any = 1, **options: Any) -> Node:
    return _range(b, start, step)


_LARGE = 1 << 31  # times any size there is, 64 bits hold it


def _range(b: Builder, start: Any, step: Any) -> Node:
    shape = b.out[0].shape
    if all(isinstance(x, Expr) or abs(x) < _LARGE for x in (start, step)):
        return b.iota(shape, lambda a: a * step + start, b.out_dtype)
    place = b.iota(shape, lambda a: a)  # with numbers that wrap around, as no index does
    return b.cast(b.map("add", b.map("mul", place, step), start), b.out_dtype)


def is_number(x: object) -> bool:
    return isinstance(x, bool | int | float | Expr)
