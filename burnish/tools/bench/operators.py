"""A call's time by operator and kernel, from torch's profiler over a few calls."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import profile as cpu_profile
from torch.profiler import ProfilerActivity, profile

CALLS = 3
TOP = 8
_ATEN = ("aten::", "mkldnn::", "quantized::")


@dataclass(frozen=True)
class Operator:
    name: str
    seconds: float  # per call of the model, its own time
    calls: float  # per call of the model


@dataclass(frozen=True)
class CallProfile:
    """One call. On a CPU: the ATen operators in it, and the rest (generated kernels, Python). On a GPU: its kernels."""

    seconds: float  # per call, while it was profiled
    top: tuple[Operator, ...] = ()
    operator_seconds: float = 0.0
    aten_calls: float | None = None  # operators called, without those that operators call
    device_seconds: float | None = None  # a GPU's kernels
    device_kernels: float | None = None


def profile_call(call: Callable[[], object], *, on_cuda: bool) -> CallProfile:
    """Profile a few calls. Short operators look longer than they are: the profiler costs about a µs each."""
    call()
    if not on_cuda:
        with _quiet(), cpu_profile(use_kineto=False) as on_host:
            seconds = _seconds_of(call)
        return _of_cpu(on_host, seconds)
    with _quiet(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        seconds = _seconds_of(call, torch.cuda.synchronize)
    return _of_device(list(recorded.key_averages()), seconds)


def _seconds_of(call: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    wait()
    return (time.perf_counter() - begin) / CALLS


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The profiler announces its start and its end on the process's stderr, past Python."""
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def _of_cpu(recorded: Any, seconds: float) -> CallProfile:
    operators = [
        Operator(event.key, event.self_cpu_time_total / 1e6 / CALLS, event.count / CALLS)
        for event in recorded.key_averages()
        if event.key.startswith(_ATEN) and event.self_cpu_time_total > 0
    ]
    dispatched = [event for event in recorded.function_events if event.cpu_parent is None]
    return CallProfile(
        seconds=seconds,
        top=_top(operators),
        operator_seconds=sum(operator.seconds for operator in operators),
        aten_calls=sum(event.name.startswith(_ATEN) for event in dispatched) / CALLS,
    )


def _of_device(averages: list[Any], seconds: float) -> CallProfile:
    kernels = [
        Operator(event.key, event.self_device_time_total / 1e6 / CALLS, event.count / CALLS)
        for event in averages
        if event.self_device_time_total > 0 and not event.key.startswith(("aten::", "Memcpy", "Memset"))
        if str(getattr(event, "device_type", "")).endswith("CUDA")
    ]
    dispatched = [event.count / CALLS for event in averages if event.key.startswith("aten::")]
    busy = sum(kernel.seconds for kernel in kernels)
    return CallProfile(
        seconds=seconds,
        top=_top(kernels),
        operator_seconds=busy,
        aten_calls=sum(dispatched),
        device_seconds=busy,
        device_kernels=sum(kernel.calls for kernel in kernels),
    )


def _top(operators: list[Operator]) -> tuple[Operator, ...]:
    return tuple(sorted(operators, key=lambda operator: -operator.seconds)[:TOP])
