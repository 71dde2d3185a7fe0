"""Caller errors that kernels detect, and eager's exception for each.

Kernels cannot raise: they set bits of the program's error word (BN_INDEX_OUT_OF_RANGE and so on in native/bn_kernel.h),
which is checked after they have run.
"""

from __future__ import annotations

INDEX_OUT_OF_RANGE, ZERO_DIVISION, PLACE_OUT_OF_RANGE = 1, 2, 4


def callers_mistake(bits: int) -> Exception:
    """The exception for an error word; marked, so that it does not count as a failure of the program."""
    if bits & INDEX_OUT_OF_RANGE:
        return _marked(IndexError("index out of range in a compiled gather or scatter"))
    if bits & PLACE_OUT_OF_RANGE:
        return _marked(RuntimeError("index is out of bounds in a compiled gather or scatter"))
    return _marked(RuntimeError("ZeroDivisionError"))  # in eager's words


def _marked(error: Exception) -> Exception:
    error.is_callers_mistake = True  # type: ignore[attr-defined]
    return error


def is_callers_mistake(error: BaseException) -> bool:
    return getattr(error, "is_callers_mistake", False)
