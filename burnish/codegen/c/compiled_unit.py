"""A C translation unit as data. What runs a program needs this, and no printer."""

from __future__ import annotations

from dataclasses import dataclass

ERROR_SLOT = 0  # of the table of addresses and sizes


@dataclass
class CUnit:
    """The source with the data for callers: the slot of each buffer and size, and each kernel's entry point."""

    text: str
    slots: dict[str, int]
    segments: list[list[int]]  # kernel numbers run by each entry point
    kernels: int
    checks: bool
    uses_library: bool  # of the C runtime
    uses_double: bool  # its products in double precision, too
