"""One variant of a pack over the live model: its guards, and its code as a function."""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch

from burnish.capture.entry.frame_values import free_variables
from burnish.capture.entry.graph_inputs import is_kept, loader, parameters_of, still_held
from burnish.capture.entry.hooks import Hooks
from burnish.capture.entry.method_guards import (
    Method,
    all_as_found,
    called_methods,
    classes_of_modules,
    methods_mark,
)
from burnish.capture.restore import NotWarm, code_identity
from burnish.errors import Mismatch
from burnish.packs.data import PackedVariant
from burnish.packs.places import SKIPPED, Absent, Skipped, is_local, text_of, values_at
from burnish.packs.stand_ins import STAND_INS, stand_in
from burnish.runtime.cache.data import NotData

BUILTINS = "__builtins_dict___burnish"
_HEAP_TYPE = 1 << 9  # bit of a class's `__flags__`: made by a `class` statement (or equivalent)


class PackedUnguarded:
    """`call` takes the frame's arguments."""

    is_whole = True

    def __init__(self, call: Callable[..., Any], held: Callable[[], bool] | None) -> None:
        self.call = call
        self.held = held

    def first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.call(*args, **kwargs)


class PackedCode:
    """`graph` is made at the first need of it."""

    def __init__(
        self, variant: PackedVariant, frame: types.FunctionType, graph: Callable[[], Callable[..., Any]]
    ) -> None:
        self._variant = variant
        self._frame = frame
        self._make_graph = graph
        self._classes: dict[type, None] = {}

    @property
    def key(self) -> Hashable:
        return id(self)

    @cached_property
    def _graph(self) -> Callable[..., Any]:
        return self._make_graph()

    # -- guards ----------------------------------------------------------------------------------------------------

    def model_mismatches(self) -> Iterator[Mismatch]:
        """The differences of the model: of everything that does not hang on a call's arguments or the state of the
        process."""
        yield from self._code_mismatches()
        arguments = frozenset(parameters_of(self._frame.__code__))
        look = self._variant.guards.looked_at(free_variables(self._frame), self._named, arguments)
        yield from look.mismatches(code_identity.Fingerprints(self._variant.identity.names))
        yield from self._missing_inputs(free_variables(self._frame), arguments)

    def _missing_inputs(self, values: Mapping[str, Any], left_out: frozenset[str] = frozenset()) -> Iterator[Mismatch]:
        """Guards are on what the inputs of a graph are. That they are there, is a part of that."""
        places = self._variant.places
        of_arguments = is_local(places, left_out)
        found = values_at(places, values, self._named, lambda number: not of_arguments[number])
        for number in self._variant.inputs:
            value = found[number]
            if isinstance(value, Absent):
                yield Mismatch(text_of(places, number), "there", f"not there ({value.reason[:100]})")

    def _code_mismatches(self) -> Iterator[Mismatch]:
        """Of all that a trace follows without a guard of Dynamo's."""
        held = [value for value in free_variables(self._frame).values() if isinstance(value, torch.nn.Module)]
        if any(Hooks(module).any() for module in held):
            yield Mismatch("hooks", "none", "registered")
        identity = self._variant.identity
        kept, here = self._variant.results.code.co_freevars[:-1], self._frame.__code__.co_freevars
        if kept != here:
            yield Mismatch(f"variables of {self._frame.__name__}", ", ".join(kept) or "none", ", ".join(here) or "none")
        if (mark := code_identity.code_mark(self._frame.__code__)) != identity.frame:
            yield Mismatch(f"code of {self._frame.__name__}", identity.frame, mark)
        for module, name, mark in identity.traced:
            # a part of torch that is not loaded cannot have been changed
            if not (module.startswith("torch.") and module not in sys.modules) and code_identity.changed(
                [(module, name, mark)]
            ):
                yield Mismatch(f"code of {module}.{name}", mark, "other code")
        if (mark := methods_mark(self._as_dynamo_frame())) != identity.methods:
            yield Mismatch("methods of its classes", identity.methods[:24], mark[:24])

    def _as_dynamo_frame(self) -> types.SimpleNamespace:
        frame = self._frame
        return types.SimpleNamespace(f_locals=free_variables(frame), f_code=frame.__code__, f_globals=frame.__globals__)

    def fits(self, values: Mapping[str, Any]) -> bool:
        variant = self._variant
        if next(variant.guards.state.mismatches(), None) or next(self._code_mismatches(), None):
            return False
        look = variant.guards.looked_at(values, self._named)
        if next(look.mismatches(code_identity.Fingerprints(self._variant.identity.names)), None):
            return False
        if next(self._missing_inputs(values), None):
            return False
        self._classes |= look.classes()
        return True

    def as_compiled(self, held: Callable[[], bool] | None) -> Callable[[], bool]:
        return all_as_found(self._methods(), self._frame, held)

    def _methods(self) -> list[Method]:
        seen = {each: None for each in self._classes if each.__flags__ & _HEAP_TYPE}
        classes = classes_of_modules(self._as_dynamo_frame()) | seen
        return called_methods(classes, self._frame.__code__, self._frame.__globals__)

    # -- the code --------------------------------------------------------------------------------------------------

    def unguarded(self) -> PackedUnguarded:
        variant, frame = self._variant, self._frame
        parameters = parameters_of(frame.__code__)
        values = values_at(variant.places, free_variables(self._frame), self._named, lambda _: True)
        inputs = [
            _there(values[number]) if is_kept(source, parameters) else None
            for source, number in zip(variant.sources, variant.inputs, strict=True)
        ]
        load = loader(self._graph, variant.sources, inputs, frame)
        if load is None:
            raise NotData("inputs that cannot be loaded")
        names = {**frame.__globals__, **self._names_read()}
        closure = (*(frame.__closure__ or ()), types.CellType(load))
        call = types.FunctionType(variant.results.code, names, frame.__name__, frame.__defaults__, closure)
        call.__kwdefaults__ = frame.__kwdefaults__
        return PackedUnguarded(call, still_held(variant.sources, frame))

    # -- globals ---------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> Any:
        """A global of the frame, or one of those that Dynamo adds."""
        if name == BUILTINS:
            return vars(builtins)
        if name in self._added:
            return self._added[name]
        return self._frame.__globals__[name]

    @cached_property
    def _added(self) -> dict[str, Any]:
        results = self._variant.results
        found: dict[str, Any] = {alias: _module(name) for alias, name in results.modules}
        for alias, place in results.objects:
            module = _module(place[0])
            found[alias] = module if isinstance(module, Skipped) else code_identity.found_at(place)
        return found

    def _names_read(self) -> dict[str, Any]:
        results, modules = self._variant.results, dict(self._variant.results.modules)
        found: dict[str, Any] = {}
        for alias in results.used:
            if modules.get(alias) in STAND_INS:
                found[alias] = stand_in(modules[alias])
            elif alias in self._added:
                value = self._added[alias]
                found[alias] = _imported(modules[alias]) if isinstance(value, Skipped) else value
        return found


def _there(value: Any) -> Any:
    if isinstance(value, Absent | Skipped):
        raise NotData("an input that is not there")
    return value


def _module(name: str) -> Any:
    """A module that is loaded, or belongs to a package that is. A part of torch that nobody has loaded is as it was."""
    if name in sys.modules:
        return sys.modules[name]
    package = name.partition(".")[0]
    if package == "torch":
        return SKIPPED
    if package not in sys.modules and package not in sys.stdlib_module_names:
        raise NotWarm(f"{name} is not loaded")
    return _imported(name)


def _imported(name: str) -> Any:
    """Another version of a package may lack a module, or fail to import it."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise NotWarm(f"{name} cannot be imported ({type(error).__name__}: {error})") from error
