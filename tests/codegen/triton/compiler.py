"""Triton's own compiler without a device, in a process where its interpreter is not chosen."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.codegen.triton.module import TritonUnit
from burnish.runtime.build.scratch import load_python
from tests.codegen.triton.interpreter import process_with


@dataclass(frozen=True)
class Resources:
    """Of a thread block. `registers` are a thread's, as is `spilled`: bytes for what its registers do not hold."""

    shared: int
    threads: int
    registers: int
    spilled: int


class Compiler:
    def __init__(self) -> None:
        self.cache = tempfile.TemporaryDirectory(prefix="burnish-triton-")
        self.pool = process_with(TRITON_INTERPRET="0", TRITON_CACHE_DIR=self.cache.name)

    def close(self) -> None:
        self.pool.shutdown()
        self.cache.cleanup()

    def compile(self, unit: TritonUnit, number: int, capability: int, *how: Any, **named: Any) -> str:
        """The assembly of one kernel of a unit."""
        return self._built(unit, number, capability, *how, **named)[0]

    def resources(self, unit: TritonUnit, number: int, capability: int) -> Resources:
        """What a block of a kernel takes."""
        return self._built(unit, number, capability)[1]

    def _built(
        self,
        unit: TritonUnit,
        number: int,
        capability: int,
        index: str = "int32",
        ones: tuple[str, ...] = (),
    ) -> tuple[str, Resources]:
        """`ones` are sizes that are 1, which Triton makes constants."""
        call = unit.calls[number]
        chosen = call.launch
        constants = dict(chosen.blocks) | ({"INDEX": index} if call.reach else {}) | dict.fromkeys(ones, 1)
        options = {"num_warps": chosen.warps, "num_stages": chosen.stages}
        job = (unit.text, call.function, call.types, constants, options, capability)
        built: tuple[str, Resources] = self.pool.submit(_compile, *job).result()
        return built


def _compile(
    text: str,
    function: str,
    types: tuple[str, ...],
    constants: dict[str, Any],
    options: dict[str, int],
    capability: int,
) -> tuple[str, Resources]:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(load_python(text), function)
    names = kernel.arg_names
    values = {k: getattr(tl, v) if isinstance(v, str) else v for k, v in constants.items()}
    signature = dict(zip(names, types, strict=False)) | dict.fromkeys(values, "constexpr")
    hints = {(k,): [["tt.divisibility", 16]] for k, name in enumerate(names) if name not in values}
    source = ASTSource(kernel, signature, values, hints)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx: str = compiled.asm["ptx"]
    return ptx, _resources(compiled.asm["cubin"], int(compiled.metadata.shared), 32 * options["num_warps"])


def _resources(cubin: bytes, shared: int, threads: int) -> Resources:
    """A cubin says what each thread takes; Triton, what a launch asks for beside it."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    used = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told.stdout))
    return Resources(shared, threads, int(used["REG"]), int(used["STACK"]) + int(used["LOCAL"]))
