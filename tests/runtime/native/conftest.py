"""The C runtime, built for these tests alone, and its structs as ctypes sees them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch  # noqa: F401  (its OpenMP runtime must be loaded before a library that leaves OpenMP's symbols open)

import burnish.runtime

NATIVE = Path(burnish.runtime.__file__).parent / "native"
FLAGS = ["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-std=gnu11"]
STRICT = ["-Wall", "-Wextra", "-Werror"]

Build = Callable[[str, Sequence[Path], Sequence[str]], ctypes.CDLL]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles C files into a shared library, one compiler process a file, and loads it."""
    cc = shutil.which("gcc") or shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("native")

    def compiled(name: str, sources: Sequence[Path], extra: Sequence[str]) -> ctypes.CDLL:
        objects = [folder / f"{name}-{source.stem}.o" for source in sources]
        compilers = [
            subprocess.Popen([cc, *FLAGS, *STRICT, *extra, f"-I{NATIVE}", "-c", str(source), "-o", str(target)])
            for source, target in zip(sources, objects, strict=True)
        ]
        assert [compiler.wait() for compiler in compilers] == [0] * len(sources)
        library = folder / f"{name}.so"
        # Linked without -fopenmp: the thread pool is torch's.
        subprocess.run([cc, "-shared", "-o", str(library), *map(str, objects), "-lm"], check=True)
        return ctypes.CDLL(str(library))

    return compiled


@pytest.fixture(scope="session")
def native(build: Build) -> ctypes.CDLL:
    return build("runtime", sorted(NATIVE.glob("*.c")), ["-ffp-contract=fast"])
