"""Tracks a layer's index while its block is traced, to decide whether the trace also fits other indices.

Blocks that differ only in an index (`layer_idx`) may use it to find their element of a shared object, such as a cache.
Dynamo treats such a number as a constant, so its uses cannot be found after the trace. Here it is a variable that
records its uses. An index into a list records the list, and another block finds its own element there. A comparison
with a constant records operator and result, and is evaluated for another block's number. Any other use makes the value
an ordinary constant (`escaped`), and blocks with another number are traced.
"""

from __future__ import annotations

import contextlib
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from burnish.torch_private.guards import AttrSource, GetItemSource, GuardBuilder, Source, install_guard
from burnish.torch_private.patches.tracing import building_constants_with
from burnish.torch_private.variables import (
    BuiltinVariable,
    ConstantVariable,
    LazyConstantVariable,
    ListVariable,
    TupleVariable,
    VariableBuilder,
    VariableTracker,
)

_COMPARISONS: tuple[Callable[[Any, Any], bool], ...] = (
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
)


@dataclass(eq=False)
class Number:
    """The recorded uses of one number of one block."""

    source: Source
    value: int
    escaped: bool = False
    lists: list[Source] = field(default_factory=list)  # it was an index of these
    answers: list[tuple[Callable[[int], bool], bool]] = field(default_factory=list)

    def fits(self, other: Any) -> bool:
        """Whether a block with the other number would have the same trace, except for elements found in lists."""
        if type(other) is not int:
            return False
        if self.escaped or other == self.value:
            return other == self.value
        return other >= 0 and all(question(other) == answer for question, answer in self.answers)


class NumberVariable(ConstantVariable):
    _nonvar_fields = ConstantVariable._nonvar_fields | {"number"}

    def __init__(self, number: Number, **options: Any) -> None:
        VariableTracker.__init__(self, **options)
        self.number = number

    @property
    def value(self) -> int:
        self.number.escaped = True
        return self.number.value

    def clone(self, **options: Any) -> VariableTracker:
        return ConstantVariable(self.value, **{"source": self.source, **options})

    def is_constant_none(self) -> bool:
        return False

    def python_type(self) -> type:
        return int

    def __repr__(self) -> str:
        return f"number {self.number.source.name}"


def differing_numbers(kinds: dict[int, object], modules: dict[int, nn.Module]) -> set[tuple[int, str]]:
    """Integer attributes that differ between equal blocks: their module, by id, and their name."""
    groups: dict[object, list[nn.Module]] = defaultdict(list)
    for known, kind in kinds.items():
        groups[kind].append(modules[known])
    found: set[tuple[int, str]] = set()
    for blocks in groups.values():
        for alike in zip(*(block.modules() for block in blocks), strict=False):
            names = [name for name, value in vars(alike[0]).items() if type(value) is int]
            found |= {(id(m), n) for n in names if len({vars(a).get(n) for a in alike}) > 1 for m in alike}
    return found


class Following:
    """The numbers of one block while it is traced, and the lists that were also read in other ways."""

    def __init__(self, tx: Any, is_number: Callable[[Source], bool]) -> None:
        self.numbers: dict[Source, Number] = {}
        self.read: set[int] = set()  # ids of lists' variables
        self.indexed: dict[int, ListVariable | TupleVariable] = {}
        self._tx = tx
        self._is_number = is_number
        self._of_number = False

    def variable(self, value: Any, source: Source) -> NumberVariable | None:
        if type(value) is not int or not isinstance(source, AttrSource) or not self._is_number(source):
            return None
        install_guard(source.make_guard(GuardBuilder.CONSTANT_MATCH))
        return NumberVariable(self.numbers.setdefault(source, Number(source, value)), source=source)

    def item(self, held: Any, variable: NumberVariable) -> VariableTracker | None:
        """The element at the number's index, if it existed before the trace."""
        number = variable.number
        items: list[VariableTracker] = held.__dict__["items"]
        if held.source is None or not 0 <= number.value < len(items) or self._changed(held):
            return None
        if items[number.value].source != GetItemSource(held.source, number.value):
            return None
        self.indexed[id(held)] = held
        number.lists.append(held.source)
        return items[number.value]

    def _changed(self, held: Any) -> bool:
        return held.mutation_type is not None and bool(self._tx.output.side_effects.is_modified(held))

    def ambiguous(self) -> bool:
        """A list was indexed by a number, and also read in another way: its elements cannot be assigned to blocks."""
        return any(known in self.read for known in self.indexed)


# --- into Dynamo ------------------------------------------------------------------------------------------------

_now: list[Following] = []  # at most one: Dynamo traces under a lock, and nested blocks are not tracked


def _look_up(tx: Any, args: Any, kwargs: Any) -> VariableTracker:
    held, variable = args
    found = _now[-1].item(held, variable) if _now else None
    if found is not None:
        return found
    plain: VariableTracker = BuiltinVariable(operator.getitem).call_function(
        tx, [held, ConstantVariable(variable.value)], kwargs
    )
    return plain


def _comparison(compare: Callable[[Any, Any], bool], number_first: bool) -> Callable[..., VariableTracker]:
    def handler(tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        variable, other = args if number_first else args[::-1]
        constant = other.as_python_constant()

        def question(value: int) -> bool:
            return bool(compare(value, constant) if number_first else compare(constant, value))

        if type(constant) is not int:
            plain = ConstantVariable(variable.value)
            result: VariableTracker = BuiltinVariable(compare).call_function(
                tx, [plain, other] if number_first else [other, plain], kwargs
            )
            return result
        answer = question(variable.number.value)
        variable.number.answers.append((question, answer))
        return ConstantVariable.create(answer)

    return handler


def _is_same(answer: bool) -> Callable[..., VariableTracker]:
    def handler(tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        variable, other = args
        if other.as_python_constant() is None:
            return ConstantVariable.create(not answer)
        return ConstantVariable.create((variable.value is other.as_python_constant()) == answer)

    return handler


def _register() -> None:
    handlers: dict[Any, Any] = BuiltinVariable.call_function_handler_cache
    for held in (ListVariable, TupleVariable):
        handlers[operator.getitem, held, NumberVariable] = _look_up
    for compare in _COMPARISONS:
        handlers[compare, NumberVariable, ConstantVariable] = _comparison(compare, True)
        handlers[compare, ConstantVariable, NumberVariable] = _comparison(compare, False)
    handlers[operator.is_, NumberVariable, ConstantVariable] = _is_same(True)
    handlers[operator.is_not, NumberVariable, ConstantVariable] = _is_same(False)


_register()
_lazy_constant = LazyConstantVariable.create
_build = VariableBuilder.__call__


def _create(value: Any, source: Any, **options: Any) -> VariableTracker:
    variable = _now[-1].variable(value, source) if _now else None
    return _lazy_constant(value, source, **options) if variable is None else variable


def _built(self: VariableBuilder, value: Any) -> VariableTracker:
    variable = _now[-1].variable(value, self.source) if _now else None
    if variable is not None:
        variable.number.escaped = True
    return _build(self, value)


def _items(self: Any) -> Any:
    if _now and self.source is not None:
        _now[-1].read.add(id(self))
    return self.__dict__["items"]


def _set_items(self: Any, items: Any) -> None:
    self.__dict__["items"] = items


@contextlib.contextmanager
def follow(following: Following) -> Iterator[None]:
    """While a block is traced, in the one thread that traces."""
    _now.append(following)
    try:
        with building_constants_with(_create, _built, property(_items, _set_items)):
            yield
    finally:
        _now.pop()
