"""A kernel's key: its computation, sizes, types and layouts, without its buffers' names. Equal layers of a model share
a key, and so do processes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from burnish.schedule.kernels import (
    AttendKernel,
    ContractGroup,
    ContractKernel,
    ConvolveKernel,
    Kernel,
    LoopKernel,
    Operand,
    Schedule,
)


def key_of(question: str, schedule: Schedule, kernels: Sequence[Kernel], unwritten: frozenset[str]) -> str:
    """`question` is "backend" or "launch". It is about the first kernel; the others are that kernel's readers."""
    digest = hashlib.sha256(_anonymous(schedule, kernels, unwritten).encode()).hexdigest()[:12]
    return f"{question} {title(kernels[0])} #{digest}"


def _anonymous(schedule: Schedule, kernels: Sequence[Kernel], unwritten: frozenset[str]) -> str:
    """The kernels' text with buffers numbered in the order in which they are named."""
    parts = [p for k in kernels for p in (k.parts if isinstance(k, ContractGroup) else (k,))]
    names = {name for k in kernels for name in (*k.reads, *k.writes)}
    names |= {p.acc for p in parts if isinstance(p, ConvolveKernel)}
    names |= {acc for p in parts if isinstance(p, ContractKernel) for acc in p.products}
    numbers: dict[str, str] = {}
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
    text = pattern.sub(lambda m: numbers.setdefault(m[0], f"${len(numbers)}"), "\n".join(map(str, kernels)))
    held = [schedule.buffers.get(name) for name in numbers]
    kinds = [f"{b.dtype} {'unwritten' if b.name in unwritten else ''}" if b else "-" for b in held]
    return "\n".join([text, *kinds])


def title(kernel: Kernel) -> str:
    """A kernel in a few words."""
    match kernel:
        case ContractGroup(parts):
            return f"{title(parts[0])} and {len(parts) - 1} more"
        case ContractKernel(a, b):
            return f"product {_by((*a.shape, b.shape[-1]))} {_dtype(a)}"
        case ConvolveKernel(_, x, k):
            splits = "" if kernel.splits == 1 else f" in {kernel.splits}"
            return f"convolution {_by(x.shape)} with {_by(k.shape)} {_dtype(x)}{splits}"
        case AttendKernel(_, (q, k, *_)):
            return f"attention {_by(q.shape)} over {k.shape[2]} {_dtype(q)}"
        case LoopKernel(loop):
            return f"loop {'x'.join(f'[{a.size}]' if a.reduce else str(a.size) for a in loop.axes) or '1'}"
    return type(kernel).__name__.removesuffix("Kernel").lower()


def _by(shape: Sequence[object]) -> str:
    return "x".join(map(str, shape))


def _dtype(o: Operand) -> str:
    return o.dtype.value if o.dtype else "?"
