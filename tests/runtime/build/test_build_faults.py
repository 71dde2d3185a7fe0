"""Building C: however compiler, disk or neighbours fail, the end is a library that works or an error that helps."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from burnish.errors import (
    CompileError,
    CompilerFailed,
    CompilerMissing,
    LibraryUnloadable,
    NativeSourceMissing,
    NoRoomToBuild,
)
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime import process
from burnish.runtime.build import compiler, scratch, shared_library
from burnish.runtime.build.shared_library import CSource, build_shared, native_library
from burnish.runtime.cache.store import Cache, CacheKey
from burnish.runtime.deadline import Deadline

REAL_CC = Options().cc or "cc"
ANSWER = CSource("int answer(void) { return 42; }\n", "answer")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _fresh_build_state() -> Iterator[None]:
    shared_library.forget_loaded()
    yield
    shared_library.forget_loaded()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 64 * MIB)


@pytest.fixture
def log(tmp_path: Path) -> CompileLog:
    return CompileLog(tmp_path / "dump")


@pytest.fixture
def options(tmp_path: Path, cache: Cache) -> Options:
    return replace(Options(), cc=REAL_CC, cache_dir=cache.root, dump_dir=tmp_path / "dump", disable_cache=False)


def fake_cc(tmp_path: Path, body: str) -> str:
    """A compiler that knows its version, counts its other runs in `runs`, and then does `body`."""
    path = tmp_path / "fake-cc"
    version = 'case "$*" in *--version*) echo "fakecc 1.0"; exit 0;; esac'
    path.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/runs\n{version}\n{body}\n')
    path.chmod(0o755)
    return str(path)


def runs(tmp_path: Path) -> list[str]:
    """The command lines the fake compiler was run with."""
    return (tmp_path / "runs").read_text().splitlines() if (tmp_path / "runs").exists() else []


def answer(library: ctypes.CDLL) -> int:
    return int(library.answer())


# -- it works ------------------------------------------------------------------------------------------------------


def test_build_load_and_hit(options: Options, cache: Cache, log: CompileLog) -> None:
    library = build_shared(ANSWER, options=options, cache=cache, log=log)
    assert answer(library) == 42
    assert (log.cache_hits, log.cache_misses) == (0, 1)
    assert log.seconds["cc"] > 0
    assert build_shared(ANSWER, options=options, cache=cache, log=log) is library
    assert build_shared(replace(ANSWER, name="another"), options=options, cache=cache, log=log) is library
    assert (log.cache_hits, log.cache_misses) == (2, 1)
    assert {entry.kind for entry in cache.entries()} == {"library", "compiler"}
    assert list((cache.root / "tmp").iterdir()) == []


def test_a_changed_source_is_a_miss_that_explains_itself(options: Options, cache: Cache, log: CompileLog) -> None:
    build_shared(ANSWER, options=options, cache=cache, log=log)
    build_shared(replace(ANSWER, text=ANSWER.text + "\n"), options=options, cache=cache, log=log)
    assert log.cache_misses == 2
    assert log.cache_reasons[1].startswith("answer: source: ")
    assert "; " not in log.cache_reasons[1]  # nothing else changed


def test_results_round_as_eager_does(options: Options, cache: Cache, log: CompileLog) -> None:
    text = """
    #include <math.h>
    float residue(float a, float b, float c, float d) { return sqrtf(a * b - c * d); }
    float power(float x, float y) { return powf(x, y); }
    int is_nan(float x) { return x != x; }
    float negative_zero(float x) { return x + -0.0f; }
    """
    library = build_shared(CSource(text, "eager"), options=options, cache=cache, log=log)
    library.residue.restype = library.negative_zero.restype = ctypes.c_float
    library.residue.argtypes = [ctypes.c_float] * 4
    library.is_nan.argtypes = library.negative_zero.argtypes = [ctypes.c_float]
    assert library.residue(1.1, 1.3, 1.1, 1.3) == 0.0
    assert library.residue(1.1, 1.7, 1.7, 1.1) == 0.0
    assert b"libm.so" in library_file(cache.root).read_bytes()  # so that powf is this libm's newest, not its oldest
    assert library.is_nan(math.nan)
    assert math.copysign(1.0, library.negative_zero(-0.0)) == -1.0


@pytest.mark.threads
def test_openmp_is_torchs_own(options: Options, cache: Cache, log: CompileLog) -> None:
    text = """
    #include <omp.h>
    int threads(void) {
        int count = 0;
        #pragma omp parallel reduction(+ : count)
        count += 1;
        return count;
    }
    int limit(void) { return omp_get_max_threads(); }
    """
    library = build_shared(CSource(text, "threads"), options=options, cache=cache, log=log)
    assert library.threads() == torch.get_num_threads() == library.limit()
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    assert len(mapped) <= 1


def test_generated_code_calls_the_native_library(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "native"
    directory.mkdir()
    add = "bn_test_add"  # a name of its own: what another test loaded must not serve this one
    (directory / "bn_add.h").write_text(f"int {add}(int a, int b);\n")
    (directory / "bn_add.c").write_text(f'#include "bn_add.h"\nint {add}(int a, int b) {{ return a + b; }}\n')
    more = "int bn_test_more(int a) { return a + 1; }\nvoid bn_use_blas(void *s, void *d) { (void)s, (void)d; }\n"
    (directory / "bn_more.c").write_text(more)
    monkeypatch.setattr(shared_library, "NATIVE_DIR", directory)

    native = native_library(options, cache, log)
    assert native[add](1, 2) == 3
    assert native.bn_test_more(1) == 2
    assert native_library(options, cache, log) is native
    cache.clear()  # an evicted library stays loaded
    caller = CSource(f'#include "bn_add.h"\nint answer(void) {{ return {add}(40, 2); }}\n', "caller")
    assert answer(build_shared(caller, options=options, cache=cache, log=log)) == 42


def test_a_package_without_native_sources(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_library, "NATIVE_DIR", tmp_path)
    with pytest.raises(NativeSourceMissing, match="install it again"):
        native_library(options, cache, log)


def test_two_threads_build_once(options: Options, cache: Cache, log: CompileLog, tmp_path: Path) -> None:
    options = replace(options, cc=fake_cc(tmp_path, f'exec {REAL_CC} "$@"'))
    barrier = threading.Barrier(4)
    libraries: list[ctypes.CDLL] = []

    def work() -> None:
        barrier.wait()
        libraries.append(build_shared(ANSWER, options=options, cache=cache, log=log))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(libraries) == 4
    assert all(library is libraries[0] for library in libraries)
    assert len(runs(tmp_path)) == 3  # --version, compile, link
    assert (log.cache_hits, log.cache_misses) == (3, 1)


def test_source_hash_is_stable_and_covers_the_native_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "burnish"
    monkeypatch.setattr(shared_library, "PACKAGE", package)
    hashes = set()
    for path in ("runtime/build/shared_library.py", "runtime/native/bn.c", "runtime/native/bn.h", "notes.txt"):
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text("text")
        hashes.add(shared_library.source_hash.__wrapped__())
        hashes.add(shared_library.source_hash.__wrapped__())
    assert len(hashes) == 3


# -- the compiler fails --------------------------------------------------------------------------------------------


def test_no_compiler(options: Options, cache: Cache, log: CompileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompilerMissing, match="/nowhere/cc") as raised:
        build_shared(ANSWER, options=replace(options, cc="/nowhere/cc"), cache=cache, log=log)
    assert raised.value.stage == "build"
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CompilerMissing, match="cc, gcc, clang"):
        build_shared(ANSWER, options=replace(options, cc=None), cache=cache, log=log)


def test_a_compiler_with_arguments(options: Options, cache: Cache, log: CompileLog) -> None:
    with_arguments = replace(options, cc=f"{REAL_CC} -DVALUE=7")
    library = build_shared(
        CSource("int answer(void) { return VALUE; }", "arguments"), options=with_arguments, cache=cache, log=log
    )
    assert answer(library) == 7


def test_compile_errors_are_shown_and_the_source_kept(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    broken = CSource("int answer(void) { return undeclared; }\n", "bro/ken")
    with pytest.raises(CompilerFailed) as raised:
        build_shared(broken, options=options, cache=cache, log=log)
    message = str(raised.value)
    assert "bro_ken.c:1" in message
    assert "undeclared" in message
    assert "exit status 1" in message
    assert " -c " in raised.value.command
    assert str(tmp_path / "dump") in message
    assert (tmp_path / "dump" / "bro_ken.c").read_text() == broken.text
    assert not [entry for entry in cache.entries() if entry.kind == "library"]
    assert list((cache.root / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("exit 1", "exit status 1"),
        ("head -c 5000 /dev/urandom; exit 3", "exit status 3"),
        ("printf '\\033[31mfatal error: red\\n'; exit 1", r"\?\[31mfatal error: red"),
        ("kill -9 $$", r"signal 9 \(Killed\)"),
        ("exit 0", r"wrote no answer\.o"),
        ('for last; do :; done; : > "$last"; exit 0', r"wrote no answer\.o"),
    ],
)
def test_a_failing_compiler(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path, body: str, expected: str
) -> None:
    options = replace(options, cc=fake_cc(tmp_path, body))
    with pytest.raises(CompilerFailed, match=expected) as raised:
        build_shared(ANSWER, options=options, cache=cache, log=log)
    assert "fake-cc" in raised.value.command
    assert str(raised.value).isprintable() or "\n" in str(raised.value)
    assert "\x1b" not in str(raised.value)


def test_a_compiler_that_fails_to_say_who_it_is(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    cc = Path(fake_cc(tmp_path, ""))
    cc.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(CompilerFailed, match=r"--version` ended with exit status 9"):
        build_shared(ANSWER, options=replace(options, cc=str(cc)), cache=cache, log=log)


def test_a_compiler_that_is_no_program(options: Options, cache: Cache, log: CompileLog, tmp_path: Path) -> None:
    cc = tmp_path / "cc"
    cc.write_bytes(b"\x7fELF nonsense")
    cc.chmod(0o755)
    with pytest.raises(CompilerFailed, match="cannot be run"):
        build_shared(ANSWER, options=replace(options, cc=str(cc)), cache=cache, log=log)


# -- the compiler hangs --------------------------------------------------------------------------------------------


def is_running(pid_file: Path) -> bool:
    status = Path(f"/proc/{pid_file.read_text().strip()}/status")
    return status.exists() and "State:\tZ" not in status.read_text()  # who reaps an orphan is init's affair


def test_a_hanging_compiler_and_its_children_are_ended(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    hang = f"tail -f /dev/null & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/parent; wait"
    options = replace(options, cc=fake_cc(tmp_path, hang), compiler_seconds=1.5)
    with pytest.raises(CompilerFailed, match=r"did not end within 1\.5.* seconds") as raised:
        build_shared(ANSWER, options=options, cache=cache, log=log)
    assert "BURNISH_COMPILER_SECONDS" in str(raised.value)
    assert len(runs(tmp_path)) == 2  # --version and one compile: no probing of a compiler that is stuck
    assert not is_running(tmp_path / "parent") and not is_running(tmp_path / "child")


def test_a_compiler_that_hung_twice_is_not_run_again(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    options = replace(options, cc=fake_cc(tmp_path, "exec tail -f /dev/null"), compiler_seconds=1.0)
    for number in range(4):
        source = CSource(f"int answer(void) {{ return {number}; }}", f"answer{number}")
        with pytest.raises(CompilerFailed, match="did not end"):
            build_shared(source, options=options, cache=cache, log=log)
    assert len(runs(tmp_path)) == 3  # --version, and two compiles


def test_the_wait_after_a_hang_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits: list[float] = []

    def hang(command: object, output: object, limit_seconds: float, deadline: object) -> str:
        limits.append(limit_seconds)
        raise compiler.CommandFailed(["cc"], None, "did not end", unended=True)

    monkeypatch.setattr(compiler, "run", hang)
    (tmp_path / "a.c").write_text("")
    for _ in range(3):
        with pytest.raises(compiler.CommandFailed):
            compiler.compile_object(compiler.Compiler(("cc",), "", ""), [], tmp_path / "a.c", tmp_path / "a.o")
    assert limits == [compiler.SECONDS, 2.0]


def test_a_compiler_that_ends_after_a_hang_is_trusted_again(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    """One file made it hang, and others do not."""
    build_shared(ANSWER, options=options, cache=cache, log=log)
    library_file(cache.root).rename(tmp_path / "built")
    write = f'while [ "$1" != -o ]; do shift; done; cp {tmp_path}/built "$2"'
    body = f'case "$*" in *hang.c*) exec tail -f /dev/null;; esac; {write}'
    options = replace(options, cc=fake_cc(tmp_path, body), compiler_seconds=1.5)
    hanging = CSource("int answer(void) { return 1; }", "hang")
    for _ in range(2):
        with pytest.raises(CompilerFailed, match="did not end within"):
            build_shared(hanging, options=options, cache=cache, log=log)
        assert answer(build_shared(ANSWER, options=options, cache=cache, log=log)) == 42
        cache.clear()
        shared_library._libraries.clear()


def test_a_larger_source_may_take_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits: list[float] = []
    monkeypatch.setattr(compiler, "run", lambda command, output, limit_seconds, deadline: limits.append(limit_seconds))
    for size in (0, 1 << 16, 1 << 24):
        (tmp_path / "a.c").write_bytes(bytes(size))
        compiler.compile_object(compiler.Compiler(("cc",), "", ""), [], tmp_path / "a.c", tmp_path / "a.o", seconds=20)
    assert limits == [20, 40, 120]


def test_a_compiler_that_gives_way_to_others_may_take_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits: list[float] = []
    monkeypatch.setattr(compiler, "run", lambda command, output, limit_seconds, deadline: limits.append(limit_seconds))
    (tmp_path / "a.c").write_bytes(b"")
    cc, source, output = compiler.Compiler(("cc",), "", ""), tmp_path / "a.c", tmp_path / "a.o"
    for niceness in (0, process.HELPFUL, process.NICE):
        compiler.compile_object(cc, [], source, output, Deadline(niceness=niceness), 20)
    assert limits == [20, 20, 120]


def test_a_compiler_that_never_says_who_it_is(options: Options, cache: Cache, log: CompileLog, tmp_path: Path) -> None:
    cc = Path(fake_cc(tmp_path, ""))
    cc.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/runs\nexec tail -f /dev/null\n')
    options = replace(options, cc=str(cc), compiler_seconds=0.3)
    for _ in range(3):
        with pytest.raises(CompilerFailed, match=r"did not end within 0\.3 seconds"):
            build_shared(ANSWER, options=options, cache=cache, log=log)
    assert len(runs(tmp_path)) == 1


def test_a_compiler_that_prints_without_end(options: Options, cache: Cache, log: CompileLog, tmp_path: Path) -> None:
    options = replace(options, cc=fake_cc(tmp_path, "exec yes error"), compiler_seconds=0.5)
    with pytest.raises(CompilerFailed, match="did not end within"):
        build_shared(ANSWER, options=options, cache=cache, log=log)


def test_what_a_command_prints_is_kept_up_to_a_size(tmp_path: Path) -> None:
    printed = compiler.run(["/bin/sh", "-c", "head -c 1000000 /dev/zero"])
    assert 0 < len(printed) <= 1 << 16


@pytest.mark.skipif(shutil.which("setsid") is None, reason="no setsid here")
def test_a_child_that_keeps_the_output_open_is_not_waited_for(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    """As a daemon that a wrapper of compilers starts: it is in a session of its own, and outlives the compile."""
    body = f'setsid tail -f /dev/null & echo $! > {tmp_path}/daemon; exec {REAL_CC} "$@"'
    options = replace(options, cc=fake_cc(tmp_path, body))
    try:
        assert answer(build_shared(ANSWER, options=options, cache=cache, log=log)) == 42
    finally:
        os.kill(int((tmp_path / "daemon").read_text()), 9)


def test_a_compiler_that_writes_nonsense(options: Options, cache: Cache, log: CompileLog, tmp_path: Path) -> None:
    nonsense = 'while [ "$1" != -o ]; do shift; done; head -c 9000 /dev/zero > "$2"'
    with pytest.raises(LibraryUnloadable, match="cannot be loaded"):
        build_shared(ANSWER, options=replace(options, cc=fake_cc(tmp_path, nonsense)), cache=cache, log=log)
    assert not [entry for entry in cache.entries() if entry.kind == "library"]  # nobody else shall meet it


def test_a_linker_that_leaves_half_a_library(options: Options, cache: Cache, log: CompileLog, tmp_path: Path) -> None:
    """As on a full disk that it does not notice: loaded, it would end the process."""
    cut = f'{REAL_CC} "$@" || exit; for last; do case "$last" in *.so) truncate -s 3000 "$last";; esac; done'
    with pytest.raises(LibraryUnloadable, match="too short"):
        build_shared(ANSWER, options=replace(options, cc=fake_cc(tmp_path, cut)), cache=cache, log=log)
    assert not [entry for entry in cache.entries() if entry.kind == "library"]


def test_a_compiler_named_with_half_a_quotation(options: Options, cache: Cache, log: CompileLog) -> None:
    with pytest.raises(CompilerMissing, match="gcc -DX='a"):
        build_shared(ANSWER, options=replace(options, cc="gcc -DX='a"), cache=cache, log=log)


def test_a_missing_symbol_is_an_error_and_not_a_crash(options: Options, cache: Cache, log: CompileLog) -> None:
    caller = CSource("int bn_test_nowhere(void);\nint answer(void) { return bn_test_nowhere(); }", "caller")
    with pytest.raises(LibraryUnloadable, match="bn_test_nowhere"):
        build_shared(caller, options=options, cache=cache, log=log)


# -- the compiler lacks something ----------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", ["-march=native", "-fopenmp"])
def test_unknown_flags_are_found_and_left_out(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path, unknown: str
) -> None:
    body = f'case " $* " in *" {unknown} "*) echo "error: unknown {unknown}"; exit 1;; esac; exec {REAL_CC} "$@"'
    options = replace(options, cc=fake_cc(tmp_path, body))
    assert answer(build_shared(ANSWER, options=options, cache=cache, log=log)) == 42
    before = len(runs(tmp_path))
    other = CSource("int answer(void) { return 43; }", "other")
    assert answer(build_shared(other, options=options, cache=cache, log=log)) == 43
    assert len(runs(tmp_path)) == before + 2  # the compiler's limits are known now: compile, link


def test_an_error_in_the_source_is_not_blamed_on_flags(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    options = replace(options, cc=fake_cc(tmp_path, f'exec {REAL_CC} "$@"'))
    for name in ("first", "second"):
        with pytest.raises(CompilerFailed, match="nonsense"):
            build_shared(CSource(f"int {name}(void) {{ nonsense }}", name), options=options, cache=cache, log=log)
    assert "-march=native" in runs(tmp_path)[-1]


def test_a_compiler_that_recovers_keeps_its_flags(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    (tmp_path / "broken").write_text("")
    body = f'test -e {tmp_path}/broken && exit 1; exec {REAL_CC} "$@"'
    options = replace(options, cc=fake_cc(tmp_path, body))
    with pytest.raises(CompilerFailed):
        build_shared(ANSWER, options=options, cache=cache, log=log)
    (tmp_path / "broken").unlink()
    assert answer(build_shared(ANSWER, options=options, cache=cache, log=log)) == 42
    assert "-march=native -fopenmp" in runs(tmp_path)[-2]


@pytest.mark.parametrize("linkable", [True, False])
def test_an_openmp_runtime_torch_does_not_have(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path, linkable: bool
) -> None:
    """A symbol of OpenMP's that is loaded nowhere; linking with -fopenmp provides it, or does not."""
    text = """
    #ifdef _OPENMP
    int GOMP_bn_test(void);
    int answer(void) { return GOMP_bn_test(); }
    #else
    int answer(void) { return 2; }
    #endif
    """
    (tmp_path / "gomp.c").write_text("int GOMP_bn_test(void) { return 1; }")
    extra = f"set -- {tmp_path}/gomp.c -fPIC" if linkable else "exit 1"
    body = f'case " $* " in *" -shared "*"-fopenmp"*) {extra} "$@";; esac; exec {REAL_CC} "$@"'
    options = replace(options, cc=fake_cc(tmp_path, body))
    library = build_shared(CSource(text, "openmp"), options=options, cache=cache, log=log)
    assert answer(library) == (1 if linkable else 2)


# -- the disk fails ------------------------------------------------------------------------------------------------


def test_an_unusable_cache_costs_only_the_cache(options: Options, log: CompileLog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache", MIB)
    library = build_shared(ANSWER, options=options, cache=cache, log=log)
    assert answer(library) == 42
    assert build_shared(ANSWER, options=options, cache=cache, log=log) is library
    assert "cache not used" in log.cache_reasons[0]


def test_a_full_disk_costs_only_the_cache(
    options: Options, cache: Cache, log: CompileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("burnish.runtime.cache.store.write_file", full)
    assert answer(build_shared(ANSWER, options=options, cache=cache, log=log)) == 42
    assert cache.entries() == []


def test_a_compiler_out_of_room_in_the_cache_builds_elsewhere(
    options: Options, cache: Cache, log: CompileLog, tmp_path: Path
) -> None:
    body = f'case "$*" in *{cache.root}*) echo "fatal error: No space left on device"; exit 1;; esac'
    options = replace(options, cc=fake_cc(tmp_path, f'{body}; exec {REAL_CC} "$@"'))
    assert answer(build_shared(ANSWER, options=options, cache=cache, log=log)) == 42


def test_nowhere_to_build(options: Options, cache: Cache, log: CompileLog, tmp_path: Path) -> None:
    options = replace(options, cc=fake_cc(tmp_path, 'echo "fatal error: No space left on device"; exit 1'))
    with pytest.raises(NoRoomToBuild, match="BURNISH_CACHE_DIR") as raised:
        build_shared(ANSWER, options=options, cache=cache, log=log)
    assert isinstance(raised.value, CompileError)
    assert raised.value.stage == "build"


def test_no_temporary_directory_either(
    options: Options, log: CompileLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **named: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    scratch._directory_of.cache_clear()
    (tmp_path / "file").write_text("")
    with pytest.raises(NoRoomToBuild, match="No space left"):
        build_shared(ANSWER, options=options, cache=Cache(tmp_path / "file" / "cache", MIB), log=log)


def test_an_entry_evicted_after_it_was_read_is_loaded(
    options: Options, cache: Cache, log: CompileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_shared(ANSWER, options=options, cache=cache, log=log)
    shared_library.forget_loaded()
    read = cache.get

    def evicted(kind: str, key: CacheKey) -> bytes | None:
        data = read(kind, key)
        if kind == "library":
            cache.clear()
        return data

    monkeypatch.setattr(cache, "get", evicted)
    assert answer(build_shared(ANSWER, options=options, cache=cache, log=log)) == 42
    assert (log.cache_hits, log.cache_misses) == (1, 1)


# -- another process -----------------------------------------------------------------------------------------------

CHILD = """
import sys
from dataclasses import replace
from pathlib import Path
from burnish.options import Options
from burnish.runtime.build.shared_library import CSource, build_shared
from burnish.runtime.cache.store import Cache
from burnish.observe.log import CompileLog
root, cc = Path(sys.argv[1]), sys.argv[2]
log = CompileLog()
options = replace(Options(), cc=cc, cache_dir=root)
source = CSource("int answer(void) { return 42; }\\n", "answer")
library = build_shared(source, options=options, cache=Cache(root, 1 << 26), log=log)
print(library.answer(), log.cache_hits, log.cache_misses)
print(*log.cache_reasons, file=sys.stderr)
"""


def child(tmp_path: Path, root: Path, cc: str) -> str:
    """Build ANSWER in a process of its own, with a copy of the package: its sources are part of the key, and an edit
    to them while this test runs would be a miss."""
    if not (tmp_path / "package").exists():
        package = Path(shared_library.__file__).parents[1]
        shutil.copytree(package, tmp_path / "package" / "burnish", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "package"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), cc],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,  # -c puts it first on the path
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr)  # why it missed, for the report of a test that fails
    return done.stdout.strip()


def library_file(root: Path) -> Path:
    (path,) = (root / "library").glob("*/*/data")
    return path


def test_a_second_process_runs_no_compiler_and_loads_nothing_altered(tmp_path: Path) -> None:
    root, cc = tmp_path / "cache", fake_cc(tmp_path, f'exec {REAL_CC} "$@"')
    assert child(tmp_path, root, cc) == "42 0 1"
    assert len(runs(tmp_path)) == 3  # --version, compile, link
    assert child(tmp_path, root, cc) == "42 1 0"
    assert len(runs(tmp_path)) == 3  # not even --version
    code = library_file(root)
    honest = code.read_bytes()
    code.write_bytes(honest.replace((42).to_bytes(4, "little"), (43).to_bytes(4, "little")))
    assert code.read_bytes() != honest
    assert child(tmp_path, root, cc) == "42 0 1"  # not 43: the altered bytes were never run
    assert len(runs(tmp_path)) == 5
    assert library_file(root).read_bytes() == honest


def test_what_a_process_builds_without_a_cache_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert child(tmp_path, tmp_path / "file" / "cache", REAL_CC) == "42 0 1"
    assert not list(tmp_path.glob("burnish-*"))


def test_an_updated_compiler_is_asked_again(options: Options, cache: Cache, log: CompileLog, tmp_path: Path) -> None:
    cc = Path(fake_cc(tmp_path, f'exec {REAL_CC} "$@"'))
    options = replace(options, cc=str(cc))
    build_shared(ANSWER, options=options, cache=cache, log=log)
    cc.write_text(cc.read_text().replace("fakecc 1.0", "fakecc 2.00"))
    build_shared(ANSWER, options=options, cache=cache, log=log)
    assert log.cache_misses == 2
    assert "compiler version: fakecc 1.0 -> fakecc 2.00" in log.cache_reasons[1]
