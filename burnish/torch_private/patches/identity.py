"""Which objects are one: what a function decides by `is`, by a default `==`, or by keys that are known by identity.

Dynamo compares the objects that it has while it traces, and guards that two of them are one object, for most kinds of
objects. That they are two it guards for no objects but tensors among the arguments. So a weight that is tied, or a
configuration that is shared, after compiling would not be noticed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from burnish.torch_private.dynamo import symbolic_convert
from burnish.torch_private.guards import (
    ConstDictKeySource,
    GuardBuilder,
    get_closure_vars,
    get_verbose_code_parts,
    install_guard,
)
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    ConstantVariable,
    ConstDictVariable,
    HashableTracker,
    LazyConstantVariable,
    LazyVariableTracker,
    SymNodeVariable,
    builtin,
    lists,
    object_protocol,
)

_COMPARE, _CONTAINS = "vt_identity_compare", "iter_contains"
_KEY = "_HashableTracker"  # in torch 2.11
_IDENTITY_OPERATORS, _EQUALITY_OPERATORS = ("is", "is not"), ("==", "!=")


@contextlib.contextmanager
def guarding_identity() -> Iterator[None]:
    """While open, Dynamo guards on what it finds by comparing objects for identity."""
    with contextlib.ExitStack() as stack:
        handlers = getattr(symbolic_convert, "compare_op_handlers", {})
        for name in handlers.keys() & _IDENTITY_OPERATORS:
            stack.enter_context(_entry_replaced(handlers, name, _compared(handlers[name], name == "is")))
        for name in handlers.keys() & _EQUALITY_OPERATORS:
            stack.enter_context(_entry_replaced(handlers, name, _compared_by_default(handlers[name])))
        for module in (object_protocol, builtin):
            if (ordinary := getattr(module, _COMPARE, None)) is not None:
                stack.enter_context(replaced(module, _COMPARE, _identical(ordinary)))
        if (ordinary := getattr(lists, _CONTAINS, None)) is not None:
            stack.enter_context(replaced(lists, _CONTAINS, _contained(ordinary)))
        keys: Any = HashableTracker if HashableTracker is not None else getattr(ConstDictVariable, _KEY, None)
        if keys is not None:
            stack.enter_context(replaced(keys, "__init__", _made_key(keys.__init__)))
        yield


@contextlib.contextmanager
def _entry_replaced(table: dict[str, Any], name: str, replacement: Any) -> Iterator[None]:
    ordinary = table[name]
    table[name] = replacement
    try:
        yield
    finally:
        table[name] = ordinary


def _compared(ordinary: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    def compared(tx: Any, args: list[Any], kwargs: Any) -> Any:
        result = ordinary(tx, args, kwargs)
        if result.is_python_constant():
            left, right = args
            _guard_on(left, right, same=result.as_python_constant() == wanted)
        return result

    return compared


def _compared_by_default(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def compared(tx: Any, args: list[Any], kwargs: Any) -> Any:
        _guard_if_by_identity(*args)
        return ordinary(tx, args, kwargs)

    return compared


def _identical(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def identical(left: Any, right: Any) -> Any:
        result = ordinary(left, right)
        if result is not None:
            _guard_on(left, right, same=bool(result.as_python_constant()))
        return result

    return identical


def _contained(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    def contained(items: Any, search: Any, *others: Any, **named: Any) -> Any:
        items = list(items)
        for item in items:
            _guard_if_by_identity(item, search)
        # Sizes that vary are no constants, and Dynamo would not find one among them.
        sizes = [item.sym_num for item in items if issubclass(type(item), SymNodeVariable)]
        value = search.as_python_constant() if sizes and search.is_python_constant() else None
        if isinstance(value, int | float) and any(bool(size == value + 0) for size in sizes):
            return ConstantVariable.create(True)  # on which a guard is now
        return ordinary(items, search, *others, **named)

    return contained


def _guard_if_by_identity(left: Any, right: Any) -> None:
    """Two objects that are equal if they are one."""
    one, other = _object_of(left), _object_of(right)
    if all(each is not None and type(each).__eq__ is object.__eq__ for each in (one, other)):
        _guard_on(left, right, same=one is other)


def _guard_on(left: Any, right: Any, same: bool) -> None:
    """Two values that come from outside; constants and types are guarded on by themselves."""
    if left.source is None or right.source is None or left.source == right.source:
        return
    if any(isinstance(each.realize(), ConstantVariable) for each in (left, right)):
        return
    if all(_is_class(each) for each in (left, right)):
        return
    install_guard(left.source.make_guard(partial(IDENTITY, other=right.source, same=same)))


def _is_class(variable: Any) -> bool:
    try:
        return issubclass(variable.python_type(), type)
    except NotImplementedError:
        return False


def IDENTITY(builder: Any, guard: Any, other: Any, same: bool) -> None:
    """A kind of guard, as those of GuardBuilder: whether the objects at two places are one."""
    code = f"{builder.arg_ref(guard)} {'is' if same else 'is not'} {builder.arg_ref(other.make_guard(IDENTITY))}"
    if code in builder.already_added_code_parts:
        return
    builder.already_added_code_parts.add(code)
    builder.add_python_lambda_leaf_guard_to_root([code], get_verbose_code_parts([code], guard), get_closure_vars())


def _made_key(make: Callable[..., None]) -> Callable[..., None]:
    def made(key: Any, variable: Any) -> None:
        make(key, variable)
        _guard_on_key(key.vt)

    return made


def _guard_on_key(variable: Any) -> None:
    """A key that is looked up by identity. Tensors among the arguments are guarded on as not being one."""
    if isinstance(variable.source, ConstDictKeySource):  # of a dict from outside, which is asked whether it has a key
        return
    value = _object_of(variable)
    if value is None:
        return
    if type(value).__hash__ is object.__hash__ or isinstance(value, torch.nn.Parameter):
        install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))


def _object_of(variable: Any) -> Any:
    """The object behind a variable that comes from outside; None if it is not known."""
    # isinstance, and most attributes, would have Dynamo look at a value that nothing has looked at
    if issubclass(type(variable), ConstantVariable | LazyConstantVariable) or variable.source is None:
        return None
    if issubclass(type(variable), LazyVariableTracker) and not variable.is_realized():
        return variable.original_value()
    for name in ("value", "fn"):
        if (value := getattr(variable, name, None)) is not None:
            return value
    try:
        return symbolic_convert.InstructionTranslator.current_tx().output.resolve_source_value(variable.source)
    except Exception:  # what the function has put there; torch 2.11 does not resolve sources
        return None
