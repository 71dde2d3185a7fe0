"""The handle of one compiled object: the eager original, its settings, its log and its entrances."""

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
from burnish.runtime.cache.store import open_cache
from burnish.runtime.signals import is_handlers_own, signals_wait
from burnish.shapes.record import ShapeStats
from burnish.shapes.strategy import Strategy, parse
from burnish.stats import Stats
from burnish.torch_private import dynamo

if TYPE_CHECKING:
    from burnish.bucketed.calls import BucketedCalls
    from burnish.capture.background.frames import DeferredFrames
    from burnish.capture.entry.eager_only import EagerEntrance
    from burnish.capture.entry.entrance import Entrance
    from burnish.torch_private.probe import Lack

if TYPE_CHECKING:
    AnyEntrance = Entrance | EagerEntrance | BucketedCalls
_FRAMES = "burnish.capture.entry.entrance"
_live: weakref.WeakSet[Handle] = weakref.WeakSet()


@dataclass(frozen=True)
class Settings:
    """The arguments of `burnish.compile` as given. They are copied and pickled with the object and evaluated again at
    the destination, so that one machine's cache directory or compiler is not used on another."""

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
    shapes: object = None
    cache: str | None = None

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
            "cache": self.cache,
            "regions": "none" if self.regions is None else None if self.regions == "auto" else self.regions,
            "inductor": True if self.backend == "auto" else None,
        }
        for name in ("background", "budget"):
            if trust[name] and not self.is_ours:
                raise BadOptionValue(name, trust[name], f"left out with backend={self.backend!r}: it is burnish's own")
        self._check_shapes()
        if self.is_ours:
            options = Options.from_arguments(
                mode=self.mode, options=self.options, fullgraph=self.fullgraph, dynamic=self.dynamic, trust=trust
            )
            if options.cache is not None:
                open_cache(options)  # a store that cannot be used is a mistake in the arguments
            return options
        return Options.from_arguments(mode=self.mode, fullgraph=self.fullgraph, dynamic=self.dynamic, trust=trust)

    def _check_shapes(self) -> None:
        strategy = parse(self.shapes)
        if strategy is None:
            return
        if not self.is_ours:
            raise BadOptionValue("shapes", self.shapes, f"left out with backend={self.backend!r}: it is burnish's own")
        if self.dynamic is not None:
            raise BadOptionValue("dynamic", self.dynamic, "left out with shapes=, which decides what is symbolic")
        for name in ("background", "budget"):
            if getattr(self, name):
                raise BadOptionValue(name, getattr(self, name), "left out with shapes=: use burnish.warmup instead")

    def for_torch_compile(self) -> dict[str, Any] | None:
        """Arguments for torch.compile if another backend is used; None for ours."""
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
    """Available as `compiled.burnish`: `eager` is the original, `stats()` its statistics."""

    def __init__(self, eager: Any, settings: Settings, entrance: Callable[[Handle, Any], Any] | None = None) -> None:
        """`entrance` makes the entrances of an object that is not compiled here but loaded (`burnish/packs`)."""
        self.eager = eager
        self.settings = settings
        self._make_entrance = entrance
        self.options = settings.resolved()
        self.strategy = parse(settings.shapes)
        self.name = settings.name or attribute(eager, "__qualname__") or type(eager).__name__
        self.log = CompileLog(self.options.dump_dir, self.name, sinks_for(self.options))
        self.entrance = self._entrance(eager)
        self._forward: AnyEntrance | None = None
        self._sealed = False
        self._lock = threading.Lock()
        _live.add(self)
        register(self.log, self)  # last: from now on metrics ask it

    def _entrance(self, target: Callable[..., Any]) -> AnyEntrance:
        if self._make_entrance is not None:
            loaded: AnyEntrance = self._make_entrance(self, target)
            return loaded
        foreign = {"disable": True} if self.settings.disable else self.settings.for_torch_compile()
        if (lack := _why_eager()) is not None:
            from burnish.capture.entry.eager_only import EagerEntrance

            return EagerEntrance(target, self.log, lack, foreign)
        from burnish.capture.entry.entrance import Entrance

        try:
            if self.strategy is not None and foreign is None:
                return self._for_shapes(target, self.strategy)
            return Entrance(target, self.options, self.log, foreign)
        except Exception as error:  # from an object that cannot be inspected: unhashable, or with a raising __getattr__
            if foreign is not None or is_handlers_own(error):
                raise
            from burnish.capture.entry.eager_only import EagerEntrance
            from burnish.torch_private.probe import Lack

            reason = f"it cannot be looked at: {failure_reason(error)}"
            return EagerEntrance(target, self.log, Lack(reason, "compile a function that calls it", "capture"), foreign)

    def _for_shapes(self, target: Callable[..., Any], strategy: Strategy) -> Entrance | BucketedCalls:
        from burnish.bucketed.calls import BucketedCalls
        from burnish.capture.entry.entrance import Entrance

        if strategy.kind == "dynamic":
            return Entrance(target, dataclasses.replace(self.options, dynamic=True), self.log)
        return BucketedCalls(target, strategy, self.options, self.log)

    @property
    def forward(self) -> AnyEntrance:
        """The entrance of a module's `forward`, called without its hooks."""
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
        found = dataclasses.replace(self.log.snapshot(), jobs=tuple(jobs), whole_call=tuple(raced))
        return found if self.strategy is None else dataclasses.replace(found, shapes=self._shapes())

    def _shapes(self) -> ShapeStats:
        """Of the calls of the object itself; of its `forward`'s, if there are none."""
        each = [known for entrance in self._entrances() if (known := getattr(entrance, "shape_stats", None))]
        found = [known() for known in each]
        return max(found, key=lambda stats: stats.traces + stats.compiles, default=ShapeStats(str(self.strategy)))

    @property
    def is_racing(self) -> bool:
        """Whether calls still alternate between the compiled object and the original, to measure which is faster:
        usually a dozen of each kind."""
        return any(entrance.is_racing for entrance in self._entrances())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all compiles requested so far are done (`background=True`), or for `timeout` seconds. Returns
        whether they are done. A graph break or a new size requests another compile at a later call."""
        from burnish.capture.background.queue import wait_for

        return wait_for([job for frames in self._deferred() for job in frames.jobs()], timeout)

    def _deferred(self) -> list[DeferredFrames]:
        entrances = (self.entrance, self._forward)
        return [each.deferred for each in entrances if each is not None and each.deferred is not None]

    def __del__(self) -> None:
        # Attributes may be missing if __init__ failed, or at interpreter exit; then contextlib may be missing, too.
        try:  # noqa: SIM105
            self.stop_compiling()
        except Exception:
            pass

    def stop_compiling(self) -> None:
        """Cancel background compiles; later calls request them again."""
        for frames in self._deferred():
            frames.cancel()

    def rollback(self, reason: str | None = None) -> None:
        """Eager serves from the next call on, and nothing compiles, until `retry`. Other objects are not affected."""
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

    def _entrances(self) -> list[AnyEntrance]:
        return [each for each in (self.entrance, self._forward) if each is not None]

    def seal(self, strict: bool = False) -> None:
        """From now on nothing compiles, and a call costs a few microseconds on the host: only the call's signature and
        the program's assumptions about memory are checked. Call it after warm-up (a training step with its backward);
        `unseal` reverts it.

        The signature is
        - of each tensor among the arguments, also in tuples, lists and dicts: shape, strides, dtype, device, whether it
          requires a gradient, and its kind (dispatch keys: inference tensors, conjugate or negative views);
        - which arguments are one and the same tensor;
        - the values of other plain arguments (numbers, text, None, dtypes, devices) and their types;
        - the identity of all other objects (a cache, a config), not their content;
        - grad mode, inference mode, autocast and its types, the module's `training`; that its hooks, and settings of
          the process such as the number of threads, are those of the first sealed call with the signature.

        A program's assumptions about its tensors are checked natively in each call, before anything runs: type, sizes,
        strides, device, gradients and aliasing, for the arguments, for tensors held by objects among them, and for the
        module's parameters and buffers. Parameters and buffers may be changed in place (an optimiser's step,
        `load_state_dict`, `.data`) or replaced (`load_state_dict(assign=True)`, a new Parameter), and submodules added,
        removed or replaced. If a program still fits, it serves the call; otherwise eager does.

        Not checked, and assumed constant: the module's plain attributes, `training` of its submodules, non-tensor
        content of objects among the arguments, and globals. Of a function, the hooks of the modules that its code names
        are checked, and not those of modules that it finds in other objects.

        The first call with a signature evaluates Dynamo's guards once to find the program that fits. Calls without a
        fitting program run in eager, and are counted in `stats().notices`; with `strict=True` they raise
        SealedError."""
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
        """Free the resources of compiled programs: CUDA graphs and their memory, arenas. Kernels' code stays loaded.
        Earlier results stay valid. A later call compiles again; counts in `stats()` are kept."""
        close_all([self])

    def reset(self) -> None:
        """Drop all compiled code and counts; the next call compiles."""
        self.log.clear()
        self._restart()

    def _restart(self) -> None:
        with self._lock:
            self._sealed = False
        self.entrance.restart()
        if self._forward is not None:
            self._forward.restart()

    def in_words(self) -> str:
        """The mode and the serving engine, as shown by `print(model)`."""
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
    """As `getattr`, also for objects whose `__getattr__` raises another exception for a missing attribute."""
    try:
        return getattr(target, name, otherwise)
    except Exception:
        return otherwise


def _why_eager() -> Lack | None:
    """The private names of torch that are missing and required for compiling. This loads TorchDynamo and the compiler,
    which takes a second, so it is called only when needed."""
    with contextlib.nullcontext() if _FRAMES in sys.modules else signals_wait():
        from burnish.torch_private import names, probe, versions

        versions.warn_of_newer_torch()
        lack = probe.why(names.EAGER)
        if lack is None:
            importlib.import_module(_FRAMES)
        return lack


def close_all(handles: Sequence[Handle]) -> None:
    """`Handle.close` for several objects, with one shared garbage collection."""
    from burnish.trust.sampling import comparer

    for handle in handles:
        comparer.forget(handle.log.variants())
        handle._restart()
        handle.log.release()
    for _ in range(2):  # caches and code refer to each other, and objects freed by the first pass to programs
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
