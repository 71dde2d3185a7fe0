"""Two symbols for one size: what the caller names the same dimension is one symbol in the graph that is looked at.

Tracing gives each input symbols of its own, and only what the model compares becomes one: labels have their own batch
and sequence beside those of the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from burnish.ir.expr import Dim, Expr, Sym, of, substitute
from burnish.ir.graph import Graph, Node, Op, TensorType


def unify(graph: Graph, same: Mapping[str, Dim]) -> None:
    """Replace symbols by others, in place."""
    if not same:
        return
    for node in graph.nodes:
        node.types = tuple(TensorType(t.dtype, _dims(t.shape, same)) for t in node.types)
        node.op = _op(node.op, same)
        node.layout = None if node.layout is None else _dims(node.layout, same)
    graph.inputs = [substitute(x, same) if isinstance(x, Expr) else x for x in graph.inputs]
    graph.outputs = [x if isinstance(x, Node) or x is None else substitute(x, same) for x in graph.outputs]
    graph.output_layouts = {k: _dims(dims, same) for k, dims in graph.output_layouts.items()}


def _dims(dims: tuple[Dim, ...], same: Mapping[str, Dim]) -> tuple[Dim, ...]:
    return tuple(substitute(d, same) for d in dims)


def _op(op: Op, same: Mapping[str, Dim]) -> Op:
    """Axes are as long as the dimensions that they span: their bounds change with these."""
    axes: dict[str, Dim] = {
        a.name: of(Sym(a.name, a.lo, substitute(a.hi, same)))
        for a in getattr(op, "axes", ())
        if isinstance(a, Sym) and a.hi is not None
    }
    values = {f.name: getattr(op, f.name) for f in fields(op)}
    changed = {name: _value(value, {**same, **axes}) for name, value in values.items()}
    if all(changed[name] is value for name, value in values.items()):
        return op
    return replace(op, **changed)


def _value(value: Any, same: Mapping[str, Dim]) -> Any:
    if isinstance(value, Expr):
        return substitute(value, same)
    if isinstance(value, Sym):
        (mono,) = substitute(of(value), same).terms  # type: ignore[union-attr]
        return mono[0]
    if isinstance(value, tuple | list):
        made = [_value(v, same) for v in value]
        unchanged = all(a is b for a, b in zip(made, value, strict=True))
        return value if unchanged else tuple(made) if isinstance(value, tuple) else made
    return value
