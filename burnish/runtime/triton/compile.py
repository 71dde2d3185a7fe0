"""One Triton kernel, from its text to a cubin. Everything in and out is plain data, so any process may do it.

Nothing here needs torch or a device: the processes of worker.py import this file and Triton, and no more.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

_ALIGNED = [["tt.divisibility", 16]]  # what Triton may assume of every address: inputs are checked for it


@dataclass(frozen=True)
class KernelSource:
    """All inputs of a kernel's build. A constant that is text names a type of Triton's language."""

    text: str  # of a module with this one kernel
    function: str
    types: tuple[str, ...]  # of the parameters that are no constants
    constants: Mapping[str, int | str]
    warps: int
    stages: int
    overlapped: bool  # launched as a dependent of the kernel ahead
    capability: int  # 90 for compute capability 9.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> KernelSource:
        return cls(**{**plain, "types": tuple(plain["types"])})


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel as a launch needs it."""

    name: str
    cubin: bytes
    warps: int
    shared: int
    cluster: int = 1
    dependent: bool = False
    cooperative: bool = False
    scratch: int = 0

    def facts(self) -> dict[str, Any]:
        """All but the cubin."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "cubin"}

    def to_bytes(self) -> bytes:
        return json.dumps(self.facts()).encode() + b"\n" + self.cubin

    @classmethod
    def from_bytes(cls, data: bytes) -> BuiltKernel:
        """Raises ValueError for what `to_bytes` did not write."""
        head, _, cubin = data.partition(b"\n")
        facts = json.loads(head)
        wanted = {f.name: {"str": str, "int": int, "bool": bool}[str(f.type)] for f in fields(cls) if f.name != "cubin"}
        if type(facts) is not dict or facts.keys() != wanted.keys() or not cubin.startswith(b"\x7fELF"):
            raise ValueError("not a kernel")
        if any(type(facts[name]) is not kind for name, kind in wanted.items()):
            raise ValueError("not a kernel's facts")
        return cls(cubin=cubin, **facts)


class ProfiledBuild(Exception):
    """Triton was told to compile its profiler into kernels, which they then want memory for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was compiled with Triton's profiler; switch it off")


def compile_kernel(source: KernelSource, folder: Path) -> BuiltKernel:
    return described(compile_with_triton(source, folder))


def compile_with_triton(source: KernelSource, folder: Path) -> Any:
    """Triton's own object of the compiled kernel. Its text is put in `folder`, for Triton reads it from a file."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(_module(source, folder), source.function)
    names = function.arg_names
    values = {n: getattr(tl, v) if isinstance(v, str) else v for n, v in source.constants.items()}
    plain = [n for n in names if n not in values]
    signature = dict(zip(plain, source.types, strict=True)) | dict.fromkeys(values, "constexpr")
    attrs = {(names.index(n),): _ALIGNED for n in plain if signature[n].startswith("*")}
    constants = {(names.index(n),): v for n, v in values.items()}
    parsed = ASTSource(function, {n: signature[n] for n in names}, constants, attrs)
    return triton.compile(parsed, GPUTarget("cuda", source.capability, 32), _options(source))


def _options(source: KernelSource) -> dict[str, Any]:
    """Outside of matrix products, rounding is the same as in eager: `x * 3 - x * 3` is zero, and the math library
    supports subnormal numbers. Around a product, whose sums have their own order anyway, a multiplication and an
    addition may be one instruction."""
    from triton.backends.nvidia.compiler import CUDAOptions

    options = {
        "num_warps": source.warps,
        "num_stages": source.stages,
        "launch_pdl": source.overlapped,
        "enable_fp_fusion": "tl.dot" in source.text,
        "enable_reflect_ftz": False,
    }
    return {name: value for name, value in options.items() if name in CUDAOptions.__dataclass_fields__}


def described(compiled: Any) -> BuiltKernel:
    """The data of Triton's object that a launch needs."""
    metadata = compiled.metadata
    if getattr(metadata, "profile_scratch_size", 0):
        raise ProfiledBuild(compiled.name)
    return BuiltKernel(
        compiled.name,
        compiled.asm["cubin"],
        warps=metadata.num_warps,
        shared=metadata.shared,
        cluster=getattr(metadata, "num_ctas", 1),
        dependent=bool(getattr(metadata, "launch_pdl", False)),
        cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        scratch=getattr(metadata, "global_scratch_size", 0) or 0,
    )


def _module(source: KernelSource, folder: Path) -> ModuleType:
    """The file is private to this process: a file that others could have written is never run."""
    handle, path = tempfile.mkstemp(suffix=".py", prefix=f"{source.function}_", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(source.text)
    spec = importlib.util.spec_from_file_location(f"burnish_kernel_{source.function}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
