"""Bypass of Dynamo for an object all of whose graphs run faster in eager: evaluating guards would only cost time.

Eager is always right, so an occasional check suffices to notice inputs that are worth compiling for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from burnish.runtime.host.extension import Host
from burnish.runtime.host.function_modes import unseen
from burnish.runtime.host.signature import TENSORS
from burnish.torch_private.dispatch import len_torch_function_stack
from burnish.trust.saved_tensor_hooks import hooks_are_active

_LOOKS_EVERY = 16  # calls
_MOST_RARELY = 256
_MOST_KNOWN = 64
_SIMPLE = frozenset((int, float, bool, str, type(None)))
_OF_TORCH = frozenset(TENSORS)
_Tensor, _grad_mode, _function_modes = torch.Tensor, torch.is_grad_enabled, len_torch_function_stack


def bypass(
    target: Callable[..., Any],
    through: Callable[..., Any],
    host: Host | None = None,
    sooner: Callable[[], None] | None = None,
) -> Callable[..., Any]:
    """Calls `target`, except that the first call with a new kind of inputs goes `through`. The longer no new kind is
    found, the rarer the checks. With `host`, C code counts the calls; without it, `sooner` is called at each check, in
    case the extension is available by then."""
    known: set[Hashable] = set()
    every = left = 1

    def look(*args: Any, **kwargs: Any) -> Any:
        nonlocal every
        kind = kind_of(args, kwargs)
        # Under hooks on saved tensors, recomputations in the backward would not go `through`.
        is_new = kind not in known and len(known) <= _MOST_KNOWN and not hooks_are_active()
        every = _LOOKS_EVERY if is_new else min(2 * every, _MOST_RARELY)
        if host is not None:
            counting.every = every
        elif sooner is not None:
            sooner()
        if not is_new:
            return target(*args, **kwargs)
        known.add(kind)
        return through(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left > 0:
            return target(*args, **kwargs)
        try:
            return look(*args, **kwargs)
        finally:
            left = every

    counting: Any = host.Bypass(_without_wrapper(target), look) if host is not None else None
    return call if host is None else counting


def _without_wrapper(target: Callable[..., Any]) -> Callable[..., Any]:
    """A module's call without the layer that only checks for `Module.compile`; our entrance replaces it."""
    if not isinstance(target, torch.nn.Module) or type(target).__call__ is not torch.nn.Module.__call__:
        return target
    if getattr(target, "_compiled_call_impl", True) is not None:
        return target
    call: Callable[..., Any] = getattr(target, "_call_impl", target)
    return call


def kind_of(args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool | None = None) -> Hashable:
    """Sizes and types: enough to distinguish most calls, and cheap. `grad`: the calling thread's grad mode."""
    grad = _grad_mode() if grad is None else grad
    values = (*args, *kwargs.values()) if kwargs else args
    if _function_modes():
        return grad, unseen(_kinds_of, values)
    return grad, _kinds_of(values)


def _kinds_of(values: tuple[Any, ...]) -> Hashable:
    return tuple([_kind_of_tensor(x) if isinstance(x, _Tensor) else _kind_of_value(x) for x in values])


def _kind_of_tensor(x: torch.Tensor) -> Any:
    if type(x) not in _OF_TORCH:
        return unseen(_kind_of_plain_tensor, x)  # a class of the user's may see what is asked of it
    return _kind_of_plain_tensor(x)


def _kind_of_plain_tensor(x: torch.Tensor) -> Any:
    return (x.dtype, x.shape) if not x.is_nested else (type(x), x.dtype)  # which has no shape to be asked for


def _kind_of_value(value: Any) -> Any:
    kind = type(value)
    if kind in _SIMPLE:
        return kind
    if isinstance(value, (list, tuple, dict)):
        return kind, len(value)
    shape = getattr(value, "shape", None)  # of an array
    return (kind, shape) if type(shape) is tuple else kind


def in_words(kind: Any) -> str:
    """For people."""
    grad, values = kind
    return f"({', '.join(map(_value_in_words, values))})" + (", grad mode" if grad else "")


def _value_in_words(kind: Any) -> str:
    if not isinstance(kind, tuple):
        return str(kind.__name__)
    what, size = kind
    name = what.__name__ if isinstance(what, type) else str(what).removeprefix("torch.")
    return f"{name} of {size}" if isinstance(size, int) else f"{name}{list(size)}"
