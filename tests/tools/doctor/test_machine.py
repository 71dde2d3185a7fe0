"""burnish doctor on machines with something wrong: each fault has its line, its verdict and its command."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import torch

from burnish.options import VARIABLES, Options
from burnish.runtime.build.compiler import locate
from burnish.tools.cli import main
from burnish.tools.doctor import Examination, Line, environment, examine, machine, software, storage
from burnish.tools.doctor import examine as examine_function
from burnish.torch_private.versions import KNOWN

EXAMINE = sys.modules["burnish.tools.doctor.examine"]
REAL_CC = locate(None)[0]
LAST, NEXT = (f"{major}.{minor}" for major, minor in (KNOWN[1], (KNOWN[1][0], KNOWN[1][1] + 1)))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test machines are busy: no check may be called stuck for that."""
    monkeypatch.setattr(EXAMINE, "LIMIT_SECONDS", 60.0)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def line_of(found: Examination, name: str) -> Line:
    return next(line for line in found.lines if line.name == name)


# -- the whole ----------------------------------------------------------------------------------------------------


def test_a_healthy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for name in ("python", "torch", "private", "triton", "compiler", "cpu", "openmp", "gpu", "cache", "environment"):
        assert re.search(rf"^(ok|warn) +{name} ", out, re.M), name
    assert re.search(r"^tier: .*C kernels, (AVX512|AVX2|NEON|generic), \d+ thread", out, re.M)


def test_json_has_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1 and found["status"] in ("ok", "warn") and "C kernels" in found["tier"]
    for line in found["lines"]:
        assert list(line) == ["name", "status", "says", "advice", "command", "seconds"]
        assert line["status"] == "ok" or line["advice"], line


def test_a_failure_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BURNISH_CC", "/nowhere/cc")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "fail" in out and "BURNISH_CC" in out and "1 failed" in out
    assert "tier: eager on the CPU: no C compiler that works" in out


def test_a_check_that_hangs_or_breaks_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def broken() -> Line:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(EXAMINE, "check_cache", lambda options: released.wait())
    monkeypatch.setattr(EXAMINE, "check_gpu", broken)
    found = examine_function(limit_seconds=5.0)
    released.set()
    assert line_of(found, "cache").status == "fail" and "no answer in time" in line_of(found, "cache").says
    assert line_of(found, "gpu").status == "warn" and "broken on purpose" in line_of(found, "gpu").says
    assert line_of(found, "compiler").status == "ok"


def test_a_variable_that_cannot_be_read_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_CACHE_LIMIT", "plenty")
    found = examine()
    assert found.status == "fail"
    assert any("BURNISH_CACHE_LIMIT='plenty'" in line.says for line in found.lines)


# -- Python, torch, Triton ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "status", "says"),
    [
        ("2.10.0", "fail", "too old"),
        ("1.13.1+cu117", "fail", "too old"),
        ("2.11.0", "ok", "supported"),
        (f"{LAST}.0+cu132", "ok", "supported"),
        (f"{NEXT}.0", "warn", "newer than burnish knows"),
        ("3.0.0", "warn", "newer"),
        ("2.14.0.dev20260101", "warn", "not a release"),
        ("main", "fail", "too old"),
    ],
)
def test_torch_versions(version: str, status: str, says: str) -> None:
    line = software.check_torch(version)
    assert line.status == status and says in line.says
    assert line.status == "ok" or line.command == f"pip install 'torch>=2.11,<{NEXT}'"


def test_an_unsupported_torch_means_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.0")
    found = examine()
    assert found.status == "fail" and found.tier.startswith("eager only: 2.4.0 is too old")


def test_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (low, high) = software.SUPPORTED_TORCH
    assert f"torch>={low[0]}.{low[1]},<{high[0] + 1}" in project["dependencies"]  # a newer one is warned of
    assert project["requires-python"] == ">={}.{}".format(*software.SUPPORTED_PYTHON[0])
    (triton,) = project["optional-dependencies"]["triton"]
    assert triton.startswith("triton>={}.{}".format(*software.SUPPORTED_TRITON))


def test_python_versions() -> None:
    assert software.check_python((3, 11, 7), free_threaded=False).status == "ok"
    assert software.check_python((3, 10, 1)).status == "fail"
    assert software.check_python((3, 20, 0)).status == "fail"
    assert software.check_python((3, 14, 0), free_threaded=True).status == "warn"


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "triton_version", lambda: None)
    assert software.check_triton(has_gpu=False).status == "ok"
    line = software.check_triton(has_gpu=True)
    assert line.status == "fail" and line.command == "pip install 'burnish[triton]'"


def test_old_and_broken_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "triton_version", lambda: "2.1.0")
    assert software.check_triton(has_gpu=True).status == "fail"
    monkeypatch.setattr(software, "triton_version", lambda: "3.6.0")
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it raises
    line = software.check_triton(has_gpu=True)
    assert line.status == "fail" and "cannot be imported" in line.says


# -- the compiler -------------------------------------------------------------------------------------------------


def test_no_compiler_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("BURNISH_CC", "CC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = examine()
    line = line_of(found, "compiler")
    assert line.status == "fail" and "no C compiler found (tried cc, gcc, clang)" in line.says
    assert line.command.startswith("apt-get install gcc")
    assert found.tier == "eager on the CPU: no C compiler that works"


def test_the_compiler_that_works_says_what_kernels_get() -> None:
    found = software.check_compiler(REAL_CC, limit_seconds=60)
    assert found.line.status == "ok" and REAL_CC in found.line.says
    assert found.works and found.threads >= 1 and found.vectors in ("AVX512", "AVX2", "NEON", "generic")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("exit 1", "does not work (exit status 1)"),
        ("echo 'error: license expired' >&2; exit 3", "license expired"),
        ("kill -SEGV $$", "signal 11"),
        ('if [ "$1" = --version ]; then echo fakecc 1.0; fi', "wrote no kernel0.o"),
    ],
)
def test_a_compiler_that_fails(tmp_path: Path, body: str, says: str) -> None:
    found = software.check_compiler(str(script(tmp_path / "cc", body)), limit_seconds=60)
    assert found.line.status == "fail" and not found.works and says in found.line.says


def test_a_compiler_that_hangs_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    found = software.check_compiler(str(script(tmp_path / "cc", f"echo $$ > {pid}; exec sleep 600")), limit_seconds=0.5)
    assert found.line.status == "fail" and "did not end within" in found.line.says
    if pid.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_a_compiler_that_does_not_know_openmp(tmp_path: Path) -> None:
    refuses = f'case " $* " in *" -fopenmp "*) echo "error: unknown -fopenmp" >&2; exit 1;; esac; exec {REAL_CC} "$@"'
    found = software.check_compiler(str(script(tmp_path / "cc", refuses)), limit_seconds=60)
    assert found.line.status == "warn" and "does not know -fopenmp:" in found.line.says
    assert found.works and found.threads == 0


def test_a_compiler_that_computes_wrongly(tmp_path: Path) -> None:
    wrong = f'for f; do case "$f" in *.c) sed -i "s/2.0f/3.0f/" "$f";; esac; done; exec {REAL_CC} "$@"'
    found = software.check_compiler(str(script(tmp_path / "cc", wrong)), limit_seconds=60)
    assert found.line.status == "fail" and "where 999000 is right" in found.line.says and not found.works


# -- the cache ----------------------------------------------------------------------------------------------------


def options_for(folder: Path) -> Options:
    return dataclasses.replace(Options(), cache_dir=folder, disable_cache=False)


def test_a_cache_that_is_not_there_yet(tmp_path: Path) -> None:
    line = storage.check_cache(options_for(tmp_path / "a" / "b"))
    assert line.status == "ok" and "will be made" in line.says
    assert not (tmp_path / "a").exists(), "looking changes nothing"


def test_a_cache_that_everyone_may_write(tmp_path: Path) -> None:
    folder = tmp_path / "my cache"
    folder.mkdir()
    folder.chmod(0o777)
    line = storage.check_cache(options_for(folder))
    assert line.status == "fail" and "written by every user" in line.says
    assert line.command == f"chmod go-w '{folder}'"
    os.system(line.command)
    assert storage.check_cache(options_for(folder)).status == "ok"


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert storage.check_cache(options_for(tmp_path / "file")).status == "fail"
    line = storage.check_cache(options_for(tmp_path / "file" / "cache"))
    assert line.status == "fail" and line.command.startswith("export BURNISH_CACHE_DIR=")

    def refuse(**given: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.tempfile, "NamedTemporaryFile", refuse)  # root may write everywhere
    line = storage.check_cache(options_for(tmp_path))
    assert line.status == "fail" and "Permission denied" in line.says and line.command == f"chmod u+rwx {tmp_path}"


def test_a_cache_of_someone_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.os, "geteuid", lambda: 12345)
    line = storage.check_cache(options_for(tmp_path))
    assert line.status == "fail" and "belongs to user" in line.says and "12345" in line.says


@pytest.mark.parametrize(("free", "status"), [(10 << 20, "fail"), (500 << 20, "warn"), (50 << 30, "ok")])
def test_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(storage, "_free_bytes", lambda root: free)
    assert storage.check_cache(options_for(tmp_path)).status == status


def test_a_cache_that_is_off(tmp_path: Path) -> None:
    line = storage.check_cache(dataclasses.replace(options_for(tmp_path), disable_cache=True))
    assert line.status == "warn" and line.command == "unset BURNISH_NO_CACHE"


# -- the processor and the GPU ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usable", "threads", "status"), [(2, 2, "ok"), (1.5, 2, "ok"), (2, 8, "warn"), (8, 1, "warn"), (0.5, 1, "ok")]
)
def test_threads_and_cores(monkeypatch: pytest.MonkeyPatch, usable: float, threads: int, status: str) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: usable)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    line = machine.check_cpu()
    assert line.status == status
    assert status == "ok" or line.command == f"export OMP_NUM_THREADS={int(usable)}"


def test_two_openmp_runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = tmp_path / "maps"
    rows = [
        "7f00-7f01 r-xp 0 08:01 1 /x/torch/lib/libgomp-a34b.so.1",
        "7f01-7f02 r--p 0 08:01 1 /x/torch/lib/libgomp-a34b.so.1",
    ]
    maps.write_text("\n".join([*rows, "7f03-7f04 rw-p 0 0 0 [heap]", "7f05-7f06 rw-p 0 0 0"]))
    assert machine.loaded_openmp(maps) == ["libgomp"]
    maps.write_text("\n".join([*rows, "7f07-7f08 r-xp 0 08:01 2 /y/libiomp5.so"]))
    monkeypatch.setattr(machine, "loaded_openmp", lambda found=machine.loaded_openmp: found(maps))
    line = machine.check_openmp()
    assert line.status == "warn" and "libgomp, libiomp5" in line.says


def test_a_driver_without_a_torch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "nvidia_driver", lambda: "570.86")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", None)
    found = machine.check_gpu()
    assert found.line.status == "warn" and "570.86" in found.line.says and not found.usable
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.check_gpu().line.status == "fail"
    monkeypatch.setattr(machine, "nvidia_driver", lambda: None)
    assert machine.check_gpu().line.status == "ok"


@pytest.mark.parametrize(
    ("capability", "captures", "status"),
    [((6, 1), True, "fail"), ((7, 5), True, "warn"), ((9, 0), True, "ok"), ((9, 0), False, "warn")],
)
def test_gpus(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], captures: bool, status: str) -> None:
    said = {"major": capability[0], "minor": capability[1], "name": "GPU", "total_memory": 80 << 30}
    properties = type("P", (), said | {"multi_processor_count": 108})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(machine, "_can_capture", lambda: captures)
    found = machine._examine_gpu("570.86")
    assert found.line.status == status and "driver 570.86" in found.line.says
    assert "108 multiprocessors" in found.line.says
    assert found.usable == (status != "fail")
    compiler = software.CompilerFound(Line("compiler", "ok", ""), True, 4, "AVX2")
    tier = EXAMINE.tier([found.line], compiler, found)
    assert tier.startswith("Triton kernels on GPU" if found.usable else "eager (") and tier.endswith(
        "C kernels, AVX2, 4 threads"
    )


def test_the_drivers_version_is_read(tmp_path: Path) -> None:
    told = tmp_path / "version"
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\nGCC version: 12\n")
    assert machine.nvidia_driver(told) == "570.86.15"


# -- the environment ----------------------------------------------------------------------------------------------


def test_variables() -> None:
    assert [line.status for line in environment.check_environment({})] == ["ok"]
    lines = environment.check_environment({"TORCHDYNAMO_DISABLE": "1", "BURNISH_FUEL": "3", "OMP_NUM_THREADS": "2"})
    assert [line.status for line in lines] == ["ok", "fail", "warn"]
    assert "OMP_NUM_THREADS=2" in lines[0].says and lines[1].command == "unset TORCHDYNAMO_DISABLE"
    assert [line.status for line in environment.check_environment({"TORCHDYNAMO_DISABLE": "0"})] == ["ok"]


def test_a_misspelt_variable() -> None:
    _, line = environment.check_environment({"BURNISH_CACHEDIR": "/x"})
    assert line.status == "warn" and line.advice == "did you mean BURNISH_CACHE_DIR?"


def test_every_variable_that_is_read_is_known() -> None:
    text = Path(sys.modules["burnish.options"].__file__).read_text()
    read = set(re.findall(r'_env\w*\("(BURNISH_[A-Z_]+)"|environ\.get\("(BURNISH_[A-Z_]+)"', text))
    assert {one or other for one, other in read} == set(VARIABLES)
