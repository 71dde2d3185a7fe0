"""Triton's own compiler without a device, in a process where its interpreter is not chosen."""

from __future__ import annotations

import tempfile
from typing import Any

from burnish.codegen.triton.module import TritonUnit
from burnish.runtime.build.scratch import load_python
from tests.triton.interpreter import process_with


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

    def shared_memory(self, unit: TritonUnit, number: int, capability: int) -> int:
        """How many bytes of it a block of a kernel takes."""
        return self._built(unit, number, capability)[1]

    def _built(
        self,
        unit: TritonUnit,
        number: int,
        capability: int,
        launch: int = 0,
        index: str = "int32",
        ones: tuple[str, ...] = (),
    ) -> tuple[str, int]:
        """`ones` are sizes that are 1, which Triton makes constants."""
        call = unit.calls[number]
        chosen = call.launches[min(launch, len(call.launches) - 1)]
        constants = dict(chosen.blocks) | ({"INDEX": index} if call.reach else {}) | dict.fromkeys(ones, 1)
        options = {"num_warps": chosen.warps, "num_stages": chosen.stages}
        job = (unit.text, call.function, call.types, constants, options, capability)
        built: tuple[str, int] = self.pool.submit(_compile, *job).result()
        return built


def _compile(
    text: str,
    function: str,
    types: tuple[str, ...],
    constants: dict[str, Any],
    options: dict[str, int],
    capability: int,
) -> tuple[str, int]:
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
    assert compiled.asm["cubin"]
    return ptx, int(compiled.metadata.shared)
