"""Guards on the environment variables that a compiled function reads.

Dynamo traces `os.environ` and `os.getenv` down to the underlying dictionary, and guards on variables that it finds, but
not on variables that are not set. So a frame whose trace reads variables gets one more guard: each variable has the
same value as before.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from burnish.torch_private.patches.tracing import noticing_environment


class Asked:
    """The variables that the trace of one frame reads, with their values."""

    def __init__(self) -> None:
        self._values: dict[str, str | None] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def noticed(self) -> contextlib.AbstractContextManager[None]:
        return noticing_environment(self._note)

    def _note(self, name: str) -> None:
        self._values.setdefault(name, os.environ.get(name))

    def guard(self, manager: Any) -> None:
        """Add the guard to the frame's guards, if it reads any variable."""
        if not self._values:
            return
        entries = tuple(self._values.items())

        def unchanged(_: Any = None) -> bool:
            get = os.environ.get
            return all(get(name) == value for name, value in entries)

        names = ", ".join(sorted(self._values))
        manager.root.add_lambda_guard(unchanged, [f"environment variables have changed: one of {names}"], None)
