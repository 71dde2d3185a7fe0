"""The processor and the GPU: what this machine can do, and whether torch sees all of it."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from burnish.processor import this_cpu, usable_cores
from burnish.tools.doctor.line import Line

_OLDEST_FOR_TRITON = (7, 0)
_OLDEST_FOR_BF16 = (8, 0)
_OPENMP_RUNTIMES = re.compile(r"(lib(?:gomp|iomp5|omp|kmp)[^/]*)\.(?:so|dylib)")


# -- the processor ------------------------------------------------------------------------------------------------


def check_cpu() -> Line:
    import torch

    usable, threads, cpu = usable_cores(), torch.get_num_threads(), this_cpu()
    cores = f"{usable:g} usable {'core' if usable == 1 else 'cores'}, {threads} threads"
    who = ", ".join(filter(None, [cpu.name, cores, str(cpu)]))
    if threads > math.ceil(usable):
        says = f"{who}: more threads than cores wait for each other"
        return Line("cpu", "warn", says, "use as many as there are", f"export OMP_NUM_THREADS={max(1, int(usable))}")
    if threads < usable // 2:
        says = f"{who}: most cores stay idle in one call (right, if several processes share them)"
        return Line("cpu", "warn", says, "use them", f"export OMP_NUM_THREADS={int(usable)}")
    return Line("cpu", "ok", who)


def check_openmp() -> Line:
    """Two OpenMP runtimes in one process each keep a set of threads, which spin against the other's."""
    loaded = loaded_openmp()
    if len(loaded) > 1:
        says = f"{len(loaded)} runtimes are loaded ({', '.join(loaded)}): their threads wait for each other"
        advice = "find the package that brings the second one, and take its build for torch's, or make waiting passive"
        return Line("openmp", "warn", says, advice, "export OMP_WAIT_POLICY=passive")
    if not loaded and sys.platform == "linux":
        return Line("openmp", "warn", "none loaded: kernels run on one thread", "install a torch built with OpenMP")
    return Line("openmp", "ok", f"{loaded[0]}, shared with torch" if loaded else "not looked for on this system")


def loaded_openmp(maps: Path = Path("/proc/self/maps")) -> list[str]:
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in maps.read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            if runtime := _OPENMP_RUNTIMES.search(path):
                found.setdefault(path, re.split(r"[-.]", runtime[1])[0])
    return sorted(found.values())


# -- the GPU ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuFound:
    """What the GPU check found out, beside its line. `name` is empty where torch can use none."""

    line: Line
    name: str = ""
    capability: tuple[int, int] = (0, 0)

    @property
    def usable(self) -> bool:
        return bool(self.name) and self.line.status != "fail"


def check_gpu() -> GpuFound:
    import torch

    driver = nvidia_driver()
    if torch.version.hip is not None:
        says = "this torch is for AMD GPUs, for which burnish has no kernels: there models run in eager"
        return GpuFound(Line("gpu", "warn", says, "use an NVIDIA GPU, or the CPU"))
    if torch.version.cuda is None:
        if driver is None:
            return GpuFound(Line("gpu", "ok", "no NVIDIA GPU: models run on the CPU"))
        says = f"there is an NVIDIA driver ({driver}), but this torch is built for the CPU only"
        return GpuFound(Line("gpu", "warn", says, "install a torch with CUDA", "pip install --force-reinstall torch"))
    if not torch.cuda.is_available():
        if driver is None:
            return GpuFound(Line("gpu", "ok", "no NVIDIA GPU or driver: models run on the CPU"))
        says = f"driver {driver} is there, but CUDA {torch.version.cuda} of this torch cannot use it"
        advice = "upgrade the driver, or make the GPU visible (CUDA_VISIBLE_DEVICES; docker run --gpus all)"
        return GpuFound(Line("gpu", "fail", says, advice, "nvidia-smi  # does it list the GPU?"))
    return _examine_gpu(driver)


def _examine_gpu(driver: str | None) -> GpuFound:
    import torch

    from burnish.device import described

    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    capability = (device.major, device.minor)
    count = torch.cuda.device_count()
    who = (f"{count} x " if count > 1 else "") + f"{device.name}, {device.total_memory / 2**30:.0f} GiB"
    shown = f"{who}, {described(device)}, driver {driver or 'unknown'}, CUDA {torch.version.cuda}"
    if capability < _OLDEST_FOR_TRITON:
        says = f"{shown}: too old for Triton, so on the GPU models run in eager"
        return GpuFound(
            Line("gpu", "fail", says, "use a GPU of 2018 or later (sm_70), or the CPU"), device.name, capability
        )
    if not _can_capture():
        says = f"{shown}: a CUDA graph could not be captured, so mode='reduce-overhead' has no effect"
        return GpuFound(Line("gpu", "warn", says, "upgrade the driver"), device.name, capability)
    if capability < _OLDEST_FOR_BF16:
        says = f"{shown}; CUDA graphs work; bfloat16 is emulated"
        return GpuFound(Line("gpu", "warn", says, "use float16 on this GPU"), device.name, capability)
    return GpuFound(Line("gpu", "ok", f"{shown}; CUDA graphs work"), device.name, capability)


def _can_capture() -> bool:
    """Capture and replay one addition."""
    import torch

    try:
        x = torch.zeros(8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        graph.replay()
        torch.cuda.synchronize()
        return bool((y == 1).all().item())
    except Exception:
        return False


def nvidia_driver(told: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the kernel's NVIDIA driver; None where there is none."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", told.read_text())
    except OSError:
        return "unknown" if Path("/dev/nvidiactl").exists() else None
    return found[1] if found else "unknown"
