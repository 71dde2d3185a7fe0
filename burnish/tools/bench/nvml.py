"""Energy, load and clocks of an NVIDIA GPU, from its management library (part of the driver)."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

_THROTTLE_REASONS = {  # bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean "slower than asked for"
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal limit",
    0x0000000000000040: "hardware thermal limit",
    0x0000000000000080: "power brake",
}
_SM_CLOCK = 1


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Gpu:
    """One GPU. Every question is answered with None where the driver has no answer."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def joules(self) -> float | None:
        """Energy used since the driver was loaded."""
        value = ctypes.c_ulonglong()
        return value.value / 1e3 if self._ask("nvmlDeviceGetTotalEnergyConsumption", value) else None

    def busy(self) -> float | None:
        """The fraction of the last second or so in which some kernel ran, ours or another's."""
        value = _Utilization()
        return value.gpu / 100 if self._ask("nvmlDeviceGetUtilizationRates", value) else None

    def clock_mhz(self) -> int | None:
        value = ctypes.c_uint()
        function = getattr(self._library, "nvmlDeviceGetClockInfo", None)
        if function is None or function(self._handle, _SM_CLOCK, ctypes.byref(value)) != 0:
            return None
        return value.value

    def throttled_by(self) -> tuple[str, ...]:
        value = ctypes.c_ulonglong()
        if not self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", value):
            return ()
        return tuple(reason for bit, reason in _THROTTLE_REASONS.items() if value.value & bit)

    def _ask(self, function: str, value: Any) -> bool:
        asked = getattr(self._library, function, None)
        return asked is not None and asked(self._handle, ctypes.byref(value)) == 0


@functools.cache
def find_gpu(uuid: str) -> Gpu | str:
    """The GPU with torch's uuid of it, or why there is none."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "no NVML library (libnvidia-ml.so.1)"
    return open_gpu(library, uuid)


def open_gpu(library: Any, uuid: str) -> Gpu | str:
    if library.nvmlInit_v2() != 0:
        return "NVML does not start"
    handle = ctypes.c_void_p()
    name = (uuid if uuid.startswith("GPU-") else f"GPU-{uuid}").encode()
    if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) != 0:
        return "NVML does not know this GPU"
    return Gpu(library, handle)
