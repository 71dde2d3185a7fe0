"""The host's view of a running generation: tokens copied out while the device continues."""

from __future__ import annotations

import torch

from burnish.generation.state import State


class Look:
    """Tokens of the slots [first, last), on their way to the host. Asking for them waits for the steps that made
    them, and for no later one."""

    def __init__(self, state: State, batch: int, first: int, last: int) -> None:
        self.steps = last - first
        tokens = state.tokens[:batch, first:last]
        if tokens.device.type != "cuda":
            self._tokens, self._ready = tokens.clone(), None
            return
        self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        self._tokens.copy_(tokens, non_blocking=True)
        self._ready = torch.cuda.Event()
        self._ready.record()

    def tokens(self) -> torch.Tensor:
        if self._ready is not None:
            self._ready.synchronize()
        return self._tokens
