"""torch's symbolic sizes (sympy) → our expressions, and where each symbol's value comes from at run time."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from burnish.assumptions import bare_symbol
from burnish.errors import CompileError
from burnish.ir.expr import UNBOUNDED, Dim, floordiv, is_nonneg, maximum, minimum, mod, sym


class Symbols:
    def __init__(self) -> None:
        # name -> (argument, "value" | "size" | "stride" | "offset", dimension)
        self.sources: dict[str, tuple[int, str, int]] = {}
        self._memo: dict[Any, Dim] = {}
        self._ranges: dict[Any, Any] = {}

    def dim(self, value: int | torch.SymInt) -> Dim:
        if isinstance(value, int):
            return int(value)
        node = value.node
        expr = node.expr
        if expr not in self._memo:
            self._ranges = node.shape_env.var_to_range
            self._memo[expr] = self._convert(expr)
        return self._memo[expr]

    def _convert(self, e: Any) -> Dim:
        if isinstance(e, sympy.Integer):
            return int(e)
        if isinstance(e, sympy.Symbol):
            return self._symbol(e)
        args = [self._convert(a) for a in e.args]
        name = type(e).__name__
        if isinstance(e, sympy.Add | sympy.Mul):
            total: Dim = args[0]
            for a in args[1:]:
                total = total + a if isinstance(e, sympy.Add) else total * a
            return total
        if isinstance(e, sympy.Pow) and isinstance(args[1], int) and args[1] >= 0:
            power: Dim = 1
            for _ in range(args[1]):
                power = power * args[0]
            return power
        if name in ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing") and all(map(_is_positive, args[1:])):
            if name == "ModularIndexing":
                return mod(floordiv(args[0], args[1]), args[2])
            return (floordiv if name.endswith("Div") else mod)(args[0], args[1])
        if name in ("Max", "Min"):
            best = args[0]
            for a in args[1:]:
                best = maximum(best, a) if name == "Max" else minimum(best, a)
            return best
        raise CompileError("capture", f"a size of the form {e}")

    def _symbol(self, e: sympy.Symbol) -> Dim:
        """A size, or a number of the caller's, of which TorchDynamo's guards may say less: it may be negative."""
        if e not in self._ranges:
            return sym(str(e))
        low, high = self._ranges[e].lower, self._ranges[e].upper
        lo = int(low) if low.is_Integer else UNBOUNDED
        return sym(str(e), lo, int(high) if lo < 0 and high.is_Integer and high < 0 else None)

    def bind_scalar(self, position: int, value: Dim) -> None:
        if (symbol := bare_symbol(value)) is not None:
            self.sources[symbol.name] = (position, "value", 0)

    def bind_tensor(self, position: int, shape: tuple[Dim, ...], strides: tuple[Dim, ...], offset: Dim) -> None:
        for kind, dims in (("size", shape), ("stride", strides), ("offset", (offset,))):
            for d, value in enumerate(dims):
                if (symbol := bare_symbol(value)) is not None:  # s // 2 mentions s but is not its value
                    self.sources.setdefault(symbol.name, (position, kind, d))


def _is_positive(divisor: Dim) -> bool:
    return is_nonneg(divisor - 1)
