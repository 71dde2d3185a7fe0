"""Scalar operations of one lane. This table defines their meaning; the printers have their spelling.

`reference` is the torch function that defines the operation (used by `Graph.evaluate` and `Body.evaluate`);
`cost` is in units of one add, for deciding whether recomputing a value beats storing it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

# What eager raises of an index that is out of range: that differs between its operations.
Mistake = Literal["IndexError", "RuntimeError"]


@dataclass(frozen=True)
class ScalarOp:
    name: str
    arity: int
    reference: Callable[..., Any]
    cost: int = 1
    returns_bool: bool = False


def _table(*ops: ScalarOp) -> dict[str, ScalarOp]:
    return {op.name: op for op in ops}


def _rsqrt(x: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt(x)


TRANSCENDENTAL = 12

SCALAR_OPS: dict[str, ScalarOp] = _table(
    ScalarOp("neg", 1, torch.neg),
    ScalarOp("abs", 1, torch.abs),
    ScalarOp("sign", 1, torch.sign),
    ScalarOp("floor", 1, torch.floor),
    ScalarOp("ceil", 1, torch.ceil),
    ScalarOp("trunc", 1, torch.trunc),
    ScalarOp("round", 1, torch.round),
    ScalarOp("sqrt", 1, torch.sqrt, 6),
    ScalarOp("rsqrt", 1, _rsqrt, 8),
    ScalarOp("reciprocal", 1, torch.reciprocal, 4),
    *(
        ScalarOp(n, 1, getattr(torch, n), TRANSCENDENTAL)
        for n in (
            "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
            "erf erfc sigmoid lgamma"
        ).split()
    ),
    ScalarOp("isnan", 1, torch.isnan, returns_bool=True),
    ScalarOp("isinf", 1, torch.isinf, returns_bool=True),
    ScalarOp("not", 1, torch.logical_not, returns_bool=True),
    ScalarOp("invert", 1, torch.bitwise_not),
    ScalarOp("add", 2, torch.add),
    ScalarOp("sub", 2, torch.sub),
    ScalarOp("mul", 2, torch.mul),
    ScalarOp("div", 2, torch.true_divide, 4),
    ScalarOp("floordiv", 2, torch.floor_divide, 8),
    ScalarOp("truncdiv", 2, lambda a, b: torch.div(a, b, rounding_mode="trunc"), 8),
    ScalarOp("mod", 2, torch.remainder, 8),
    ScalarOp("fmod", 2, torch.fmod, 8),
    ScalarOp("pow", 2, torch.pow, 2 * TRANSCENDENTAL),
    ScalarOp("atan2", 2, torch.atan2, TRANSCENDENTAL),
    ScalarOp("hypot", 2, torch.hypot, TRANSCENDENTAL),
    ScalarOp("copysign", 2, torch.copysign),
    ScalarOp("nextafter", 2, torch.nextafter, TRANSCENDENTAL),
    ScalarOp("maximum", 2, torch.maximum),
    ScalarOp("minimum", 2, torch.minimum),
    ScalarOp("fmax", 2, torch.fmax),
    ScalarOp("fmin", 2, torch.fmin),
    ScalarOp("and", 2, torch.bitwise_and),
    ScalarOp("or", 2, torch.bitwise_or),
    ScalarOp("xor", 2, torch.bitwise_xor),
    ScalarOp("shl", 2, torch.bitwise_left_shift),
    ScalarOp("shr", 2, torch.bitwise_right_shift),
    *(ScalarOp(n, 2, getattr(torch, n), returns_bool=True) for n in ("eq", "ne", "lt", "le", "gt", "ge")),
    ScalarOp("where", 3, torch.where),
    ScalarOp("cast", 1, lambda x: x),
)

# Discontinuous operations: a small change of an operand may change the result completely. Half types are computed in
# float and rounded where they are stored, but these operations take operands rounded as eager would have stored them.
JUMPS = frozenset("floor ceil trunc round mod fmod floordiv truncdiv eq ne lt le gt ge".split())
# Operations whose results a half type holds if it holds their operands.
PICKS = frozenset("neg abs sign maximum minimum fmax fmin where copysign floor ceil trunc round".split())

# How a reduction combines: its identity is written by the printers, which know the type.
REDUCTIONS: frozenset[str] = frozenset({"sum", "prod", "max", "min", "argmax", "argmin", "any", "all"})
