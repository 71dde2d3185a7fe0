"""What burnish keeps for one compiled object: the eager original, its settings, its log and the ways in."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from burnish.observe.log import CompileLog
from burnish.observe.registry import register
from burnish.observe.sinks import sinks_for
from burnish.options import Options
from burnish.stats import Stats

if TYPE_CHECKING:
    from burnish.capture.deferred import DeferredFrames
    from burnish.capture.frame import Entrance

_live: weakref.WeakSet[Handle] = weakref.WeakSet()


@dataclass(frozen=True)
class Settings:
    """The arguments of `burnish.compile`, as given: they travel with a copied or pickled object and are read anew
    where it arrives, so that another machine's cache directory or compiler is not taken along."""

    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str | Callable[..., Any] | None = None
    mode: str | None = None
    options: Mapping[str, object] | Options | None = None
    disable: bool = False
    name: str | None = None
    verify: str | bool | None = None
    gate: bool | None = None
    sample: float | None = None
    background: bool | None = None
    budget: float | None = None

    @property
    def is_ours(self) -> bool:
        return self.backend in (None, "burnish")

    def resolved(self) -> Options:
        trust = {
            "verify": self.verify,
            "gate": self.gate,
            "sample": self.sample,
            "background": self.background,
            "budget": self.budget,
        }
        if self.is_ours:
            return Options.from_arguments(
                mode=self.mode, options=self.options, fullgraph=self.fullgraph, dynamic=self.dynamic, trust=trust
            )
        return Options.from_arguments(mode=self.mode, fullgraph=self.fullgraph, dynamic=self.dynamic, trust=trust)

    def for_torch_compile(self) -> dict[str, Any] | None:
        """Arguments for torch.compile where another backend does the work; None where we do."""
        if self.is_ours:
            return None
        return {
            "backend": self.backend,
            "fullgraph": self.fullgraph,
            "dynamic": self.dynamic,
            "mode": self.mode,
            "options": self.options,
        }


class Handle:
    """Reached as `compiled.burnish`: `eager` is the original, `stats()` what compiling it did."""

    def __init__(self, eager: Any, settings: Settings) -> None:
        self.eager = eager
        self.settings = settings
        self.options = settings.resolved()
        self.name = settings.name or getattr(eager, "__qualname__", None) or type(eager).__name__
        self.log = CompileLog(self.options.dump_dir, self.name, sinks_for(self.options))
        self.entrance = self._entrance(eager)
        self._forward: Entrance | None = None
        self._lock = threading.Lock()
        _live.add(self)
        register(self.log, self)  # last: from now on metrics ask it

    def _entrance(self, target: Callable[..., Any]) -> Entrance:
        from burnish.capture.frame import Entrance  # TorchDynamo takes a second to import: not before it is needed

        foreign = {"disable": True} if self.settings.disable else self.settings.for_torch_compile()
        return Entrance(target, self.options, self.log, foreign)

    @property
    def forward(self) -> Entrance:
        """The way in of a module's `forward`, called without its hooks."""
        with self._lock:
            if self._forward is None:
                self._forward = self._entrance(self.eager.forward)
            return self._forward

    def stats(self) -> Stats:
        jobs = [job.stats() for frames in self._deferred() for job in frames.jobs()]
        return dataclasses.replace(self.log.snapshot(), jobs=tuple(jobs))

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing is left to compile of what calls so far have asked for (`background=True`), or for `timeout`
        seconds; whether nothing is left. A graph break, or a size not seen before, asks again at a later call."""
        from burnish.trust.background import wait_for

        return wait_for([job for frames in self._deferred() for job in frames.jobs()], timeout)

    def _deferred(self) -> list[DeferredFrames]:
        entrances = (self.entrance, self._forward)
        return [each.deferred for each in entrances if each is not None and each.deferred is not None]

    def stop_compiling(self) -> None:
        """Cancel compiles in the background; calls ask for them again."""
        for frames in self._deferred():
            frames.cancel()

    def reset(self) -> None:
        """Forget everything compiled and counted; the next call compiles."""
        self.log.clear()
        self.entrance.restart()
        if self._forward is not None:
            self._forward.restart()

    def __repr__(self) -> str:
        return f"<burnish handle of {self.name}: {self.log.compiles} compiles>"


def reset_all() -> None:
    for handle in list(_live):
        handle.stop_compiling()  # Dynamo's reset waits for the compile that is under way
    torch._dynamo.reset()
    for handle in list(_live):
        handle.reset()
