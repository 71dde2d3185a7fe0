"""The calling thread's state on which Dynamo's capture depends (grad mode, autocast, modes, device), and the settings
of the process that another thread may meet changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import get_num_threads, is_grad_enabled, is_inference_mode_enabled
from torch.cuda import is_initialized as cuda_is_initialized

from burnish.torch_private.dispatch import (
    get_current_function_mode_stack,
    get_dynamic_layer_stack_depth,
    is_any_autocast_enabled,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    pop_mode,
    push_mode,
)


class CannotSnapshot(Exception):
    """The text says why a frame can only be compiled while its call waits."""


class ThreadState(NamedTuple):
    """All state of a thread on which Dynamo's capture depends. Equal states may share compiled code."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    autocast_cache: bool
    function_modes: tuple[Any, ...]  # torch.set_default_device is one
    threads: int
    cuda_device: int | None

    @classmethod
    def here(cls) -> ThreadState:
        # The first call of an object that compiles in the background waits for this: hence names without dots.
        if len_torch_dispatch_stack() or get_dynamic_layer_stack_depth():
            raise CannotSnapshot("a dispatch mode or a function transform is active")
        autocast, cached = autocast_here() or ((), True)
        return cls(
            is_grad_enabled(),
            is_inference_mode_enabled(),
            autocast,
            cached,
            tuple(get_current_function_mode_stack()) if len_torch_function_stack() else (),
            get_num_threads(),
            torch.cuda.current_device() if cuda_is_initialized() else None,
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Enter this state in another thread."""
        with contextlib.ExitStack() as stack:
            if torch.get_num_threads() != self.threads:
                torch.set_num_threads(self.threads)
            if self.cuda_device is not None:
                stack.enter_context(torch.cuda.device(self.cuda_device))
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=self.autocast_cache))
            for mode in self.function_modes:
                push_mode(mode)
                stack.callback(pop_mode)
            yield


class ProcessSettings(NamedTuple):
    """The settings that all threads share and that results of torch's operators depend on. No thread can keep them as
    they are for a run of its own: it can only notice that they have changed."""

    default_dtype: torch.dtype
    deterministic: bool
    matmul_precision: str

    @classmethod
    def now(cls) -> ProcessSettings:
        return cls(
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
        )


def autocast_state() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Makes contexts with the autocast of this moment."""
    here = autocast_here()
    if here is None:
        return contextlib.nullcontext
    devices, cached = here

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for device, dtype in devices:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=cached))
            yield

    return entered


def autocast_here() -> tuple[tuple[tuple[str, torch.dtype], ...], bool] | None:
    """The devices with autocast, each with its type, and whether casts are cached; None without autocast."""
    if not is_any_autocast_enabled():
        return None
    on = ((device, torch.get_autocast_dtype(device)) for device in _DEVICES if torch.is_autocast_enabled(device))
    return tuple(on), torch.is_autocast_cache_enabled()


_DEVICES = ("cpu", "cuda")
