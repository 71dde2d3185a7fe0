"""The machine of a measurement: processor, GPU, versions."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int
    threads: int  # torch's
    system: str
    gpu: str | None
    python: str
    torch: str
    burnish: str
    measured: str  # date and time, UTC


def this_machine(threads: int, gpu: str | None = None) -> Machine:
    from burnish.version import __version__

    return Machine(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        threads=threads,
        system=f"{platform.system()} {platform.machine()}",
        gpu=gpu,
        python=platform.python_version(),
        torch=torch.__version__,
        burnish=__version__,
        measured=datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    )


def cpu_model() -> str:
    """The processor's name, without marketing marks. lscpu knows Arm parts by name, /proc/cpuinfo only by number."""
    for line in (output_of(["lscpu"]) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model name" and value.strip() not in ("", "-"):
            return re.sub(r"\((R|TM)\)|@.*|\bProcessor\b|\bCPU\b", "", value).strip()
    return platform.processor() or "unknown CPU"


def output_of(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
