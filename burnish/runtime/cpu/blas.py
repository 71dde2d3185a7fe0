"""The BLAS that torch brings along (MKL, OpenBLAS, ...), lent to our C runtime for the products it is faster at."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib")


def connect(native: ctypes.CDLL) -> bool:
    """Tell the runtime where sgemm_ and dgemm_ are. Without them, every product is our own."""
    addresses = find_blas()
    if addresses is None:
        return False
    native.bn_use_blas(*map(ctypes.c_void_p, addresses))
    return True


def find_blas() -> tuple[int, int] | None:
    """Addresses in torch's library, or in one that it loaded: whichever torch itself multiplies with."""
    for name in _LIBRARIES:
        path = Path(torch.__file__).parent / "lib" / name
        try:
            library = ctypes.CDLL(str(path))  # loaded long ago: this asks for the handle
            single, double = library.sgemm_, library.dgemm_
        except (OSError, AttributeError):
            continue
        return _address(single), _address(double)
    return None


def _address(function: object) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found is not None
    return found
