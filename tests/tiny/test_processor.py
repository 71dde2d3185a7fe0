"""What Linux says of a processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.processor import Cpu, described, usable_cores

_X86 = """processor\t: 0
model name\t: Some Xeon
model\t\t: 143
flags\t\t: fpu avx2 avx512f avx512_vnni amx_bf16 amx_int8

processor\t: 1
model name\t: Another
"""
_ARM = """processor\t: 0
Features\t: fp asimd sve i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


def found(folder: Path, cpuinfo: str, *caches: tuple[str, str, str]) -> Cpu:
    (folder / "cpuinfo").write_text(cpuinfo)
    for n, values in enumerate(caches):
        place = folder / "cache" / f"index{n}"
        place.mkdir(parents=True)
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (place / name).write_text(f"{value}\n")
    return described(folder / "cpuinfo", folder / "cache")


def test_one_processor_speaks_for_all(tmp_path: Path) -> None:
    cpu = found(tmp_path, _X86)
    assert cpu.name == "Some Xeon"
    assert (cpu.vectors, cpu.matrix_units) == ("AVX-512", ("AMX bf16", "AMX int8", "VNNI"))


def test_an_arm(tmp_path: Path) -> None:
    cpu = found(tmp_path, _ARM)
    assert (cpu.vectors, cpu.matrix_units) == ("SVE", ("i8mm", "bf16"))
    assert "CPU part 0xd40" in cpu.instructions


def test_caches_for_data(tmp_path: Path) -> None:
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "32M")]
    cpu = found(tmp_path, _ARM, *caches)
    assert cpu.caches == (48 << 10, 2 << 20, 32 << 20)
    assert str(cpu) == "SVE, i8mm, bf16, L1 48 KiB, L2 2 MiB, L3 32 MiB"


@pytest.mark.parametrize("caches", [[], [("1", "Data", "many")], [("x", "Data", "4K")]])
def test_where_the_system_does_not_say(tmp_path: Path, caches: list[tuple[str, str, str]]) -> None:
    assert found(tmp_path, "", *caches).caches == ()


def test_without_files() -> None:
    cpu = described(Path("/nowhere/cpuinfo"), Path("/nowhere/cache"))
    assert cpu.features == frozenset() and cpu.instructions.startswith(cpu.architecture)


def test_the_instructions_are_those_of_models_with_the_same_features(tmp_path: Path) -> None:
    one = found(tmp_path, _X86)
    (tmp_path / "cpuinfo").write_text(_X86.replace("143", "144").replace("fpu avx2", "avx2 fpu"))
    other = described(tmp_path / "cpuinfo", tmp_path / "cache")
    assert one.instructions == other.instructions and one.identity != other.identity


def test_a_containers_share(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) >= 1
    assert usable_cores(tmp_path / "none") >= 1
