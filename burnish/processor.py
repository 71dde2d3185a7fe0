"""The properties of the processor, read once, and stored as data. (`device.py` has the same for GPUs; this is apart
because nothing here needs torch.)"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CGROUP = Path("/sys/fs/cgroup")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Features of x86 and of Arm, widest first.
_VECTORS = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sve2", "SVE2"), ("sve", "SVE"), ("asimd", "NEON"))
_MATRICES = (
    ("amx_bf16", "AMX bf16"),
    ("amx_int8", "AMX int8"),
    ("amx_fp16", "AMX fp16"),
    ("sme", "SME"),
    ("i8mm", "i8mm"),
    ("bf16", "bf16"),
    ("avx512_bf16", "AVX-512 bf16"),
    ("avx512_vnni", "VNNI"),
    ("avx_vnni", "VNNI"),
)


@dataclass(frozen=True)
class Level:
    """Processors that have at least these features; `name` is what -march takes."""

    name: str
    architecture: str
    features: frozenset[str]


_V2 = frozenset("cx16 lahf_lm popcnt ssse3 sse4_1 sse4_2".split())
_V3 = _V2 | frozenset("abm avx avx2 bmi1 bmi2 f16c fma movbe xsave".split())
_V4 = _V3 | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())
# Of the x86-64 psABI, by the names that Linux gives to the features, and of Arm.
LEVELS: Mapping[str, Level] = {
    level.name: level
    for level in (
        Level("x86-64-v2", "x86_64", _V2),
        Level("x86-64-v3", "x86_64", _V3),
        Level("x86-64-v4", "x86_64", _V4),
        Level("armv8-a", "aarch64", frozenset(("asimd", "fp"))),
    )
}


@dataclass(frozen=True)
class Cpu:
    """`told` is the system's description, `caches` are the bytes of each level of the data cache."""

    architecture: str
    told: tuple[tuple[str, str], ...]
    caches: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return dict(self.told).get("model name") or platform.processor() or self.architecture

    @property
    def features(self) -> frozenset[str]:
        told = dict(self.told)
        return frozenset((told.get("flags") or told.get("Features") or "").split())

    @property
    def vectors(self) -> str:
        """Its widest vectors; "" where the system does not say."""
        return next((shown for feature, shown in _VECTORS if feature in self.features), "")

    @property
    def matrix_units(self) -> tuple[str, ...]:
        """The units that multiply numbers narrower than 32 bits."""
        return tuple(dict.fromkeys(shown for feature, shown in _MATRICES if feature in self.features))

    @property
    def instructions(self) -> str:
        """The features that determine the instructions of -march=native. Two x86 models with the same features are
        equal."""
        return ", ".join(
            [self.architecture, *self._named("CPU implementer", "CPU part", "CPU variant"), self._hashed()]
        )

    @property
    def identity(self) -> str:
        """The same, plus the properties that affect speed."""
        named = ("model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
        return ", ".join([self.architecture, *self._named(*named), self._hashed()])

    def _named(self, *fields: str) -> list[str]:
        told = dict(self.told)
        return [f"{field} {told[field]}" for field in fields if field in told]

    def _hashed(self) -> str:
        return f"features {hashlib.sha256(' '.join(sorted(self.features)).encode()).hexdigest()[:16]}"

    def __str__(self) -> str:
        levels = [f"L{level} {_shown(size)}" for level, size in enumerate(self.caches, 1)]
        return ", ".join([*filter(None, [self.vectors]), *self.matrix_units, *levels])


def _shown(size: int) -> str:
    return f"{size / _UNITS['M']:.0f} MiB" if size >= _UNITS["M"] else f"{size / _UNITS['K']:.0f} KiB"


@functools.cache
def this_cpu() -> Cpu:
    return described(_CPUINFO, _CACHES)


def described(cpuinfo: Path, caches: Path) -> Cpu:
    """From the files in which Linux says it; elsewhere, little is known."""
    return Cpu(platform.machine(), tuple(_told(cpuinfo).items()), _sizes(caches))


def _told(cpuinfo: Path) -> Mapping[str, str]:
    """Up to the first blank line: one processor speaks for all."""
    told: dict[str, str] = {}
    with contextlib.suppress(OSError), cpuinfo.open() as lines:
        for line in lines:
            if not line.strip():
                break
            field, _, value = line.partition(":")
            told[field.strip()] = value.strip()
    return told


def _sizes(caches: Path) -> tuple[int, ...]:
    found: dict[int, int] = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        for place in sorted(caches.glob("index*")):
            level, kind, size = ((place / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                found[int(level)] = int(size[:-1]) * _UNITS[size[-1]]
    return tuple(found[level] for level in sorted(found))


def usable_cores(cgroup: Path = _CGROUP) -> float:
    """Cores that this process may use: a container often has fewer than the machine it is on."""
    count = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):
        quota, _, period = (cgroup / "cpu.max").read_text().partition(" ")
        if quota != "max":
            count = min(count, int(quota) / int(period))
    return count
