"""A compiled module that keeps the identity of the original module.

Its class is a subclass of the original's with the same name, made here; its `__dict__` is the original's own. So
`isinstance`, parameters, `state_dict` keys, hooks, `train`, `to`, an optimiser's steps and methods such as `generate`
act on shared state, and only calls differ. The original is unchanged and stays callable.
"""

from __future__ import annotations

import abc
import copy
import functools
import inspect
import io
import pickle
import textwrap
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from burnish.errors import CannotPickle
from burnish.handle import Handle, Settings, attribute
from burnish.torch_private import dynamo

_HANDLE = "_burnish_handle"
_Kin = weakref.WeakValueDictionary[tuple[object, ...], type]
_classes: weakref.WeakKeyDictionary[type, _Kin] = weakref.WeakKeyDictionary()  # by what they are subclasses of


def compiled_module(original: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """`original`, compiled: another object of (a subclass of) its class, over the same `__dict__`."""
    return module_behind(Handle(original, settings))


def module_behind(handle: Handle) -> torch.nn.Module:
    """The compiled module of a handle."""
    original: torch.nn.Module = handle.eager
    shown = tuple(name for name in ("burnish", "eager") if attribute(original, name, _HANDLE) is _HANDLE)
    return _twin(original, handle, ("compiled", shown), _compiled_members, shown)


def disabled_module(original: torch.nn.Module) -> torch.nn.Module:
    """`original`, kept out of every graph: the code around it is compiled, it runs in eager."""
    return _twin(original, original, ("disabled",), _disabled_members, ())


def handle_of_module(module: torch.nn.Module) -> Handle | None:
    handle = attribute(module, _HANDLE)
    return handle if isinstance(handle, Handle) else None


def _twin(
    original: torch.nn.Module,
    handle: object,
    key: tuple[object, ...],
    members: Callable[[type, tuple[str, ...]], dict[str, Any]],
    shown: tuple[str, ...],
) -> torch.nn.Module:
    kin = _classes.get(type(original))
    if kin is None:
        kin = _classes.setdefault(type(original), _Kin())
    cls = kin.get(key)
    if cls is None:
        cls = kin.setdefault(key, _subclass(type(original), members(type(original), shown)))
    twin: torch.nn.Module = object.__new__(cls)  # not cls(): that would build a new model
    object.__setattr__(twin, "__dict__", original.__dict__)
    object.__setattr__(twin, _HANDLE, handle)
    return twin


def _subclass(original: type, members: dict[str, Any]) -> type:
    namespace = {
        "__slots__": (_HANDLE,),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        **members,
    }
    # A user's metaclass or __init_subclass__ may register classes by name, or require arguments, so neither is called
    # for this class. ABCMeta is used, because it keeps records on every class.
    metaclass = type(original)
    make = abc.ABCMeta.__new__ if issubclass(metaclass, abc.ABCMeta) else type.__new__
    return make(metaclass, original.__name__, (_Quiet, original), namespace)


class _Quiet:
    """Precedes the original among the bases, so that the original's __init_subclass__ is not called."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        pass


# -- members of a compiled module's class ------------------------------------------------------------------------


def _compiled_members(original: type, shown: tuple[str, ...]) -> dict[str, Any]:
    is_traced = torch.compiler.is_dynamo_compiling
    original_call: Callable[..., Any] = original.__call__
    original_forward: Callable[..., Any] = original.forward  # type: ignore[attr-defined]

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced():  # part of a larger model that is being compiled: traced into its graph
            return original_call(self, *args, **kwargs)
        return self._burnish_handle.entrance.call(*args, **kwargs)

    @functools.wraps(original_forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return original_forward(self, *args, **kwargs)
        return self._burnish_handle.forward.call(*args, **kwargs)

    def __repr__(self: Any) -> str:
        handle: Handle = self._burnish_handle
        inner = textwrap.indent(repr(handle.eager), "  ")
        return f"burnish.compile({handle.in_words()})(\n{inner}\n)"

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> torch.nn.Module:
        handle: Handle = self._burnish_handle
        twin = memo[id(self)] = compiled_module(copy.deepcopy(handle.eager, memo), handle.settings)
        return twin

    def __copy__(self: Any) -> torch.nn.Module:
        handle: Handle = self._burnish_handle
        return compiled_module(copy.copy(handle.eager), handle.settings)

    def __reduce_ex__(self: Any, protocol: int) -> tuple[Any, ...]:
        handle: Handle = self._burnish_handle
        _check_pickles(handle.name, (handle.eager, handle.settings), protocol)
        return compiled_module, (handle.eager, handle.settings)

    properties = {
        "burnish": property(lambda self: self._burnish_handle, doc="Settings, statistics and the eager original."),
        "eager": property(lambda self: self._burnish_handle.eager, doc="The module as it was before compiling."),
    }
    eager: Callable[[Any], Any] = lambda self: self._burnish_handle.eager  # noqa: E731
    return {
        "__call__": __call__,
        "forward": forward,
        "__repr__": __repr__,
        "__deepcopy__": __deepcopy__,
        "__copy__": __copy__,
        "__reduce_ex__": __reduce_ex__,
        **_shared_members(original, eager),
        **_for_generate(original),
        **{name: properties[name] for name in shown},
    }


def _for_generate(original: type) -> dict[str, Any]:
    """transformers' `generate` asks its model for a compiled call function: return this entrance."""

    def get_compiled_call(self: Any, compile_config: object = None) -> Callable[..., Any]:
        return self.__call__

    return {"get_compiled_call": get_compiled_call} if hasattr(original, "get_compiled_call") else {}


def _disabled_members(original: type, shown: tuple[str, ...]) -> dict[str, Any]:
    def __deepcopy__(self: Any, memo: dict[int, Any]) -> torch.nn.Module:
        twin = memo[id(self)] = disabled_module(copy.deepcopy(self._burnish_handle, memo))
        return twin

    def __reduce_ex__(self: Any, protocol: int) -> tuple[Any, ...]:
        return disabled_module, (self._burnish_handle,)

    return {
        "__call__": dynamo.disable(original.__call__),
        "__deepcopy__": __deepcopy__,
        "__reduce_ex__": __reduce_ex__,
        **_shared_members(original, lambda self: self._burnish_handle),
    }


def _shared_members(original: type, eager: Callable[[Any], Any]) -> dict[str, Any]:
    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        """`type(compiled)(config)` builds a model of the original class, and `cls.__new__(cls)` an empty one."""
        if args or kwargs or _takes_no_arguments(original):
            return original(*args, **kwargs)
        return object.__new__(original)

    return {"__new__": __new__, **{name: _slot(name, eager) for name in _slot_names(original)}}


def _takes_no_arguments(cls: type) -> bool:
    try:
        inspect.signature(cls.__init__).bind(None)  # type: ignore[misc]
    except (TypeError, ValueError):
        return False
    return True


def _slot_names(original: type) -> set[str]:
    members = (item for cls in original.__mro__ for item in vars(cls).items())
    return {name for name, member in members if isinstance(member, types.MemberDescriptorType)}


def _slot(name: str, eager: Callable[[Any], Any]) -> property:
    """An attribute kept in a slot is not in the `__dict__` the two objects share: go to the original for it."""
    return property(
        lambda self: getattr(eager(self), name),
        lambda self, value: setattr(eager(self), name, value),
        lambda self: delattr(eager(self), name),
    )


# -- pickling ----------------------------------------------------------------------------------------------------


class _Sink(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


class _Rehearsal(pickle.Pickler):
    """A trial pickle without the tensors' bytes and without output, to find out whether pickling works."""

    def persistent_id(self, value: Any) -> str | None:
        return "tensor" if isinstance(value, (torch.Tensor, torch.UntypedStorage)) else None


def _check_pickles(name: str, parts: tuple[Any, ...], protocol: int) -> None:
    try:
        _Rehearsal(_Sink(), protocol).dump(parts)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CannotPickle(name, error) from error
