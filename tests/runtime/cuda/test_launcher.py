"""The native launcher against a driver that only writes down what it is told."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import CompileError
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build.shared_library import NATIVE_DIR
from burnish.runtime.cuda.launch import Kernel, Launch, NativeLauncher, launch_library
from burnish.runtime.triton.compile import BuiltKernel

HERE = Path(__file__).parent


def built(name: str = "k", **facts: Any) -> BuiltKernel:
    return BuiltKernel(name, b"\x7fELF\0image", **{"warps": 4, "shared": 0} | facts)


class Driver:
    """The fake driver's memory."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)

    def number(self, name: str) -> ctypes.c_int64:
        return ctypes.c_int64.in_dll(self.library, name)

    def launches(self) -> list[list[int]]:
        rows = ((ctypes.c_int64 * 24) * 64).in_dll(self.library, "log_launches")
        return [list(rows[k]) for k in range(self.number("log_count").value)]

    def attributes_set(self) -> list[list[int]]:
        rows = ((ctypes.c_int64 * 2) * 8).in_dll(self.library, "function_attributes")
        return [list(rows[k]) for k in range(self.number("function_attribute_count").value)]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    built = tmp_path / "libfake.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, HERE / "fake_driver.c"], check=True)
    return Driver(built)


@pytest.fixture
def library() -> ctypes.CDLL:
    return launch_library(Options(), CompileLog())


def table_of(*values: int) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def test_one_native_call_makes_every_launch_of_a_segment(driver: Driver, library: ctypes.CDLL) -> None:
    launcher = NativeLauncher(library, 0, driver.path)
    first, second = launcher.load_one(built("a")), launcher.load_one(built("b", warps=8, shared=1024))
    table = table_of(0, 111, 222, 333)
    launches = [Launch(first, (5, 1, 1), (1, 3)), Launch(second, (2, 3, 4), (2, 1, 3))]
    baked = launcher.bake(launches, table, stream=99, scratch=[0, 0])
    table[3] = 444  # an address that is known only when the call is made
    assert launcher.launch(baked) == 0
    one, two = driver.launches()
    assert one[:7] == [ord("a"), 99, 5, 1, 1, 128, 0] and one[16:19] == [111, 444, 0]  # then the scratch, none
    assert two[:7] == [ord("b"), 99, 2, 3, 4, 256, 1024] and two[16:19] == [222, 111, 444]
    assert one[7:15] == two[7:15] == [0] * 8  # plain launches have no attributes


def test_attributes_of_a_launch(driver: Driver, library: ctypes.CDLL) -> None:
    launcher = NativeLauncher(library, 0, driver.path)
    driver.number("param_count").value = 0
    dependent = launcher.load_one(built("p", dependent=True))
    clustered = launcher.load_one(built("c", cluster=2, cooperative=True))
    launches = [Launch(dependent, (1, 1, 1), ()), Launch(clustered, (3, 1, 1), ())]
    assert launcher.launch(launcher.bake(launches, table_of(0), 0, [0, 0])) == 0
    one, two = driver.launches()
    assert one[7:11] == [6, 1, 0, 0]  # programmatic stream serialization
    assert two[2] == 6 and two[7:13] == [2, 1, 4, 2, 5, 1]  # cooperative, cluster dimension, spread


def test_a_launch_that_waits_is_no_dependent_one(driver: Driver, library: ctypes.CDLL) -> None:
    launcher = NativeLauncher(library, 0, driver.path)
    driver.number("param_count").value = 0
    launch = Launch(launcher.load_one(built("p", dependent=True)), (1, 1, 1), (), waits=True)
    assert launcher.launch(launcher.bake([launch], table_of(0), 0, [0])) == 0
    assert driver.launches()[0][7:15] == [0] * 8


def test_scratch_memory_is_the_parameter_after_the_kernels_own(driver: Driver, library: ctypes.CDLL) -> None:
    launcher = NativeLauncher(library, 0, driver.path)
    launch = Launch(launcher.load_one(built("s", scratch=128)), (3, 2, 1), (1,))
    assert launch.scratch == 128 * 6
    assert launcher.launch(launcher.bake([launch], table_of(0, 5), 0, [4096])) == 0
    assert driver.launches()[0][16:19] == [5, 4096, 0]


def test_another_device_is_current(driver: Driver, library: ctypes.CDLL) -> None:
    """The launch happens in its own device's context, and the caller's is current again after it."""
    launcher = NativeLauncher(library, 1, driver.path)
    driver.number("param_count").value = 0
    kernel = Kernel("k", 1, 4, 0)
    pushes = driver.number("pushes").value
    assert launcher.launch(launcher.bake([Launch(kernel, (1, 1, 1), ())], table_of(0), 0, [0])) == 0
    assert driver.launches()[0][15] == 8
    assert driver.number("current_context").value == 7
    assert driver.number("pushes").value - pushes == 1 and driver.number("pops").value == driver.number("pushes").value


def test_a_failing_launch_ends_the_segment_and_is_named(driver: Driver, library: ctypes.CDLL) -> None:
    launcher = NativeLauncher(library, 0, driver.path)
    driver.number("param_count").value = 0
    driver.number("fail_at").value = 1
    launch = Launch(Kernel("k", 1, 4, 0), (1, 1, 1), ())
    code = launcher.launch(launcher.bake([launch] * 3, table_of(0), 0, [0] * 3))
    assert len(driver.launches()) == 1
    assert "too many resources requested" in str(launcher.error(code))


def test_large_shared_memory_is_allowed_for_and_too_much_refused(driver: Driver, library: ctypes.CDLL) -> None:
    launcher = NativeLauncher(library, 0, driver.path)
    launcher.load_one(built("a", shared=100_000))
    assert driver.attributes_set() == [[8, 232448 - 16]]
    with pytest.raises(CompileError, match="shared memory"):
        launcher.load_one(built("b", shared=300_000))
    with pytest.raises(CompileError, match="threads"):
        launcher.load_one(built("c", warps=64))


def test_a_kernel_is_loaded_once(driver: Driver, library: ctypes.CDLL) -> None:
    launcher = NativeLauncher(library, 0, driver.path)
    assert launcher.load_one(built("a")) is launcher.load_one(built("a"))


def test_what_was_loaded_apart_is_unloaded(driver: Driver, library: ctypes.CDLL) -> None:
    launcher = NativeLauncher(library, 0, driver.path)
    kept, apart = launcher.load_one(built("a")), launcher.apart()
    trial = apart.load_one(built("a"))
    apart.load_one(built("b"))
    assert trial is apart.load_one(built("a")) is not kept
    apart.close()
    apart.close()
    assert driver.number("modules_unloaded").value == ord("a") + ord("b")  # each once
    assert launcher.load_one(built("a")) is kept
    assert driver.number("pops").value == driver.number("pushes").value


def test_no_driver_is_an_error_that_says_so(library: ctypes.CDLL) -> None:
    with pytest.raises(CompileError, match="cannot be opened"):
        NativeLauncher(library, 0, "libthere-is-no-such-driver.so")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="cuda.h comes with triton")
def test_our_declarations_are_cuda_hs(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.origin is not None
    include = Path(spec.origin).parent / "backends" / "nvidia" / "include"
    pairs = {
        "config": ("CUlaunchConfig", ["grid gridDimX", "block blockDimX", "shared sharedMemBytes", "stream hStream",
                                      "attributes attrs", "attribute_count numAttrs"]),
        "attribute": ("CUlaunchAttribute", ["id id", "value value"]),
    }  # fmt: skip
    checks = []
    for ours, (theirs, fields) in pairs.items():
        checks.append(f'_Static_assert(sizeof({ours}) == sizeof({theirs}), "{ours}");')
        for pair in fields:
            a, b = pair.split()
            checks.append(f'_Static_assert(offsetof({ours}, {a}) == offsetof({theirs}, {b}), "{ours}.{a}");')
    names = {
        "COOPERATIVE": "CU_LAUNCH_ATTRIBUTE_COOPERATIVE",
        "CLUSTER_DIMENSION": "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
        "CLUSTER_POLICY": "CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE",
        "PROGRAMMATIC_STREAM_SERIALIZATION": "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
        "CLUSTER_POLICY_SPREAD": "CU_CLUSTER_SCHEDULING_POLICY_SPREAD",
        "MAX_THREADS_PER_BLOCK": "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
        "SHARED_SIZE_BYTES": "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES",
        "MAX_DYNAMIC_SHARED_SIZE_BYTES": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        "NON_PORTABLE_CLUSTER": "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
        "DEVICE_SHARED_OPT_IN": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "PREFER_SHARED": "CU_FUNC_CACHE_PREFER_SHARED",
    }
    checks += [f'_Static_assert((int){ours} == (int){theirs}, "{ours}");' for ours, theirs in names.items()]
    source = tmp_path / "check.c"
    launcher = NATIVE_DIR / "cuda" / "launch.c"
    source.write_text("\n".join(["#include <stddef.h>", "#include <cuda.h>", f'#include "{launcher}"', *checks]))
    subprocess.run(["cc", "-std=gnu11", "-c", f"-I{include}", source, "-o", tmp_path / "check.o"], check=True)
