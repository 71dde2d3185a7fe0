"""Where guards look: paths into the frame's variables and its globals, as data.

A path is a list of steps from a variable: an attribute, an item, the type of an object. The paths of all guards are one
table, in which each entry names the entry that it continues: two thousand guards share most of their steps.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ROOT = -1
LOCAL, GLOBAL = "L", "G"
_DEEPEST = 100  # steps of a path, which functions walk recursively; Python's parser takes no more brackets, either
Node = tuple[int, str, Any]  # the entry that it continues, or ROOT; the kind of step; its name, key or number


class NotAPlace(Exception):
    """A text that is no path of these steps."""


class Absent:
    """In place of a value that is not there."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Skipped:
    """In place of a value that is not looked at."""


SKIPPED = Skipped()


@dataclass
class PlaceTable:
    """Collects paths while a pack is made."""

    nodes: list[Node]
    _known: dict[Node, int]

    def __init__(self) -> None:
        self.nodes, self._known = [], {}

    def index(self, text: str) -> int:
        """Of the path that Dynamo writes as this expression. Raises NotAPlace."""
        try:
            return self.of(ast.parse(text, mode="eval").body)
        except (SyntaxError, RecursionError, ValueError):
            raise NotAPlace(text) from None

    def of(self, node: ast.expr) -> int:
        inner, kind, key = _step(node)
        entry = (ROOT if inner is None else self.of(inner), kind, key)
        if entry not in self._known:
            self._known[entry] = len(self.nodes)
            self.nodes.append(entry)
        return self._known[entry]


def _step(node: ast.expr) -> tuple[ast.expr | None, str, Any]:
    """What a path continues, and its last step."""
    match node:
        case ast.Subscript(ast.Name("L" | "G" as root), ast.Constant(str() as name)):
            return None, root, name
        case ast.Subscript(
            ast.Call(ast.Name("list"), [ast.Call(ast.Attribute(ast.Name("dict"), "keys"), [inner], [])], []), index
        ):
            return inner, "key", _integer(index)
        case ast.Subscript(ast.Call(ast.Name("list"), [inner], []), index):
            return inner, "element", _integer(index)
        case ast.Subscript(ast.Call(ast.Attribute(inner, "size" | "stride" as kind), [], []), index):
            return inner, kind, _integer(index)
        case ast.Call(ast.Attribute(inner, "storage_offset"), [], []):
            return inner, "storage offset", None
        case ast.Subscript(inner, index):
            return inner, "item", _constant(index)
        case ast.Call(ast.Attribute(ast.Name("dict" | "list" | "tuple"), "__getitem__"), [inner, index], []):
            return inner, "item", _constant(index)
        case ast.Attribute(inner, name):
            return inner, "attribute", name
        case ast.Call(ast.Name("getattr"), [inner, ast.Constant(str() as name)], []):
            return inner, "attribute", name
        case ast.Call(ast.Name("type"), [inner], []):
            return inner, "type", None
        case ast.Call(ast.Name("dict"), [ast.Attribute(inner, "__dict__")], []):
            return inner, "members", None
    raise NotAPlace(ast.unparse(node)[:200])


def _constant(node: ast.expr) -> Any:
    try:
        found = ast.literal_eval(node)
    except ValueError:
        raise NotAPlace(ast.unparse(node)[:200]) from None
    if not _is_plain(found):
        raise NotAPlace(ast.unparse(node)[:200])
    return found


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, int, bool, float, bytes)


def _integer(node: ast.expr) -> int:
    found = _constant(node)
    if type(found) is not int:
        raise NotAPlace(ast.unparse(node)[:200])
    return found


# -- looking ------------------------------------------------------------------------------------------------------


def values_at(
    nodes: tuple[Node, ...], local: Mapping[str, Any], names: Callable[[str], Any], wanted: Callable[[int], bool]
) -> list[Any]:
    """The value at each entry. `names` looks a global up; it may say SKIPPED. Entries that are not `wanted` are
    skipped, too."""
    found: list[Any] = []
    for number, (before, kind, key) in enumerate(nodes):
        if not wanted(number):
            found.append(SKIPPED)
            continue
        try:
            if before == ROOT:
                found.append(local[key] if kind == LOCAL else names(key))
            else:
                inner = found[before]
                found.append(inner if isinstance(inner, Absent | Skipped) else _TAKEN[kind](inner, key))
        except Exception as error:  # whatever a property of the user's raises
            found.append(Absent(f"{type(error).__name__}: {error}"))
    return found


def _item(inner: Any, key: Any) -> Any:
    """Without calling `__missing__`, which would put something there."""
    if not isinstance(inner, dict):
        return inner[key]
    found = dict.get(inner, key, SKIPPED)
    if found is SKIPPED:
        raise KeyError(key)
    return found


def _attribute(inner: Any, name: str) -> Any:
    return inner.__dict__ if name == "__dict__" else getattr(inner, name)


_TAKEN: Mapping[str, Callable[[Any, Any], Any]] = {
    "attribute": _attribute,
    "item": _item,
    "key": lambda inner, index: next(itertools.islice(dict.keys(inner), index, None)),
    "element": lambda inner, index: list(inner)[index],
    "type": lambda inner, _: type(inner),
    "members": lambda inner, _: vars(inner),
    "size": lambda inner, index: inner.size()[index],
    "stride": lambda inner, index: inner.stride()[index],
    "storage offset": lambda inner, _: inner.storage_offset(),
}


def are_nodes(found: tuple[Node, ...]) -> bool:
    """Whether entries from a file make such a table."""
    depths: list[int] = []
    for number, (before, kind, key) in enumerate(found):
        is_root = before == ROOT and kind in (LOCAL, GLOBAL) and type(key) is str
        if not is_root and not (0 <= before < number and kind in _TAKEN):
            return False
        depths.append(0 if is_root else depths[before] + 1)
    return max(depths, default=0) <= _DEEPEST


def is_local(nodes: tuple[Node, ...], among: frozenset[str]) -> list[bool]:
    """Whether each entry begins at one of these variables of the frame."""
    found: list[bool] = []
    for before, kind, key in nodes:
        found.append(kind == LOCAL and key in among if before == ROOT else found[before])
    return found


def expression_of(nodes: tuple[Node, ...], number: int) -> str:
    """A path as Dynamo writes it. What it is made of, is checked: the text becomes part of a function's source. Raises
    NotAPlace."""
    before, kind, key = nodes[number]
    if before == ROOT:
        return f"{kind}[{key!r}]"
    inner = expression_of(nodes, before)
    if kind == "item" and _is_plain(key):
        return f"{inner}[{key!r}]"
    if kind == "attribute" and type(key) is str and key.isidentifier():
        return f"{inner}.{key}"
    if kind in ("size", "stride") and type(key) is int:
        return f"{inner}.{kind}()[{key}]"
    if kind in ("key", "element") and type(key) is int:
        return f"list(dict.keys({inner}))[{key}]" if kind == "key" else f"list({inner})[{key}]"
    if kind in ("type", "members", "storage offset"):
        return {"type": f"type({inner})", "members": f"dict({inner}.__dict__)"}.get(kind, f"{inner}.storage_offset()")
    raise NotAPlace(f"{kind} {key!r} of {inner}"[:200])


def text_of(nodes: tuple[Node, ...], number: int) -> str:
    """A path for people: `target.encoder.layer[0].config`."""
    before, kind, key = nodes[number]
    if before == ROOT:
        return str(key)
    inner = text_of(nodes, before)
    outer = nodes[before]
    if kind == "item" and outer[1] == "attribute" and outer[2] in ("_modules", "_parameters", "_buffers"):
        return f"{inner.removesuffix('.' + outer[2])}.{key}"
    if kind == "attribute":
        return f"{inner}.{key}"
    if kind in ("type", "members", "storage offset"):
        return f"{kind} of {inner}"
    return f"{inner}[{key!r}]" if kind == "item" else f"{kind} {key} of {inner}"
