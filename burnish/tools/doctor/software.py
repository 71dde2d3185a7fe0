"""Python, torch, Triton and the C compiler: are they installed, do they work, are they compatible?"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import CompilerMissing
from burnish.runtime.build.compiler import CommandFailed, locate, run
from burnish.runtime.build.shared_library import GENERATED_FLAGS
from burnish.tools.doctor.line import Line, Status
from burnish.torch_private.names import EAGER
from burnish.torch_private.probe import probe
from burnish.torch_private.versions import KNOWN, version_pair

SUPPORTED_PYTHON = ((3, 11), (3, 14))
SUPPORTED_TORCH = KNOWN
SUPPORTED_TRITON = (3, 6)

_INSTALL_CC = "apt-get install gcc  # or: dnf install gcc, conda install gcc, xcode-select --install"

# Flags that a compiler may not know, in the order in which to try without them.
_LEFT_OUT: tuple[tuple[str, ...], ...] = ((), ("-fopenmp",), ("-march=native",), ("-fopenmp", "-march=native"))

# One line of work, as a kernel of ours would do it. OpenMP's header is not needed, and may be missing.
_KERNEL = """
#ifdef _OPENMP
int omp_get_max_threads(void);
int bn_doctor_threads(void) { return omp_get_max_threads(); }
#else
int bn_doctor_threads(void) { return 0; }
#endif
float bn_doctor_sum(const float *x, int n) {
    float s = 0;
    #pragma omp parallel for simd reduction(+:s)
    for (int i = 0; i < n; i++) s += x[i] * 2.0f;
    return s;
}
const char *bn_doctor_vectors(void) {
#if defined(__AVX512F__)
    return "AVX512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "generic";
#endif
}
"""


def _span(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(f"{major}.{minor}" for major, minor in versions)


def check_python(version: tuple[int, int, int] | None = None, free_threaded: bool | None = None) -> Line:
    major, minor, micro = version or sys.version_info[:3]
    shown = f"{major}.{minor}.{micro}"
    low, high = SUPPORTED_PYTHON
    if not low <= (major, minor) <= high:
        return Line(
            "python",
            "fail",
            f"{shown} is not supported ({_span(SUPPORTED_PYTHON)} are): nothing is compiled",
            "run under a supported Python",
            f"python{high[0]}.{high[1]} -m venv .venv && .venv/bin/pip install burnish",
        )
    if bool(sysconfig.get_config_var("Py_GIL_DISABLED")) if free_threaded is None else free_threaded:
        return Line("python", "warn", f"{shown}, free-threaded: not tested with it", "use the ordinary build")
    return Line("python", "ok", shown)


def check_torch(version: str | None = None) -> Line:
    import torch

    version = str(torch.__version__) if version is None else version
    pair = version_pair(version)
    low, high = SUPPORTED_TORCH
    install = f"pip install 'torch>={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}'"
    if pair is None or pair < low:
        return Line(
            "torch", "fail", f"{version} is too old: burnish needs {_span(SUPPORTED_TORCH)}", "upgrade", install
        )
    if pair > high:
        says = f"{version} is newer than burnish knows ({_span(SUPPORTED_TORCH)}): what fails to compile runs in eager"
        return Line("torch", "warn", says, "upgrade burnish, or install a torch it knows", install)
    if re.search(r"dev|git|a0|rc", version):
        return Line("torch", "warn", f"{version} is not a release: not tested with it", "use a release", install)
    return Line("torch", "ok", f"{version}, supported ({_span(SUPPORTED_TORCH)})")


def check_private_names() -> Line:
    """Which of torch's private names are missing, and what is lost without them."""
    found = probe()
    if not found.missing:
        return Line("private", "ok", str(found))
    status: Status = "fail" if any(name.fallback == EAGER for name in found.missing) else "warn"
    lost = "; ".join(f"no {name.path}: {name.fallback}" for name in found.missing)
    return Line("private", status, f"{found}. {lost}", "install a torch that burnish knows, or a newer burnish")


def check_triton(has_gpu: bool) -> Line:
    install = "pip install 'burnish[triton]'"
    version = triton_version()
    if version is None:
        if has_gpu:
            return Line("triton", "fail", "not installed: on the GPU models run in eager", "install it", install)
        return Line("triton", "ok", "not installed, and not needed: it is for NVIDIA GPUs")
    pair = version_pair(version)
    status: Status = "fail" if has_gpu else "warn"
    if pair is None or pair < SUPPORTED_TRITON:
        return Line("triton", status, f"{version} is too old for generated kernels", "upgrade", install)
    if not has_gpu:
        return Line("triton", "ok", f"{version}; not used without an NVIDIA GPU")
    try:
        importlib.import_module("triton")
    except Exception as error:
        return Line("triton", "fail", f"{version} cannot be imported: {error}", "install it again", install)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():  # Triton builds its launchers in C, at the first call
        install = f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-dev"
        return Line("triton", "fail", f"{version}, but {header} is missing: no kernel can start", "install it", install)
    return Line("triton", "ok", f"{version}: kernels for the GPU")


def triton_version() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class _Remaining:
    """A time limit over several commands."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(self._end - time.monotonic(), 0.01)


@dataclass(frozen=True)
class CompilerFound:
    """What the compiler check found out, beside its line."""

    line: Line
    works: bool = False
    threads: int = 0  # OpenMP's; 0 without OpenMP
    vectors: str = ""  # what -march=native lets kernels use


def check_compiler(requested: str | None, limit_seconds: float = 2.0) -> CompilerFound:
    """Find it, ask who it is, compile a one-line kernel with the flags that models are compiled with, and run it.
    All that within the limit: no process of ours is left when it returns."""
    clock = _Remaining(limit_seconds)
    try:
        command = locate(requested)
    except CompilerMissing as error:
        advice = "install one, or name one" if requested is None else "BURNISH_CC or CC names no command: correct it"
        fix = _INSTALL_CC if requested is None else "unset BURNISH_CC CC  # or: export BURNISH_CC=/path/to/gcc"
        says = f"{error.reason}: on the CPU, what is not in the cache runs in eager"
        return CompilerFound(Line("compiler", "fail", says, advice, fix))
    try:
        version = run([*command, "--version"], limit_seconds=clock.left()).splitlines()[:1]
        with tempfile.TemporaryDirectory(prefix="burnish-doctor-", ignore_cleanup_errors=True) as folder:
            return _try_kernel(command, version[0] if version else "unknown", Path(folder), clock)
    except (CommandFailed, OSError) as error:
        told = (error.first_errors or error.status) if isinstance(error, CommandFailed) else str(error)
        says = (
            f"{command[0]} does not work ({told.splitlines()[0]}): on the CPU, what is not in the cache runs in eager"
        )
        return CompilerFound(Line("compiler", "fail", says, "repair it", _INSTALL_CC))


def _try_kernel(command: Sequence[str], version: str, folder: Path, clock: _Remaining) -> CompilerFound:
    for tried, dropped in enumerate(_LEFT_OUT):
        flags = [flag for flag in GENERATED_FLAGS if flag not in dropped]
        try:
            library = _build_kernel(command, flags, folder / f"kernel{tried}.so", clock)
        except CommandFailed as error:
            if not error.refused:
                raise
            refusal = error
            continue
        return _ran(command[0], version, library, dropped)
    raise refusal


def _build_kernel(command: Sequence[str], flags: Sequence[str], output: Path, clock: _Remaining) -> ctypes.CDLL:
    source, built = output.with_suffix(".c"), output.with_suffix(".o")
    source.write_text(_KERNEL)
    run([*command, *flags, "-c", str(source), "-o", str(built)], built, limit_seconds=clock.left())
    link = [*command, "-shared", str(built), "-o", str(output), "-lm"]
    for runtime in ([], ["-fopenmp"]):  # torch's OpenMP if it serves, as in a real build, else the compiler's own
        run([*link, *runtime], output, limit_seconds=clock.left())
        try:
            return ctypes.CDLL(str(output))
        except OSError as error:
            problem = error
    raise CommandFailed(link, None, f"error: what it builds cannot be loaded: {problem}")


def _ran(path: str, version: str, library: ctypes.CDLL, dropped: Sequence[str]) -> CompilerFound:
    library.bn_doctor_sum.restype = ctypes.c_float
    library.bn_doctor_vectors.restype = ctypes.c_char_p
    numbers = (ctypes.c_float * 1000)(*range(1000))
    result, threads = library.bn_doctor_sum(numbers, 1000), int(library.bn_doctor_threads())
    vectors = library.bn_doctor_vectors().decode()
    who = f"{version} ({path})"
    if result != 999000.0:
        says = f"{who} builds kernels that compute {result} where 999000 is right"
        return CompilerFound(Line("compiler", "fail", says, "use another compiler", "export BURNISH_CC=/path/to/gcc"))
    if dropped:
        says = f"{who} does not know {' and '.join(dropped)}: kernels are slower than they could be"
        return CompilerFound(
            Line("compiler", "warn", says, "use gcc or clang with OpenMP", _INSTALL_CC), True, threads, vectors
        )
    return CompilerFound(Line("compiler", "ok", f"{who}: built and ran a kernel"), True, threads, vectors)
