"""The versions of torch that burnish knows. A new one is added here."""

from __future__ import annotations

import re

import torch

KNOWN = ((2, 11), (2, 14))  # the first and the last


def version_pair(text: str) -> tuple[int, int] | None:
    """(2, 13) of "2.13.0+cpu"; None where that is not how it begins."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def running() -> tuple[int, int]:
    return version_pair(str(torch.__version__)) or KNOWN[1]


def is_at_least(major: int, minor: int) -> bool:
    return running() >= (major, minor)
