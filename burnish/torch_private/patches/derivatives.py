"""How AOTAutograd takes operations apart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from burnish.torch_private.operators import DispatchKey

# Two whose gradients at NaN are not those of their decompositions, and one whose decomposition reads targets behind the
# end of a row.
_DECOMPOSED = (
    torch.ops.aten.hardshrink.default,
    torch.ops.aten.softshrink.default,
    torch.ops.aten.multilabel_margin_loss_forward.default,
)


@contextlib.contextmanager
def own_derivatives() -> Iterator[None]:
    """While open, autograd differentiates such operations as in eager."""
    with contextlib.ExitStack() as stack:
        for op in _DECOMPOSED:
            stack.enter_context(_with_kernel(op, DispatchKey.Autograd, None))
        yield


@contextlib.contextmanager
def _with_kernel(op: Any, key: DispatchKey, kernel: Callable[..., Any] | None) -> Iterator[None]:
    """While open, this Python kernel of an operation, or none."""
    ordinary = op.py_kernels.pop(key, None)
    if kernel is not None:
        op.py_kernels[key] = kernel
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels.pop(key, None)
        if ordinary is not None:
            op.py_kernels[key] = ordinary
        op._dispatch_cache.clear()


_ONE_HOT = torch.ops.aten.one_hot.default


def checking_classes() -> contextlib.AbstractContextManager[None]:
    """While open, `one_hot` is traced with its checks of values, which torch before 2.13 leaves out."""
    if DispatchKey.CompositeImplicitAutograd in _ONE_HOT.py_kernels:
        return contextlib.nullcontext()
    return _with_kernel(_ONE_HOT, DispatchKey.CompositeImplicitAutograd, _one_hot)


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """As torch 2.13 takes it apart. Without a number of classes its size depends on values: no graph has it."""
    if num_classes > 0 and classes.dtype is torch.int64:
        torch.ops.aten._assert_async.msg((classes >= 0).all(), "Class values must be non-negative.")
        torch.ops.aten._assert_async.msg(
            (classes < num_classes).all(), "Class values must be smaller than num_classes."
        )
    made: torch.Tensor = _ONE_HOT._op_dk(DispatchKey.CompositeImplicitAutograd, classes, num_classes)
    return made
