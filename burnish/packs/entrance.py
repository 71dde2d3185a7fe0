"""The entrance of an object that was loaded from a pack: sealed from the start, and for ever."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from burnish.capture.entry.seal import Seal
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.packs.loaded_code import PackedCode
from burnish.torch_private.without_dynamo import Stance
from burnish.trust.record import WholeCall


class PackEntrance:
    """An entrance (`capture/entry/any_entrance.py`) without anything that compiles."""

    deferred = None
    is_racing = False

    def __init__(
        self,
        target: Callable[..., Any],
        frame: types.FunctionType,
        codes: Callable[[], Sequence[PackedCode]],
        options: Options,
        log: CompileLog,
        strict: bool,
    ) -> None:
        """`codes` makes the variants anew."""
        self.target = target
        self._frame = frame
        self._codes = codes
        self._options = options
        self._log = log
        self._strict = strict
        self._suspended = False
        self.restart()

    def restart(self) -> None:
        codes = self._codes()
        stance = (Stance(), "is_ordinary", True)
        self._sealed_call = Seal(
            self.target, self._frame, lambda: codes, stance, self._options, self._log, strict=self._strict
        ).call
        self.call = self.target if self._suspended else self._sealed_call

    def suspend(self) -> None:
        self._suspended, self.call = True, self.target

    def resume(self) -> None:
        self._suspended, self.call = False, self._sealed_call

    def seal(self, strict: bool = False) -> int:
        """It is sealed already; whether strictly may change."""
        if strict != self._strict:
            self._strict = strict
            self.restart()
        return 1

    def whole_calls(self) -> tuple[WholeCall, ...]:
        return ()

    def _nothing(self) -> None:
        pass

    seal_off = unseal = _nothing


class UnpackedEntrance(PackEntrance):
    """Of another way into the object, for which nothing was packed (`model.forward`). Eager serves it, counted."""

    def __init__(self, target: Callable[..., Any], log: CompileLog) -> None:
        self.target = target
        self._log = log
        self.restart()

    def restart(self) -> None:
        target, noticed = self.target, self._log.noticed

        def call(*args: Any, **kwargs: Any) -> Any:
            noticed("call in eager: not in the pack")
            return target(*args, **kwargs)

        self.call = call

    def suspend(self) -> None:
        pass

    resume = suspend

    def seal(self, strict: bool = False) -> int:
        return 0
