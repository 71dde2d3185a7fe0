"""Schedule → one Python module of Triton kernels: each distinct kernel once, and each kernel's call.

It neither imports Triton nor uses a device. The module's text must be in a file, because Triton reads its source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from burnish.codegen.triton.attend import attend_forms, print_attend
from burnish.codegen.triton.body import NotPrintable
from burnish.codegen.triton.contract import group_forms, print_contract, print_group
from burnish.codegen.triton.convolve import convolve_forms, print_convolve
from burnish.codegen.triton.group import print_loops
from burnish.codegen.triton.launch import Launch
from burnish.codegen.triton.loop import AHEAD, TritonKernel, forms_of, print_loop
from burnish.codegen.triton.split_kv import print_split_attention
from burnish.device import REFERENCE, Gpu
from burnish.ir.expr import Dim
from burnish.schedule.form import Form
from burnish.schedule.identical import Nameless, Printable, nameless
from burnish.schedule.kernels import (
    AttendKernel,
    AttendSplits,
    ContractGroup,
    ContractKernel,
    ConvolveKernel,
    ExternKernel,
    Kernel,
    LoopGroup,
    LoopKernel,
    Schedule,
)

_HEAD = """import triton
import triton.language as tl
{libdevice}

from burnish.runtime.triton import device_functions as bn
"""
_LIBDEVICE = "from triton.language.extra import libdevice"
_OVERLAP = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
_LET_IN = "    gdc_launch_dependents()\n"
_WAIT = "    gdc_wait()"
_BEGINS = "    # first of its program\n"
_INTERPRETED = "from burnish.runtime.triton.interpreted import libdevice"


@dataclass(frozen=True)
class TritonCall:
    """One kernel's launch: the function and its arguments (see TritonKernel for the parameters' order)."""

    function: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    checks: bool
    types: tuple[str, ...]
    launch: Launch
    reach: tuple[Dim, ...]


@dataclass
class TritonUnit:
    text: str
    calls: dict[int, TritonCall]  # by the kernel's number in the schedule; other kernels are not Triton's
    refused: dict[int, str]  # kernels that Triton's printers refused, with the reason
    functions: dict[str, str]  # name -> text with @ for the name
    checks: bool
    overlapped: bool = False  # each kernel is launched before the previous one ends, and waits for it itself
    first: int | None = None  # the first kernel of an overlapped program: it waits before all its loads

    @property
    def kernels(self) -> int:
        return len(self.functions)

    def symbol(self, function: str) -> str:
        """The kernel's name on the device: equal for equal text, independent of the module."""
        return f"bn_{hashlib.sha256(self.functions[function].encode()).hexdigest()[:12]}"

    def alone(self, function: str) -> str:
        """The text of a module with this kernel only, under its symbol."""
        return module_text({self.symbol(function): self.functions[function]}, overlapped=self.overlapped)


@dataclass
class _Unit:
    functions: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)  # text with @, types -> name
    calls: dict[int, TritonCall] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    _known: dict[Hashable, tuple[Nameless, TritonCall]] = field(default_factory=dict)  # with the first of each form

    def call_of(
        self, kernel: Printable, gpu: Gpu, unwritten: frozenset[str], form: Form | None, begins: bool = False
    ) -> TritonCall:
        """Kernels that differ in their buffers' names alone are printed once."""
        asked = nameless(kernel)
        key = asked.form, tuple(name in unwritten for name in asked.names), form, begins
        if key not in self._known:
            printed = _printed(kernel, gpu, unwritten, form)
            if begins:
                printed = replace(printed, text=printed.text.replace("):\n", f"):\n{_BEGINS}", 1))
            self._known[key] = asked, self._call(printed)
        first, call = self._known[key]
        return replace(call, buffers=asked.instead_of(first, call.buffers))

    def name(self, kernel: TritonKernel) -> str:
        """Equal texts are different kernels if their pointers' types differ: a store does not name its type."""
        return self.functions.setdefault((kernel.text, kernel.types), f"k{len(self.functions)}")

    def _call(self, kernel: TritonKernel) -> TritonCall:
        sig = kernel.signature
        return TritonCall(
            self.name(kernel),
            tuple(sig.buffers),
            tuple(sig.sizes),
            sig.checks,
            kernel.types,
            kernel.launch,
            kernel.reach,
        )


def generate(
    schedule: Schedule,
    interpreted: bool = False,
    overlapped: bool = False,
    unwritten: frozenset[str] | None = None,
    begins: bool = False,
) -> TritonUnit:
    """`interpreted` makes a module that runs under Triton's interpreter, which has no CUDA math library. In an
    `overlapped` one (Hopper and later) each kernel may be launched before the one ahead of it ends: it triggers the
    next kernel's launch at its start, and waits for the previous kernel before it accesses memory. It loads `unwritten`
    buffers before it waits; they are given if the schedule is only a part of a program. If the schedule `begins` a
    program, its first kernel waits before all its loads, and only then triggers the next launch: the previous program
    may write buffers that this one does not."""
    unit = _Unit()
    found = unwritten_buffers(schedule) if unwritten is None else unwritten
    unwritten = found if overlapped else frozenset()
    for n, kernel in enumerate(schedule.kernels):
        if isinstance(kernel, ExternKernel):
            continue
        is_first = begins and overlapped and not unit.calls
        awaited = frozenset[str]() if is_first else unwritten
        try:
            unit.calls[n] = unit.call_of(kernel, schedule.gpu, awaited, schedule.forms.get(n), is_first)
        except NotPrintable as reason:
            unit.refused[n] = str(reason)
    functions = {name: text for (text, _), name in unit.functions.items()}
    checks = any(c.checks for c in unit.calls.values())
    text = module_text(functions, interpreted, overlapped)
    first = min(unit.calls, default=None) if begins and overlapped else None
    return TritonUnit(text, unit.calls, unit.refused, functions, checks, overlapped, first)


def unwritten_buffers(schedule: Schedule) -> frozenset[str]:
    """Buffers that no kernel of the program writes: mostly parameters. A kernel may load them before the previous
    kernel ends. The previous program has ended by then, because this program's first kernel has waited for it."""
    written = frozenset().union(*(kernel.writes for kernel in schedule.kernels))
    return frozenset(n for n, b in schedule.buffers.items() if b.role in ("input", "constant")) - written


def _printed(
    kernel: Printable,
    gpu: Gpu,
    unwritten: frozenset[str],
    form: Form | None,
) -> TritonKernel:
    match kernel:
        case LoopKernel(loop):
            return print_loop(loop, gpu, unwritten, form)
        case ContractKernel():
            return print_contract(kernel, gpu, unwritten, form)
        case ContractGroup():
            return print_group(kernel, gpu, unwritten, form)
        case ConvolveKernel():
            return print_convolve(kernel, gpu, unwritten, form)
        case LoopGroup():
            return print_loops(kernel, gpu, unwritten)
        case AttendSplits():
            return print_split_attention(kernel, gpu, overlapped=bool(unwritten))
        case AttendKernel():
            return print_attend(kernel, gpu, form)


def launch_forms(kernel: Kernel, gpu: Gpu = REFERENCE) -> list[Form]:
    """The launch forms that max-autotune measures, the rule's first; none for an ATen call."""
    match kernel:
        case LoopKernel(loop):
            return forms_of(loop, gpu)
        case ContractKernel():
            return group_forms(ContractGroup((kernel,)), gpu)
        case ContractGroup():
            return group_forms(kernel, gpu)
        case ConvolveKernel():
            return convolve_forms(kernel, gpu)
        case AttendKernel():
            return attend_forms(kernel, gpu)
    return []


def _overlapping(text: str) -> str:
    if _BEGINS in text:
        return text.replace(_BEGINS, f"{_WAIT}\n{_LET_IN}")
    return text.replace("):\n", f"):\n{_LET_IN}", 1).replace(AHEAD, _WAIT)


# The interpreter knows no machine instructions.
_WITHOUT_INSTRUCTIONS = {
    "bn.erf_to_bf16": "tl.erf",
    "bn.weight": "tl.exp2",
    "bn.tanh_to_bf16": "libdevice.tanh",
    "bn.widened": "bn.plain_float",
    "bn.signed_byte": "bn.plain_float",
    "bn.unsigned_byte": "bn.plain_float",
    "bn.halves_in_words": "bn.plain_words",
    "bn.short": "bn.plain_short",
    "bn.i32_of_f32": "bn.plain_i32",
    "bn.i32_of_f64": "bn.plain_i32",
    "bn.i64_of_f32": "bn.plain_i64",
    "bn.i64_of_f64": "bn.plain_i64",
}


def module_text(functions: dict[str, str], interpreted: bool = False, overlapped: bool = False) -> str:
    """A module of kernels, given their texts by name."""
    head = _HEAD.format(libdevice=_INTERPRETED if interpreted else _LIBDEVICE)
    head += _OVERLAP if overlapped else ""
    bodies = [text.replace("@(", f"{name}(").replace("@_", f"{name}_") + "\n" for name, text in functions.items()]
    if overlapped:
        bodies = [_overlapping(text) for text in bodies]
    bodies = [text.replace(f"{AHEAD}\n", "") for text in bodies]
    if interpreted:
        for instruction, plainly in _WITHOUT_INSTRUCTIONS.items():
            bodies = [text.replace(f"{instruction}(", f"{plainly}(") for text in bodies]
    return "\n\n".join([head, *bodies])
