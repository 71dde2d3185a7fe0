"""What `burnish.stats(c).jobs` holds: one frozen record per frame given to the compiling thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# pending: in the queue.  ready: the next call with such inputs uses it.  failed, cancelled: eager serves, see `reason`.
JobState = Literal["pending", "compiling", "ready", "failed", "cancelled"]


@dataclass(frozen=True)
class JobStats:
    function: str
    inputs: str  # types and sizes of the tensors of the call that asked for it
    state: JobState
    reason: str = ""
    seconds: float = 0.0  # from its start to its end, pauses for calls in flight included

    def __str__(self) -> str:
        took = f" in {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.function}({self.inputs}): {self.state}{took}" + (f": {self.reason}" if self.reason else "")
