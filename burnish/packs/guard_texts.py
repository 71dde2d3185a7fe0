"""Dynamo's guards as the cache has them (`restore/guards.py`: a text and marks) become the guards of a pack.

Every line of the text is read. A line of an unknown kind raises CannotRead, and the variant is not packed.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch

from burnish.packs.guards import Check, Guards, Mark, State, TensorForm, kind_keys, state_text
from burnish.packs.places import NotAPlace, PlaceTable

_LINE = re.compile(
    r"((?:\| )*)\+- (?:(?:KeyManager|ValueManager): )?(\w+)(?: pair at index=-?\d+)?(?:: (.*))?$", re.DOTALL
)
_MANAGER = re.compile(r"source=(.*?), (?:accessed_by=.*, )?type=(.*), tag_safe=\(\w+, \w+\)$", re.DOTALL)
_TENSOR = re.compile(
    r"check_tensor\((?P<place>.*), (?P<cls>[\w.]+), DispatchKeySet\((?P<keys>[^)]*)\), torch\.(?P<dtype>\w+), "
    r"device=(?P<device>None|\d+), requires_grad=(?P<grad>True|False), size=(?P<sizes>\[.*?\]), "
    r"stride=(?P<strides>\[.*?\]|None)\)$"
)
_IDENTITY = re.compile(r"___check_obj_id\((.*), …\)")
_TYPE = re.compile(r"___check_type_id\((.*), …\)")
_NAMED = re.compile(r"(type|len)\((.*)\)$", re.DOTALL)
_BEHIND = re.compile(r", (?=[LG]\[|type\(|dict\(|list\(|getattr\()")  # a mark, then a name
_HINT = re.compile(r" \(HINT: [^\n]*\)$")
_STATE = "___check_global_state() against "
_MARKED_DYNAMIC = ("DIMENSION_DYNAMIC_MARKING_GUARD", "DYNAMIC_INDICES")  # what a trace would make of a tensor's sizes
_PLAIN_DICTS = ("<class 'dict'>", "<class 'collections.OrderedDict'>")
_IDLE = (  # what the state of a pack says anyway
    "torch._functorch.aot_autograd.utils.top_saved_tensors_hooks ids == None",
    "torch.autograd.forward_ad._current_level == -1",
    "torch._functorch.pyfunctorch.compare_functorch_state([])",
)
_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


class CannotRead(Exception):
    """A guard that is not understood, in its own words."""


def guards_of(text: str, marks: Collection[tuple[str, str]], left_out: Collection[str], inference: bool) -> Guards:
    """`left_out` are globals with modules of Dynamo's, whose guards say nothing that torch's version does not."""
    return _Reader(dict(marks), left_out).read(text, inference)


class _Reader:
    def __init__(self, marks: Mapping[str, str], left_out: Collection[str]) -> None:
        self._left_out = tuple(f"G[{name!r}]" for name in left_out)
        self._marks = marks
        self._table = PlaceTable()
        self._checks: dict[Check, None] = {}
        self._state = ""
        self._device = ""

    def read(self, text: str, inference: bool) -> Guards:
        try:
            for line in _lines(text):
                self._read_line(line)
            marks = tuple(self._read_marks())
        except NotAPlace as error:
            raise CannotRead(f"a guard on {error}") from None
        if not self._state or not self._device:
            raise CannotRead("guards without the state of the process")
        state = State(state_text(self._state), inference, self._device)
        return Guards(tuple(self._table.nodes), tuple(self._checks), marks, state)

    def _read_line(self, line: str) -> None:
        found = _LINE.match(line)
        if found is None:
            raise CannotRead(f"a guard: {line.strip(' |+-')[:200]}")
        kind, text = found[2], _HINT.sub("", found[3] or "")
        if any(name in text for name in self._left_out):
            return
        reader = getattr(self, f"_on_{kind}", None)
        if kind in _MARKED_DYNAMIC or kind in ("RootGuardManager", "KeyValueManager"):
            return
        if reader is None:
            raise CannotRead(f"a guard of the kind {kind}: {text[:200]}")
        reader(text)

    def _add(self, kind: str, *places: str, expected: Any = None) -> None:
        self._checks[_hashable(Check(kind, tuple(map(self._table.index, places)), expected))] = None

    # -- managers --------------------------------------------------------------------------------------------------

    def _on_GuardManager(self, text: str) -> None:
        found = _MANAGER.match(text)
        if found is None:
            raise CannotRead(f"guards on {text[:200]}")
        if found[1] not in ("G", "L"):
            self._table.index(found[1])  # that it can be reached is a check, too

    def _on_DictGuardManager(self, text: str) -> None:
        found = _MANAGER.match(text)
        if found is None:
            raise CannotRead(f"guards on {text[:200]}")
        place = found[1]
        if f"len({place})" not in self._marks:
            raise CannotRead(f"a guard on the order of {place[:200]}")
        if found[2] not in _PLAIN_DICTS and f"type({place})" not in self._marks:
            raise CannotRead(f"a guard on a {found[2]}")
        self._add("class named", place, expected=found[2])
        self._add("length", place, expected=int(self._marks[f"len({place})"]))

    # -- checks ----------------------------------------------------------------------------------------------------

    def _on_ID_MATCH(self, text: str) -> None:
        found = _IDENTITY.match(text)
        place = found[1] if found is not None else ""
        if not {place, place.removesuffix(".__code__")} & self._marks.keys():
            raise CannotRead(f"a guard on an object's identity: {text[:200]}")

    def _on_TYPE_MATCH(self, text: str) -> None:
        found = _TYPE.match(text)
        if found is None or f"type({found[1]})" not in self._marks:
            raise CannotRead(f"a guard on a type: {text[:200]}")

    def _on_EQUALS_MATCH(self, text: str) -> None:
        match _parsed(text):
            case ast.Compare(left, [ast.Eq()], [right]):
                expected = _literal(right)
                self._add("equals", ast.unparse(left), expected=expected)
            case _:
                raise CannotRead(f"a guard on a value: {text[:200]}")

    _on_TRUE_MATCH = _on_FALSE_MATCH = _on_EQUALS_MATCH

    def _on_FLOAT_IS_NAN(self, text: str) -> None:
        match _parsed(text):
            case ast.BoolOp(ast.And(), [_, ast.Call(ast.Name("__math_isnan"), [place], [])]):
                self._add("equals", ast.unparse(place), expected=math.nan)
            case _:
                raise CannotRead(f"a guard on a number: {text[:200]}")

    def _on_NONE_MATCH(self, text: str) -> None:
        self._add("equals", text.removesuffix(" is None"), expected=None)

    def _on_NOT_NONE(self, text: str) -> None:
        self._add("not none", text.removesuffix(" is not None"))

    _on_NOT_NONE_MATCH = _on_NOT_NONE

    def _on_LENGTH_CHECK(self, text: str) -> None:
        match _parsed(text):
            case ast.UnaryOp(ast.Not(), place):
                self._add("length", ast.unparse(place), expected=0)
            case ast.Compare(ast.Call(ast.Name("len"), [place], []), [ast.Eq()], [ast.Constant(int() as count)]):
                self._add("length", ast.unparse(place), expected=count)
            case _:
                raise CannotRead(f"a guard on a length: {text[:200]}")

    _on_DICT_LENGTH = _on_LENGTH_CHECK

    def _on_DICT_CONTAINS(self, text: str) -> None:
        there, call = _negated(text)
        match call:
            case ast.Call(ast.Name("___dict_contains"), [key, place], []):
                self._add("key", ast.unparse(place), expected=(_literal(key), there))
            case _:
                raise CannotRead(f"a guard on a key: {text[:200]}")

    def _on_NO_HASATTR(self, text: str) -> None:
        there, call = _negated(text)
        match call:
            case ast.Call(ast.Name("hasattr"), [place, ast.Constant(str() as name)], []):
                self._add("attribute", ast.unparse(place), expected=(name, there))
            case _:
                raise CannotRead(f"a guard on an attribute: {text[:200]}")

    _on_HASATTR = _on_NO_HASATTR

    def _on_MAPPING_KEYS_CHECK(self, text: str) -> None:
        match _parsed(text):
            case ast.Compare(
                ast.Call(ast.Name("list"), [ast.Call(ast.Attribute(place, "keys"), [], [])], []), [ast.Eq()], [keys]
            ):
                self._add("keys", ast.unparse(place), expected=tuple(_literal(keys)))
            case _:
                raise CannotRead(f"a guard on keys: {text[:200]}")

    def _on_TENSOR_MATCH(self, text: str) -> None:
        found = _TENSOR.match(text)
        if found is None or f"type({found['place']})" not in self._marks:
            raise CannotRead(f"a guard on a tensor: {text[:200]}")
        form = TensorForm(
            kind_keys(found["keys"]),
            getattr(torch, found["dtype"]),
            None if found["device"] == "None" else int(found["device"]),
            found["grad"] == "True",
            _dims(found["sizes"]),
            _dims(found["strides"]),
        )
        self._add("tensor", found["place"], expected=form)

    def _on_NO_TENSOR_ALIASING(self, text: str) -> None:
        if not text:
            return  # the same guard, seen from another of its tensors
        match _parsed(text):
            case ast.Call(ast.Name("check_no_aliasing"), places, []):
                self._add("distinct", *map(ast.unparse, places))
            case _:
                raise CannotRead(f"a guard on tensors: {text[:200]}")

    def _on_LAMBDA_GUARD(self, text: str) -> None:
        if text in _IDLE:
            return
        match _parsed(text):
            case ast.Compare(left, [ast.Is()], [ast.Constant(None)]):
                self._add("equals", ast.unparse(left), expected=None)
            case ast.Compare(left, [ast.Is()], [right]):
                self._add("same", ast.unparse(left), ast.unparse(right))
            case condition:
                self._relate(condition)

    _on_OBJECT_ALIASING = _on_SYMBOLIC_SHAPE_GUARD = _on_LAMBDA_GUARD

    def _on_DUAL_LEVEL_MATCH(self, text: str) -> None:
        if text not in _IDLE:
            raise CannotRead(f"a guard on forward-mode differentiation: {text[:200]}")

    # -- the state of the process ----------------------------------------------------------------------------------

    def _on_GLOBAL_STATE(self, text: str) -> None:
        if not text.startswith(_STATE):
            raise CannotRead(f"a guard on the process's state: {text[:200]}")
        self._state = text.removeprefix(_STATE)

    def _on_TORCH_FUNCTION_MODE_STACK(self, text: str) -> None:
        """No mode was active: a frame that was traced in one is not stored."""

    def _on_DEFAULT_DEVICE(self, text: str) -> None:
        before, _, device = text.partition(" == ")
        if before != "utils_device.CURRENT_DEVICE":
            raise CannotRead(f"a guard on the default device: {text[:200]}")
        self._device = device

    # -- relations between sizes -----------------------------------------------------------------------------------

    def _relate(self, condition: ast.expr) -> None:
        places: list[int] = []
        expression = self._expression(condition, places)
        self._checks[Check("relation", tuple(places), expression)] = None

    def _expression(self, node: ast.expr, places: list[int]) -> Any:
        match node:
            case ast.Constant(int() as value) if type(value) is int:
                return value
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)], self._expression(left, places), self._expression(right, places)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() as value)):
                return -value
            case ast.UnaryOp(ast.Not(), inner):
                return "not", self._expression(inner, places)
            case ast.BoolOp(op, values):
                kind = "and" if isinstance(op, ast.And) else "or"
                return kind, *(self._expression(each, places) for each in values)
            case ast.Compare(left, ops, rights) if all(type(op) in _OPERATORS for op in ops):
                sides = [self._expression(each, places) for each in (left, *rights)]
                pairs = zip(ops, sides, sides[1:], strict=False)
                return "and", *((_OPERATORS[type(op)], a, b) for op, a, b in pairs)
            case ast.Subscript() | ast.Call() | ast.Attribute():
                number = self._table.of(node)
                if number not in places:
                    places.append(number)
                return "at", places.index(number)
        raise CannotRead(f"a guard: {ast.unparse(node)[:200]}")

    # -- marks -----------------------------------------------------------------------------------------------------

    def _read_marks(self) -> list[Mark]:
        found: list[Mark] = []
        groups: dict[str, int] = {}
        for name, mark in self._marks.items():
            if any(each in name for each in self._left_out):
                continue
            named = _NAMED.match(name)
            if named is not None and named[1] == "len":
                self._add("length", named[2], expected=int(mark))
            elif named is not None and self._is_of_class(name, mark):
                found.append(Mark(self._table.index(named[2]), True, mark))
            else:
                own, first = self._apart(name, mark)
                group = groups.setdefault(first, len(groups))
                found.append(Mark(self._table.index(name), False, own, group))
        return found

    def _is_of_class(self, name: str, mark: str) -> bool:
        """`type(x)` is the type of x, where a guard is on that, and also a place whose object may be marked. Both have
        the same mark, unless the second is one object with others."""
        return mark.startswith("class ") and _BEHIND.search(mark) is None

    def _apart(self, name: str, mark: str) -> tuple[str, str]:
        """A mark, and the first name of the same object. It is written behind the mark."""
        for found in _BEHIND.finditer(mark):
            first = mark[found.end() :]
            if first in self._marks and first != name:
                return mark[: found.start()], first
        return mark, name


def _lines(text: str) -> list[str]:
    """The rest of a line that is broken belongs to it."""
    found: list[str] = []
    for line in text.splitlines():
        if _LINE.match(line):
            found.append(line)
        elif line.strip() and line.strip() != "TREE_GUARD_MANAGER:":
            if not found:
                raise CannotRead(f"a guard: {line[:200]}")
            found[-1] += f"\n{line}"
    return found


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise CannotRead(f"a guard: {text[:200]}") from None


def _negated(text: str) -> tuple[bool, ast.expr]:
    match _parsed(text):
        case ast.UnaryOp(ast.Not(), inner):
            return False, inner
        case other:
            return True, other


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Attribute(ast.Name("torch"), name) if isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        case ast.Call(ast.Name("device"), [], keywords):
            given = {word.arg: _literal(word.value) for word in keywords if word.arg in ("type", "index")}
            return torch.device(*(given[name] for name in ("type", "index") if name in given))
        case ast.Call(ast.Attribute(ast.Name("torch"), "Size"), [sizes], []):
            return torch.Size(_literal(sizes))
    try:
        return ast.literal_eval(_InfinitiesAsConstants().visit(node))
    except ValueError:
        raise CannotRead(f"a guard with the value {ast.unparse(node)[:200]}") from None


class _InfinitiesAsConstants(ast.NodeTransformer):
    """Python prints them as names."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node


def _dims(text: str) -> tuple[int | None, ...] | None:
    if text == "None":
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise CannotRead(f"a guard with the sizes {text[:200]}") from None
    return tuple(None if each is None else int(each) for each in found)


def _hashable(check: Check) -> Check:
    try:
        hash(check)
    except TypeError:
        raise CannotRead(f"a guard with the value {check.expected!r}"[:200]) from None
    return check
