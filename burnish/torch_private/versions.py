"""The versions of torch that burnish knows. A new one is added to `RELEASES`, and nowhere else."""

from __future__ import annotations

import functools
import re

import torch

from burnish.errors import UnknownTorchWarning, warn

RELEASES = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))  # oldest first
KNOWN = (RELEASES[0], RELEASES[-1])  # the first and the last


def version_pair(text: str) -> tuple[int, int] | None:
    """(2, 13) of "2.13.0+cpu"; None where that is not how it begins."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def running() -> tuple[int, int]:
    return version_pair(str(torch.__version__)) or KNOWN[1]


def is_at_least(major: int, minor: int) -> bool:
    return running() >= (major, minor)


def is_newer_than_known() -> bool:
    return running() > KNOWN[1]


@functools.cache
def warn_of_newer_torch() -> None:
    """Once a process, at its first compile, which goes on."""
    if is_newer_than_known():
        first, last = (f"{major}.{minor}" for major, minor in KNOWN)
        warn(
            f"torch {torch.__version__} is newer than this burnish knows ({first} to {last}). What works is compiled, "
            "what does not runs in eager; `burnish doctor` says which of torch's private names are missing.",
            UnknownTorchWarning,
        )
