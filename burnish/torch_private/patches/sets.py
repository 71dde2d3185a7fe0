"""The order of sets.

Dynamo holds what is in a set in the order in which it was put there. Python's order is that of hashes, and of how the
set has become what it is: which operations made it grow, and what was in it before. Where a set got constants one by
one, or those of a literal first, its order is found by doing the same. A set from outside has its order, which is
guarded on where it is asked for. Where that of another set is, the graph breaks; and where such a set leaves the graph,
the function is left to eager. What is in a set, how many and whether two are equal depends on no order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from burnish.torch_private.dynamo import Unsupported, create_instruction, polyfills
from burnish.torch_private.guards import install_guard
from burnish.torch_private.patches.replacing import replaced
from burnish.torch_private.variables import (
    BuiltinVariable,
    ConstDictVariable,
    DictBuiltinVariable,
    FrozensetVariable,
    ListVariable,
    SetVariable,
    ValueMutationNew,
)

_REASON = "the order of a set: it is Python's"
_ONE_BY_ONE = ("add", "update", "__init__")
_IN_PLACE = ("nb_inplace_or_impl", "nb_inplace_and_impl", "nb_inplace_xor_impl", "nb_inplace_subtract_impl")
_TAKES_ELEMENT = ("add", "discard", "remove", "__contains__")
_REMOVES = ("remove", "discard", "pop", "clear")
_UPDATES = ("update", "intersection_update", "difference_update", "symmetric_difference_update", "__init__")
_CHANGES = (*_REMOVES, *_UPDATES, "__ior__", "__iand__", "__ixor__", "__isub__")
_CONTAINS, _COMPARES = ("sq_contains", "sq_contains_impl"), ("richcompare_impl", "tp_richcompare_impl")
_SHOWS = ("repr_impl", "tp_repr_impl")  # the second of each since torch 2.14
_WITHOUT_ORDER = (*_CONTAINS, *_COMPARES, "hash_impl", "is_python_equal", "as_proxy")
# What a set has from the class of all variables in torch 2.14, or from that of dictionaries in torch 2.11.
_FROM_OTHERS = ("call_method", "has_new_items", "unpack_var_sequence")
_COMMON = "BaseSetVariable"
_NO_CODE: tuple[type, ...] = (
    set,
    frozenset,
    list,
    tuple,
    dict,
    range,
    str,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_NUMBERS = (int, float, bool)
_PLAIN = (*_NUMBERS, str, bytes, type(None), type, torch.dtype)


class _Orders:
    """What is known, in one trace, of the order of sets that the function makes."""

    def __init__(self, notice: Callable[[], None]) -> None:
        self._notice = notice  # called where an order was looked at that another process has otherwise
        self._grown: dict[int, tuple[Any, int, frozenset[Any] | None]] = {}
        self._unasked = 0
        self._unasked_of: list[Any] = []

    def grows(self, variable: Any, literal: frozenset[Any] | None = None) -> None:
        """It has only ever got elements, one after the other; after those of a literal, if there is one."""
        self._grown[id(variable)] = (variable, len(variable.items), literal)

    def is_grown(self, variable: Any) -> bool:
        known = self._grown.get(id(variable))
        return known is not None and known[1] == len(variable.items)

    def literal(self, variable: Any) -> frozenset[Any] | None:
        return self._grown[id(variable)][2]

    def forget(self, variable: Any) -> None:
        self._grown.pop(id(variable), None)

    @contextlib.contextmanager
    def unasked(self, *variables: Any) -> Iterator[None]:
        """While open, nobody sees in which order the elements of these come; of any, if none are given."""
        self._unasked += not variables
        self._unasked_of.extend(variables)
        try:
            yield
        finally:
            self._unasked -= not variables
            del self._unasked_of[len(self._unasked_of) - len(variables) :]

    def is_seen(self, variable: Any) -> bool:
        """Whether somebody sees an order that may not be Python's, or that no guard looks at: there are equal sets in
        several orders."""
        if type(variable) not in (SetVariable, FrozensetVariable) or len(variable.items) < 2 or self._unasked:
            return False
        return all(variable is not each for each in self._unasked_of)

    def is_literal(self, variable: Any, tx: Any) -> bool:
        """Whether it is a constant of the code: Dynamo has its elements in its order."""
        literal = _literal(variable, tx)
        if literal is not None and not all(type(each) in _NUMBERS for each in literal):
            self._notice()
        return literal is not None

    def ask(self, variable: Any) -> None:
        """Break the graph if it is seen, and not known."""
        if self.is_seen(variable) and self.in_order(variable) is None:
            raise Unsupported(_REASON)

    def is_as_given(self, variable: Any) -> bool:
        """Whether it is a set from outside that is as it was: Dynamo has its elements in its order, which is now
        guarded on."""
        if variable.source is None or _is_modified(variable):
            return False
        order = _constants(variable)
        if order is None or not all(map(_is_plain, order)):
            return False
        install_guard(variable.source.make_guard(functools.partial(_ORDER_OF_SET, order=order)))
        return True

    def in_order(self, variable: Any) -> list[Any] | None:
        """Its elements in Python's order, if that is known."""
        if self.is_as_given(variable):
            return [key.vt for key in variable.items]
        made = self.constant(variable)
        if made is None:
            return None
        places = {value: place for place, value in enumerate(made)}
        held = [key.vt for key in variable.items]
        return sorted(held, key=lambda each: places[each.as_python_constant()])

    def constant(self, variable: Any) -> set[Any] | None:
        """The set itself, made as the function makes it: of a literal, and of what was added then."""
        if not self.is_grown(variable) or variable.source is not None:
            return None
        values = _constants(variable)
        if values is None or not all(map(_is_plain, values)):
            return None
        made = set(self.literal(variable) or ())
        for value in values:
            made.add(value)
        if not all(type(value) in _NUMBERS for value in values):
            self._notice()
        return made


def _ORDER_OF_SET(builder: Any, guard: Any, order: list[Any]) -> None:
    manager, shown = builder.get_guard_manager(guard), f"the order of the set {guard.name}"
    manager.add_lambda_guard(lambda held: [*held] == order, [shown], guard.user_stack)


def _constants(variable: Any) -> list[Any] | None:
    """What is in a set, in the order that Dynamo has; None, if it is not all constants."""
    held = [key.vt for key in variable.items]
    return [each.as_python_constant() for each in held] if all(each.is_python_constant() for each in held) else None


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def _is_modified(variable: Any) -> bool:
    return bool(getattr(variable.mutation_type, "is_modified", False))


def _is_set(variable: Any) -> bool:
    return type(variable) in (SetVariable, FrozensetVariable)


def _literal(variable: Any, tx: Any) -> frozenset[Any] | None:
    """The constant of the function's code that a frozenset is made from."""
    if type(variable) is not FrozensetVariable or variable.source is not None:
        return None
    values = _constants(variable)
    if values is None:
        return None
    while tx.f_globals.get("__name__", "").startswith(polyfills.__name__):  # which torch 2.12 has for `iter`
        tx = tx.parent
    constants = [each for each in tx.f_code.co_consts if type(each) is frozenset]
    return next((each for each in constants if list(map(_typed, each)) == list(map(_typed, values))), None)


def _typed(value: Any) -> tuple[type, Any]:
    return type(value), value


@contextlib.contextmanager
def keeping_order_of_sets(notice: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While open, Dynamo shows Python's order of sets, or breaks the graph. `notice` is called where another process
    has another: hashes of text differ."""
    if SetVariable is None or FrozensetVariable is None:
        yield
        return
    orders = _Orders(notice)
    with contextlib.ExitStack() as stack:
        for owner, name, change in _replacements(orders):
            ordinary = _own(owner, name) or (getattr(owner, name, None) if name in _FROM_OTHERS else None)
            if ordinary is not None:
                stack.enter_context(replaced(owner, name, change(ordinary)))
        yield


def _own(owner: type, name: str) -> Any:
    """What a class of sets has itself, or from what all sets have in common in torch 2.15."""
    common = [cls for cls in owner.__mro__ if cls is owner or cls.__name__ == _COMMON]
    return next((vars(cls)[name] for cls in common if name in vars(cls)), None)


Change = Callable[[Callable[..., Any]], Callable[..., Any]]


def _replacements(orders: _Orders) -> Iterator[tuple[Any, str, Change]]:
    yield SetVariable, "__init__", lambda make: _made(orders, make)
    yield SetVariable, "call_method", lambda call: _called(orders, call)
    yield SetVariable, "has_new_items", _changes
    yield SetVariable, "reconstruct", lambda build: _rebuilt(orders, build)
    yield FrozensetVariable, "reconstruct", lambda build: _rebuilt(orders, build)
    for owner in (SetVariable, FrozensetVariable):
        yield owner, "as_python_constant", lambda get: _as_constant(orders, get)
        for name in _SHOWS:
            yield owner, name, lambda show: _shown(orders, show)
        for name in _WITHOUT_ORDER:
            yield owner, name, lambda call: _unasked(orders, call)
    for name in ("tp_iter_impl", "unpack_var_sequence"):
        yield SetVariable, name, lambda call: _iterated(orders, call)
    for name in _IN_PLACE:
        yield SetVariable, name, lambda call: _changed_in_place(orders, call)
    yield ListVariable, "call_method", lambda call: _extended(orders, call)
    if DictBuiltinVariable is not None:
        yield DictBuiltinVariable, "call_custom_dict_fromkeys", lambda call: _keyed(orders, call)
    if not any(hasattr(SetVariable, name) for name in _SHOWS):  # torch 2.11 and 2.12
        yield BuiltinVariable, "call_repr", _represented
    yield BuiltinVariable, "call_sorted", lambda call: _sorted(orders, call)
    for name in ("_call_min_max", "call_min", "call_max", "call_frozenset"):
        yield BuiltinVariable, name, lambda call: _chosen(orders, call)


def _made(orders: _Orders, make: Callable[..., None]) -> Callable[..., None]:
    def made(variable: Any, items: Any, *args: Any, **kwargs: Any) -> None:
        make(variable, items, *args, **kwargs)
        is_new = isinstance(kwargs.get("mutation_type"), ValueMutationNew) and kwargs.get("source") is None
        if is_new and type(variable) is SetVariable and not isinstance(items, dict) and not orders._unasked:
            orders.grows(variable)

    return made


def _called(orders: _Orders, call: Callable[..., Any]) -> Callable[..., Any]:
    def called(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not _is_set(variable):
            return call(variable, tx, name, args, kwargs)
        if name == "pop" and orders.is_seen(variable):
            raise Unsupported(_REASON)
        if name == "__iter__":  # in torch 2.11 and 2.12 this is what asks for the elements
            variable = _in_order(orders, variable, tx)
            with orders.unasked():
                return call(variable, tx, name, args, kwargs)
        # Dynamo knows the hash of a value that it has not looked at, but not of every function that it has.
        given = args if name in _TAKES_ELEMENT else [each.realize() for each in args]
        if variable.source is not None and name in _CHANGES and type(variable) is SetVariable:
            if name == "discard" and len(given) == 1 and given[0] not in variable:  # a module does, for each buffer
                return call(variable, tx, name, args, kwargs)
            raise Unsupported(_REASON)
        if name in _ONE_BY_ONE:
            run = functools.partial(call, variable, tx, name, args, kwargs)
            return _grown_by(orders, variable, tx, name, given, run)
        runs_code = not all(_has_no_code(each) for each in given)
        if name in _CHANGES:
            orders.forget(variable)
        with contextlib.nullcontext() if runs_code else orders.unasked():
            result = call(variable, tx, name, args, kwargs)
        if _is_set(result) and result is not variable:
            orders.forget(result)
        return result

    return called


def _grown_by(orders: _Orders, variable: Any, tx: Any, name: str, given: list[Any], run: Callable[[], Any]) -> Any:
    """`run` adds elements one after the other: the order stays known, if that of what is added is."""
    was_grown = orders.is_grown(variable)
    is_literal = was_grown and name == "update" and not variable.items and len(given) == 1
    literal = _literal(given[0], tx) if is_literal else orders.literal(variable) if was_grown else None
    orders.forget(variable)
    with orders.unasked(variable, *given):
        result = run()
    jumbles = name != "add" and any(_is_set(each) or isinstance(each, ConstDictVariable) for each in given)
    if was_grown and (not jumbles or (is_literal and literal is not None)):
        orders.grows(variable, literal)
    return result


def _has_no_code(variable: Any) -> bool:
    """Whether asking it for its elements runs no code of the user's, which would see in which order it is asked."""
    try:
        return variable.python_type() in _NO_CODE or variable.is_python_constant()
    except NotImplementedError:
        return False


def _changes(ordinary: Callable[..., bool]) -> Callable[..., bool]:
    def changes(variable: Any) -> bool:
        if type(variable) is not SetVariable or variable.source is None:
            return ordinary(variable)
        variable.should_reconstruct_all = False  # nothing was taken out
        return bool(_added(variable))

    return changes


def _added(variable: Any) -> list[Any]:
    """What a set from outside has got. Torch 2.11 has what was in it as variables, later ones have their keys."""
    held = variable.original_items
    are_keys = all(hasattr(each, "vt") for each in held)
    return [key.vt for key in variable.items if (key if are_keys else key.vt) not in held]


def _rebuilt(orders: _Orders, build: Callable[..., None]) -> Callable[..., None]:
    def rebuilt(variable: Any, codegen: Any) -> None:
        held = [key.vt for key in variable.items]
        if type(variable) is SetVariable and variable.source is not None and _is_modified(variable):
            codegen.foreach(added := _added(variable))
            codegen.append_output(create_instruction("BUILD_LIST", arg=len(added)))  # which it is updated with
        elif type(variable) is SetVariable and orders.is_grown(variable):
            literal = orders.literal(variable)
            first = 0 if literal is None else len(literal)
            if literal is not None:
                codegen.append_output(create_instruction("BUILD_SET", arg=0))
                codegen.append_output(create_instruction("LOAD_CONST", argval=literal))
                codegen.append_output(create_instruction("SET_UPDATE", arg=1))
                for each in held[first:]:
                    codegen(each)
                    codegen.append_output(create_instruction("SET_ADD", arg=1))
            else:
                codegen.foreach(held)
                codegen.append_output(create_instruction("BUILD_SET", arg=len(held)))
        elif variable.source is None and orders.is_seen(variable):
            raise Unsupported(_REASON)
        else:
            build(variable, codegen)

    return rebuilt


def _as_constant(orders: _Orders, get: Callable[..., Any]) -> Callable[..., Any]:
    def constant(variable: Any) -> Any:
        if not orders.is_seen(variable):
            return get(variable)
        made = orders.constant(variable)
        if made is None:
            raise NotImplementedError(_REASON)  # for Dynamo: it is none
        return made

    return constant


def _shown(orders: _Orders, show: Callable[..., Any]) -> Callable[..., Any]:
    def shown(variable: Any, tx: Any) -> Any:
        if orders.is_seen(variable):
            raise Unsupported(_REASON)
        return show(variable, tx)

    return shown


def _represented(show: Callable[..., Any]) -> Callable[..., Any]:
    def represented(variable: Any, tx: Any, given: Any) -> Any:
        if _is_set(given.realize()):
            raise Unsupported(_REASON)
        return show(variable, tx, given)

    return represented


def _unasked(orders: _Orders, call: Callable[..., Any]) -> Callable[..., Any]:
    def unasked(variable: Any, *args: Any, **kwargs: Any) -> Any:
        with orders.unasked():
            return call(variable, *args, **kwargs)

    return unasked


def _iterated(orders: _Orders, call: Callable[..., Any]) -> Callable[..., Any]:
    def iterated(variable: Any, tx: Any, *args: Any) -> Any:
        return call(_in_order(orders, variable, tx), tx, *args)

    return iterated


def _in_order(orders: _Orders, variable: Any, tx: Any) -> Any:
    """The set that Dynamo is to take the elements of, one after the other, without asking more. Breaks the graph where
    their order is not known."""
    if not orders.is_seen(variable) or orders.is_literal(variable, tx):
        return variable
    orders.ask(variable)
    held = orders.in_order(variable)
    return variable if held is None else SetVariable(held)


def _changed_in_place(orders: _Orders, call: Callable[..., Any]) -> Callable[..., Any]:
    def changed(variable: Any, tx: Any, other: Any) -> Any:
        if type(variable) is SetVariable and variable.source is not None:
            raise Unsupported(_REASON)
        orders.forget(variable)
        return call(variable, tx, other)

    return changed


def _extended(orders: _Orders, call: Callable[..., Any]) -> Callable[..., Any]:
    def extended(variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name in ("extend", "__iadd__", "__init__") and args and orders.is_seen(given := args[0].realize()):
            orders.ask(given)
            args = [ListVariable(orders.in_order(given) or []), *args[1:]]
        return call(variable, tx, name, args, kwargs)

    return extended


def _keyed(orders: _Orders, call: Callable[..., Any]) -> Callable[..., Any]:
    """`dict.fromkeys`, which in torch 2.14 takes the elements of a set without asking for them."""

    def keyed(tx: Any, made: type, *args: Any, **kwargs: Any) -> Any:
        if args and orders.is_seen(given := args[0].realize()):
            orders.ask(given)
            args = (ListVariable(orders.in_order(given) or []), *args[1:])
        return call(tx, made, *args, **kwargs)

    return staticmethod(keyed)


def _sorted(orders: _Orders, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(variable: Any, tx: Any, given: Any, **kwargs: Any) -> Any:
        given = given.realize()
        is_total = _is_set(given) and "key" not in kwargs and _are_comparable(given)
        with orders.unasked(given) if is_total else contextlib.nullcontext():
            return call(variable, tx, given, **kwargs)

    return called


def _chosen(orders: _Orders, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)  # Dynamo looks at which arguments it takes
    def called(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        given = [each.realize() for each in args]
        makes_set = variable.fn is frozenset
        unasked = [each for each in given if _is_set(each) and (makes_set or _are_comparable(each))]
        with orders.unasked(*unasked) if unasked else contextlib.nullcontext():
            return call(variable, tx, *args, **kwargs)

    return called


def _are_comparable(variable: Any) -> bool:
    """Whether its elements have one order by size, in which no two are alike."""
    values = _constants(variable)
    if values is None:
        return False
    return all(type(x) is str for x in values) or all(type(x) in _NUMBERS and x == x for x in values)
