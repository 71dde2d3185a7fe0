"""Splits one generated C file into several, for parallel compilers: each kernel is in one of them, and the entry points
are in the first. The text comes from `codegen/c/unit.py`, and results do not change."""

from __future__ import annotations

import re

_KERNEL = re.compile(r"^static (?:BN_NOINLINE )?void (k\d+)(_tile)?\(")
_STATIC, _SHARED = "static ", '__attribute__((visibility("hidden"))) '
_WORTH = 5000  # characters of a part: a compiler takes a tenth of a second for these, and a fifth of that to start


def in_parts(text: str, most: int) -> list[str]:
    """Parts of about the same length, `most` at most; the text itself where it is short."""
    head, kernels, entries = _taken_apart(text)
    count = min(most, len(kernels), sum(map(len, kernels.values())) // _WORTH)
    if count < 2:
        return [text]
    shares: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(kernels, key=lambda name: -len(kernels[name])):
        min(shares, key=lambda share: sum(len(kernels[other]) for other in share)).append(name)
    parts = ["\n".join([head, *(_shared(kernels[name]) for name in sorted(share))]) for share in shares]
    declared = [f"{_SHARED}{_declaration(kernels[name])};" for name in kernels if name not in shares[0]]
    return ["\n".join([parts[0], *declared, "", entries]), *parts[1:]]


def _taken_apart(text: str) -> tuple[str, dict[str, str], str]:
    """The file's preamble, the kernels by name, and the entry points."""
    body, start, rest = text.partition("void bn_run_0(")
    head: list[str] = []
    kernels: dict[str, list[str]] = {}
    lines = head
    for line in body.splitlines():
        if found := _KERNEL.match(line):
            lines = kernels.setdefault(found[1], [])
        lines.append(line)
    return "\n".join(head), {name: "\n".join(lines) for name, lines in kernels.items()}, start + rest


def _line(kernel: str) -> str:
    """The start of its own function, not that of its tiles."""
    return next(line for line in kernel.splitlines() if (found := _KERNEL.match(line)) and not found[2])


def _declaration(kernel: str) -> str:
    return _line(kernel).removeprefix(_STATIC)


def _shared(kernel: str) -> str:
    line = _line(kernel)
    return kernel.replace(line, f"{_SHARED}{line.removeprefix(_STATIC)}", 1)
