"""Energy from counters that are files, or a library, made up here."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from burnish.tools.bench.energy import RaplMeter, cpu_meter, energy_per_call, gpu_meter
from burnish.tools.bench.nvml import Gpu, open_gpu


@pytest.fixture
def rapl(tmp_path: Path) -> Path:
    for package in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):  # the last is a part of the first
        (tmp_path / package).mkdir()
        (tmp_path / package / "energy_uj").write_text("1000000")
        (tmp_path / package / "max_energy_range_uj").write_text("5000000")
    return tmp_path


def test_all_packages_are_added_and_a_wrap_is_noticed(rapl: Path) -> None:
    meter = cpu_meter(rapl)
    assert isinstance(meter, RaplMeter)
    (rapl / "intel-rapl:0" / "energy_uj").write_text("3000000")
    (rapl / "intel-rapl:0:0" / "energy_uj").write_text("9000000")
    assert meter.joules() == pytest.approx(2.0)
    (rapl / "intel-rapl:1" / "energy_uj").write_text("500000")  # past its range, and on from zero
    assert meter.joules() == pytest.approx(2.0 + 4.5)


def test_energy_is_divided_by_the_calls(rapl: Path) -> None:
    now = [0.0]

    def call() -> None:
        now[0] += 0.1
        used = rapl / "intel-rapl:0" / "energy_uj"
        used.write_text(str(int(used.read_text()) + 20_000))

    found = energy_per_call(call, cpu_meter(rapl), seconds=1.0, clock=lambda: now[0])
    assert found.joules == pytest.approx(0.02) and found.meter == "RAPL"


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    found = energy_per_call(lambda: None, cpu_meter(tmp_path / "none"))
    assert found.joules is None and found.missing == "no RAPL counters on this machine"
    assert gpu_meter("no NVML library") == "no NVML library"


class FakeNvml:
    """Answers as the driver's library does: a status, and the value through a pointer."""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        return 0 if uuid == b"GPU-abc" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> int:
        value._obj.value = 2500
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, value: Any) -> int:
        value._obj.gpu = 40
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, value: Any) -> int:
        value._obj.value = 1980
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, value: Any) -> int:
        value._obj.value = 0x4 | 0x40 | 0x1  # the last is idleness, no reason to worry
        return 0


def test_a_gpu_is_asked_by_its_uuid() -> None:
    gpu = open_gpu(FakeNvml(), "abc")
    assert isinstance(gpu, Gpu)
    assert (gpu.joules(), gpu.busy(), gpu.clock_mhz()) == (2.5, 0.4, 1980)
    assert gpu.throttled_by() == ("power cap", "hardware thermal limit")
    assert open_gpu(FakeNvml(), "other") == "NVML does not know this GPU"


def test_a_gpu_that_does_not_answer_is_not_believed() -> None:
    silent = Gpu(object(), ctypes.c_void_p())
    assert (silent.joules(), silent.busy(), silent.clock_mhz(), silent.throttled_by()) == (None, None, None, ())
    assert gpu_meter(silent) == "this GPU does not count energy"
