"""Whether variables of the process that a compiled function asked for are as they were.

Dynamo traces `os.environ` and `os.getenv` into the dictionary below, and guards on what it finds there; but not on what
it does not find. So a frame whose trace asked for variables gets a guard more: each has the value that it had.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from burnish.torch_private.patches.tracing import noticing_environment


class Asked:
    """The variables that the trace of one frame asks for, with their values."""

    def __init__(self) -> None:
        self._values: dict[str, str | None] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def noticed(self) -> contextlib.AbstractContextManager[None]:
        return noticing_environment(self._note)

    def _note(self, name: str) -> None:
        self._values.setdefault(name, os.environ.get(name))

    def guard(self, manager: Any) -> None:
        """Add the guard to those of the frame, if it asked for any."""
        if not self._values:
            return
        entries = tuple(self._values.items())

        def unchanged(_: Any = None) -> bool:
            get = os.environ.get
            return all(get(name) == value for name, value in entries)

        names = ", ".join(sorted(self._values))
        manager.root.add_lambda_guard(unchanged, [f"environment variables have changed: one of {names}"], None)
