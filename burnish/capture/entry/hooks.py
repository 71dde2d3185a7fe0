"""Detects hooks that are registered or removed after a module was compiled.

Dynamo traces a module's hooks into the graph but does not guard them: guards on every hook dictionary would cost BERT
120 us a call. Registering any hook advances a counter in torch. The dictionaries are checked only after that, or while
a hook exists that could be removed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as module_globals
from torch.utils.hooks import RemovableHandle

from burnish.capture.entry.frame_values import cell_content

_OF_MODULE = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_ALL_MODULES = tuple("_global" + name for name in _OF_MODULE)


class Hooks:
    """The hooks that a module tree had when it was compiled."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self.looked_at = RemovableHandle.next_id  # the counter's value at the last check without a change
        self._ids = self._present()
        self._held = [(hooks, len(hooks)) for hooks in self._dictionaries() if hooks]

    def any(self) -> bool:
        """Whether there were any."""
        return bool(self._ids)

    def changed(self) -> bool:
        """Called in every call: one comparison of integers if there are no hooks and none was registered anywhere since
        the last check."""
        now = RemovableHandle.next_id
        if self._held and any(len(hooks) != count for hooks, count in self._held):
            return True  # one was removed
        if now == self.looked_at:
            return False
        if self._present() != self._ids:
            return True
        self.looked_at = now
        return False

    @property
    def is_asked_each_call(self) -> bool:
        return bool(self._held)  # any may be removed

    def attributes(self) -> tuple[tuple[object, str, object], ...]:
        """While each is the same object, no hook was registered, and the module's mode has not changed."""
        return (
            (self._module, "training", self._module.training),
            (RemovableHandle, "next_id", self.looked_at),  # replaced by another object when a hook is registered
        )

    def _present(self) -> list[int]:
        return [hook for hooks in self._dictionaries() for hook in hooks]

    def _dictionaries(self) -> Iterator[dict[int, Any]]:
        for name in _OF_ALL_MODULES:
            yield getattr(module_globals, name)
        for module in self._module.modules():
            for name in _OF_MODULE:
                yield getattr(module, name)


def without_new_hooks(held: Callable[[], bool] | None, frame: types.FunctionType) -> Callable[[], bool] | None:
    """`held`, and that the modules which a function's code names have the hooks that they have now."""
    cells = [cell_content(cell) for cell in frame.__closure__ or ()]
    named = (frame.__globals__.get(name) for name in frame.__code__.co_names)
    holders = (each.__self__ if isinstance(each, types.MethodType) else each for each in (*cells, *named))
    found = [Hooks(each) for each in holders if isinstance(each, torch.nn.Module)]
    if not found:
        return held
    return lambda: (held is None or held()) and not any(hooks.changed() for hooks in found)
