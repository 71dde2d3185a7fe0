"""Whether a class, a function or a code object is the same as in another process, judged by its content.

Line numbers and comments do not count. A code object is identified by its instructions, names and constants, a function
by its code, a class by the functions of all its bases (what another library added to a class, only if the traced code
can reach it), and an object of a Python class that holds only plain data (a
configuration) by that data, as is a container of such data. Other objects have no such identity, except singletons.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import importlib
import sys
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from burnish.capture.entry.frame_values import cell_content
from burnish.capture.restore import NotWarm
from burnish.torch_private.operators import OpOverload, OpOverloadPacket

_NATIVE = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_TORCH = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    OpOverload,
    OpOverloadPacket,
)
# Methods of torch.nn.Module that Dynamo wraps when it compiles for the first time. No call of a module reaches them.
_OF_DYNAMO = ("__init__", "__setstate__")
_CONTAINERS = (list, tuple, set, frozenset, dict)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))


@functools.lru_cache(maxsize=8192)
def code_mark(code: types.CodeType) -> str:
    """Equal for code with the same content, wherever it is in its file."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    parts = (code.co_code, counts, names, code.co_exceptiontable, [_constant(value) for value in code.co_consts])
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _constant(value: object) -> str:
    if isinstance(value, types.CodeType):
        return code_mark(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__} {value!r}"


class Fingerprints:
    """Marks at one point in time: classes may change later, so a `Fingerprints` is made, used once and dropped.

    `names` are all names that the traced code mentions. Libraries add methods of their own to the classes of others, at
    some point of a program's run (transformers adds one to `torch.nn.Module` with the first model that it initialises):
    an addition that no name leads to is no part of a mark. Without `names` every method is. A name that the code puts
    together at run time is found by the code that it led to, if that is given (`traced`)."""

    def __init__(self, names: Collection[str] | None = None, traced: Iterable[types.CodeType] = ()) -> None:
        self.names = None if names is None else set(names)
        self._traced = {code_mark(code) for code in traced}
        self._classes: dict[type, str] = {}
        self._bases: dict[type, bytes] = {}
        self.vouched: set[str] = set()  # marks of all code in the classes seen so far

    def of(self, value: object) -> str:
        """The mark of an object that is compared by identity."""
        if isinstance(value, enum.Enum):
            return f"{self.of_class(type(value))}.{value.name}"
        if type(value) in _PLAIN or isinstance(value, _TORCH):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, type):
            return self.of_class(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, types.CodeType):
            return f"code {code_mark(value)}"
        if isinstance(value, _NATIVE):
            return f"native {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        marks = sorted({code_mark(code) for code in codes_in(value)})
        if marks and not isinstance(value, torch.nn.Module):
            return f"{type(value).__name__} {getattr(value, '__qualname__', '')} {' '.join(marks)}"
        if type(value) in _CONTAINERS or _has_only_attributes(value):
            return f"content {hashlib.sha256(repr(self._content_of(value)).encode()).hexdigest()[:24]}"
        raise _known_by_identity(value)

    def _content_of(self, value: Any, depth: int = 8) -> Any:
        """Raises NotWarm for what is not plain data."""
        if depth == 0:
            raise _known_by_identity(value)
        if type(value) in (list, tuple):
            return type(value).__name__, [self._content_of(item, depth - 1) for item in value]
        if type(value) in (set, frozenset):
            return type(value).__name__, sorted(repr(self._content_of(item, depth - 1)) for item in value)
        if type(value) is dict:
            return "dict", [
                (self._content_of(key, depth - 1), self._content_of(value[key], depth - 1)) for key in value
            ]
        if _has_only_attributes(value):
            return self.of_class(type(value)), self._content_of(vars(value), depth - 1)
        return self.of(value)

    def of_class(self, cls: type) -> str:
        if cls not in self._classes:
            digest = hashlib.sha256()
            for base in cls.__mro__:
                digest.update(self._of_base(base))
            self._classes[cls] = f"class {cls.__module__}.{cls.__qualname__} {digest.hexdigest()[:24]}"
        return self._classes[cls]

    def _of_base(self, base: type) -> bytes:
        """A class without its bases; most classes share some."""
        if base not in self._bases:
            lines = [f"{base.__module__}.{base.__qualname__}\n"]
            for name, value in sorted(vars(base).items()):
                if base is torch.nn.Module and name in _OF_DYNAMO:
                    continue
                marks = [code_mark(code) for code in codes_in(value)]
                if not self._is_reached(name, value, base, marks):
                    continue
                self.vouched.update(marks)
                if marks:
                    lines.append(f"{name} {' '.join(sorted(marks))}\n")
            self._bases[base] = "".join(lines).encode()
        return self._bases[base]

    def _is_reached(self, name: str, value: object, base: type, marks: Iterable[str]) -> bool:
        if self.names is None or name in self.names or (name.startswith("__") and name.endswith("__")):
            return True
        if not self._traced.isdisjoint(marks):
            self.names.add(name)
            return True
        return not _is_added(value, base) or name in _mentioned_in(base)


def _is_added(value: object, cls: type) -> bool:
    """Whether a function was not defined in the class's own body, nor in its package."""
    while (inner := next(_wrapped_in(value), None)) is not None:
        value = inner
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    return module.partition(".")[0] != cls.__module__.partition(".")[0] and name.rpartition(".")[0] != cls.__qualname__


def _mentioned_in(cls: type) -> frozenset[str]:
    """The names in the functions that are the class's own."""
    own = [value for value in vars(cls).values() if not _is_added(value, cls)]
    return frozenset(names_in(code for value in own for code in codes_in(value)))


def names_in(codes: Iterable[types.CodeType]) -> tuple[str, ...]:
    """All names that the code mentions, and all texts, because a text may be the name of an attribute."""
    found: set[str] = set()
    for each in dict.fromkeys(inner for code in codes for inner in codes_in(code)):
        found.update(each.co_names)
        for constant in each.co_consts:
            found.update(text for text in _flat(constant) if isinstance(text, str) and text.isidentifier())
    return tuple(sorted(found))


def _flat(constant: object) -> Iterator[object]:
    if isinstance(constant, tuple | frozenset):
        for each in constant:
            yield from _flat(each)
    else:
        yield constant


def _known_by_identity(value: object) -> NotWarm:
    return NotWarm(f"an object of {type(value).__module__}.{type(value).__qualname__} is known by its identity")


def _has_only_attributes(value: object) -> bool:
    """Whether all state of an object is in its `__dict__`: its classes are Python's, without slots."""
    if isinstance(value, (torch.nn.Module, torch.Tensor, type)) or not hasattr(value, "__dict__"):
        return False
    return all(base is object or _is_written_in_python(base) for base in type(value).__mro__)


def _is_written_in_python(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return file.endswith(".py") and not vars(cls).get("__slots__")


def codes_in(value: object, depth: int = 6) -> Iterator[types.CodeType]:
    """A function's code objects, those of wrapped and nested functions included."""
    if depth == 0:
        return
    if isinstance(value, types.CodeType):
        yield value
        for constant in value.co_consts:
            if isinstance(constant, types.CodeType):
                yield from codes_in(constant, depth - 1)
        return
    inner: list[object] = []
    if isinstance(value, types.FunctionType):
        yield from codes_in(value.__code__, depth)
        inner = [held for cell in value.__closure__ or () if (held := cell_content(cell)) is not value]
        inner = [held for held in inner if isinstance(held, types.FunctionType | types.MethodType)]
    else:
        inner = list(_wrapped_in(value))
    wrapped = getattr(value, "__wrapped__", None) if not isinstance(value, type | torch.nn.Module) else None
    for held in (*inner, wrapped):
        if held is not None and held is not value:
            yield from codes_in(held, depth - 1)


def _wrapped_in(value: object) -> Iterator[object]:
    if isinstance(value, types.MethodType | staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield from (each for each in (value.fget, value.fset) if each is not None)
    elif isinstance(value, functools.partial | functools.cached_property):
        yield value.func


# -- things found by their names ----------------------------------------------------------------------------------

Place = tuple[str, str, str]  # module, qualified name, mark; without a name, the module itself


def place_of(value: object) -> Place:
    """Raises NotWarm for an object that another process would not find."""
    if isinstance(value, types.ModuleType):
        return value.__name__, "", ""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and "<locals>" not in name:
        place = (module, name, Fingerprints().of(value))
        if found_at(place) is value:
            return place
    raise NotWarm(f"its code needs an object of {type(value).__module__}.{type(value).__qualname__}")


def found_at(place: Place) -> Any:
    module, name, mark = place
    try:
        found: Any = importlib.import_module(module)
        found = functools.reduce(getattr, name.split("."), found) if name else found
    except (ImportError, AttributeError) as error:
        raise NotWarm(str(error)) from error
    if mark and Fingerprints().of(found) != mark:
        raise NotWarm(f"{module}.{name} has changed")
    return found


# -- code that was traced -----------------------------------------------------------------------------------------

Traced = tuple[str, str, str]  # module, qualified name, mark


def traced(codes: Iterable[types.CodeType], known: Fingerprints) -> tuple[Traced, ...]:
    """The place of each piece of code. Code made at run time must belong to a class that is already known."""
    modules = {file: name for name, module in list(sys.modules.items()) if (file := getattr(module, "__file__", None))}
    found: dict[Traced, None] = {}
    for code in dict.fromkeys(codes):
        mark, module = code_mark(code), modules.get(code.co_filename)
        if mark in known.vouched:
            continue
        if module is None:
            raise NotWarm(f"{code.co_qualname} of {code.co_filename} was made at run time")
        entry = (module, code.co_qualname, mark)
        if mark not in _marks_at(module, code.co_qualname):
            raise NotWarm(f"{module}.{code.co_qualname} cannot be found by its name")
        found[entry] = None
    return tuple(found)


def changed(entries: Iterable[Traced]) -> str:
    """The first piece of code that has changed; "" if none has."""
    for module, name, mark in entries:
        if mark not in _marks_at(module, name):
            return f"{module}.{name} has changed"
    return ""


def _marks_at(module: str, qualified: str) -> set[str]:
    try:
        value: Any = sys.modules.get(module) or importlib.import_module(module)
    except ImportError:
        return set()
    owner = value
    for part in qualified.split("."):
        if part == "<locals>" or not hasattr(value, part):
            break
        owner, value = value, vars(value).get(part, None) or getattr(value, part)
    marks = {code_mark(code) for code in codes_in(value)}
    if isinstance(value, types.ModuleType | type):  # a name that refers to another object now
        marks = {code_mark(code) for held in list(vars(value).values()) for code in codes_in(held)}
    return marks or {code_mark(code) for code in codes_in(owner)}
