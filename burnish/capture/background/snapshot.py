"""A snapshot of a frame at its entry, for compiling it later in another thread.

Dynamo reads a frame's arguments, and the objects they refer to, while it traces and again when it makes guards. In
between, the running call may change them: it counts steps, fills caches, switches from train() to eval(). A graph of
one state under guards of another would be silently wrong. So all objects that Python code can change (modules,
containers, plain objects) are copied before Dynamo reads them, except tensors, of which only the shape matters. A
call's own objects are copied at frame entry. The model is first copied by the compiling thread; if the resulting code
fits no call, the next attempt copies it at frame entry, too. Guards name objects by their path
("self.layers[0].training"), not by identity, so they hold for the originals as for the copies. A guard that does not is
detected before the code is used.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import inspect
import itertools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from burnish.runtime.host.thread_state import CannotSnapshot

_LARGEST = 100_000  # elements of containers and attributes looked at
_NOT_BEGUN = -1  # f_lasti of a frame before its first instruction
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_CONSTANTS = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, torch.layout)


_LEAVES = frozenset((*_CONSTANTS, torch.Tensor, torch.nn.Parameter, types.FunctionType, types.BuiltinFunctionType))


@dataclass(frozen=True)
class FrameSnapshot:
    """The part of a frame that Dynamo reads, with the same attribute names."""

    f_code: types.CodeType
    f_globals: dict[str, Any]
    f_locals: dict[str, Any]
    f_builtins: dict[str, Any]
    f_lasti: int
    closure: tuple[Any, ...]

    @classmethod
    def uncopied(cls, frame: Any) -> FrameSnapshot:
        return cls(
            frame.f_code, frame.f_globals, dict(frame.f_locals), frame.f_builtins, frame.f_lasti, tuple(frame.closure)
        )

    @classmethod
    def of(cls, frame: Any) -> FrameSnapshot:
        copies = _Copies()
        f_locals = {name: copies.of(value) for name, value in frame.f_locals.items()}
        closure = tuple(copies.of(cell) for cell in frame.closure)
        return cls(frame.f_code, frame.f_globals, f_locals, frame.f_builtins, frame.f_lasti, closure)


def can_wait(value: Any) -> bool:
    """Whether a call does not change this argument, except for tensors' contents and a model's state. Then another
    thread may copy the frame later: code and guards are made from the same copy, so they are consistent, and most
    models have the same state between any two calls."""
    kind = type(value)
    if kind in _LEAVES:
        return True
    if kind is tuple:
        return all(type(element) in _LEAVES for element in value)
    if kind is dict:
        return all(type(element) in _LEAVES for element in value.values())
    return isinstance(value, torch.nn.Module)


def entered(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameSnapshot:
    """The frame of a call of `function`, without copies so far. Raises TypeError if the call does."""
    code = function.__code__
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    f_locals = {name: bound.arguments[name] for name in code.co_varnames if name in bound.arguments}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # empty
            f_locals[name] = cell.cell_contents
    return FrameSnapshot(code, function.__globals__, f_locals, vars(builtins), _NOT_BEGUN, function.__closure__ or ())


class _Copies:
    """Copies of the objects that Python code can change; one for each original, so that sharing is preserved.

    Speed matters, because a call waits for it: a model has hundreds of modules with a dozen dictionaries each, most of
    them empty."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # originals, kept alive while their id is a key
        self._left = _LARGEST

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in _LEAVES:
            return value
        known = self._made.get(id(value))
        if known is not None:
            return known
        make = _MAKERS.get(kind)
        if make is None:
            if not _has_plain_state(kind):
                return value
            make = _Copies._object
        self._kept.append(value)
        return make(self, value)

    def _spend(self, elements: int) -> None:
        self._left -= elements
        if self._left < 0:
            raise CannotSnapshot(f"its arguments lead to more than {_LARGEST} Python objects")

    def _fill(self, copy: dict[Any, Any], state: dict[Any, Any]) -> None:
        self._spend(len(state))
        leaves, of = _LEAVES, self.of
        for name, value in list(state.items()):
            copy[name] = value if type(value) in leaves else of(value)

    def _object(self, value: Any) -> Any:
        copy = self._made[id(value)] = object.__new__(type(value))
        self._fill(copy.__dict__, value.__dict__)
        return copy

    def _mapping(self, value: Any) -> Any:
        copy = self._made[id(value)] = type(value)()
        if type(value) is defaultdict:
            copy.default_factory = value.default_factory
        if value:
            self._fill(copy, value)
        return copy

    def _sequence(self, value: Any) -> Any:
        copy = self._made[id(value)] = deque(maxlen=value.maxlen) if type(value) is deque else []
        self._spend(len(value))
        copy.extend(map(self.of, list(value)))
        return copy

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        self._spend(len(value))
        return tuple(map(self.of, value))

    def _set(self, value: set[Any]) -> set[Any]:
        copy = self._made[id(value)] = set(value)
        return copy

    def _method(self, value: types.MethodType) -> types.MethodType:
        return types.MethodType(value.__func__, self.of(value.__self__))

    def _cell(self, value: types.CellType) -> types.CellType:
        copy = self._made[id(value)] = types.CellType()
        with contextlib.suppress(ValueError):  # empty
            copy.cell_contents = self.of(value.cell_contents)
        return copy


_MAKERS: dict[type, Any] = {
    dict: _Copies._mapping,
    OrderedDict: _Copies._mapping,
    defaultdict: _Copies._mapping,
    list: _Copies._sequence,
    deque: _Copies._sequence,
    tuple: _Copies._tuple,
    set: _Copies._set,
    types.MethodType: _Copies._method,
    types.CellType: _Copies._cell,
}
_plain_classes: dict[type, bool] = {}


def _has_plain_state(cls: type) -> bool:
    """Whether a class is written in Python, and its instances hold only their `__dict__`."""
    known = _plain_classes.get(cls)
    if known is None:
        written = all(
            base.__flags__ & _HEAP_TYPE and not vars(base).get("__slots__")
            for base in cls.__mro__
            if base is not object
        )
        special = issubclass(cls, (type, enum.Enum, BaseException, types.ModuleType, torch.Tensor))
        known = _plain_classes[cls] = bool(
            written and not special and cls.__dictoffset__ and cls.__basicsize__ == _Plain.__basicsize__
        )
    return known


class _Plain:
    pass


# -- which inputs these are ---------------------------------------------------------------------------------------


def signature(values: dict[str, Any]) -> tuple[Any, ...]:
    """Equal for two calls that will most likely share compiled code. Cheap, because every call of a frame computes it
    while the frame is being compiled. (Guards decide in the end; this only avoids submitting the same job twice.)"""
    left = itertools.repeat(None, 2000)
    return tuple((name, _described(value, left)) for name, value in values.items())


def _described(value: Any, left: Iterator[None], depth: int = 16) -> Any:
    """Objects may refer to each other in cycles: limits the depth, and the number of objects to `left`."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return kind, value.dtype, value.layout, value.device
        if value.layout is not torch.strided:
            return kind, value.dtype, value.shape, value.device
        return kind, value.dtype, value.shape, value.stride(), value.device, value.requires_grad
    if kind in _CONSTANTS:
        return kind, repr(value) if kind is float else value  # nan is not equal to itself
    if isinstance(value, torch.nn.Module):
        return id(value)
    if depth == 0:
        return kind, id(value)
    if kind in (list, tuple) and next(left, 0) is None:
        return kind, tuple([_described(element, left, depth - 1) for element in value])
    if kind is dict and next(left, 0) is None:
        return kind, tuple([(repr(key), _described(element, left, depth - 1)) for key, element in value.items()])
    if _has_plain_state(kind) and next(left, 0) is None:
        return kind, _described(value.__dict__, left, depth - 1) if len(value.__dict__) < 64 else id(value)
    return kind, id(value)


def inputs_in_words(values: dict[str, Any]) -> str:
    """Types and sizes of the tensors among the arguments."""
    tensors = [leaf for value in values.values() for leaf in _leaves(value) if isinstance(leaf, torch.Tensor)]
    shown = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors[:6]]
    return ", ".join([*shown, *(["..."] if len(tensors) > 6 else [])])


def _leaves(value: Any, depth: int = 3) -> Iterator[Any]:
    if isinstance(value, (list, tuple)) and depth:
        for element in value[:16]:
            yield from _leaves(element, depth - 1)
    elif isinstance(value, dict) and depth:
        for element in list(value.values())[:16]:
            yield from _leaves(element, depth - 1)
    else:
        yield value
