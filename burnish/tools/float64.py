"""A model run in float64, whatever types it asks for: the referee of every comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Float64Everywhere(TorchFunctionMode):
    """Models cast to float32 inside (norms, rotary embeddings); a referee that followed them would not be one."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return torch.Tensor.double(*args)
        widened = [_widen(arg) for arg in args]
        return func(*widened, **{name: _widen(arg) for name, arg in (kwargs or {}).items()})


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def float64_everywhere() -> Iterator[None]:
    """New tensors, and casts to float32, are float64 here."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64Everywhere():
            yield
    finally:
        torch.set_default_dtype(default)
