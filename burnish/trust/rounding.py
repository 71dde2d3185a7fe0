"""Measures the rounding error of a result: perturbs every operation, also in the backward, by a random last unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from burnish.torch_private.dispatch import TorchDispatchMode
from burnish.trust.exactness import EXTREMES


class RandomRounding(TorchDispatchMode):
    """Multiplies each newly computed value by 1 plus or minus at most `unit`; if the operation's own type is less exact
    (a cast, autocast), by a last unit of that type."""

    def __init__(self, unit: float, seed: int) -> None:
        super().__init__()
        self._unit = unit
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # An extreme is one of the values: some backwards (`amax`) look for it among them.
        is_extreme = func._schema.name.removeprefix("aten::") in EXTREMES
        # neither a view nor in place
        if not is_extreme and all(returned.alias_info is None for returned in func._schema.returns):
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                self._round(tensor)
        return result

    def _round(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout is not torch.strided:
            return
        if value._is_zerotensor() or value.is_meta:  # zeros in no memory (the gradient of `sgn`), and sums of them
            return
        generator = self._generators.get(value.device)
        if generator is None:
            generator = self._generators[value.device] = torch.Generator(value.device).manual_seed(self._seed)
        unit = max(self._unit, torch.finfo(value.dtype).eps / 2)
        factor = torch.rand(value.shape, dtype=torch.float32, device=value.device, generator=generator)
        factor.mul_(2 * unit).add_(1 - unit)
        # The largest numbers mask something: infinite, or apart by a last unit, they would mean something else.
        value.mul_(factor.masked_fill_(value.abs() > torch.finfo(value.dtype).max / 2, 1.0))
