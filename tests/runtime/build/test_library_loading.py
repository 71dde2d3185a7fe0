"""Libraries are loaded from bytes in memory, and leave nothing open or on disk."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from burnish.options import Options
from burnish.runtime.build import library_loading
from burnish.runtime.build.library_loading import CannotLoad, load_library
from burnish.runtime.build.scratch import own_directory

linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd here")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Three libraries, each with another answer."""
    folder, cc = tmp_path_factory.mktemp("libraries"), Options().cc or "cc"
    for number in range(3):
        (folder / "a.c").write_text(f"int answer(void) {{ return {number}; }}")
        subprocess.run([cc, "-shared", "-fPIC", "a.c", "-o", f"{number}.so"], cwd=folder, check=True)
    return [(folder / f"{number}.so").read_bytes() for number in range(3)]


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@linux
def test_each_library_is_its_own_though_their_numbers_are_the_same(compiled: list[bytes]) -> None:
    before = descriptors()
    loaded = [load_library(compiled[n % 3], f"library {n}", exported=False) for n in range(30)]
    assert [library.answer() for library in loaded] == [n % 3 for n in range(30)]
    assert len({library._handle for library in loaded}) == 30
    assert descriptors() == before


@linux
def test_it_has_a_name_in_the_map_of_memory(compiled: list[bytes]) -> None:
    load_library(compiled[0], "mlp (forward)\n", exported=False)
    assert "/memfd:burnish-mlp_(forward)_ (deleted)" in Path("/proc/self/maps").read_text()


@linux
def test_nobody_can_change_what_is_loaded(compiled: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    dlopen = library_loading._dlopen

    def tampering(path: str, mode: int) -> ctypes.CDLL:
        descriptor = int(path.rsplit("/", 1)[1])
        for attempt in (lambda: os.pwrite(descriptor, b"!", 0), lambda: os.truncate(path, 0)):
            with pytest.raises(PermissionError):
                attempt()
        return dlopen(path, mode)

    monkeypatch.setattr(library_loading, "_dlopen", tampering)
    assert load_library(compiled[1], "sealed", exported=False).answer() == 1


@linux
def test_a_forked_child_calls_it(compiled: list[bytes]) -> None:
    library = load_library(compiled[2], "forked", exported=False)
    child = os.fork()
    if not child:
        os._exit(library.answer() + load_library(compiled[1], "the child's", exported=False).answer())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@linux
def test_a_library_cut_off_anywhere_is_refused_or_whole_enough(compiled: list[bytes]) -> None:
    """In a child: dlopen of a library that lacks pages it promises ends the process."""
    whole, child = compiled[1], os.fork()
    if not child:
        try:
            for length in (0, 3, 20, 64, 100, *range(512, len(whole), 512), len(whole) - 1):
                with contextlib.suppress(CannotLoad):
                    assert load_library(whole[:length], "cut off", exported=False).answer() == 1
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("missing", ["memfd", "/proc"])
def test_without_a_memfd_a_file_serves(compiled: list[bytes], monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    before = set(own_directory().iterdir())
    if missing == "memfd":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    else:
        real = ctypes.CDLL

        def unmounted(path: str, mode: int) -> ctypes.CDLL:
            if path.startswith("/proc"):
                raise OSError("No such file or directory")
            return real(path, mode=mode)

        monkeypatch.setattr(ctypes, "CDLL", unmounted)
    loaded = [load_library(compiled[n % 3], "a library", exported=False) for n in range(6)]
    assert [library.answer() for library in loaded] == [0, 1, 2, 0, 1, 2]
    assert set(own_directory().iterdir()) == before


def test_what_dlopen_takes_for_another_is_not_used(compiled: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would if a file's number, or a path, came round again."""
    known = load_library(compiled[0], "known", exported=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode: known)
    with pytest.raises(CannotLoad, match="loaded already"):
        load_library(compiled[1], "another", exported=False)


def test_nonsense_cannot_be_loaded() -> None:
    before = descriptors() if hasattr(os, "memfd_create") else set()
    with pytest.raises(CannotLoad):
        load_library(b"\x7fELF nonsense", "nonsense", exported=False)
    assert not before or descriptors() == before
