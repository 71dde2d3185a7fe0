"""What Dynamo makes of dictionaries, lists and deques otherwise than Python does."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from burnish.torch_private.dynamo import Unsupported, symbolic_convert
from burnish.torch_private.guards import AttrSource, GuardBuilder, install_guard
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    ConstantVariable,
    ConstDictVariable,
    DequeVariable,
    ListVariable,
    SideEffects,
    ValueMutationNew,
    VariableBuilder,
)

_CHANGES = "has_new_items"


@contextlib.contextmanager
def noticing_order() -> Iterator[None]:
    """Dynamo writes to a dictionary what is new in it, and misses that keys have changed places (`move_to_end`)."""
    ordinary = getattr(ConstDictVariable, _CHANGES, None)
    if ordinary is None:
        yield
        return

    def changes(variable: Any) -> bool:
        before, now = (tuple(map(_id_of_key, keys)) for keys in (variable.original_items, variable.items))
        if now[: len(before)] != before:
            variable.should_reconstruct_all = True
        return bool(ordinary(variable))

    with replaced(ConstDictVariable, _CHANGES, changes):
        yield


def _id_of_key(key: Any) -> int:
    return id(getattr(key, "vt", key))


_GUARDS_KEYS, _CALLS_METHOD, _SHOWS = "install_dict_keys_match_guard", "call_method", "repr_impl"


@contextlib.contextmanager
def guarding_keys() -> Iterator[None]:
    """While open, Dynamo guards on the keys of each dictionary that a list takes them from, or that it takes for a
    constant (`str`); and on the order of the keys wherever it guards on these: what takes all of them (`list`,
    `sorted`, `**`) takes them in their order."""
    guard, call = getattr(ConstDictVariable, _GUARDS_KEYS, None), getattr(ListVariable, _CALLS_METHOD, None)
    if guard is None or call is None:
        yield
        return
    constant = ConstDictVariable.as_python_constant
    show = getattr(ConstDictVariable, _SHOWS, None)

    def guarded(variable: Any) -> None:
        guard(variable)
        if variable.source is not None:
            tx = symbolic_convert.InstructionTranslator.current_tx()
            tx.output.guard_on_key_order.add(variable.source)

    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name == "extend" and args and isinstance(given := args[0].realize(), ConstDictVariable):
            given.install_dict_keys_match_guard()
        return call(variable, tx, name, args, kwargs)

    def as_constant(variable: Any) -> Any:
        value = constant(variable)
        variable.install_dict_keys_match_guard()
        return value

    def shown(variable: Any, tx: Any) -> Any:
        assert show is not None
        variable.install_dict_keys_match_guard()
        return show(variable, tx)

    with (
        replaced(ConstDictVariable, _GUARDS_KEYS, guarded),
        replaced(ListVariable, _CALLS_METHOD, called),
        replaced(ConstDictVariable, "as_python_constant", as_constant),
        contextlib.nullcontext() if show is None else replaced(ConstDictVariable, _SHOWS, shown),
    ):
        yield


@contextlib.contextmanager
def extending_lists() -> Iterator[None]:
    """While open, Dynamo takes `x.__iadd__(y)` of a list, written so, for what `x += y` is: it makes another list."""
    ordinary = getattr(ListVariable, _CALLS_METHOD, None)
    if ordinary is None:
        yield
        return

    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name != "__iadd__" or not variable.is_mutable():
            return ordinary(variable, tx, name, args, kwargs)
        variable.call_method(tx, "extend", args, kwargs)
        return variable

    with replaced(ListVariable, _CALLS_METHOD, called):
        yield


_BUILDS, _REPEATS, _WRITES_BACK = "wrap_listlike", "sq_repeat_impl", "codegen_update_mutated"


@contextlib.contextmanager
def bounding_deques() -> Iterator[None]:
    """While open, Dynamo knows how long a deque may become (`maxlen`) that was there before, and writes it back as it
    does others: in the order that its elements have in the end, it needs no other."""
    build, write_back = getattr(VariableBuilder, _BUILDS, None), getattr(SideEffects, _WRITES_BACK, None)
    if build is None or write_back is None or DequeVariable is None:
        yield
        return
    make, call = DequeVariable.__init__, DequeVariable.call_method
    repeat: Any = getattr(DequeVariable, _REPEATS, None)

    def built(builder: Any, value: Any) -> Any:
        variable = build(builder, value)
        if type(value) is deque:
            install_guard(AttrSource(builder.source, "maxlen").make_guard(GuardBuilder.CONSTANT_MATCH))
            variable.maxlen = ConstantVariable.create(value.maxlen)
        return variable

    def made(variable: Any, *args: Any, **kwargs: Any) -> None:
        make(variable, *args, **kwargs)
        if _bound(variable) == 0:
            variable.items.clear()

    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if _bound(variable) == 0:
            raise Unsupported("a deque that holds nothing (maxlen=0)")
        return call(variable, tx, name, args, kwargs)

    def changed(variable: Any, items: list[Any], **kwargs: Any) -> Any:
        return type(variable)(items, maxlen=variable.maxlen, **kwargs)

    def repeated(variable: Any, tx: Any, count: Any) -> Any:
        return variable.modified(repeat(variable, tx, count).items, mutation_type=ValueMutationNew())

    def written_back(effects: Any, *args: Any, **kwargs: Any) -> None:
        bounded = [(each, each.maxlen) for each in effects.id_to_variable.values() if _is_bounded_and_changed(each)]
        for each, _ in bounded:
            each.maxlen = ConstantVariable.create(None)
        try:
            write_back(effects, *args, **kwargs)
        finally:
            for each, maxlen in bounded:
                each.maxlen = maxlen

    with (
        contextlib.nullcontext() if repeat is None else replaced(DequeVariable, _REPEATS, repeated),
        replaced(VariableBuilder, _BUILDS, built),
        replaced(DequeVariable, "__init__", made),
        replaced(DequeVariable, "call_method", called),
        replaced(DequeVariable, "modified", changed),  # a copy of it
        replaced(SideEffects, _WRITES_BACK, written_back),
    ):
        yield


def _bound(variable: Any) -> Any:
    return variable.maxlen.as_python_constant()


def _is_bounded_and_changed(variable: Any) -> bool:
    if not isinstance(variable, DequeVariable):
        return False
    return getattr(variable.mutation_type, "is_modified", False) and _bound(variable) is not None
