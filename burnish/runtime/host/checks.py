"""The native check of a graph's assumptions: each call is checked before its program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from burnish.assumptions import Assumptions, AssumptionUnmet, Input, NumberInput, TensorInput, is_polynomial
from burnish.ir.expr import Dim, Expr, Sym, symbols
from burnish.runtime.host.extension import Host
from burnish.runtime.host.signature import TENSORS, ignored_keys
from burnish.torch_private.tensors import neg_view

Boxed = Callable[[list[Any]], Any]
_MOST_FACTORS = 4  # as assumed.h has it


def checked(run: Boxed, assumptions: Assumptions, host: Host | None, *, guarded: bool) -> Boxed:
    """`run`, which raises AssumptionUnmet for inputs that do not meet the assumptions. `guarded`: Dynamo's guards have
    passed, so without the native check only the remaining assumptions are checked."""
    if host is not None and (native := native_check(assumptions, host)) is not None:
        behind: Boxed = host.Checked(native, run, _asking(run, assumptions.unmet))
        return behind
    if guarded and not assumptions.beyond_guards:
        return run
    return _asking(run, assumptions.unmet_beyond_guards if guarded else assumptions.unmet)


def _asking(run: Boxed, unmet: Callable[[list[Any]], str]) -> Boxed:
    def call(args: list[Any]) -> Any:
        if why := unmet(args):
            raise AssumptionUnmet(why)
        return run(args)

    return call


def native_check(assumptions: Assumptions, host: Host) -> Any:
    """host.Assumed; None for what it does not know."""
    if not assumptions.is_plain:
        return None
    names = sorted({s.name: s for each in assumptions.inputs for s in _symbols(each)}.items())
    slots = {name: k for k, (name, _) in enumerate(names)}
    least = tuple(symbol.lo for _, symbol in names)
    try:
        inputs = tuple(_spec(each, assumptions.records_gradients, slots) for each in assumptions.inputs)
        return host.Assumed(inputs, least, TENSORS, ignored_keys())
    except (RuntimeError, ValueError, TypeError):  # a type or a device of which no tensor can be made
        return None


def _spec(expected: Input, records_gradients: bool, slots: dict[str, int]) -> Any:
    if isinstance(expected, NumberInput):
        return _size(expected.value, slots)
    if not isinstance(expected, TensorInput):
        return None
    like = torch.empty(0, dtype=expected.dtype, device=expected.device)
    if expected.conjugate:
        like = like.conj()
    if expected.negative:
        like = neg_view(like)
    shape, strides = (tuple(_size(d, slots) for d in dims) for dims in (expected.shape, expected.strides))
    offset = -1 if expected.offset is None else expected.offset
    requires_grad = int(expected.requires_grad) if records_gradients else -1
    return like, like.itemsize, shape, strides, offset, expected.written, requires_grad


def _symbols(expected: Input) -> list[Sym]:
    dims: tuple[Dim, ...] = ()
    if isinstance(expected, TensorInput):
        dims = (*expected.shape, *expected.strides)
    elif isinstance(expected, NumberInput):
        dims = (expected.value,)
    return [s for dim in dims if isinstance(dim, Expr) for s in symbols(dim)]


def _size(dim: Dim, slots: dict[str, int]) -> Any:
    if isinstance(dim, int):
        return dim
    if not is_polynomial(dim) or any(len(factors) > _MOST_FACTORS for factors in dim.terms):
        raise ValueError("a size that only Python computes")
    return tuple((coef, *(slots[f.name] for f in factors if isinstance(f, Sym))) for factors, coef in dim.terms.items())
