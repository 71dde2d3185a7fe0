"""The tuner that a compile's options ask for."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.cache.store import open_cache
from burnish.runtime.deadline import Deadline
from burnish.tuning.record import Tuning
from burnish.tuning.search import Measure, Tuner
from burnish.tuning.store import CacheStore

_MOST_SECONDS = 180.0  # of a search without a budget; the rest is left to the rule, and said
_SHARE = 0.5  # of what is left of a budget


def tuner_for(device: torch.device, options: Options, log: CompileLog, deadline: Deadline) -> Tuner | None:
    """None: by the rule, without a record."""
    if device.type != "cuda" or not (options.searches or options.tuning is not None):
        return None
    from burnish.tuning.measure import DeviceMeasure  # Triton: not before there is a device

    name = device_name(device)
    given = options.tuning or Tuning()
    if given.device and given.device != name:
        log.noticed(f"the tuning given was measured on {given.device}, not on {name}")
    measure: Measure | None = DeviceMeasure(device, options) if options.searches else None
    return Tuner(given, CacheStore(open_cache(options), name), measure, log, out_of_time(deadline), name)


def out_of_time(deadline: Deadline, clock: Callable[[], float] = time.monotonic) -> Callable[[], bool]:
    """Whether a search that begins now should end: it may take half of what is left of a budget. A compile that is
    cancelled leaves at once."""
    left = deadline.remaining()
    end = clock() + (_MOST_SECONDS if left is None else _SHARE * left)

    def asked() -> bool:
        deadline.check("tune")
        return clock() >= end

    return asked


def device_name(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} sm_{properties.major}{properties.minor}"
