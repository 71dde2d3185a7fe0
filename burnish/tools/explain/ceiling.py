"""How fast this machine moves memory: the best of many a = b + 2 c over arrays larger than any cache; on a GPU, the
better of that and of reading alone, over arrays so large that the launch and the wait for it do not count.

The best is kept in the cache directory for each kind of machine and number of threads. Later runs measure again, more
briefly, and keep what is better: a machine that was busy the first time does not stay slow."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from burnish.options import Options
from burnish.processor import this_cpu

_ELEMENTS = 1 << 24  # three arrays of 64 MiB
_ELEMENTS_ON_GPU = 1 << 28  # of 1 GiB, if a quarter of what is free will hold them
_SECONDS = 0.6


def bandwidth_ceiling(device: torch.device, options: Options) -> float:
    """Bytes per second."""
    place = options.cache_dir / "bandwidth.json"
    key = _machine(device)
    known = _read(place)
    found = measure_bandwidth(device, seconds=_SECONDS if key not in known else _SECONDS / 4)
    if found > known.get(key, 0.0):
        known[key] = found
        _write(place, known)
    return known[key]


def measure_bandwidth(
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
    elements: int | None = None,
    seconds: float = _SECONDS,
) -> float:
    elements = elements or _elements(device)
    b, c = torch.ones(elements, device=device), torch.ones(elements, device=device)
    a = torch.empty_like(b)
    ways: list[tuple[int, Callable[[], object]]] = [(3, lambda: torch.add(b, c, alpha=2, out=a))]
    if device.type == "cuda":
        ways.append((1, b.sum))
    best = [float("inf")] * len(ways)
    start, runs = clock(), 0
    while runs < 4 or clock() - start < seconds:
        for n, (_, run) in enumerate(ways):
            took = _timed(run, device, clock)
            best[n] = min(best[n], took) if runs else best[n]  # the first one touches the pages
        runs += 1
    return max(arrays * b.nbytes / max(took, 1e-9) for (arrays, _), took in zip(ways, best, strict=True))


def _timed(run: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begin = clock()
    run()
    wait()
    return clock() - begin


def _elements(device: torch.device) -> int:
    if device.type != "cuda":
        return _ELEMENTS
    free, _ = torch.cuda.mem_get_info(device)
    return min(_ELEMENTS_ON_GPU, max(_ELEMENTS, free // (4 * 3 * 4)))


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    told = f"{this_cpu().identity} threads {torch.get_num_threads()} cores {os.cpu_count()}"
    return f"cpu: {hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _read(place: Path) -> dict[str, float]:
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        return {str(k): float(v) for k, v in found.items() if float(v) > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(place: Path, known: dict[str, float]) -> None:
    with contextlib.suppress(OSError):  # it is measured again next time
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_suffix(f".{os.getpid()}.tmp")
        fresh.write_text(json.dumps(known), encoding="utf-8")
        os.replace(fresh, place)
