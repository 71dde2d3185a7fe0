"""The strides and type of eager's result where no meta function has them: found by running eager on zeros of the same
kind.

A decomposition has eager's values, but its result's strides, and the type for mixed operand types, follow from its
parts. Eager's kernel may choose others. (`F.logsigmoid` of a transposed matrix is contiguous on a CPU, `F.huber_loss`
has the type of its first operand.) Fake tensors run the decomposition, so they do not show that. Contiguous operands of
one type need no such run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from burnish.errors import CompileError
from burnish.torch_private.dispatch import DisableAutocast, DisablePythonDispatcher, disable_current_modes
from burnish.torch_private.operators import OpOverload, pytree

Decomposition = Callable[..., Any]
_MOST = 1 << 16  # elements up to which an operand is made in full size
_WIDEST = 1 << 26  # elements that one operand's memory may span
_asking = threading.local()
_answers: dict[Any, list[torch.Tensor] | None] = {}


def as_eager_has_it(op: OpOverload, decomposed: Decomposition) -> Decomposition:
    def run(*args: Any, **kwargs: Any) -> Any:
        result = decomposed(*args, **kwargs)
        if result is NotImplemented or not _is_odd(args):
            return result
        return _agreed(result, asked(op, args, kwargs))

    return run


def laid_out_as_eager_does(op: OpOverload) -> Decomposition:
    """Eager's strides for the results of an operation that is not decomposed."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if getattr(_asking, "within", False) or not _is_odd(args):
            return NotImplemented
        _asking.within = True
        try:
            return _agreed(op(*args, **kwargs), asked(op, args, kwargs))
        finally:
            _asking.within = False

    return run


def _is_odd(args: Sequence[Any]) -> bool:
    kinds: set[torch.dtype] = set()
    for t in args:
        if isinstance(t, torch.Tensor):
            if t.layout is not torch.strided:
                return False
            if not t.is_contiguous():
                return True
            if t.is_floating_point():
                kinds.add(t.dtype)
    return len(kinds) > 1


def _agreed(result: Any, known: list[torch.Tensor] | None) -> Any:
    """The results converted to eager's types and strides; the copy is fused into the kernel that stores them."""
    leaves, spec = pytree.tree_flatten(result)
    if known is None or len(known) != len(leaves):
        return result
    return pytree.tree_unflatten([_alike(t, k) for t, k in zip(leaves, known, strict=True)], spec)


def _alike(t: Any, known: torch.Tensor) -> Any:
    if not isinstance(t, torch.Tensor) or t.dim() != known.dim():
        return t
    t = t.to(known.dtype)
    wanted = _order(known)
    if wanted is None or wanted == _order(t, like=wanted):
        return t
    inverse = sorted(range(t.dim()), key=wanted.__getitem__)
    return t.permute(wanted).clone(memory_format=torch.contiguous_format).permute(inverse)


def _order(t: torch.Tensor, like: Sequence[int] | None = None) -> list[int] | None:
    """The dimensions from the outermost to the innermost stride, if the elements are dense. A dimension of size 1 has
    the same position as in `like`."""
    sizes, strides = list(map(_hint, t.shape)), list(map(_hint, t.stride()))
    if None in sizes or None in strides or 0 in sizes:
        return None
    large = sorted((d for d in range(t.dim()) if sizes[d] != 1), key=lambda d: -strides[d])  # type: ignore[operator]
    expected = 1
    for d in reversed(large):
        if strides[d] != expected:
            return None
        expected *= sizes[d]  # type: ignore[operator]
    places = iter(large)
    return [next(places) if sizes[d] != 1 else d for d in (like or range(t.dim()))]


def _hint(d: Any) -> int | None:
    if isinstance(d, int):
        return d
    hint = d.node.hint
    return hint if isinstance(hint, int) else None


def asked(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """Eager's results without values; None if eager cannot be run on this. An op that eager refuses is left to
    eager."""
    flat, spec = pytree.tree_flatten((tuple(args), kwargs))
    kinds = [_kind(a) for a in flat]
    if any(kind is None for kind in kinds):
        return None
    key = (op, *kinds)
    if key not in _answers:
        if len(_answers) > 4096:
            _answers.clear()
        _answers[key] = _answer(op, flat, spec, key)
    return _answers[key]


def _kind(a: Any) -> Any:
    """Everything on which a result's type and strides can depend."""
    if not isinstance(a, torch.Tensor):
        return (type(a), a) if isinstance(a, int | float | str | torch.dtype | None) else None
    facts = (*map(_hint, a.shape), *map(_hint, a.stride()))
    return None if None in facts else (a.dtype, a.device, a.dim(), *facts)


def _answer(op: OpOverload, flat: Sequence[Any], spec: Any, key: Any) -> list[torch.Tensor] | None:
    tensors = [a for a in flat if isinstance(a, torch.Tensor)]
    whole = all(a.numel() <= _MOST for a in tensors)
    sizes = {1: 1} | {n: n if whole else 2 + k for k, n in enumerate(_sizes(tensors))}
    with disable_current_modes(), DisablePythonDispatcher(), DisableAutocast(), torch.no_grad():
        try:
            given = [_zeros(a, sizes) if isinstance(a, torch.Tensor) else a for a in flat]
            args, kwargs = pytree.tree_unflatten(given, spec)
            found = pytree.tree_leaves(op(*args, **kwargs))
        except (RuntimeError, NotImplementedError, IndexError) as error:
            if whole and len({a.dtype for a in tensors if a.is_floating_point()}) > 1:
                raise CompileError("capture", f"eager has {op} of other types only: {error}") from error
            return None  # of sizes that are not its own
    return found if all(isinstance(t, torch.Tensor) for t in found) else None


def _sizes(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The sizes other than one; small stand-ins for large tensors keep the order of sizes."""
    return sorted({n for t in tensors for n in map(_hint, t.shape) if n is not None and n != 1})


def _zeros(a: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    shape, strides = [sizes[_hint(n)] for n in a.shape], [_hint(s) for s in a.stride()]  # type: ignore[index]
    order = _order(a)
    if order is not None and shape != list(a.shape):
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return torch.zeros([shape[d] for d in order], dtype=a.dtype, device=a.device).permute(inverse)
    span = 1 + sum((n - 1) * (s or 0) for n, s in zip(shape, strides, strict=True))
    if 0 in shape or span > _WIDEST:
        raise RuntimeError("nothing to ask about")
    return torch.zeros(span, dtype=a.dtype, device=a.device).as_strided(shape, strides)  # type: ignore[arg-type]
