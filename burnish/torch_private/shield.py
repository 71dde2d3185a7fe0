"""What Dynamo and AOTAutograd do to the whole process while they trace, kept from the threads that call meanwhile.

They put the random number generators, the default type and the deterministic switch back to what they were when
tracing began. For the thread that waits for its compile that is right. For one that goes on, it would mean to draw the
same random numbers twice. So while a thread traces in the background, those setters do nothing in it, unless tracing
itself changed the setting before.

The same patches are where a background compile pauses and is cancelled: Dynamo's loop over bytecode instructions, and
the evaluation of one operation on fake tensors.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from burnish.torch_private.dynamo import InstructionTranslatorBase, guards
from burnish.torch_private.fake_tensors import FakeTensorMode


@contextlib.contextmanager
def beside_calls(checkpoint: Callable[[], None]) -> Iterator[None]:
    """Hold Dynamo's compile lock around it: these are patches of shared objects. In other threads they do nothing."""
    thread = threading.get_ident()

    def is_ours() -> bool:
        return threading.get_ident() == thread

    with contextlib.ExitStack() as stack:
        for owner in (torch, torch.random, torch.cuda, random):
            name = "setstate" if owner is random else "set_rng_state"
            stack.enter_context(_patched(owner, name, _dropped_if(is_ours)))
        stack.enter_context(_patched(torch, "set_default_dtype", _restored_if(is_ours, (torch.get_default_dtype(),))))
        stack.enter_context(
            _patched(
                torch,
                "use_deterministic_algorithms",
                _restored_if(is_ours, (torch.are_deterministic_algorithms_enabled(),)),
            )
        )
        looks: tuple[tuple[Any, str, Callable[..., bool] | None], ...] = (
            (InstructionTranslatorBase, "step", None),
            (FakeTensorMode, "dispatch", _computes),
        )
        for tracer, method, when in looks:
            if hasattr(tracer, method):  # private names: without them a compile pauses at stages only
                stack.enter_context(_patched(tracer, method, _after(checkpoint, is_ours, when)))
        yield


@contextlib.contextmanager
def without_guard_profiling() -> Iterator[None]:
    """Hold Dynamo's compile lock around it. For a figure in its log, Dynamo empties the processor's caches after each
    compile and times the guards: 25 ms in which no other Python thread runs."""
    if not hasattr(guards, "profile_guard_manager"):
        yield
        return
    with _patched(guards, "profile_guard_manager", lambda original: lambda *args: 0.0):
        yield


Patch = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextlib.contextmanager
def _patched(owner: Any, name: str, patch: Patch) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, patch(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _dropped_if(is_ours: Callable[[], bool]) -> Patch:
    def patch(original: Callable[..., Any]) -> Callable[..., Any]:
        def setter(*args: Any, **kwargs: Any) -> Any:
            return None if is_ours() else original(*args, **kwargs)

        return setter

    return patch


def _restored_if(is_ours: Callable[[], bool], at_first: tuple[Any, ...]) -> Patch:
    def patch(original: Callable[..., Any]) -> Callable[..., Any]:
        changed = False

        def setter(*args: Any, **kwargs: Any) -> Any:
            nonlocal changed
            if is_ours():
                if not changed and args[:1] == at_first:
                    return None
                changed = True
            return original(*args, **kwargs)

        return setter

    return patch


def _computes(*args: Any) -> bool:
    """Whether a fake tensor is computed with. What it is asked about (its device) C++ asks in functions that may not
    throw: to cancel a compile there would end the process."""
    return len(args) > 1 and _returns_tensors(args[1])


@functools.cache
def _returns_tensors(op: Any) -> bool:
    schema = getattr(op, "_schema", None)
    return schema is not None and any("Tensor" in str(r.type) for r in schema.returns)


def _after(checkpoint: Callable[[], None], is_ours: Callable[[], bool], when: Callable[..., bool] | None) -> Patch:
    def patch(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            if is_ours() and (when is None or when(*args)):
                checkpoint()
            return original(*args, **kwargs)

        return method

    return patch
