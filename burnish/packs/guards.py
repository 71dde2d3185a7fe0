"""A variant's guards as data, and their evaluation. They are what Dynamo's guards were where the variant was traced.

Objects that Dynamo compares by identity, and classes, are compared by their content (`restore/code_identity.py`), as in
a warm start. What Dynamo checks of the state of the process is in `State`.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from burnish.capture.restore import NotWarm
from burnish.capture.restore.code_identity import Fingerprints
from burnish.errors import Mismatch
from burnish.packs.places import SKIPPED, Absent, Node, Skipped, are_nodes, is_local, text_of, values_at
from burnish.runtime.cache.data import NotData
from burnish.torch_private.dispatch import len_torch_function_stack, peek_interpreter_stack
from burnish.torch_private.dynamo import GlobalStateGuard
from burnish.torch_private.guards import device as default_device
from burnish.torch_private.tensors import dispatch_keys
from burnish.trust.saved_tensor_hooks import hooks_are_active

_OF_THE_THREAD = ("Autograd", "Autocast", "ADInplaceOrView", "BackendSelect")  # dispatch keys
_THREADS = "num_threads"  # of the state that is stored: how fast, not what


Found = tuple[str, str] | None  # expected and found, where they differ


@dataclass(frozen=True)
class Check:
    """`kind` is one of KINDS, `at` the places that it looks at."""

    kind: str
    at: tuple[int, ...]
    expected: Any = None


@dataclass(frozen=True)
class Mark:
    """What an object or a class is, by its content. Objects of one `group` were one object; -1: not compared."""

    at: int
    of_class: bool
    mark: str
    group: int = -1


@dataclass(frozen=True)
class TensorForm:
    """`None` among the sizes is any size. `keys` are the dispatch keys that say what kind of tensor it is. Those of
    autograd and autocast come and go with the thread's state, which `State` has."""

    keys: tuple[str, ...]
    dtype: torch.dtype
    device: int | None
    requires_grad: bool
    sizes: tuple[int | None, ...] | None
    strides: tuple[int | None, ...] | None


@dataclass(frozen=True)
class State:
    """The state of the process and thread. `text` is torch's own description of it, without the number of threads."""

    text: str
    inference: bool
    default_device: str

    def mismatches(self) -> Iterator[Mismatch]:
        here = state_here()
        before, now = json.loads(self.text), json.loads(here.text)
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                yield Mismatch(name, str(before.get(name)), str(now.get(name)))
        if self.inference != here.inference:
            yield Mismatch("inference mode", str(self.inference), str(here.inference))
        if self.default_device != here.default_device:
            yield Mismatch("default device", self.default_device, here.default_device)
        if len_torch_function_stack():
            yield Mismatch("function modes", "none", "active")
        if hooks_are_active():
            yield Mismatch("hooks on saved tensors", "none", "active")
        if peek_interpreter_stack() is not None:
            yield Mismatch("transforms of torch.func", "none", "active")


def state_here() -> State:
    device = repr(default_device.CURRENT_DEVICE)
    return State(state_text(str(GlobalStateGuard().__getstate__())), torch.is_inference_mode_enabled(), device)


def state_text(described: str) -> str:
    """Raises ValueError."""
    found = json.loads(described)
    return json.dumps({name: value for name, value in found.items() if name != _THREADS}, sort_keys=True)


@dataclass(frozen=True)
class Guards:
    nodes: tuple[Node, ...]
    checks: tuple[Check, ...]
    marks: tuple[Mark, ...]
    state: State

    def require_sound(self) -> None:
        """Raises NotData for data of a file that no pack has. The types of the fields are right."""
        if not are_nodes(self.nodes):
            raise NotData("guards without places")
        count = len(self.nodes)
        if not all(each.kind in KINDS and all(0 <= n < count for n in each.at) for each in self.checks):
            raise NotData("a guard of no kind")
        if not all(0 <= each.at < count for each in self.marks):
            raise NotData("a mark of nothing")
        try:
            is_described = type(json.loads(self.state.text)) is dict
        except (ValueError, RecursionError):
            is_described = False
        if not is_described:
            raise NotData("guards without the state of the process")

    def looked_at(
        self, local: Mapping[str, Any], names: Callable[[str], Any], arguments: frozenset[str] | None = None
    ) -> Look:
        """With `arguments`, the names of the frame's parameters, only what does not hang on these is looked at."""
        among = [False] * len(self.nodes) if arguments is None else is_local(self.nodes, arguments)
        return Look(self, values_at(self.nodes, local, names, lambda number: not among[number]))


class Look:
    """Values at the guards' places, at one moment."""

    def __init__(self, guards: Guards, values: Sequence[Any]) -> None:
        self._guards = guards
        self.values = values

    def mismatches(self, prints: Fingerprints) -> Iterator[Mismatch]:
        """The state apart."""
        yield from self._absent()
        yield from self._checked()
        yield from self._marked(prints)

    def classes(self) -> dict[type, None]:
        """Of what was looked at."""
        return {type(each): None for each in self.values if not isinstance(each, Absent | Skipped)}

    def _absent(self) -> Iterator[Mismatch]:
        for number, (before, _, _) in enumerate(self._guards.nodes):
            value = self.values[number]
            if isinstance(value, Absent) and not (before >= 0 and isinstance(self.values[before], Absent)):
                yield Mismatch(text_of(self._guards.nodes, number), "there", f"not there ({value.reason[:100]})")

    def _checked(self) -> Iterator[Mismatch]:
        for check in self._guards.checks:
            values = [self.values[n] for n in check.at]
            if any(value is SKIPPED or isinstance(value, Absent) for value in values):
                continue
            if found := _differs(check, values):
                name = " and ".join(text_of(self._guards.nodes, n) for n in check.at[:2])
                yield Mismatch(name, *found)

    def _marked(self, prints: Fingerprints) -> Iterator[Mismatch]:
        groups: dict[int, int] = {}  # by group, the object; and by object, the group
        objects: dict[int, int] = {}
        for each in self._guards.marks:
            value = self.values[each.at]
            if value is SKIPPED or isinstance(value, Absent):
                continue
            name = text_of(self._guards.nodes, each.at)
            try:
                mark = prints.of_class(type(value)) if each.of_class else prints.of(value)
            except NotWarm as why:
                mark = str(why)
            if mark != each.mark:
                yield Mismatch(f"type of {name}" if each.of_class else name, each.mark, mark)
            if each.group < 0:
                continue
            if groups.setdefault(each.group, id(value)) != id(value) or (
                objects.setdefault(id(value), each.group) != each.group
            ):
                yield Mismatch(name, "one object with others in another way", "see the object")


def _differs(check: Check, values: Sequence[Any]) -> Found:
    try:
        return KINDS[check.kind](values, check.expected)
    except Exception as error:  # an object of another kind, or one of the user's whose methods raise
        return str(check.expected)[:160], f"{_shown(values[0])} ({type(error).__name__})"


# -- kinds of checks ----------------------------------------------------------------------------------------------


def _equal(values: Sequence[Any], expected: Any) -> Found:
    return None if is_same_constant(values[0], expected) else (repr(expected), _shown(values[0]))


def is_same_constant(value: Any, expected: Any) -> bool:
    """Whether a graph in which `expected` is a constant computes the same with `value`: 2 is not 2.0, 0.0 is not -0.0,
    and a NaN is a NaN, also inside containers."""
    if type(value) is not type(expected):
        return False
    if type(value) is float:
        return value.hex() == expected.hex()
    if type(value) is complex:
        return is_same_constant((value.real, value.imag), (expected.real, expected.imag))
    if isinstance(value, tuple | list):
        return len(value) == len(expected) and all(map(is_same_constant, value, expected))
    return bool(value == expected)


def _shown(value: Any) -> str:
    plain = type(value) in (str, int, float, bool, type(None), tuple, torch.dtype, torch.device)
    return repr(value)[:160] if plain else f"a {type(value).__qualname__}"


def _not_none(values: Sequence[Any], expected: Any) -> Found:
    return ("not None", "None") if values[0] is None else None


def _has_key(values: Sequence[Any], expected: Any) -> Found:
    (held,), (key, there) = values, expected
    found = dict.__contains__(held, key) if isinstance(held, dict) else key in held
    return None if found == there else (f"{'' if there else 'no '}{key!r}", f"{'' if found else 'no '}{key!r}")


def _has_attribute(values: Sequence[Any], expected: Any) -> Found:
    (value,), (name, there) = values, expected
    found = hasattr(value, name)
    return None if found == there else (f"{'' if there else 'no '}{name}", f"{'' if found else 'no '}{name}")


def _length(values: Sequence[Any], expected: Any) -> Found:
    (held,) = values
    found = dict.__len__(held) if isinstance(held, dict) else len(held)
    return None if found == expected else (f"{expected} elements", f"{found}")


def _keys(values: Sequence[Any], expected: Any) -> Found:
    found = list(dict.keys(values[0]) if isinstance(values[0], dict) else values[0].keys())
    return None if is_same_constant(found, list(expected)) else (f"keys {list(expected)}"[:160], f"{found}"[:160])


def _class_named(values: Sequence[Any], expected: Any) -> Found:
    found = str(type(values[0]))
    return None if found == expected else (expected, found)


def _form(values: Sequence[Any], expected: Any) -> Found:
    found = form_of(values[0])
    if found is None:
        return "a tensor", _shown(values[0])
    same = (
        (found.keys, found.dtype, found.device, found.requires_grad)
        == (expected.keys, expected.dtype, expected.device, expected.requires_grad)
        and _fit(expected.sizes, found.sizes)
        and _fit(expected.strides, found.strides)
    )
    return None if same else (str(expected), str(found))


def _fit(expected: tuple[int | None, ...] | None, found: tuple[int | None, ...] | None) -> bool:
    if expected is None:
        return True
    return (
        found is not None
        and len(expected) == len(found)
        and all(e is None or e == f for e, f in zip(expected, found, strict=True))
    )


def form_of(value: Any) -> TensorForm | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    sizes, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    keys = str(dispatch_keys(value))
    return TensorForm(kind_keys(keys), value.dtype, value.device.index, value.requires_grad, sizes, strides)


@functools.lru_cache(maxsize=256)
def kind_keys(text: str) -> tuple[str, ...]:
    """Of a set of dispatch keys as torch writes it."""
    keys = text.removeprefix("DispatchKeySet(").removesuffix(")").split(", ")
    return tuple(sorted(key for key in keys if not key.startswith(_OF_THE_THREAD)))


def _distinct(values: Sequence[Any], expected: Any) -> Found:
    return None if len(set(map(id, values))) == len(values) else ("tensors that are all distinct", "two that are one")


def _same(values: Sequence[Any], expected: Any) -> Found:
    return None if values[0] is values[1] else ("one object", "two")


def _relation(values: Sequence[Any], expected: Any) -> Found:
    return None if evaluated(expected, values) else (f"sizes for which {expected} holds", "others")


_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluated(expression: Any, values: Sequence[Any]) -> Any:
    """A number is itself, ("at", n) the n-th value, and anything else an operation on the rest."""
    if type(expression) is int:
        return expression
    kind, *inner = expression
    if kind == "at":
        return values[inner[0]]
    operands = [evaluated(each, values) for each in inner]
    if kind == "and":
        return all(operands)
    if kind == "or":
        return any(operands)
    if kind == "not":
        return not operands[0]
    return reduce(_BINARY[kind], operands)


KINDS: Mapping[str, Callable[[Sequence[Any], Any], Found]] = {
    "equals": _equal,
    "not none": _not_none,
    "key": _has_key,
    "attribute": _has_attribute,
    "length": _length,
    "keys": _keys,
    "class named": _class_named,
    "tensor": _form,
    "distinct": _distinct,
    "same": _same,
    "relation": _relation,
}
