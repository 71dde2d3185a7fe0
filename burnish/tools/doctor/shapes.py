"""A target's inputs at other sizes, which a service may get in addition to the example's."""

from __future__ import annotations

from typing import Any

import torch

from burnish.tools.parity import tensors_in
from burnish.tools.targets import Target
from burnish.tools.workloads import Inputs


def other_batches(target: Target, count: int = 3) -> list[tuple[int, Inputs]]:
    """Up to `count` other sizes of the first axis, with inputs of that size that eager takes. Empty where the inputs
    do not share a first axis, or the model takes no other size."""
    sizes = {tensor.shape[0] for tensor in tensors_in(target.inputs) if tensor.dim() > 0}
    if len(sizes) != 1:
        return []
    (batch,) = sizes
    wanted = [batch + extra for extra in range(1, count + 1)]
    made = [(size, _resized(target.inputs, batch, size)) for size in wanted]
    return [(size, inputs) for size, inputs in made if _eager_takes(target, inputs)]


def _resized(value: Any, batch: int, size: int) -> Any:
    """Rows repeated: values of the kind that the model expects (token numbers, masks) whatever they are."""
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return value
        return value.index_select(0, torch.arange(size, device=value.device) % batch)
    if isinstance(value, dict):
        return {name: _resized(item, batch, size) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_resized(item, batch, size) for item in value)
    return value


def _eager_takes(target: Target, inputs: Inputs) -> bool:
    try:
        with target.grad_mode():
            Target(target.name, target.model, inputs, target.kind).step()()
        return True
    except Exception:
        return False
