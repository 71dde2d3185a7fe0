"""What burnish keeps for one compiled object: the eager original, its settings, its log and the ways in."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from burnish.errors import BadOptionValue, NothingToSeal
from burnish.observe.log import CompileLog, failure_reason
from burnish.observe.registry import register
from burnish.observe.sinks import sinks_for
from burnish.options import Options
from burnish.runtime.cache.deferred_writes import later
from burnish.runtime.signals import is_handlers_own, signals_wait
from burnish.stats import Stats
from burnish.torch_private import dynamo

if TYPE_CHECKING:
    from burnish.capture.background.frames import DeferredFrames
    from burnish.capture.entry.eager_only import EagerEntrance
    from burnish.capture.entry.entrance import Entrance
    from burnish.torch_private.probe import Lack

_FRAMES = "burnish.capture.entry.entrance"
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
    tuning: object = None
    regions: object = "auto"

    @property
    def is_ours(self) -> bool:
        return self.backend in (None, "burnish", "auto")

    def resolved(self) -> Options:
        trust = {
            "verify": self.verify,
            "gate": self.gate,
            "sample": self.sample,
            "background": self.background,
            "budget": self.budget,
            "tuning": self.tuning,
            "regions": "none" if self.regions is None else None if self.regions == "auto" else self.regions,
            "inductor": True if self.backend == "auto" else None,
        }
        for name in ("background", "budget"):
            if trust[name] and not self.is_ours:
                raise BadOptionValue(name, trust[name], f"left out with backend={self.backend!r}: it is burnish's own")
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
        self.name = settings.name or attribute(eager, "__qualname__") or type(eager).__name__
        self.log = CompileLog(self.options.dump_dir, self.name, sinks_for(self.options))
        self.entrance = self._entrance(eager)
        self._forward: Entrance | EagerEntrance | None = None
        self._sealed = False
        self._lock = threading.Lock()
        _live.add(self)
        register(self.log, self)  # last: from now on metrics ask it

    def _entrance(self, target: Callable[..., Any]) -> Entrance | EagerEntrance:
        foreign = {"disable": True} if self.settings.disable else self.settings.for_torch_compile()
        if (lack := _why_eager()) is not None:
            from burnish.capture.entry.eager_only import EagerEntrance

            return EagerEntrance(target, self.log, lack, foreign)
        from burnish.capture.entry.entrance import Entrance

        try:
            return Entrance(target, self.options, self.log, foreign)
        except Exception as error:  # of an object that cannot be looked at: one without a hash, a trap in __getattr__
            if foreign is not None or is_handlers_own(error):
                raise
            from burnish.capture.entry.eager_only import EagerEntrance
            from burnish.torch_private.probe import Lack

            reason = f"it cannot be looked at: {failure_reason(error)}"
            return EagerEntrance(target, self.log, Lack(reason, "compile a function that calls it", "capture"), foreign)

    @property
    def forward(self) -> Entrance | EagerEntrance:
        """The way in of a module's `forward`, called without its hooks."""
        with self._lock:
            if self._forward is None:
                self._forward = self._entrance(self.eager.forward)
                if self._sealed:
                    self._forward.seal_off()
            return self._forward

    def stats(self) -> Stats:
        later.finish()  # which may have something to say, too
        jobs = [job.stats() for frames in self._deferred() for job in frames.jobs()]
        raced = [verdict for entrance in self._entrances() for verdict in entrance.whole_calls()]
        return dataclasses.replace(self.log.snapshot(), jobs=tuple(jobs), whole_call=tuple(raced))

    @property
    def is_racing(self) -> bool:
        """Whether calls are still served by turns, to find out who is faster: a dozen of each kind, as a rule."""
        return any(entrance.is_racing for entrance in self._entrances())

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing is left to compile of what calls so far have asked for (`background=True`), or for `timeout`
        seconds; whether nothing is left. A graph break, or a size not seen before, asks again at a later call."""
        from burnish.capture.background.queue import wait_for

        return wait_for([job for frames in self._deferred() for job in frames.jobs()], timeout)

    def _deferred(self) -> list[DeferredFrames]:
        entrances = (self.entrance, self._forward)
        return [each.deferred for each in entrances if each is not None and each.deferred is not None]

    def __del__(self) -> None:
        # Not all of it is there if it was never whole, or when the process ends: then contextlib is not, either.
        try:  # noqa: SIM105
            self.stop_compiling()
        except Exception:
            pass

    def stop_compiling(self) -> None:
        """Cancel compiles in the background; calls ask for them again."""
        for frames in self._deferred():
            frames.cancel()

    def rollback(self, reason: str | None = None) -> None:
        """Eager serves from the next call on, and nothing compiles, until `retry`. Other objects are left alone."""
        from burnish.trust.gate import Failure

        failure = Failure(reason or "rolled back by request", asked=True)
        for each in self._entrances():
            each.suspend()
        for variant in self.log.variants():
            variant.roll_back(failure)

    def retry(self) -> None:
        """Give every graph that eager serves another trial, at its next call."""
        for variant in self.log.variants():
            if variant.engine == "eager":
                variant.retry()
        for each in self._entrances():
            each.resume()

    def _entrances(self) -> list[Entrance | EagerEntrance]:
        return [each for each in (self.entrance, self._forward) if each is not None]

    def seal(self, strict: bool = False) -> None:
        """From now on nothing compiles, and a call costs a few microseconds on the host: of all that decides which
        compiled program fits, the signature of the call is looked at, and what the program assumes of memory. Call it
        after warming up (a training step with its backward); `unseal` takes it back.

        The signature is
        - of each tensor among the arguments, also in tuples, lists and dicts: shape, strides, dtype, device, whether it
          requires a gradient, and its kind (dispatch keys: inference tensors, conjugate or negative views);
        - which arguments are one and the same tensor;
        - the values of other plain arguments (numbers, text, None, dtypes, devices) and their types;
        - which object anything else is (a cache, a config): the same one, whatever it holds;
        - grad mode, inference mode, autocast and its types, the module's `training`; that its hooks, and settings of
          the process such as the number of threads, are those of the first sealed call with the signature.

        What a program assumes of the tensors it gets is checked in each call, natively and before anything runs: type,
        sizes, strides, device, gradients, and which of them share memory, of the arguments, of tensors that objects
        among them hold, and of the module's parameters and buffers. Those may be changed in place (an optimiser's
        step, `load_state_dict`, `.data`) or replaced (`load_state_dict(assign=True)`, a new Parameter, another module).
        What a program still fits goes on; where none does, eager serves the call.

        Not looked at, and assumed to stay as they are: the module's plain attributes, `training` of its submodules,
        what objects among the arguments hold besides tensors, and globals.

        The first call with a signature asks Dynamo's guards once which program fits. Calls that none was compiled for
        run in eager, and are counted in `stats().notices`; with `strict=True` they raise SealedError."""
        entrances = [each for each in (self.entrance, self._forward) if each is not None]
        empty = [each for each in entrances if not each.seal(strict)]
        if len(empty) == len(entrances):
            raise NothingToSeal(self.name, ours=self.settings.is_ours and not self.settings.disable)
        for each in empty:
            each.seal_off()
        with self._lock:
            self._sealed = True
        self.log.emit("sealed")

    def unseal(self) -> None:
        """Calls are open again: their guards are checked, and new inputs compile."""
        with self._lock:
            self._sealed = False
        for each in (self.entrance, self._forward):
            if each is not None:
                each.unseal()

    def close(self) -> None:
        """Give back what compiled programs hold: CUDA graphs and their memory, arenas. Kernels' code stays loaded.
        Results handed out before stay valid. A later call compiles again; counts in `stats()` stay."""
        close_all([self])

    def reset(self) -> None:
        """Forget everything compiled and counted; the next call compiles."""
        self.log.clear()
        self._restart()

    def _restart(self) -> None:
        with self._lock:
            self._sealed = False
        self.entrance.restart()
        if self._forward is not None:
            self._forward.restart()

    def in_words(self) -> str:
        """The mode, and who serves: what `print(model)` shows of it."""
        mode = self.options.mode or "default"
        return f"mode={mode!r}, {self._served()}"

    def _served(self) -> str:
        if self.settings.disable:
            return "disabled: served by eager"
        if not self.settings.is_ours:
            return f"served by backend {getattr(self.settings.backend, '__name__', self.settings.backend)!r}"
        states = Counter(
            "on trial" if variant.state == "on trial" else f"served by {variant.engine}"
            for variant in self.log.variants()
        )
        if not states:
            return "nothing compiled yet"
        graphs = ", ".join(f"{n} graph{'s' * (n > 1)} {state}" for state, n in sorted(states.items()))
        lost = sum(verdict.served == "eager" for entrance in self._entrances() for verdict in entrance.whole_calls())
        calls = f", {lost} kind{'s' * (lost > 1)} of call served by eager" if lost else ""
        return f"{graphs}{calls}{', sealed' * self._sealed}"

    def __repr__(self) -> str:
        return f"<burnish handle of {self.name}: {self.in_words()}, {self.log.compiles} compiles>"


def attribute(target: object, name: str, otherwise: object = None) -> Any:
    """As `getattr`; also of objects whose `__getattr__` raises something else where there is nothing."""
    try:
        return getattr(target, name, otherwise)
    except Exception:
        return otherwise


def _why_eager() -> Lack | None:
    """What of torch is missing without which nothing compiles. TorchDynamo and what compiles is loaded here: that takes
    a second, so not before it is needed."""
    with contextlib.nullcontext() if _FRAMES in sys.modules else signals_wait():
        from burnish.torch_private import names, probe, versions

        versions.warn_of_newer_torch()
        lack = probe.why(names.EAGER)
        if lack is None:
            importlib.import_module(_FRAMES)
        return lack


def close_all(handles: Sequence[Handle]) -> None:
    """`Handle.close` for several objects, which share the search for what nobody refers to any more."""
    for handle in handles:
        handle._restart()
        handle.log.release()
    for _ in range(2):  # caches and code refer to one another, and what the first pass freed to programs
        gc.collect()
    if torch.cuda.is_initialized():
        from burnish.runtime.cuda.graphs import close_pools
        from burnish.runtime.graph_capture import wait_for_device

        for handle in handles:
            close_pools(handle.log)
        wait_for_device()
        torch.cuda.empty_cache()
    for handle in handles:
        handle.log.emit("closed")


def reset_all() -> None:
    for handle in list(_live):
        handle.stop_compiling()  # Dynamo's reset waits for the compile that is under way
    dynamo.reset()
    for handle in list(_live):
        handle.reset()
