"""Kernels under Triton's interpreter, in a process of their own: the interpreter is chosen when Triton is imported."""

from __future__ import annotations

import dataclasses
import functools
import io
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from burnish.codegen.triton.launch import loop_forms
from burnish.codegen.triton.module import TritonCall, generate
from burnish.device import REFERENCE
from burnish.ir.body import Loop
from burnish.ir.evaluate import evaluate_loop
from burnish.ir.expr import Dim, evaluate
from burnish.runtime.build.scratch import load_python
from burnish.schedule.axes import normalise
from burnish.schedule.form import Form
from burnish.schedule.kernels import LoopKernel, Schedule

Buffers = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Job:
    """One launch, as plain data."""

    text: str
    function: str
    arguments: tuple[str | int, ...]  # a string names a buffer
    grid: tuple[int, ...]
    constants: tuple[tuple[str, int | str], ...]


class Interpreter:
    """A process that runs kernels; buffers go over and come back."""

    def __init__(self) -> None:
        self.pool = process_with(TRITON_INTERPRET="1")
        self.pool.submit(_mend_interpreter).result()

    def close(self) -> None:
        self.pool.shutdown()

    def run_loop(
        self,
        loop: Loop,
        buffers: Buffers,
        sizes: Mapping[str, int] | None = None,
        form: Form | None = None,
        index: str | None = None,
    ) -> int:
        """Run a loop's kernel on the buffers, in place; the error flag."""
        loop.verify()
        forms = {} if form is None else {0: form}
        unit = generate(Schedule({}, [LoopKernel(loop)], [], forms=forms), interpreted=True)
        assert not unit.refused, unit.refused
        return self.run([job(unit.text, unit.calls[0], sizes or {}, index)], buffers)

    def run(self, jobs: list[Job], buffers: Buffers) -> int:
        packed = io.BytesIO()
        torch.save(buffers, packed)
        result, error = self.pool.submit(_run, jobs, packed.getvalue()).result()
        for name, tensor in torch.load(io.BytesIO(result)).items():
            buffers[name].copy_(tensor)
        return error

    def check(
        self,
        loop: Loop,
        buffers: Buffers,
        sizes: Mapping[str, int] | None = None,
        tolerance: float = 2e-6,
        forms: int = 2,
    ) -> None:
        """A loop's kernel leaves the buffers as the reference does, in the first forms that a search would try."""
        want = {n: t.clone() for n, t in buffers.items()}
        evaluate_loop(loop, want, sizes or {})
        for form in loop_forms(normalise(loop), REFERENCE)[:forms]:
            got = {n: t.clone() for n, t in buffers.items()}
            assert self.run_loop(loop, got, sizes, form) == 0
            for name in buffers:
                assert_close(got[name], want[name], tolerance, name)


def process_with(**environment: str) -> ProcessPoolExecutor:
    """One process whose environment is so from its start: Triton reads it when it is first imported, by whomever."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with patch.dict(os.environ, environment):
        pool.submit(os.getpid).result()
    return pool


def job(text: str, call: TritonCall, sizes: Mapping[str, int], index: str | None = None) -> Job:
    chosen = call.launch
    arguments = [*call.buffers, *(sizes[s] for s in call.sizes), *(["error"] if call.checks else [])]
    constants: list[tuple[str, int | str]] = list(chosen.blocks)
    if call.reach:
        constants.append(("INDEX", index or index_type(call.reach, sizes)))
    return Job(text, call.function, tuple(arguments), tuple(evaluate(d, sizes) for d in chosen.grid), tuple(constants))


def index_type(reach: tuple[Dim, ...], sizes: Mapping[str, int]) -> str:
    return "int64" if any(evaluate(r, sizes) >= 2**31 for r in reach) else "int32"


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float, name: str = "") -> None:
    assert got.dtype is want.dtype
    if not want.is_floating_point():
        assert torch.equal(got, want), f"{name}: {got} is not {want}"
        return
    unit = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}.get(want.dtype, tolerance)
    torch.testing.assert_close(got, want, rtol=unit, atol=unit, equal_nan=True, msg=lambda m: f"{name}: {m}")


# --- in the other process ---------------------------------------------------------------------------------------


def _mend_interpreter() -> None:
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        # The interpreter holds scalars as arrays of one element, which NumPy 2.4 no longer converts by itself.
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_lang_tensor
    interpreter.ReduceOps.generic_reduce = _reduce_by_halves
    load = interpreter.InterpreterBuilder.create_masked_load

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        """What a masked lane reads is undefined on a device; the interpreter's zeros would hide a use of it."""
        if other is None:
            kind = ptrs.get_element_ty()
            held = interpreter._get_np_dtype(kind)
            junk = np.nan if np.issubdtype(held, np.floating) else 0x7FC0 if kind.is_bf16() else 119
            other = interpreter.TensorHandle(np.full(ptrs.data.shape, junk, dtype=held), kind)
        return load(self, ptrs, mask, other, *rest, **named)

    builder = interpreter.InterpreterBuilder
    builder.create_masked_load = create_masked_load
    builder.create_dot = _dot
    builder.cast_impl = _cast_by(builder.cast_impl)
    for name in [n for n in vars(builder) if n.startswith(("create_icmp", "create_fcmp"))]:
        setattr(builder, name, _bits_of(getattr(builder, name)))
    TritonSemantic.load = _given(TritonSemantic.load)
    # Without `debug` the result of its checks for overflow is thrown away: a quarter of the time.
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
    interpreter._patch_lang = _once_a_launch(interpreter._patch_lang)


def _once_a_launch(patch_lang: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter patches Triton's modules at a launch, and again at each call of a function in the kernel. What
    it patches depends only on which of two modules the function sees."""
    from triton import language
    from triton.runtime.interpreter import _LangPatchScope

    patched: set[frozenset[int]] = set()  # in the launch that is under way

    class Launch(_LangPatchScope):  # type: ignore[misc]
        def __init__(self, scope: Any) -> None:
            self._scope = scope

        def restore(self) -> None:
            patched.clear()
            self._scope.restore()

    def patch_once(fn: Any) -> Any:
        seen = frozenset(id(x) for x in fn.__globals__.values() if x is language or x is language.core)
        if seen in patched:
            return _LangPatchScope()
        is_launch = not patched
        patched.add(seen)
        scope = patch_lang(fn)
        return Launch(scope) if is_launch else scope

    return patch_once


def _bits_of(comparison: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter calls what a comparison makes the type of what was compared, and a mask is then no mask."""

    def compare(self: Any, lhs: Any, rhs: Any) -> Any:
        import triton.language as tl

        made = comparison(self, lhs, rhs)
        return type(made)(made.data, tl.int1)

    return compare


def _cast_by(cast: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter cuts floats off where the compiler rounds them to bfloat16, and takes a bfloat16's bits for an
    integer where it is not float that they become, or came from."""

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        import triton.language as tl

        have, want = src.dtype.scalar, dst_type.scalar
        if have.is_bf16() and not want.is_bf16():
            return cast(self, type(src)(_widened(src), tl.float32), dst_type)
        if want.is_bf16() and not have.is_bf16():
            bits = torch.from_numpy(np.asarray(src.data).astype(np.float32)).bfloat16().view(torch.uint16)
            return type(src)(bits.numpy(), want)
        return cast(self, src, dst_type)

    return cast_impl


def _given(load: Callable[..., Any]) -> Callable[..., Any]:
    """Whether masked lanes were given a value is asked of that value, which is no tensor's business to answer: the
    interpreter's scalars do, and a zero is taken for none."""

    def given(self: Any, *args: Any) -> Any:
        import triton.language as tl

        with patch.object(tl.tensor, "__bool__", lambda tensor: True):
            return load(self, *args)

    return given


def _dot(self: Any, a: Any, b: Any, d: Any, *precision: Any) -> Any:
    """The interpreter holds bfloat16 as its bits and would multiply those."""
    wide = [_widened(x) for x in (a, b)]
    return type(d)(np.matmul(*wide, dtype=d.data.dtype) + d.data, d.dtype.scalar)


def _widened(x: Any) -> Any:
    if not x.dtype.scalar.is_bf16():
        return x.data.astype(np.float32)
    return (x.data.astype(np.uint32) << 16).view(np.float32)


def _reduce_by_halves(self: Any, inputs: Any) -> Any:
    """The interpreter would call the combining function once per element; this calls it once per level of a tree."""
    data = [x.handle.data for x in inputs]
    while data[0].shape[self.axis] > 1:
        halves = [np.split(d, 2, self.axis) for d in data]
        sides = [[self.to_tensor(h[k], x.dtype) for h, x in zip(halves, inputs, strict=True)] for k in (0, 1)]
        combined = self.combine_fn.fn(*sides[0], *sides[1])
        data = [c.handle.data for c in (combined if isinstance(combined, tuple) else (combined,))]
    if not self.keep_dims:
        data = [d.squeeze(self.axis) for d in data]
    return [self.to_tensor(d, x.dtype) for d, x in zip(data, inputs, strict=True)]


@functools.lru_cache(4)
def _module(text: str) -> ModuleType:
    """The launches of a program's kernels share what the interpreter has rewritten."""
    return load_python(text)


def _run(jobs: list[Job], packed: bytes) -> tuple[bytes, int]:
    import triton.language as tl

    buffers = torch.load(io.BytesIO(packed))
    error = torch.zeros(1, dtype=torch.int64)
    for j in jobs:
        kernel = getattr(_module(j.text), j.function)
        args = [error if a == "error" else buffers[a] if isinstance(a, str) else a for a in j.arguments]
        constants = {k: getattr(tl, v) if isinstance(v, str) else v for k, v in j.constants}
        kernel[j.grid](*args, **constants)
    result = io.BytesIO()
    torch.save(buffers, result)
    return result.getvalue(), int(error)
