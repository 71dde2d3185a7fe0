"""Kernels onto the device: compiled Triton kernels loaded, and a segment of launches run in one native call.

A launch is prepared ("baked") once for each workspace: its grid is computed, and its parameters are addresses of slots
in the workspace's table. So a call writes the changed slots and makes one native call for each segment. Without a C
compiler, Triton's own launcher is used, one Python call for each kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from burnish.errors import CompileError
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.scratch import own_directory
from burnish.runtime.build.shared_library import NATIVE_DIR, CSource, build_shared
from burnish.runtime.cache.store import open_cache
from burnish.runtime.process import has_started
from burnish.runtime.triton.build import KernelBuilder
from burnish.runtime.triton.compile import BuiltKernel, KernelSource, compile_with_triton, described

DRIVER_LIBRARY = "libcuda.so.1"
_DRIVER_CALLS = 15  # function pointers in the C file's `driver`
_WARP = 32
_BUILDERS = 8  # kernels compiled at a time by Triton's launcher


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel as a launch needs it; `handle` is the driver's, or Triton's own object."""

    name: str
    handle: Any
    warps: int
    shared: int
    cluster: int = 1
    dependent: bool = False  # programmatic dependent launch
    cooperative: bool = False
    scratch: int = 0  # bytes of device memory for each program
    constants: tuple[Any, ...] = ()  # compile-time arguments, which Triton's launcher wants to see again

    @property
    def threads(self) -> int:
        return self.warps * _WARP


@dataclass(frozen=True)
class Launch:
    """One launch with its sizes put in: the grid, and which slot of the table each parameter is. One that `waits` is
    there only when all that is ahead of it on the stream has ended."""

    kernel: Kernel
    grid: tuple[int, int, int]
    slots: tuple[int, ...]
    waits: bool = False

    @property
    def scratch(self) -> int:
        x, y, z = self.grid
        return self.kernel.scratch * self.kernel.cluster * x * y * z


Loading = Callable[[], list[Kernel]]
Table = ctypes.Array  # of c_int64: addresses and sizes


class Launcher(Protocol):
    """`bake` makes of a segment what `launch` takes; `launch` returns the driver's error code, 0 for none."""

    @property
    def launch(self) -> Callable[[Any], int]: ...

    def begin(self, sources: Sequence[KernelSource], builder: KernelBuilder, log: CompileLog) -> Loading:
        """Start building kernels. Returns a function that waits for them, and loads them onto the device."""

    def bake(self, launches: Sequence[Launch], table: Table, stream: int, scratch: Sequence[int]) -> Any: ...

    def error(self, code: int) -> CompileError: ...

    def apart(self) -> Launcher:
        """A separate launcher for the same device. Its kernels are unloaded by its `close`."""

    def close(self) -> None:
        """Unload what was loaded: nothing of it may be running, or in a graph."""


# -- ours ---------------------------------------------------------------------------------------------------------


class _Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("dependent", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
    )


class _Segment(ctypes.Structure):
    _fields_ = (
        ("driver", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("launches", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


class Baked(ctypes.c_void_p):
    """The address of a segment, with everything it points to kept alive."""

    kept: tuple[Any, ...]


class NativeLauncher:
    """`driver` names the library with the driver's functions: tests pass one that records its calls."""

    def __init__(self, library: ctypes.CDLL, device: int, driver: str = DRIVER_LIBRARY) -> None:
        self.library, self.device, self._name = library, device, driver
        self.launch: Callable[[Any], int] = library.bn_cuda_launch
        self.launch_address = ctypes.cast(library.bn_cuda_launch, ctypes.c_void_p).value or 0
        library.bn_cuda_error.restype = ctypes.c_char_p
        self._loaded: dict[BuiltKernel, Kernel] = {}
        self._lock = threading.Lock()
        self._calls = (ctypes.c_void_p * _DRIVER_CALLS)()
        self._driver = ctypes.c_void_p(ctypes.addressof(self._calls))
        self._check(library.bn_cuda_open(driver.encode(), self._driver))
        self._context = ctypes.c_void_p()
        self._check(library.bn_cuda_context(self._driver, device, ctypes.byref(self._context)))

    def begin(self, sources: Sequence[KernelSource], builder: KernelBuilder, log: CompileLog) -> Loading:
        finish = builder.begin(sources, log)
        return lambda: [self.load_one(built) for built in finish()]

    def load_one(self, built: BuiltKernel) -> Kernel:
        """Each distinct kernel is loaded once."""
        with self._lock:
            if built not in self._loaded:
                self._loaded[built] = self._load(built)
            return self._loaded[built]

    def apart(self) -> NativeLauncher:
        return NativeLauncher(self.library, self.device, self._name)

    def close(self) -> None:
        with self._lock:
            while self._loaded:
                _, kernel = self._loaded.popitem()
                self._check(self.library.bn_cuda_unload(self._driver, self._context, ctypes.c_void_p(kernel.handle)))

    def _load(self, built: BuiltKernel) -> Kernel:
        kernel = _described(built, None)
        function = ctypes.c_void_p()
        code = self.library.bn_cuda_load(
            self._driver,
            self._context,
            self.device,
            ctypes.c_char_p(built.cubin),
            built.name.encode(),
            kernel.shared,
            kernel.threads,
            kernel.cluster,
            ctypes.byref(function),
        )
        self._check(code, built.name)
        return dataclasses.replace(kernel, handle=function.value)

    def bake(self, launches: Sequence[Launch], table: Table, stream: int, scratch: Sequence[int]) -> Baked:
        baked = (_Launch * max(len(launches), 1))()
        kept: list[Any] = [baked, table]
        base = ctypes.addressof(table)
        for n, launch in enumerate(launches):
            tail = (ctypes.c_uint64 * 2)(scratch[n], 0)  # every kernel's last two: scratch, and a profiler's
            slots = [base + 8 * slot for slot in launch.slots]  # little endian: a 32-bit size is its slot's first half
            params = (ctypes.c_void_p * (len(slots) + 2))(*slots, ctypes.addressof(tail), ctypes.addressof(tail) + 8)
            kernel = launch.kernel
            baked[n] = _Launch(
                kernel.handle,
                ctypes.addressof(params),
                launch.grid,
                kernel.threads,
                kernel.shared,
                kernel.cluster,
                kernel.dependent and not launch.waits,
                kernel.cooperative,
            )
            kept += [tail, params]
        segment = _Segment(self._driver, self._context, stream, ctypes.addressof(baked), len(launches))
        out = Baked(ctypes.addressof(segment))
        out.kept = (segment, *kept)
        return out

    def error(self, code: int, what: str = "a launch") -> CompileError:
        text = self.library.bn_cuda_error(self._driver, code)
        return CompileError("run", f"{what} failed: {text.decode()}")

    def _check(self, code: int, what: str = "the CUDA driver") -> None:
        if code:
            raise self.error(code, what)


def _described(built: BuiltKernel, handle: Any, constants: tuple[Any, ...] = ()) -> Kernel:
    return Kernel(
        built.name,
        handle,
        warps=built.warps,
        shared=built.shared,
        cluster=built.cluster,
        dependent=built.dependent,
        cooperative=built.cooperative,
        scratch=built.scratch,
        constants=constants,
    )


# -- Triton's -----------------------------------------------------------------------------------------------------


class TritonLauncher:
    """Slower by some microseconds a kernel, but needs only Triton."""

    def __init__(self, device: int) -> None:
        self.device = device

    def begin(self, sources: Sequence[KernelSource], builder: KernelBuilder, log: CompileLog) -> Loading:
        return lambda: self._load_all(sources)

    def _load_all(self, sources: Sequence[KernelSource]) -> list[Kernel]:
        """Its launches need Triton's own objects: they are made here, in threads. They are all alike, so none of them
        may be there before the one ahead of it ends."""
        sources = [dataclasses.replace(source, overlapped=False) for source in sources]
        with ThreadPoolExecutor(_BUILDERS) as pool:
            made = pool.map(lambda source: compile_with_triton(source, own_directory()), sources)
        return [self._load(compiled, source) for compiled, source in zip(made, sources, strict=True)]

    def _load(self, compiled: Any, source: KernelSource) -> Kernel:
        with torch.cuda.device(self.device):
            compiled._init_handles()
        constants = tuple(value for _, value in sorted(compiled.src.constants.items()))
        return _described(described(compiled), compiled, constants)

    def bake(self, launches: Sequence[Launch], table: Table, stream: int, scratch: Sequence[int]) -> list[Any]:
        return [(launch.kernel.handle.run, launch, table, stream) for launch in launches]

    def launch(self, baked: Any) -> int:
        elsewhere = torch.cuda.current_device() != self.device
        with torch.cuda.device(self.device) if elsewhere else contextlib.nullcontext():
            for run, launch, table, stream in baked:
                kernel = launch.kernel
                args = [table[slot] for slot in launch.slots]
                metadata = kernel.handle.packed_metadata
                run(*launch.grid, stream, kernel.handle.function, metadata, None, None, None, *args, *kernel.constants)
        return 0

    def error(self, code: int) -> CompileError:
        return CompileError("run", f"a launch failed with {code}")

    def apart(self) -> TritonLauncher:
        return self

    def close(self) -> None:
        """Triton never unloads."""


# -- one for each device ------------------------------------------------------------------------------------------

_launchers: dict[int, Launcher] = {}
_guard = threading.Lock()


def launcher_for(device: int, options: Options, log: CompileLog) -> Launcher:
    with _guard:
        if device not in _launchers:
            _launchers[device] = _make(device, options, log)
        return _launchers[device]


def _make(device: int, options: Options, log: CompileLog) -> Launcher:
    try:
        return NativeLauncher(launch_library(options, log), device)
    except CompileError as error:
        log.fallback("launcher", error)
        return TritonLauncher(device)


def launch_library(options: Options, log: CompileLog) -> ctypes.CDLL:
    text = (NATIVE_DIR / "cuda" / "launch.c").read_text(encoding="utf-8")
    return build_shared(CSource(text, "CUDA launcher"), options=options, cache=open_cache(options), log=log)


def prepare_launcher(options: Options) -> None:
    """Compile it in the background. A failure is silent here and occurs again when it is needed."""

    def build() -> None:
        with contextlib.suppress(Exception):
            launch_library(options, CompileLog())

    has_started(threading.Thread(target=build, name="burnish-launcher", daemon=True))
