"""Attributes that are not there while Dynamo traces, and may be later."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from burnish.torch_private.guards import AttrSource, Guard, GuardBuilder, Source
from burnish.torch_private.guards import install_guard as install
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    DunderDictVariable,
    PythonModuleVariable,
    UserDefinedObjectVariable,
    UserFunctionVariable,
)

_GETS = ("var_getattr", "tp_getattro_impl")  # the second since torch 2.14
_ASKS, _CONTAINS, _HAS_KEYS = ("call_obj_hasattr", "install_dict_contains_guard", "install_dict_keys_match_guard")
_HAS_KEY = "has_key_in_generic_dict"  # which torch 2.11 asks: it has no DunderDictVariable
_CALLS, _SUBSCRIPTS = "call_method", ("mp_subscript_impl", "getitem_const")
_MISSING = object()
_ORDINARY = (object, tuple, types.FunctionType)  # each has the same `__getattribute__`, under a name of its own


@contextlib.contextmanager
def guarding_absent_attributes() -> Iterator[None]:
    """While open, Dynamo guards on what it does not find: attributes of objects, modules and functions, and keys of
    their `__dict__`, of which it guards on none."""
    with contextlib.ExitStack() as stack:
        for owner in (PythonModuleVariable, UserFunctionVariable, UserDefinedObjectVariable):
            for name in (*_GETS, _ASKS):
                if owner is not None and hasattr(owner, name):
                    is_asked = name == _ASKS and owner is not UserDefinedObjectVariable  # which Dynamo guards itself
                    stack.enter_context(replaced(owner, name, _noticing(getattr(owner, name), is_asked)))
        if DunderDictVariable is not None and hasattr(DunderDictVariable, _CONTAINS):
            stack.enter_context(replaced(DunderDictVariable, _CONTAINS, _guard_key))
            stack.enter_context(replaced(DunderDictVariable, _HAS_KEYS, _guard_keys))
            stack.enter_context(replaced(DunderDictVariable, _CALLS, _copied(getattr(DunderDictVariable, _CALLS))))
            for name in filter(partial(hasattr, DunderDictVariable), _SUBSCRIPTS):
                stack.enter_context(replaced(DunderDictVariable, name, _read(getattr(DunderDictVariable, name))))
        elif DunderDictVariable is None and hasattr(UserDefinedObjectVariable, _HAS_KEY):
            has_key = _asked_for_key(getattr(UserDefinedObjectVariable, _HAS_KEY))
            stack.enter_context(replaced(UserDefinedObjectVariable, _HAS_KEY, has_key))
        yield


def _copied(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name == "copy":
            _guard_keys(variable)
        return ordinary(variable, tx, name, args, kwargs)

    return called


def _read(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def read(variable: Any, tx: Any, key: Any) -> Any:
        _guard_key(variable, tx, [key])
        return ordinary(variable, tx, key)

    return read


def _asked_for_key(ordinary: Callable[..., bool]) -> Callable[..., bool]:
    def asked(variable: Any, tx: Any, key: str) -> bool:
        is_there = ordinary(variable, tx, key)
        if variable.source is not None and not _is_written(variable, tx, key):
            install(_key_guard(AttrSource(variable.source, "__dict__"), key, is_there))
        return is_there

    return asked


def _noticing(ordinary: Callable[..., Any], is_asked: bool) -> Callable[..., Any]:
    def asked(variable: Any, tx: Any, name: str) -> Any:
        if variable.source is not None and not _is_written(variable, tx, name):
            _guard_attribute(variable, name, is_asked)
        return ordinary(variable, tx, name)

    return asked


def _is_written(variable: Any, tx: Any, name: str) -> bool:
    """Whether the function has set it, or taken it away."""
    return bool(tx.output.side_effects.has_pending_mutation_of_attr(variable, name))


def _guard_attribute(variable: Any, name: str, is_asked: bool) -> None:
    """Where it is there, its value is guarded on; if it is only `is_asked` whether it is, it is not."""
    value = variable.fn if isinstance(variable, UserFunctionVariable) else variable.value
    if name.startswith("__") or (not is_asked and _is_there(value, name)):
        return
    if is_asked or not _answers_for_itself(value):
        install(_attribute_guard(variable.source, name))
    elif type(value).__dictoffset__:  # it may give it all the same; without a `__dict__`, nothing can be set on it
        install(variable.source.make_guard(partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)))


def _is_there(value: Any, name: str) -> bool:
    if isinstance(value, torch.nn.Module):
        held = (vars(value).get(each) for each in ("_parameters", "_buffers", "_modules"))
        if any(isinstance(each, dict) and name in each for each in held):
            return True
    return inspect.getattr_static(value, name, _MISSING) is not _MISSING


def _answers_for_itself(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return "__getattr__" in vars(value)
    answer = inspect.getattr_static(type(value), "__getattr__", None)
    own = type(value).__getattribute__ not in [kind.__getattribute__ for kind in _ORDINARY]
    return own or answer not in (None, torch.nn.Module.__getattr__)


def _guard_key(variable: Any, tx: Any, args: list[Any]) -> None:
    source = variable.source
    if source is None or not args or not args[0].is_python_constant():
        return
    key, held = args[0].as_python_constant(), variable.items
    if not isinstance(key, str) or _is_written(held.item, tx, key):
        return
    install(_key_guard(source, key, key in held.item_dict))


def _attribute_guard(source: Source, name: str) -> Guard:
    """That an object has an attribute, or has it not, as it is now."""
    if "attr" in inspect.signature(GuardBuilder.HASATTR).parameters:
        return source.make_guard(partial(GuardBuilder.HASATTR, attr=name))
    return AttrSource(source, name).make_guard(GuardBuilder.HASATTR)  # torch 2.11


def _key_guard(source: Source, key: str, is_there: bool) -> Guard:
    if "invert" in inspect.signature(GuardBuilder.DICT_CONTAINS).parameters:  # torch 2.11
        return source.make_guard(partial(GuardBuilder.DICT_CONTAINS, key=key, invert=not is_there))
    kind = GuardBuilder.DICT_CONTAINS if is_there else GuardBuilder.DICT_NOT_CONTAINS
    return source.make_guard(partial(kind, key=key))


def _guard_keys(variable: Any) -> None:
    if variable.source is not None:
        install(variable.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))
