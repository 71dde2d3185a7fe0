"""Independent loops → one Triton kernel: a function for each loop, and one that assigns every program to its loop."""

from __future__ import annotations

from burnish.codegen.signature import Signature
from burnish.codegen.triton.body import NotPrintable
from burnish.codegen.triton.launch import Launch
from burnish.codegen.triton.loop import TritonKernel, printer_for
from burnish.device import Gpu
from burnish.schedule.kernels import LoopGroup


def print_loops(group: LoopGroup, gpu: Gpu, unwritten: frozenset[str] = frozenset()) -> TritonKernel:
    printers = [printer_for(part.loop, gpu, unwritten) for part in group.parts]
    launches = [p.plan.launch for p in printers]
    warps = max(launch.warps for launch in launches)
    for p in printers:
        p.program = "program"
    kernels = [p.print() for p in printers]
    if any(kernel.reach for kernel in kernels):
        raise NotPrintable("loops side by side whose sizes are known only at launch")
    signature = _merged(kernels)
    types = {name: kind for k in kernels for name, kind in zip(k.signature.buffers, k.types, strict=False)}
    lines, before = [], 0
    for n, (kernel, launch) in enumerate(zip(kernels, launches, strict=True)):
        assert isinstance(launch.programs, int)
        called = f"@_{n}({', '.join(_arguments(kernel, launch, signature, before))})"
        before += launch.programs
        test = f"{'if' if n == 0 else 'elif'} program < {before}:" if n < len(kernels) - 1 else "else:"
        lines += [f"    {test}", f"        {called}"]
    names = [f"p{k}" for k in range(len(signature.buffers))] + [f"s{k}" for k in range(len(signature.sizes))]
    names += ["error"] if signature.checks else []
    main = ["@triton.jit", f"def @({', '.join(names)}):", "    program = tl.program_id(0)", *lines]
    parts = [_as_part(kernel.text, n) for n, kernel in enumerate(kernels)]
    sizes = ["i64"] * len(signature.sizes)
    kinds = (*(types[b] for b in signature.buffers), *sizes, *(["*i64"] if signature.checks else []))
    return TritonKernel("\n\n\n".join(["\n".join(main), *parts]), signature, kinds, Launch(before, (), warps))


def _merged(kernels: list[TritonKernel]) -> Signature:
    buffers = dict.fromkeys(b for k in kernels for b in k.signature.buffers)
    sizes = dict.fromkeys(s for k in kernels for s in k.signature.sizes)
    return Signature(list(buffers), list(sizes), any(k.signature.checks for k in kernels))


def _arguments(kernel: TritonKernel, launch: Launch, signature: Signature, before: int) -> list[str]:
    start = f"program - {before}" if before else "program"
    given = [f"p{signature.buffers.index(b)}" for b in kernel.signature.buffers]
    given += [f"s{signature.sizes.index(s)}" for s in kernel.signature.sizes]
    given += ["error"] if kernel.signature.checks else []
    return [start, *given, *(str(block) for _, block in launch.blocks)]


def _as_part(text: str, n: int) -> str:
    return text.replace("def @(", f"def @_{n}(program, ", 1)
