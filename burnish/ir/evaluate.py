"""Reference evaluation of a Loop in torch: every printer is tested against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from burnish.ir.body import Apply, Checked, Const, Load, Loop, Position, Reduced, Scanned, Store, value_refs
from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim, evaluate, render
from burnish.ir.scalar import SCALAR_OPS

_REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda t: t.sum(-1, dtype=t.dtype),
    "prod": lambda t: t.prod(-1, dtype=t.dtype),
    "max": lambda t: t.amax(-1),
    "min": lambda t: t.amin(-1),
    "argmax": lambda t: t.argmax(-1),
    "argmin": lambda t: t.argmin(-1),
    "any": lambda t: t.any(-1),
    "all": lambda t: t.all(-1),
}

SCATTER_REDUCE = {"add": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def evaluate_loop(loop: Loop, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    """Run the loop on flat 1-d tensors, in place."""
    _Evaluation(loop, buffers, sizes).run()


def reduced(kind: str, x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """`kind` over several dimensions at once; argmax and argmin count along them in the order given."""
    return _REDUCE[kind](_rows(x, dims))


def _rows(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """x with `dims` joined into one last dimension."""
    keep = [d for d in range(x.dim()) if d not in dims]
    moved = x.permute(*keep, *dims)
    return moved.reshape(*moved.shape[: len(keep)], moved.shape[len(keep) :].numel())


class _Evaluation:
    """Values are tensors over the full iteration grid; row-level ones have size 1 along reduction axes."""

    def __init__(self, loop: Loop, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        self.loop, self.buffers, self.sizes = loop, buffers, sizes
        self.shape = [evaluate(a.size, sizes) for a in loop.axes]
        self.reduce_dims = [d for d, a in enumerate(loop.axes) if a.reduce]
        self.values: dict[int, torch.Tensor] = {}
        self.grid: dict[str, torch.Tensor] = {}
        for d, a in enumerate(loop.axes):
            view = [1] * len(self.shape)
            view[d] = self.shape[d]
            self.grid[a.name] = torch.arange(self.shape[d]).reshape(view)

    def offset(self, index: Dim) -> torch.Tensor:
        env = {**self.grid, **{k: torch.tensor(v) for k, v in self.sizes.items()}}
        for v in value_refs(index):
            env[f"%{v}"] = self.values[v]
        return torch.as_tensor(grid_value(index, env))

    def run(self) -> None:
        for n, i in enumerate(self.loop.body):
            match i:
                case Load(buffer, index, dtype, guard, fill):
                    self.values[n] = _held(self._load(buffer, index, guard, fill), dtype)
                case Const(value, dtype, _):
                    self.values[n] = _held(torch.tensor(value, dtype=dtype.torch), dtype)
                case Position(expr, dtype):
                    self.values[n] = _held(self.offset(expr), dtype)
                case Apply(fn, args, dtype):
                    self.values[n] = _held(SCALAR_OPS[fn].reference(*(self.values[a] for a in args)), dtype)
                case Checked(arg, size):
                    limit = evaluate(size, self.sizes)
                    v = self.values[arg].long()
                    if bool(((v < 0) | (v >= limit)).any()):
                        raise IndexError(f"index out of range for a dimension of size {limit}")
                    self.values[n] = v
                case Reduced(kind, arg, dtype, at):
                    self.values[n] = _held(self._reduce(kind, self.values[arg], at), dtype)
                case Scanned(kind, arg, dtype):
                    v = self.values[arg].broadcast_to(self.shape)
                    (dim,) = self.reduce_dims
                    self.values[n] = _held((torch.cumsum if kind == "sum" else torch.cumprod)(v, dim), dtype)
                case Store(buffer, index, value, mode, _):
                    self._store(buffer, index, self.values[value], mode)

    def _load(self, buffer: str, index: Dim, guard: int | None, fill: bool | int | float) -> torch.Tensor:
        memory, at = self.buffers[buffer], self.offset(index)
        if guard is None:
            return memory[at].clone()  # a single element would be a view, and change with what is stored later
        ok = self.values[guard].broadcast_to(_broadcast(at.shape, self.values[guard].shape))
        if not ok.any():
            return torch.full(ok.shape, fill, dtype=memory.dtype)
        return torch.where(ok, memory[torch.where(ok, at, 0)], torch.tensor(fill, dtype=memory.dtype))

    def _reduce(self, kind: str, value: torch.Tensor, at: Dim) -> torch.Tensor:
        full = self._whole_rows(value)
        out = reduced(kind, full, self.reduce_dims)
        if kind.startswith("arg"):  # what is asked for is not where along the row, but `at` there
            places = _rows(self.offset(at).broadcast_to(full.shape), self.reduce_dims)
            out = places.gather(-1, out.unsqueeze(-1)).squeeze(-1)
        for d in self.reduce_dims:
            out = out.unsqueeze(d)
        return out

    def _whole_rows(self, value: torch.Tensor) -> torch.Tensor:
        held = [1] * (len(self.shape) - value.dim()) + list(value.shape)
        return value.broadcast_to([s if d in self.reduce_dims else held[d] for d, s in enumerate(self.shape)])

    def _store(self, buffer: str, index: Dim, value: torch.Tensor, mode: str) -> None:
        at = self.offset(index)
        shape = _broadcast(
            at.shape, value.shape, [1 if a.reduce else s for a, s in zip(self.loop.axes, self.shape, strict=True)]
        )
        at, value = at.broadcast_to(shape).flatten(), value.broadcast_to(shape).flatten().to(self.buffers[buffer].dtype)
        if mode == "set":
            self.buffers[buffer][at] = value
        elif mode == "total":
            self.buffers[buffer][at] = 0
            self.buffers[buffer].index_add_(0, at, value)
        else:
            self.buffers[buffer].scatter_reduce_(0, at, value, SCATTER_REDUCE[mode])


def _held(value: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A value of this type as a register holds it: half types are rounded once and kept in float."""
    return value.to(dtype.torch).to(dtype.compute.torch)


def grid_value(x: Dim, env: Mapping[str, torch.Tensor]) -> torch.Tensor | int:
    """An index expression over grids of positions."""
    if isinstance(x, int):
        return x
    names: dict[str, str] = {}
    text = render(x, lambda n: names.setdefault(n, f"v{len(names)}"))
    # Under a dispatch mode torch may import something while it computes, and looks here for how.
    scope = {"__builtins__": {"__import__": __import__}, "max": _larger, "min": _smaller}
    value: torch.Tensor = eval(text, scope, {v: env[n] for n, v in names.items()})
    return value


def _larger(a: torch.Tensor | int, b: torch.Tensor | int) -> torch.Tensor:
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


def _smaller(a: torch.Tensor | int, b: torch.Tensor | int) -> torch.Tensor:
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


def _broadcast(*shapes: Any) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
