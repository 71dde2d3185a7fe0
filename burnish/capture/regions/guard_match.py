"""Evaluates Dynamo's guards on one block against another block: maps sources, finds the corresponding values, checks
them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from burnish.torch_private.guards import ChainedSource, Guard, Source
from burnish.torch_private.patches.identity import IDENTITY


class Differs(Exception):
    """The reason why a block is traced instead of copied."""


def within(source: Any, block: Source) -> bool:
    while source != block:
        if not isinstance(source, ChainedSource):
            return False
        source = source.base
    return True


def within_any(source: Any, roots: list[Source]) -> bool:
    return any(within(source, root) for root in roots)


def sources(guard: Guard) -> list[Source]:
    found = [guard.originating_source]
    if isinstance(guard.create_fn, functools.partial):
        found += [v for v in (*guard.create_fn.args, *guard.create_fn.keywords.values()) if isinstance(v, Source)]
    return found


def mentions(guard: Guard, roots: list[Source]) -> bool:
    return any(within_any(s, roots) for s in sources(guard))


class Moved:
    """Sources of one block as sources of another."""

    def __init__(self, old: Source, new: Source) -> None:
        self.roots = {old: new}
        self._memo: dict[Source, Source] = {old: new}

    def root(self, old: Source, new: Source) -> None:
        if self.roots.setdefault(old, new) != new:
            raise Differs("two numbers find other things than in its equals")
        self._memo = dict(self.roots)

    def __call__(self, source: Source) -> Source:
        if not isinstance(source, ChainedSource):
            return self._memo.get(source, source)
        known = self._memo.get(source)
        if known is None:
            base = self(source.base)
            known = source if base is source.base else dataclasses.replace(source, base=base)
            self._memo[source] = known
        return known


class _Missing:
    """The value of a source that does not exist."""


_MISSING = _Missing()


class Resolver:
    def __init__(self, tx: Any) -> None:
        self._globals = {"G": tx.output.root_tx.f_globals, "L": tx.output.root_tx.f_locals}
        self._locals: dict[str, Any] = {}
        self._cache: Any = {}

    def __call__(self, source: Source) -> Any:
        try:
            return source.get_value(self._globals, self._locals, self._cache)
        except Exception:
            self._locals.clear()
            return _MISSING


def _same_value(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _same_keys(a: Any, b: Any) -> bool:
    return type(a) is type(b) and list(a.keys()) == list(b.keys())


def _same_length(a: Any, b: Any) -> bool:
    return type(a) is type(b) and len(a) == len(b)


def _same_type(a: Any, b: Any) -> bool:
    return type(a) is type(b)


# The check of each kind of guard for another object. Guards not listed require the identical object.
_SAME: dict[str, Callable[[Any, Any], bool]] = {
    "TYPE_MATCH": _same_type,
    "TENSOR_MATCH": _same_type,  # the rest is compared when the tensor becomes an input
    "CONSTANT_MATCH": _same_value,
    "EQUALS_MATCH": _same_value,
    "BOOL_MATCH": _same_value,
    "NONE_MATCH": _same_value,
    "SEQUENCE_LENGTH": _same_length,
    "DICT_KEYS_MATCH": _same_keys,
    "MAPPING_KEYS_CHECK": _same_keys,
    "EMPTY_NN_MODULE_HOOKS_DICT": _same_length,
}
_ABOUT_KEY = {"DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"}


def holds(guard: Guard, old: Any, new: Any, moved: Moved, resolve: Resolver) -> bool:
    """Whether a guard on one block's `old` would be the same on another block's corresponding object."""
    kind = guard.create_fn_name()
    if kind == "HASATTR":
        attr = guard.create_fn.keywords.get("attr") if isinstance(guard.create_fn, functools.partial) else None
        return (old is _MISSING) == (new is _MISSING) if attr is None else hasattr(old, attr) == hasattr(new, attr)
    if old is _MISSING or new is _MISSING:
        return False
    if kind == "DUPLICATE_INPUT":
        others = [resolve(moved(s)) for s in sources(guard)[1:]]
        return bool(others) and all(other is new for other in others)
    if kind == IDENTITY.__name__:
        told = guard.create_fn.keywords  # type: ignore[attr-defined]
        return (new is resolve(moved(told["other"]))) == told["same"]
    if kind == "NOT_PRESENT_IN_GENERIC_DICT":
        attr = guard.create_fn.keywords["attr"]  # type: ignore[attr-defined]
        return type(old) is type(new) and attr not in old.__dict__ and attr not in new.__dict__
    if kind in _ABOUT_KEY:
        key = guard.create_fn.keywords["key"]  # type: ignore[attr-defined]
        return type(old) is type(new) and (key in old) == (key in new)
    same = _SAME.get(kind)
    return old is new if same is None else same(old, new)
