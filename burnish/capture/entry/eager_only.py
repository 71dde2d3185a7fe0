"""The entrance that serves every call in eager, for a torch without a private name that compiling needs, or that cannot
load the name's module.

It replaces `entrance.Entrance`, which cannot be imported then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from burnish.errors import CompileError, FallbackWarning, warn
from burnish.observe.log import CompileLog
from burnish.torch_private.probe import Lack
from burnish.trust.record import WholeCall


def tell(log: CompileLog, lack: Lack) -> None:
    """Count it, and warn at an object's first."""
    if log.fallback(lack.stage, CompileError(lack.stage, lack.reason, lack.way_out)):
        warn(
            f"burnish: {log.name or 'this graph'} runs in eager: {lack.reason}. Way out: {lack.way_out}.",
            FallbackWarning,
        )


class EagerEntrance:
    """An entrance (`any_entrance.py`). `foreign`, as for an `Entrance`: arguments for torch.compile, which then does it
    all."""

    deferred = None
    is_racing = False

    def __init__(
        self, target: Callable[..., Any], log: CompileLog, lack: Lack, foreign: dict[str, Any] | None = None
    ) -> None:
        self.target = target
        self.call = target
        self._log = log
        self._lack = lack
        if foreign is None:
            tell(log, lack)
        elif not foreign.get("disable"):
            self.call = torch.compile(target, **foreign)

    def restart(self) -> None:
        tell(self._log, self._lack)

    def whole_calls(self) -> tuple[WholeCall, ...]:
        return ()

    def seal(self, strict: bool = False) -> int:
        """There is no compiled code to seal."""
        return 0

    def _nothing(self) -> None:
        pass

    suspend = resume = seal_off = unseal = _nothing
