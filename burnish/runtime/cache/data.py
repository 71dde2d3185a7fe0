"""Converts compiler values to JSON and back: a warm start reads data from the cache, and unpickles nothing.

A `Codec` knows a closed set of classes, each a dataclass or an enumeration; a value of any other kind is refused, and
so is a tag or a class it does not know. Reading makes objects of those classes and of plain Python, and nothing else.
The fields of our own classes have the types that their annotations state, where they are written and where they are
read; annotations of other packages' classes are not binding there.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import math
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from burnish.ir.expr import Expr, Monomial
from burnish.runtime.cache.field_types import Check, StandIns, check_of, checks_of, unfit
from burnish.torch_private.operators import OpOverload

_NAME = 64  # characters
_TENSOR_BYTES = 1 << 16  # constants are tables and masks; graphs do not contain weights
_CODE = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize", "co_flags", "co_code",
         "co_consts", "co_names", "co_varnames", "co_filename", "co_name", "co_qualname", "co_firstlineno",
         "co_linetable", "co_exceptiontable", "co_freevars", "co_cellvars")  # fmt: skip
_are_terms = check_of(dict[Monomial, int])  # of an expression
_TORCH_KINDS: dict[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "format": torch.memory_format}


class NotData(Exception):
    """A value that cannot be written, or text that this codec did not write."""


class Codec:
    """Objects of the class `shared`, which must be hashable, are written once and then referenced. With `shared`, a
    codec is not thread-safe. `stand_ins` are classes that are stored in the place of others."""

    def __init__(self, classes: Iterable[type], shared: type | tuple[type, ...] = (), stand_ins: StandIns = ()) -> None:
        self._shared = shared
        self._numbers: dict[Any, int] = {}  # while writing
        self._known: list[Any] = []  # while reading
        self._classes = {cls.__qualname__: cls for cls in classes}
        self._fields = {name: _fields(cls) for name, cls in self._classes.items() if dataclasses.is_dataclass(cls)}
        self._checks: dict[str, tuple[tuple[str, Check], ...]] = {
            name: checks_of(self._classes[name], stand_ins) for name in self._fields if _is_ours(self._classes[name])
        }
        self._readers: dict[str, Callable[[list[Any]], Any]] = {
            "list": lambda items: [self._read(item) for item in items],
            "tuple": lambda items: tuple(self._read(item) for item in items),
            "set": lambda items: {self._read(item) for item in items},
            "frozenset": lambda items: frozenset(self._read(item) for item in items),
            "dict": lambda items: {self._read(key): self._read(value) for key, value in items},
            "size": lambda items: torch.Size(items),
            "slice": lambda items: slice(*(self._read(item) for item in items)),
            "float": lambda items: float(items[0]),
            "complex": lambda items: complex(self._read(items[0]), self._read(items[1])),
            "bytes": lambda items: base64.b64decode(items[0]),
            "...": lambda items: ...,
            "device": lambda items: torch.device(items[0]),
            "op": lambda items: _operator(items[0]),
            "class": lambda items: _loaded_class(*items),
            "tensor": self._read_tensor,
            "expr": self._read_expr,
            "code": self._read_code,
            "enum": self._read_enum,
            "object": self._read_object,
            "again": lambda items: self._known[items[0]],
        }

    def dumps(self, value: Any) -> bytes:
        self._numbers = {}
        return json.dumps(self._write(value), separators=(",", ":"), allow_nan=False).encode()

    def loads(self, data: bytes) -> Any:
        self._known = []
        try:
            return self._read(json.loads(data))
        except NotData:
            raise
        except Exception as error:  # any exception that untrusted text causes in constructors
            raise NotData(f"{type(error).__name__}: {error}") from error

    # -- writing -------------------------------------------------------------------------------------------------

    def _write(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind in (list, tuple, set, frozenset):
            items = [self._write(item) for item in value]
            return [kind.__name__, *(items if kind in (list, tuple) else sorted(items, key=json.dumps))]
        if kind is dict:
            return ["dict", *([self._write(key), self._write(item)] for key, item in value.items())]
        if kind is Expr:
            return ["expr", *([[self._write(atom) for atom in atoms], factor] for atoms, factor in value.terms.items())]
        name = kind.__qualname__
        if self._classes.get(name) is kind:
            if isinstance(value, enum.Enum):
                return ["enum", name, value.name]
            return self._write_object(value, name)
        return self._write_rare(value, kind)

    def _write_object(self, value: Any, name: str) -> Any:
        is_shared = isinstance(value, self._shared)
        if is_shared and (number := self._numbers.get(value)) is not None:
            return ["again", number]
        values = [getattr(value, field) for field in self._fields[name]]
        self._require_types(name, values)
        text = ["object", name, *map(self._write, values)]
        if is_shared:
            self._numbers[value] = len(self._numbers)
        return text

    def _write_rare(self, value: Any, kind: type) -> Any:
        if kind is complex:
            return ["complex", self._write(value.real), self._write(value.imag)]
        if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if value is ...:
            return ["..."]
        if kind is slice:
            return ["slice", self._write(value.start), self._write(value.stop), self._write(value.step)]
        if kind is torch.Size and all(type(size) is int for size in value):
            return ["size", *value]
        if kind is torch.device:
            return ["device", str(value)]
        if kind is OpOverload:
            return ["op", str(value)]
        if kind is types.CodeType:
            return ["code", *(self._write(getattr(value, name)) for name in _CODE)]
        for tag, torch_kind in _TORCH_KINDS.items():
            if kind is torch_kind:
                return [tag, str(value).removeprefix("torch.")]
        if kind is torch.Tensor:
            return _written_tensor(value)
        if isinstance(value, type):
            name = [value.__module__, value.__qualname__]
            if _loaded_class(*name) is value:
                return ["class", *name]
        raise NotData(f"a value of type {kind.__module__}.{kind.__qualname__}")

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(self, text: Any) -> Any:
        if type(text) is not list:
            if type(text) is dict:
                raise NotData("an object of JSON")
            # Intern names: Python compares strings by identity first, and guards compare a thousand names in a call.
            return sys.intern(text) if type(text) is str and len(text) <= _NAME else text
        tag, *items = text
        if tag in _TORCH_KINDS:
            return _named(torch, items[0], _TORCH_KINDS[tag])
        reader = self._readers.get(tag)
        if reader is None:
            raise NotData(f"the tag {tag!r}")
        return reader(items)

    def _read_object(self, items: list[Any]) -> Any:
        name, *values = items
        fields = self._fields.get(name)
        if fields is None or len(fields) != len(values):
            raise NotData(f"a {name} with {len(values)} fields")
        found = [self._read(value) for value in values]
        self._require_types(name, found)
        made = self._classes[name](**dict(zip(fields, found, strict=True)))
        if isinstance(made, self._shared):
            self._known.append(made)
        return made

    def _require_types(self, name: str, values: list[Any]) -> None:
        if name in self._checks and (field := unfit(self._checks[name], values)) is not None:
            raise NotData(f"a {name} whose {field} is of another type")

    def _read_enum(self, items: list[Any]) -> Any:
        name, member = items
        if not issubclass(self._classes.get(name, object), enum.Enum):
            raise NotData(f"the enumeration {name}")
        return self._classes[name][member]  # type: ignore[index]

    def _read_expr(self, items: list[Any]) -> Expr:
        terms = {tuple(self._read(atom) for atom in atoms): factor for atoms, factor in items}
        if not _are_terms(terms):
            raise NotData("an expression of other parts")
        return Expr(terms)

    def _read_code(self, items: list[Any]) -> types.CodeType:
        if len(items) != len(_CODE):
            raise NotData("code of another Python")
        template = (lambda: None).__code__
        return template.replace(**dict(zip(_CODE, map(self._read, items), strict=True)))

    def _read_tensor(self, items: list[Any]) -> torch.Tensor:
        dtype, shape, strides, data = items
        flat = torch.frombuffer(bytearray(base64.b64decode(data)), dtype=_named(torch, dtype, torch.dtype))
        return flat.as_strided(shape, strides)


def _fields(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def _written_tensor(value: torch.Tensor) -> list[Any]:
    extent = 1 + sum((d - 1) * s for d, s in zip(value.shape, value.stride(), strict=True))
    size = extent * value.element_size()
    if value.device.type != "cpu" or value.layout is not torch.strided or not value.numel() or size > _TENSOR_BYTES:
        raise NotData(f"a constant tensor of {size} bytes on {value.device}")
    flat = value.detach().as_strided((extent,), (1,)).clone()
    data = bytes(flat.untyped_storage())
    return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), list(value.stride()),
            base64.b64encode(data).decode()]  # fmt: skip


def _named(module: Any, name: str, kind: type) -> Any:
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        raise NotData(f"{name!r} as a {kind.__name__}")
    return found


def _loaded_class(module: str, name: str) -> type:
    """A class of a module that is loaded already: reading an entry imports nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    if not isinstance(found, type):
        raise NotData(f"the class {module}.{name}")
    return found


def _operator(name: str) -> Any:
    """torch.ops' own, by its printed name: aten.mm.default."""
    namespace, packet, overload = name.split(".")
    return _named(getattr(getattr(torch.ops, namespace), packet), overload, OpOverload)
