"""The user's hooks on saved tensors (checkpointing, offloading), switched off for burnish's own runs of autograd."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from burnish.torch_private.aot import top_saved_tensors_default_hooks


def hooks_are_active() -> bool:
    return top_saved_tensors_default_hooks is None or top_saved_tensors_default_hooks(True) is not None


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


def own_saved_tensors() -> AbstractContextManager[Any]:
    """Within it, tensors are saved as they are, whatever hooks are active around it."""
    if not hooks_are_active():
        return nullcontext()  # nor the cost of any
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
