"""What a scalar operation makes of contents: interval arithmetic, with infinities and NaN.

Bounds are computed in float64. A result is rounded to its own type, so a bound that is not a small whole number is
moved outward by more than any rounding.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

from burnish.ir.dtypes import DType
from burnish.shapes.content import (
    FINITE,
    LARGEST,
    MASKED,
    TRUTH,
    UNKNOWN,
    VANISHES,
    Content,
    Need,
    Number,
    anything,
    below,
    exact,
    join,
)

_EXACT_UP_TO = 256  # whole numbers that every float type holds
_ROUNDING = 0.01  # more than bfloat16's, and than the error of a few operations


@functools.lru_cache(maxsize=1 << 15)
def applied(fn: str, args: tuple[Content, ...], types: tuple[DType, ...], out: DType) -> Content:
    """`fn` of one element of each content; `types` are the operands' types."""
    needs = frozenset[Need]().union(*(a.needs for a in args))
    match fn:
        case "where":
            return _chosen(*args)
        case "cast":
            return _cast(args[0], types[0], out)
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return _compared(fn, *args).relying(*needs)
        case "isnan" | "isinf":
            return _classified(fn, args[0]).relying(*needs)
        case "and" | "or" | "xor" | "not" | "invert" | "shl" | "shr":
            return _of_bits(fn, args, out).relying(*needs)
        case "maximum" | "minimum":
            return _extreme(fn, *args)
        case "fmax" | "fmin":
            return join(args) if any(a.nan for a in args) else _extreme(_FULL_NAME[fn], *args)
    if out.is_float:
        return _float(fn, args, out).relying(*needs)
    return _whole(fn, args, out).relying(*needs)


_FULL_NAME = {"fmax": "maximum", "fmin": "minimum"}


def raises_at_zero(fn: str, out: DType) -> bool:
    """Whether eager raises where the second operand is zero."""
    return not out.is_float and fn in ("floordiv", "truncdiv", "mod", "fmod")


# --- choices and casts ------------------------------------------------------------------------------------------


def _chosen(cond: Content, yes: Content, no: Content) -> Content:
    if cond.holds(1):
        return yes.relying(*cond.needs)
    if cond.holds(0):
        return no.relying(*cond.needs)
    return join((yes, no)).relying(*cond.needs)


def _cast(x: Content, source: DType, out: DType) -> Content:
    if source is out:
        return x
    if out is DType.bool:
        if x.low > 0 or x.high < 0:
            return Content(1, 1, bits=True, needs=x.needs)
        return Content(0, 0, bits=True, needs=x.needs) if x.holds(0) else TRUTH.relying(*x.needs)
    if out.is_float:
        if x.is_exact and (not source.is_float or x.bits):
            made = exact(x.low, out)
            return made.relying(*x.needs)
        return _rounded(x.low, x.high, x.nan, x.is_finite, out).relying(*x.needs)
    if x.nan or not out.range[0] <= x.low <= x.high <= out.range[1]:
        return anything(out)
    low, high = math.trunc(x.low), math.trunc(x.high)
    return Content(low, high, bits=low == high, needs=x.needs)


def _compared(fn: str, a: Content, b: Content) -> Content:
    if fn in ("gt", "ge"):
        return _compared("lt" if fn == "gt" else "le", b, a)
    if fn == "ne":
        same = _compared("eq", a, b)
        return same if not same.is_exact else _truth(not same.low)
    nan = a.nan or b.nan
    if fn == "eq":
        if a.high < b.low or b.high < a.low:
            return _truth(False)
        return _truth(True) if not nan and a.is_exact and b.is_exact and a.low == b.low else TRUTH
    beyond = a.low >= b.high if fn == "lt" else a.low > b.high
    if beyond:
        return _truth(False)
    within = a.high < b.low if fn == "lt" else a.high <= b.low
    return _truth(True) if within and not nan else TRUTH


def _truth(value: bool) -> Content:
    return Content(int(value), int(value), bits=True)


def _classified(fn: str, x: Content) -> Content:
    if fn == "isnan":
        return TRUTH if x.nan else _truth(False)
    return _truth(False) if -math.inf < x.low and x.high < math.inf else TRUTH


def _extreme(fn: str, a: Content, b: Content) -> Content:
    pick = max if fn == "maximum" else min
    low, high = pick(a.low, b.low), pick(a.high, b.high)
    bits = low == high and low != 0
    return Content(low, high, a.nan or b.nan, bits, a.needs | b.needs)


# --- bits and whole numbers -------------------------------------------------------------------------------------


def _of_bits(fn: str, args: Sequence[Content], out: DType) -> Content:
    if out is DType.bool:
        return _logical(fn, args)
    x = args[0]
    if fn == "invert":
        return _whole_number(-x.high - 1, -x.low - 1, out)
    if fn == "and" and all(a.low >= 0 for a in args):
        return _whole_number(0, min(a.high for a in args), out)
    if fn in ("or", "xor") and all(a.low >= 0 for a in args):
        most = (1 << max(int(a.high).bit_length() for a in args)) - 1
        return _whole_number(0, most, out)
    return anything(out)


def _logical(fn: str, args: Sequence[Content]) -> Content:
    values = [bool(a.low) if a.is_exact else None for a in args]
    if fn == "not":
        return TRUTH if values[0] is None else _truth(not values[0])
    if fn == "and" and False in values:
        return _truth(False)
    if fn == "or" and True in values:
        return _truth(True)
    if None in values:
        return TRUTH
    a, b = values
    return _truth(bool(a and b) if fn == "and" else bool(a or b) if fn == "or" else a is not b)


def _whole(fn: str, args: Sequence[Content], out: DType) -> Content:
    x, y = args[0], args[-1]
    match fn:
        case "neg":
            return _whole_number(-x.high, -x.low, out)
        case "abs":
            return _whole_number(*_absolute(x), out)
        case "sign":
            return _whole_number((x.low > 0) - (x.low < 0), (x.high > 0) - (x.high < 0), out)
        case "add" | "sub" | "mul":
            ends = [_EXACT[fn](int(a), int(b)) for a in (x.low, x.high) for b in (y.low, y.high)]
            return _whole_number(min(ends), max(ends), out)
        case "floordiv" | "truncdiv" if y.low > 0 or y.high < 0:
            ends = [_quotient(fn, int(a), int(b)) for a in (x.low, x.high) for b in (y.low, y.high)]
            return _whole_number(min(ends), max(ends), out)
        case "mod" if y.low > 0:
            return _whole_number(0, y.high - 1, out)
    return anything(out)


_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


def _quotient(fn: str, a: int, b: int) -> int:
    floor = a // b
    return floor + 1 if fn == "truncdiv" and floor < 0 and floor * b != a else floor


def _whole_number(low: Number, high: Number, out: DType) -> Content:
    """Integers wrap around: what may leave the type's range may be anything."""
    least, most = out.range if out is not DType.bool else (0, 1)
    return Content(low, high, bits=low == high) if least <= low and high <= most else anything(out)


def _absolute(x: Content) -> tuple[Number, Number]:
    most = max(abs(x.low), abs(x.high))
    return (0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))), most


# --- floats -----------------------------------------------------------------------------------------------------


def _float(fn: str, args: Sequence[Content], out: DType) -> Content:
    x = args[0]
    if fn in _HOLDS_AFTER_NAN and any(a.nan for a in args):
        return UNKNOWN
    if any(a.low > a.high for a in args):  # nothing but NaN
        return Content(math.inf, -math.inf, True)
    if fn in _BINARY:
        return _BINARY[fn](x, args[1], out)
    if fn in _RISING:
        return _risen(fn, x, out)
    if fn in _BETWEEN:
        low, high = _BETWEEN[fn]
        return Content(low, high, x.nan or not x.is_finite)
    match fn:
        case "neg":
            return Content(-x.high, -x.low, x.nan, x.is_exact and x.low != 0)
        case "abs":
            least, most = _absolute(x)
            return Content(least, most, x.nan, least == most)
        case "sign":
            return Content((x.low > 0) - (x.low < 0), (x.high > 0) - (x.high < 0), x.nan)
        case "reciprocal":
            return _divided(Content(1.0, 1.0), x, out)
        case "rsqrt":
            root = _risen("sqrt", x, out)
            return _divided(Content(1.0, 1.0, root.nan), root, out)
        case "erfc" | "acos":
            most = 2.0 if fn == "erfc" else 3.15
            return Content(0, most, x.nan or (fn == "acos" and not -1 <= x.low <= x.high <= 1))
        case "cosh":
            return _rounded(1, math.inf, x.nan, x.is_finite, out)
        case "tan":
            return _rounded(-math.inf, math.inf, x.nan or not x.is_finite, x.is_finite, out)
        case "lgamma" if x.low > 0:
            return _rounded(-1, math.inf, x.nan, x.is_finite, out)
    return UNKNOWN


def _rounded(low: Number, high: Number, nan: bool, finite: bool, out: DType) -> Content:
    """Bounds of numbers of a type. If `finite`, the operands were: then only an overflow makes an infinity."""
    low, high = _outward(low, -1), _outward(high, 1)
    most, least = _limits(out)
    low, high = 0.0 if 0 < low < least else low, 0.0 if -least < high < 0 else high  # what is smaller may become 0
    bounds = [b for b in (low, high) if finite or not math.isinf(b)]
    needs = frozenset({FINITE}) if any(abs(b) > most for b in bounds) else frozenset[Need]()
    if finite:  # what overflows is beyond every bound
        low = -LARGEST if low < -most else low
        high = LARGEST if high > most else high
    return Content(low, high, nan, needs=needs)


@functools.lru_cache(maxsize=8)
def _limits(out: DType) -> tuple[float, float]:
    """The greatest number of a type, and the least one above 0 that it holds with all its digits."""
    import torch

    found = torch.finfo(out.torch)
    return float(found.max), float(found.tiny)


def _outward(x: Number, way: int) -> Number:
    if math.isinf(x) or x == 0 or (abs(x) < _EXACT_UP_TO and x == int(x)):
        return x
    return _kept_finite(x + way * abs(x) * _ROUNDING)


def _kept_finite(x: float) -> float:
    return max(-LARGEST, min(x, LARGEST))


def _added(x: Content, y: Content, out: DType) -> Content:
    for value, mask in ((x, y), (y, x)):
        if value.is_finite and mask.holds(-math.inf):
            return Content(-math.inf, -math.inf, bits=True)
        if value.is_finite and not mask.nan and mask.high <= MASKED and value.high > -mask.high / 2:
            return _hidden(value, mask)
    if x.holds(0) and y.holds(0):
        return Content(0.0, 0.0)
    nan = x.nan or y.nan or (x.high == math.inf and y.low == -math.inf) or (y.high == math.inf and x.low == -math.inf)
    low = -math.inf if -math.inf in (x.low, y.low) else _kept_finite(float(x.low) + float(y.low))
    high = float(x.high) + float(y.high) if math.inf in map(abs, (x.high, y.high)) else _kept_finite(x.high + y.high)
    high = math.inf if math.isnan(high) else high
    return _rounded(low, high, nan, x.is_finite and y.is_finite, out)


def _hidden(value: Content, mask: Content) -> Content:
    """A score with a large negative number added to it: far below any that has not."""
    return Content(-math.inf, mask.high / 2, needs=frozenset({below(mask)}))


def _subtracted(x: Content, y: Content, out: DType) -> Content:
    return _added(x, Content(-y.high, -y.low, y.nan), out)


def _multiplied(x: Content, y: Content, out: DType) -> Content:
    nan = x.nan or y.nan
    ends: list[float] = []
    for a, b in itertools.product((float(x.low), float(x.high)), (float(y.low), float(y.high))):
        made = 0.0 if a == 0 or b == 0 else a * b
        ends.append(made if math.isinf(a) or math.isinf(b) else _kept_finite(made))
    infinite = not x.is_finite or not y.is_finite
    if infinite and any(
        a.low <= 0 <= a.high and (b.high == math.inf or b.low == -math.inf) for a, b in ((x, y), (y, x))
    ):
        nan = True
    return _rounded(min(ends), max(ends), nan, not infinite, out)


def _divided(x: Content, y: Content, out: DType) -> Content:
    if y.low <= 0 <= y.high or not y.is_finite or not x.is_finite:
        return UNKNOWN
    ends = [float(a) / float(b) for a in (x.low, x.high) for b in (y.low, y.high)]
    return _rounded(min(ends), max(ends), x.nan or y.nan, True, out)


def _powered(x: Content, y: Content, out: DType) -> Content:
    if not x.is_finite or not y.is_finite:
        return UNKNOWN
    if x.low > 0:
        ends = [_power(float(a), float(b)) for a in (x.low, x.high) for b in (y.low, y.high)]
        return _rounded(min(ends), max(ends), False, True, out)
    if y.is_exact and y.low >= 0 and y.low == int(y.low):
        return _rounded(0 if y.low % 2 == 0 else -math.inf, math.inf, False, True, out)
    return UNKNOWN


def _power(a: float, b: float) -> float:
    try:
        return float(a**b)
    except OverflowError:
        return math.inf


def _no_bounds(x: Content, y: Content, out: DType) -> Content:
    return UNKNOWN


def _angle(x: Content, y: Content, out: DType) -> Content:
    return Content(-3.15, 3.15, x.nan or y.nan)


def _signed(x: Content, y: Content, out: DType) -> Content:
    _, most = _absolute(x)
    return Content(-most, most, x.nan)


_BINARY: dict[str, Callable[[Content, Content, DType], Content]] = {
    "add": _added,
    "sub": _subtracted,
    "mul": _multiplied,
    "div": _divided,
    "floordiv": _no_bounds,
    "truncdiv": _no_bounds,
    "mod": _no_bounds,
    "fmod": _no_bounds,
    "pow": _powered,
    "atan2": _angle,
    "hypot": _no_bounds,
    "copysign": _signed,
    "nextafter": _no_bounds,
}
# Of NaN these may be a number: the sign of NaN is 0, and 1 to any power is 1.
_HOLDS_AFTER_NAN = frozenset({"sign", "copysign", "pow", "hypot"})
_BETWEEN = {"sin": (-1, 1), "cos": (-1, 1)}


def _exp(x: float) -> float:
    return 0.0 if x <= VANISHES else math.inf if x > 709 else math.exp(x)


def _exp2(x: float) -> float:
    return _exp(x * math.log(2))


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.inf if x == math.inf else math.log(x)


def _sinh(x: float) -> float:
    return math.copysign(math.inf, x) if abs(x) > 700 else math.sinh(x)


# name -> the function, and the least number that it takes
_RISING: dict[str, tuple[Callable[[float], float], float]] = {
    "exp": (_exp, -math.inf),
    "exp2": (_exp2, -math.inf),
    "expm1": (lambda x: _exp(x) - 1, -math.inf),
    "log": (_log, 0.0),
    "log2": (lambda x: _log(x) / math.log(2), 0.0),
    "log10": (lambda x: _log(x) / math.log(10), 0.0),
    "log1p": (lambda x: _log(1 + x), -1.0),
    "sqrt": (lambda x: math.inf if x == math.inf else math.sqrt(x), 0.0),
    "floor": (lambda x: x if math.isinf(x) else float(math.floor(x)), -math.inf),
    "ceil": (lambda x: x if math.isinf(x) else float(math.ceil(x)), -math.inf),
    "trunc": (lambda x: x if math.isinf(x) else float(math.trunc(x)), -math.inf),
    "round": (lambda x: x if math.isinf(x) else float(round(x)), -math.inf),
    "asinh": (math.asinh, -math.inf),
    "atan": (math.atan, -math.inf),
    "sinh": (_sinh, -math.inf),
    "tanh": (math.tanh, -math.inf),
    "erf": (math.erf, -math.inf),
    "sigmoid": (lambda x: 0.0 if x < -700 else 1 / (1 + math.exp(-x)), -math.inf),
}


def _risen(fn: str, x: Content, out: DType) -> Content:
    function, least = _RISING[fn]
    if x.low < least:
        return UNKNOWN
    low, high = function(float(x.low)), function(float(x.high))
    poles = fn.startswith("log") and x.low <= least
    made = _rounded(low, high, x.nan, x.is_finite and not poles, out)
    if fn == "exp" and not x.nan and x.high <= VANISHES:
        return Content(0.0, 0.0, bits=True)
    return made
