"""The table from ATen overload names to lowerings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Lowering = Callable[..., Any]
LOWERINGS: dict[str, Lowering] = {}


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a function for overloads such as "add.Tensor" (namespace aten) or "prims::iota.default".

    It is called as fn(builder, *args, **kwargs) with the op's own arguments; tensors are Nodes, sizes are Dims.
    """

    def register(fn: Lowering) -> Lowering:
        for name in names:
            key = name if "::" in name else f"aten::{name}"
            assert key not in LOWERINGS, f"{key} is lowered twice"
            LOWERINGS[key] = fn
        return fn

    return register


def lowered_names() -> frozenset[str]:
    return frozenset(LOWERINGS)
