"""Functions traced with some sizes as symbols, and what the proof says of padding them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from burnish.capture.graphs.decompositions import decomposition_table
from burnish.lower.captured import Captured
from burnish.lower.importer import import_graph
from burnish.shapes.content import Number
from burnish.shapes.padding import Proof, prove

# The sizes of examples: a dimension of one of these is of variable size. Others are as they are.
BATCH, SEQUENCE = 5, 11
NAMES = {BATCH: "batch", SEQUENCE: "sequence"}


class Specialised(Exception):
    """Tracing took a size for a constant."""


def traced(fn: Callable[..., Any], *inputs: torch.Tensor) -> Captured:
    """A function's graph: dimensions of size BATCH and SEQUENCE are symbols."""
    env = ShapeEnv(duck_shape=True)
    with FakeTensorMode(shape_env=env, allow_non_fake_inputs=True) as mode, enable_python_dispatcher(), torch.no_grad():
        fakes = [mode.from_tensor(x, symbolic_context=_context(x)) for x in inputs]
        module = make_fx(functionalize(_flat(fn)), decomposition_table=decomposition_table())(*fakes)
    return import_graph(module)


def _flat(fn: Callable[..., Any]) -> Callable[..., list[Any]]:
    def call(*inputs: torch.Tensor) -> list[Any]:
        result = fn(*inputs)
        return list(result) if isinstance(result, tuple | list) else [result]

    return call


def _context(x: torch.Tensor) -> Any:
    return StatelessSymbolicContext([DimDynamic.DUCK if d in NAMES else DimDynamic.STATIC for d in x.shape])


def symbols_of(captured: Captured, inputs: Sequence[torch.Tensor]) -> dict[str, str]:
    """Each symbol with the name of its dimension."""
    found: dict[str, str] = {}
    for name, (position, kind, dim) in captured.symbols.sources.items():
        if kind == "size":
            found[name] = NAMES[inputs[position].shape[dim]]
    return found


def proof_of(
    fn: Callable[..., Any],
    *inputs: torch.Tensor,
    over: Sequence[str] = ("sequence",),
    fills: Mapping[int, Number] | None = None,
) -> Proof:
    captured = traced(fn, *inputs)
    captured.graph.verify()
    padded = {symbol: name for symbol, name in symbols_of(captured, inputs).items() if name in over}
    if set(padded.values()) != set(over):
        raise Specialised(f"the sizes of {over} are no symbols")
    return prove(captured.graph, padded, fills)


def padded_to(x: torch.Tensor, sizes: Mapping[int, int], fill: Number = 0) -> torch.Tensor:
    """x with each dimension of a size made longer."""
    shape = [sizes.get(d, d) for d in x.shape]
    out = torch.full(shape, fill, dtype=x.dtype)
    out[tuple(slice(0, d) for d in x.shape)] = x
    return out
