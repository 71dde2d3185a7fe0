"""Guards on the methods of classes.

Dynamo guards the contents of objects and modules, but not their classes. It does not notice a `forward` that is
replaced for a whole class (`Model.forward = faster`), or whose code is replaced (as IPython's autoreload does). So a
frame's guards get one more: each method that its code may have called is still found in its class, with the same code.
The check takes a few nanoseconds per method in C (`native/host/methods.h`), whatever the number of objects, and some
tens in Python until the extension is available.
"""

from __future__ import annotations

import hashlib
import keyword
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch

from burnish.capture.entry.frame_values import cell_content
from burnish.runtime.host.extension import host_if_built, host_was_sought

Unchanged = Callable[..., bool]
_MOST_FUNCTIONS = 4096  # code objects that are searched for names; more than large models have
_NOT_WATCHED = (object, torch.nn.Module, torch.Tensor, torch.nn.Parameter)
_OWN = "forward"  # attributes of a module beside its class's
_CALLED = ("forward", "__call__")  # methods that are called implicitly, so that no code contains their name
# Other special methods are called implicitly, too. Those of no object that was there before, and those that Dynamo does
# not trace, are of no account.
_NOT_CALLED = frozenset(
    f"__{name}__"
    for name in ("init", "new", "del", "init_subclass", "set_name", "getstate", "setstate", "reduce", "reduce_ex")
)
_PLAIN = (str, int, float, bool, type(None))
_HEAP_TYPE = 1 << 9  # bit of a class's `__flags__`: made by a `class` statement (or equivalent)
_OFTEN = 64  # calls after which it is worth building the extension
_known: weakref.WeakKeyDictionary[Any, _Question] = weakref.WeakKeyDictionary()  # by managers of guards


@dataclass(frozen=True)
class Method:
    """`part` is the path from the class attribute to the function: "" if they are the same."""

    owner: type
    name: str
    part: str
    function: types.FunctionType

    def __str__(self) -> str:
        return f"{self.owner.__qualname__}.{self.name}"


# -- guards -------------------------------------------------------------------------------------------------------


def guard_methods(manager: Any, frame: Any, prepare: Callable[[], object] = lambda: None) -> None:
    """Add the guard to a frame's guards. `prepare` starts the build of the extension; it is called if useful."""
    classes = classes_of_modules(frame) | dict.fromkeys(_guarded_classes(manager.root))
    methods = called_methods(classes, frame.f_code, frame.f_globals)
    if not methods:
        return
    _known[manager] = question = _Question(methods)
    names = ", ".join(sorted({str(each) for each in methods}))
    manager.root.add_lambda_guard(
        question.asked_in_open(prepare), [f"methods of classes have been replaced: one of {names}"], None
    )


def _modules(values: Iterable[Any], code: types.CodeType, names: Mapping[str, Any]) -> Iterator[torch.nn.Module]:
    """The modules in a frame's scope and in the globals that its code reads, with their submodules."""
    for value in (*values, *(names.get(name) for name in code.co_names)):
        holder = value.__self__ if isinstance(value, types.MethodType) else value
        if isinstance(holder, torch.nn.Module):
            yield from holder.modules()


def classes_of_modules(frame: Any) -> dict[type, None]:
    return {type(module): None for module in _modules(frame.f_locals.values(), frame.f_code, frame.f_globals)}


def _guarded_classes(manager: Any) -> Iterator[type]:
    for child in manager.get_child_managers():
        kind = child.get_type_of_guarded_value()
        if isinstance(kind, type) and kind.__flags__ & _HEAP_TYPE:
            yield kind
        yield from _guarded_classes(child)


# -- a frame without its guards -----------------------------------------------------------------------------------


def all_as_compiled(manager: Any, frame: types.FunctionType, held: Callable[[], bool] | None) -> Callable[[], bool]:
    """The check for a sealed call that replaces its guards: methods are unchanged, no module has got its own `forward`
    since, and each module has the submodules it had. Runs after `held`."""
    return _all_unchanged(_known.get(manager) or _Question(()), frame, held)


def all_as_found(
    methods: Sequence[Method], frame: types.FunctionType, held: Callable[[], bool] | None
) -> Callable[[], bool]:
    """The same for these methods, where there is no manager of guards."""
    return _all_unchanged(_Question(methods), frame, held)


def _all_unchanged(
    question: _Question, frame: types.FunctionType, held: Callable[[], bool] | None
) -> Callable[[], bool]:
    scope = [cell_content(cell) for cell in frame.__closure__ or ()]
    modules = dict.fromkeys(_modules(scope, frame.__code__, frame.__globals__))
    own = tuple((vars(module), ((_OWN, vars(module).get(_OWN)),)) for module in modules)
    submodules = tuple((m._modules, tuple(m._modules.items()), True) for m in modules if m._modules)
    others = [] if held is None else [held]
    if own:
        others.append(_still_their_own(own, submodules))
    return question.asked_after(others)


def _still_their_own(own: tuple[Any, ...], submodules: tuple[Any, ...]) -> Callable[[], bool]:
    host = host_if_built()
    if host is not None:
        asked: Callable[[], bool] = host.Held(own + submodules)
        return asked
    wanted = [(held, dict(items)) for held, items, _ in submodules]

    def as_they_were() -> bool:
        return all(has.get(_OWN) is it for has, ((_, it),) in own) and all(held == them for held, them in wanted)

    return as_they_were


# -- which methods ------------------------------------------------------------------------------------------------


def called_methods(classes: Iterable[type], code: types.CodeType, names: Mapping[str, Any]) -> list[Method]:
    """Methods of the classes that this code (with globals `names`) may call, by their names, directly or through
    functions and methods that it may call."""
    by_name = _by_name(owner for owner in classes if owner not in _NOT_WATCHED)
    found = {each: None for name in filter(_is_implicit, list(by_name)) for each in by_name.pop(name) if _counts(each)}
    waiting: list[tuple[types.CodeType, Mapping[str, Any]]] = [(code, names), *map(_body, found)]
    seen: set[types.CodeType] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        code, names = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        waiting += [(each, names) for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in code.co_names:
            more = by_name.pop(name, ())
            found |= dict.fromkeys(more)
            waiting += map(_body, more)
            function = names.get(name)
            if isinstance(function, types.FunctionType) and not _is_of_torch(function):
                waiting.append((function.__code__, function.__globals__))
    return list(found)


def _is_implicit(name: str) -> bool:
    return name in _CALLED or (name.startswith("__") and name.endswith("__") and name not in _NOT_CALLED)


def _counts(method: Method) -> bool:
    """Special methods of torch's own classes, and of enumerations, are too many, and nobody replaces them."""
    home = str(method.function.__module__).split(".")[0]
    return method.name in _CALLED or home not in ("torch", "enum")


def _by_name(classes: Iterable[type]) -> dict[str, list[Method]]:
    found: dict[str, list[Method]] = {}
    for owner in classes:
        for name in {name: None for each in owner.__mro__ if each not in _NOT_WATCHED for name in vars(each)}:
            if name.isidentifier() and not keyword.iskeyword(name) and (method := _method(owner, name)) is not None:
                found.setdefault(name, []).append(method)
    return found


def _body(method: Method) -> tuple[types.CodeType, Mapping[str, Any]]:
    return method.function.__code__, method.function.__globals__


def _is_of_torch(function: types.FunctionType) -> bool:
    return str(function.__module__).split(".")[0] == "torch"


def _method(owner: type, name: str) -> Method | None:
    holder = next(each for each in owner.__mro__ if name in vars(each))
    if holder in _NOT_WATCHED:
        return None
    raw = vars(holder)[name]
    part = {classmethod: ".__func__", property: ".fget"}.get(type(raw), "")
    function = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
    if not isinstance(function, types.FunctionType):
        return None
    return Method(owner, name, part, function) if _seen(owner, name, part) is function else None


def _seen(owner: type, name: str, part: str) -> object:
    """The object that the guard will see; a metaclass may return another."""
    seen = getattr(owner, name, None)
    return getattr(seen, part.removeprefix("."), None) if part else seen


# -- the check ----------------------------------------------------------------------------------------------------


class _Question:
    """A guard is opaque to the garbage collector, so it may hold strong references only to objects that live as long as
    their module. Others might refer to the compiled object and keep it alive."""

    def __init__(self, methods: Sequence[Method]) -> None:
        self._entries = tuple(
            (ref(m.owner), m.name, m.part.removeprefix("."), ref(m.function), ref(m.function.__code__)) for m in methods
        )
        self._stay = tuple(map(_stays, methods))

    def asked_after(self, held: Sequence[Unchanged] = ()) -> Unchanged:
        """One function that first checks `held`."""
        return self._in_c(held) or self._in_python(held)

    def asked_in_open(self, prepare: Callable[[], object]) -> Unchanged:
        """Checks in C as soon as the extension is available. No call waits for it, and it is not built for few
        calls."""
        if (native := self._in_c()) is not None:
            return native
        in_python, calls = self._in_python(), 0
        asked: Unchanged

        def settle() -> bool:
            nonlocal asked, calls
            if host_was_sought():
                asked = self._in_c() or in_python
                return asked()
            calls += 1
            if calls == _OFTEN:
                prepare()
            return in_python()

        asked = settle
        return lambda _=None: asked()

    def _in_c(self, held: Sequence[Unchanged] = ()) -> Unchanged | None:
        host = host_if_built()
        asked: Unchanged | None = None if host is None else host.Methods(self._entries, tuple(held))
        return asked

    def _in_python(self, held: Sequence[Unchanged] = ()) -> Unchanged:
        scope: dict[str, Any] = {f"held_{k}": each for k, each in enumerate(held)}
        terms = [f"{name}()" for name in scope]
        for k, (owner, name, part, function, code) in enumerate(self._entries):
            named: dict[str, Any] = {f"owner_{k}": owner, f"function_{k}": function, f"code_{k}": code}
            if self._stay[k]:  # a look without a call
                scope |= {key: each() for key, each in named.items()}
                first, second, third = named
            else:
                scope |= named
                first, second, third = (f"{key}()" for key in named)
            found = ".".join(filter(None, (first, name, part)))
            terms.append(f"(f := {found}) is {second} and f.__code__ is {third}")
        text = " and ".join(terms) or "True"
        exec(f"def ask(_=None):\n try:\n  return {text}\n except AttributeError:\n  return False", scope)
        ask: Unchanged = scope.pop("ask")
        return ask


def _stays(method: Method) -> bool:
    """Whether a module refers to the class by name, and the function refers only to classes."""
    found: Any = sys.modules.get(method.owner.__module__)
    for name in method.owner.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is method.owner and all(
        isinstance(cell_content(cell), type) for cell in method.function.__closure__ or ()
    )


# -- another process ----------------------------------------------------------------------------------------------


def methods_mark(frame: Any) -> str:
    """The functions that implement the methods of a frame's classes. A warm start compares the code of the traced
    functions, but would not notice that a class has another function now."""
    methods = called_methods(classes_of_modules(frame), frame.f_code, frame.f_globals)
    lines = sorted(f"{method.owner.__module__}.{method} {_described(method.function)}" for method in methods)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _described(function: types.FunctionType) -> str:
    cells = [cell_content(cell) for cell in function.__closure__ or ()]
    held = [repr(x) if type(x) in _PLAIN else getattr(x, "__qualname__", type(x).__qualname__) for x in cells]
    return f"{function.__module__}.{function.__qualname__} {held}"
