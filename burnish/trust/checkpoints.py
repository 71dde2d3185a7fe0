"""Activation checkpointing around compiled graphs: the engine that served a region's forward serves what is run again.

Eager and compiled code save different tensors, and torch counts them.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from burnish.runtime.host.checks import Boxed
from burnish.torch_private.aot import top_saved_tensors_default_hooks
from burnish.trust.record import Engine
from burnish.trust.saved_tensor_hooks import hooks_are_active


@dataclass(frozen=True)
class Checkpoint:
    """A part of a model that torch.utils.checkpoint runs again in the backward. `region` is one object for its forward
    and for what is run again, and goes with them."""

    region: Any
    is_again: bool


def checkpoint_here() -> Checkpoint | None:
    """The innermost one that this thread is in, of those that keep no graph of their own (use_reentrant=False): they
    count what is saved, and it must be the same both times."""
    if not hooks_are_active():
        return None
    hooks = top_saved_tensors_default_hooks(True) if top_saved_tensors_default_hooks is not None else None
    pack = hooks[0] if hooks is not None else None
    pack = getattr(pack, "_torchdynamo_orig_callable", pack)
    if not isinstance(pack, types.FunctionType):
        return None
    held = dict(zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True))
    if "frame" in held and pack.__qualname__.startswith("_checkpoint_hook"):
        return Checkpoint(held["frame"].cell_contents, False)
    if "target_frame_ref" in held and pack.__qualname__.startswith("_recomputation_hook"):
        region = held["target_frame_ref"].cell_contents()
        return Checkpoint(region, True) if region is not None else None
    return None


# Regions whose forward compiled graphs have served, while they last, and of which objects these were: what is run again
# has to be served by the same.
_begun: dict[int, tuple[weakref.ref[Any], list[object]]] = {}


def begun(checkpoint: Checkpoint, owner: object) -> None:
    key = id(checkpoint.region)
    if key not in _begun:
        _begun[key] = weakref.ref(checkpoint.region, lambda _: _begun.pop(key, None)), []
    owners = _begun[key][1]
    if not any(each is owner for each in owners):
        owners.append(owner)


def has_begun(checkpoint: Checkpoint, owner: object) -> bool:
    """Whether a compiled graph of `owner` has served a part of the region's forward."""
    _, owners = _begun.get(id(checkpoint.region), (None, ()))
    return any(each is owner for each in owners)


def regions_are_begun() -> bool:
    return bool(_begun)


def finishing_checkpoints(target: Callable[..., Any], through: Callable[..., Any], owner: object) -> Callable[..., Any]:
    """`target`, but for what is run again of a region that began with compiled code of `owner`: that goes `through`
    it."""
    regions = _begun

    def call(*args: Any, **kwargs: Any) -> Any:
        if regions and (here := checkpoint_here()) is not None and here.is_again and has_begun(here, owner):
            return through(*args, **kwargs)
        return target(*args, **kwargs)

    return call


class ServedRegions:
    """Of one variant: who served the forward of each region. `owner` stands for the compiled object that the graph is a
    part of; `alone` is what an engine does, whoever serves."""

    def __init__(self, owner: object, alone: Callable[[Engine], Boxed]) -> None:
        self._owner = owner
        self._alone = alone
        self._served: weakref.WeakKeyDictionary[Any, list[Engine]] = weakref.WeakKeyDictionary()
        self._last = threading.local()  # `engine`: what served this thread's last call, if that was chosen in the call

    def serves(self, engine: Engine | None) -> None:
        """Serves this thread's call, whatever was to serve when it began."""
        self._last.engine = engine

    def first(self, checkpoint: Checkpoint, boxed: list[Any], serve: Boxed, expected: Callable[[], Engine]) -> Any:
        """A call in a region's forward. `expected` has served where the call did not choose."""
        served = self._served.setdefault(checkpoint.region, [])
        self._last.engine = None
        result = serve(boxed)
        engine = self._last.engine or expected()
        served.append(engine)
        if engine != "eager":
            begun(checkpoint, self._owner)
        return result

    def again(self, checkpoint: Checkpoint, boxed: list[Any], unknown: Engine) -> Any:
        """What is run again is never judged, and is served by who served it first, whatever has been decided since.
        Of a region in whose forward the variant had no part, another one had, which fits as well, or eager."""
        served = self._served.setdefault(checkpoint.region, [])
        if served:
            engine = served.pop(0)
        else:
            engine = unknown if has_begun(checkpoint, self._owner) else "eager"
        served.append(engine)  # it may be run again for another backward
        return self._alone(engine)(boxed)
