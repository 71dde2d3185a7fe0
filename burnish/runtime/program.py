"""Program: the flat list of steps a compiled graph runs, as data, as Python text, and as a callable.

`render` writes the steps as a Python function, which is what runs: nothing is interpreted per call, and
`burnish explain --dump` shows exactly what executes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from burnish.codegen.c.compiled_unit import ERROR_SLOT
from burnish.ir.expr import Dim, Expr, evaluate, render, symbols
from burnish.ir.graph import Ref
from burnish.runtime.caller_errors import callers_mistake
from burnish.schedule.kernels import ExternKernel, Kernel, Operand, ResultBuffer, Schedule
from burnish.schedule.memory import Lifetime, lifetimes, plan

CPU = torch.device("cpu")


@dataclass(frozen=True)
class NativeStep:
    segment: int


@dataclass(frozen=True)
class ExternStep:
    number: int
    kernel: ExternKernel


@dataclass(frozen=True)
class ReferenceStep:
    """A kernel that its code generator refused: run op by op in torch, slowly but correctly."""

    number: int
    kernel: Kernel


Step = NativeStep | ExternStep | ReferenceStep


class Unit(Protocol):
    """A program's view of the generated source, in any language."""

    slots: dict[str, int]  # of the table of addresses and sizes
    segments: list[list[int]]  # kernel numbers run between two ATen calls
    checks: bool


@dataclass
class Program:
    """Everything needed to run, before loading."""

    schedule: Schedule
    unit: Unit
    sources: Mapping[str, tuple[int, str, int]]  # size symbol -> argument it is read from
    arguments: int
    steps: list[Step]
    temps: list[Lifetime]
    device: torch.device = CPU

    def __str__(self) -> str:
        return Renderer(self).render()


def build_program(
    schedule: Schedule,
    unit: Unit,
    sources: Mapping[str, tuple[int, str, int]],
    arguments: int,
    device: torch.device = CPU,
) -> Program:
    steps: list[Step] = []
    starts = {segment[0]: k for k, segment in enumerate(unit.segments)}
    compiled = {n for segment in unit.segments for n in segment}
    for n, kernel in enumerate(schedule.kernels):
        if isinstance(kernel, ExternKernel):
            steps.append(ExternStep(n, kernel))
        elif n in starts:
            steps.append(NativeStep(starts[n]))
        elif n not in compiled:
            steps.append(ReferenceStep(n, kernel))
    return Program(schedule, unit, sources, arguments, steps, lifetimes(schedule), device)


class Workspace:
    """One call's table and arena. Kept between calls in a pool, so concurrent calls each have their own."""

    def __init__(self, program: Program, sizes: Mapping[str, int], views: Sequence[Operand]) -> None:
        unit = program.unit
        arena = plan(program.temps, sizes)
        self.table = (ctypes.c_int64 * max(len(unit.slots), 1))()
        self.address = ctypes.c_void_p(ctypes.addressof(self.table))
        self.arena = torch.empty(arena.size, dtype=torch.uint8, device=program.device)
        base = self.arena.data_ptr()
        for name, offset in arena.offsets.items():
            if name in unit.slots:
                self.table[unit.slots[name]] = base + offset
        for name, value in sizes.items():
            if name in unit.slots:
                self.table[unit.slots[name]] = value
        for name, tensor in program.schedule.constants.items():
            if name in unit.slots:
                self.table[unit.slots[name]] = tensor.data_ptr()
        self.views = [self._view(o, arena.offsets[o.buffer], sizes) for o in views]

    def _view(self, operand: Operand, offset: int, sizes: Mapping[str, int]) -> torch.Tensor:
        assert operand.dtype is not None
        typed = self.arena[offset : offset + (self.arena.numel() - offset) // 8 * 8].view(operand.dtype.torch)
        shape, strides = ([evaluate(d, sizes) for d in dims] for dims in (operand.shape, operand.strides))
        return typed.as_strided(shape, strides, typed.storage_offset() + evaluate(operand.offset, sizes))


class WorkspacePool:
    """`make` builds a workspace for given sizes, whose names are those of the values `acquire` gets, in order."""

    def __init__(self, make: Callable[[Mapping[str, int]], Workspace], names: Sequence[str]) -> None:
        self.make, self.names = make, names
        self.free: dict[tuple[int, ...], list[Workspace]] = {}

    def acquire(self, *values: int) -> Workspace:
        try:
            return self.free[values].pop()
        except (KeyError, IndexError):
            return self.make(dict(zip(self.names, values, strict=True)))

    def release(self, workspace: Workspace, *values: int) -> None:
        kept = self.free.get(values)
        if kept is None:
            if len(self.free) >= 8:  # many sizes: keep the newest few, memory is not hoarded
                oldest, *_ = self.free  # at once: other threads release, too, and one may be first to drop it
                self.free.pop(oldest, None)
            kept = self.free.setdefault(values, [])
        if len(kept) < 4:
            kept.append(workspace)

    def held_bytes(self) -> int:
        """The bytes kept for later calls, without the workspaces in use."""
        return sum(w.arena.nbytes for workspaces in list(self.free.values()) for w in list(workspaces))

    def clear(self) -> None:
        self.free.clear()


Run = Callable[[list[Any]], tuple[Any, ...]]


def load_program(program: Program, library: ctypes.CDLL | None) -> Run:
    return load_rendered(program, Renderer(program), {} if library is None else _natives(program, library))


def load_while_building(program: Program, library: Callable[[], ctypes.CDLL]) -> tuple[Run, Callable[[], None]]:
    """A program whose library may still be building, and a function that waits for the library. A call of the program
    before that waits, too."""

    def wait() -> None:
        run.__globals__.update(_natives(program, library()))

    def first(name: str, *table: Any) -> None:
        wait()
        run.__globals__[name](*table)

    names = [f"native_{k}" for k in range(len(program.unit.segments))]
    run = load_rendered(program, Renderer(program), {name: partial(first, name) for name in names})
    return run, wait


def _natives(program: Program, library: ctypes.CDLL) -> dict[str, Any]:
    found = {f"native_{k}": getattr(library, f"bn_run_{k}") for k in range(len(program.unit.segments))}
    for native in found.values():
        native.restype = None
    return found


def load_rendered(program: Program, renderer: Renderer, natives: Mapping[str, Any]) -> Run:
    text = renderer.render()
    views = renderer.views
    namespace: dict[str, Any] = {
        "empty_strided": torch.empty_strided,
        "pool": WorkspacePool(lambda sizes: Workspace(program, sizes, views), renderer.keys),
        "operators": [s.kernel.op.target for s in program.steps if isinstance(s, ExternStep)],
        "constants": program.schedule.constants,
        "as_planned": as_planned,
        "callers_mistake": callers_mistake,
        "torch": torch,
        "literals": renderer.literals,
        **natives,
    }
    exec(compile(text, "<burnish program>", "exec"), namespace)
    run: Run = namespace["run"]
    return run


def as_planned(
    x: torch.Tensor, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """An ATen call's result in the strides that later kernels expect: the traced strides are not always the real
    ones."""
    if tuple(x.shape) != tuple(shape):
        raise RuntimeError(f"an operation returned {list(x.shape)} where tracing said {list(shape)}")
    return restrided(x if dtype is None or x.dtype == dtype else x.to(dtype), shape, strides)


def restrided(x: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The tensor in these strides."""
    if x.stride() == tuple(strides) or all(
        d == 1 or s == t for d, s, t in zip(shape, x.stride(), strides, strict=True)
    ):
        return x
    held = [min(d, 1) if stride == 0 else d for d, stride in zip(shape, strides, strict=True)]  # of what is expanded
    for dim, size in enumerate(held):
        x = x.narrow(dim, 0, size)
    found = torch.empty_strided(held, tuple(strides), dtype=x.dtype, device=x.device).copy_(x)
    return found if held == list(shape) else found.expand(tuple(shape))


class Renderer:
    """Writes a program's steps as the Python function that runs them."""

    clears_at_once = True  # the list of arguments, so that each can be freed after its last use

    def __init__(self, program: Program) -> None:
        self.program = program
        self.schedule = program.schedule
        self.unit = program.unit
        self.views: list[Operand] = []
        self.literals: list[Any] = []
        self.lines: list[str] = []
        self.made: set[str] = set()  # outputs that exist by now
        on_cpu = program.device.type == "cpu"
        self.placed = "" if on_cpu else f", device={str(program.device)!r}"  # where allocations go
        held = {b.position: b.name for b in self.schedule.buffers.values() if b.role == "input"}
        self.arguments = [held.get(k, f"in{k}") for k in range(program.arguments)]  # what the text calls them
        self.sizes = self._size_names()
        self.keys: tuple[str, ...] = tuple(sorted(self.sizes))  # what a workspace is made for

    def _size_names(self) -> set[str]:
        """Every size symbol the program mentions, in kernels, shapes or arguments of ATen calls."""
        names = {n for n in self.unit.slots if n in self.program.sources}
        if any(isinstance(s, ReferenceStep) for s in self.program.steps):  # which is given them all
            names |= set(self.program.sources)
        # An input that no kernel reads needs no sizes; a view of one has its own sizes.
        held = [b for b in self.schedule.buffers.values() if b.role != "input" or b.name in self.unit.slots]
        dims: list[Any] = [d for b in held for d in (*b.shape, *b.strides)]
        for r in self.schedule.results:
            dims += [r.operand.offset, *r.operand.shape, *r.operand.strides] if isinstance(r, ResultBuffer) else [r]
        for s in self.program.steps:
            if isinstance(s, ExternStep):
                dims += _exprs_in((s.kernel.op.args, s.kernel.op.kwargs))
                dims += [d for o in s.kernel.inputs for d in (o.offset, *o.shape, *o.strides)]
        for d in dims:
            if isinstance(d, Expr):
                names |= {x.name for x in symbols(d)}
        return names

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def render(self) -> str:
        self.lines, self.views, self.literals, self.made = [], [], [], set()
        self._arguments()
        names = ", ".join(self.keys)
        self.line(f"workspace = pool.acquire({names})")
        self.line("t = workspace.table")
        self._addresses()
        dead = self._last_uses()
        safe: int | None = None  # lines until the first step that writes an input
        for n, step in enumerate(self.program.steps):
            if safe is None and self._writes_inputs(step):
                safe = len(self.lines)
            if isinstance(step, NativeStep):
                self._allocate(step)
                self._run_segment(step.segment)
            elif isinstance(step, ReferenceStep):
                self._in_torch(step)
            else:
                self._extern(step)
            self._free(dead.get(n, ()))
        if self.unit.checks:
            self._raise_mistakes()
        self._finish()
        results = self._results()
        self.line(f"pool.release(workspace{', ' + names if names else ''})")
        self.line(f"return ({''.join(r + ', ' for r in results)})")
        lines = self.lines if safe is None else [*self.lines[:safe], *_marking_failures(self.lines[safe:])]
        return "\n".join(["def run(args):", *lines, ""])

    def _writes_inputs(self, step: Step) -> bool:
        kernels = (
            [self.schedule.kernels[k] for k in self.unit.segments[step.segment]]
            if isinstance(step, NativeStep)
            else [step.kernel]
        )
        if isinstance(step, ExternStep) and step.kernel.op.target._schema.is_mutable:
            return True
        buffers = self.schedule.buffers
        return any(name in buffers and buffers[name].role == "input" for k in kernels for name in k.writes)

    # --- statements ---------------------------------------------------------------------------------------------

    def _run_segment(self, segment: int) -> None:
        self.line(f"native_{segment}(workspace.address)")

    def _raise_mistakes(self) -> None:
        self.line(f"if t[{ERROR_SLOT}]:")
        self.line(f"    mistakes, t[{ERROR_SLOT}] = t[{ERROR_SLOT}], 0")
        self.line("    raise callers_mistake(mistakes)")

    def _finish(self) -> None:
        """A hook for a device's steps after the last kernel."""

    def _free(self, names: Sequence[str]) -> None:
        for name in names:
            self.line(f"del {name}")

    def _in_torch(self, step: ReferenceStep) -> None:
        names = sorted(step.kernel.reads | step.kernel.writes)
        for name in sorted(step.kernel.writes):
            if self.schedule.buffers[name].role == "output":
                self._ensure_output(name)
        flat = [self._tensor(self._whole(name)) for name in names]
        memory = ", ".join(f"{name!r}: {text}" for name, text in zip(names, flat, strict=True))
        sizes = ", ".join(f"{name!r}: {name}" for name in sorted(self.sizes))
        self.literals.append(step.kernel)
        self.line(f"evaluate_kernel(literals[{len(self.literals) - 1}], {{{memory}}}, {{{sizes}}})")

    def _whole(self, name: str) -> Operand:
        b = self.schedule.buffers[name]
        return Operand(name, 0, (b.extent,), (1,), b.dtype)

    def _arguments(self) -> None:
        if self.arguments:
            self.line(f"{''.join(name + ', ' for name in self.arguments)}= args")
        if self.clears_at_once:
            self.line("args.clear()")
        for name in sorted(self.sizes):
            position, kind, d = self.program.sources[name]
            held = self.arguments[position]
            text = {
                "value": f"int({held})",
                "size": f"{held}.shape[{d}]",
                "stride": f"{held}.stride({d})",
                "offset": f"{held}.storage_offset()",
            }[kind]
            self.line(f"{name} = {text}")

    def _addresses(self) -> None:
        for b in self.schedule.buffers.values():
            if b.role == "input" and b.name in self.unit.slots:
                self.line(f"t[{self.unit.slots[b.name]}] = {b.name}.data_ptr()")

    def _allocate(self, step: NativeStep) -> None:
        for n in self.unit.segments[step.segment]:
            for name in sorted(self.schedule.kernels[n].writes):
                if self.schedule.buffers[name].role == "output":
                    self._ensure_output(name)

    def _ensure_output(self, name: str) -> None:
        """Results are allocated where first used: by a kernel, or by its reader where there was nothing to write."""
        b = self.schedule.buffers[name]
        if name in self.made:
            return
        assert b.dtype is not None
        self.made.add(name)
        shape, strides = self._dims(b.shape), self._dims(b.strides)
        self.line(f"{b.name} = empty_strided({shape}, {strides}, dtype={b.dtype.torch}{self.placed})")
        if b.name in self.unit.slots:
            self.line(f"t[{self.unit.slots[b.name]}] = {b.name}.data_ptr()")

    def _extern(self, step: ExternStep) -> None:
        kernel = step.kernel
        number = [s.number for s in self.program.steps if isinstance(s, ExternStep)].index(step.number)
        inputs = [self._tensor(o) for o in kernel.inputs]
        if "as_strided" in kernel.op.name:  # counts from the start of the storage: the arena
            inputs = [f"{x}.clone()" if x.startswith("workspace") else x for x in inputs]
        args = [self._argument(a, inputs) for a in kernel.op.args]
        args += [f"{k}={self._argument(a, inputs)}" for k, a in kernel.op.kwargs]
        self.line(f"# {kernel.op.name}")
        call = f"operators[{number}]({', '.join(args)})"
        returns = kernel.op.target._schema.returns
        if kernel.op.many:
            self.line(f"results = {call}")
        else:
            self.line(f"result = {call}")
        for k, (name, position) in enumerate(zip(kernel.outputs, kernel.op.positions, strict=True)):
            b = self.schedule.buffers.get(name)
            if b is None:  # it has no readers, and eager may not have computed it
                continue
            text = f"results[{position}]" if kernel.op.many else "result"
            alias = returns[position if position < len(returns) else 0].alias_info is not None
            text += ".clone()" if alias else ""  # memory of ours must not leave with it
            planned = f"{self._dims(b.shape)}, {self._dims(kernel.op.strides[k])}"
            kind = f", {b.dtype.torch}" if b.dtype is not None else ""
            self.line(f"{name} = as_planned({text}, {planned}{kind})")
            if name in self.unit.slots:
                self.line(f"t[{self.unit.slots[name]}] = {name}.data_ptr()")

    def _argument(self, value: Any, inputs: list[str]) -> str:
        if isinstance(value, Ref):
            return inputs[value.position]
        if isinstance(value, Expr):
            return render(value)
        if isinstance(value, list | tuple):
            inner = "".join(self._argument(v, inputs) + ", " for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f"float('{value}')"
        if value is None or isinstance(value, bool | int | float | str | torch.dtype):
            return repr(value)
        self.literals.append(value)
        return f"literals[{len(self.literals) - 1}]"

    def _tensor(self, o: Operand) -> str:
        b = self.schedule.buffers[o.buffer]
        if b.role == "temp":
            self.views.append(o)
            return f"workspace.views[{len(self.views) - 1}]"
        if b.role == "output":
            self._ensure_output(b.name)
        base = f"constants[{b.name!r}]" if b.role == "constant" else b.name
        if o.offset == 0 and o.shape == b.shape and o.strides == b.strides:
            return base
        start = f"{base}.storage_offset() + {render(o.offset)}"
        return f"{base}.as_strided({self._dims(o.shape)}, {self._dims(o.strides)}, {start})"

    def _results(self) -> list[str]:
        """Each by itself, but for what is one object, or two over one memory."""
        texts = [self._result(r) for r in self.schedule.results]
        results = list(texts)
        for k, first, is_one in self.schedule.objects:
            if is_one:
                name = f"result{first}"
                if results[first] != name:
                    self.line(f"{name} = {results[first]}")
                results[first] = results[k] = name
            elif texts[k] == texts[first]:
                results[k] = f"{texts[first]}.detach()"
        return results

    def _result(self, r: ResultBuffer | Dim | None) -> str:
        if not isinstance(r, ResultBuffer):
            return "None" if r is None else render(r)
        o = r.operand
        if r.alias_of is not None:
            base = self.arguments[r.alias_of]
            start = f"{base}.storage_offset() + {render(o.offset)}"
            return f"{base}.as_strided({self._dims(o.shape)}, {self._dims(o.strides)}, {start})"
        whole = self.schedule.buffers[o.buffer]
        # A window becomes a separate tensor, because autograd forbids in-place changes of a view that was returned with
        # other results.
        is_window = (o.offset, o.shape, o.strides) != (0, whole.shape, whole.strides)
        return f"{self._tensor(o)}.detach()" if is_window else self._tensor(o)

    def _last_uses(self) -> dict[int, list[str]]:
        """Results of ATen calls that can be freed after a step."""
        kept = self.schedule.result_buffers
        out: dict[int, list[str]] = {}
        for name, n in self._last_steps().items():
            if self.schedule.buffers[name].role == "extern" and name not in kept:
                out.setdefault(n, []).append(name)
        return out

    def _last_steps(self) -> dict[str, int]:
        """The last step that touches each buffer."""
        last: dict[str, int] = {}
        for n, step in enumerate(self.program.steps):
            kernels: list[Kernel] = (
                [self.schedule.kernels[k] for k in self.unit.segments[step.segment]]
                if isinstance(step, NativeStep)
                else [step.kernel]
            )
            for kernel in kernels:
                last |= {name: n for name in (*kernel.reads, *kernel.writes) if name in self.schedule.buffers}
        return last

    def _dims(self, dims: Sequence[Dim]) -> str:
        return f"({''.join(render(d) + ', ' for d in dims)})"


def _marking_failures(lines: Sequence[str]) -> list[str]:
    """Marks exceptions raised after inputs have been written: such a call cannot be repeated."""
    marked = ["except Exception as error:", "    error.inputs_changed = True", "    raise"]
    return ["    try:", *(f"    {line}" for line in lines), *(f"    {line}" for line in marked)]


def _exprs_in(value: Any) -> list[Expr]:
    if isinstance(value, Expr):
        return [value]
    if isinstance(value, list | tuple):
        return [e for v in value for e in _exprs_in(v)]
    return []
