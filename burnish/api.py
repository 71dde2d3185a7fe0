"""`burnish.compile` and what goes with it: torch.compile's arguments, and compiled objects that keep the original's
class."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import torch

from burnish.capture.entry.traced_as import traced_as
from burnish.errors import NotCompilable, NotCompiled, UnknownBackend
from burnish.handle import Handle, Settings, attribute, reset_all
from burnish.identity import compiled_module, disabled_module, handle_of_module
from burnish.options import Options, nearest
from burnish.stats import Stats
from burnish.torch_private import dynamo

Model = TypeVar("Model", bound=Callable[..., Any])


@overload
def compile(
    model: Model,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | Options | None = None,
    disable: bool = False,
    name: str | None = None,
    verify: str | bool | None = None,
    gate: bool | None = None,
    sample: float | None = None,
    background: bool | None = None,
    budget: float | None = None,
    tuning: object = None,
    regions: Literal["auto"] | Sequence[type | str] | None = "auto",
    shapes: str | Mapping[str, object] | None = None,
    cache: str | None = None,
) -> Model: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | Options | None = None,
    disable: bool = False,
    name: str | None = None,
    verify: str | bool | None = None,
    gate: bool | None = None,
    sample: float | None = None,
    background: bool | None = None,
    budget: float | None = None,
    tuning: object = None,
    regions: Literal["auto"] | Sequence[type | str] | None = "auto",
    shapes: str | Mapping[str, object] | None = None,
    cache: str | None = None,
) -> Callable[[Model], Model]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | Options | None = None,
    disable: bool = False,
    name: str | None = None,
    verify: str | bool | None = None,
    gate: bool | None = None,
    sample: float | None = None,
    background: bool | None = None,
    budget: float | None = None,
    tuning: object = None,
    regions: Literal["auto"] | Sequence[type | str] | None = "auto",
    shapes: str | Mapping[str, object] | None = None,
    cache: str | None = None,
) -> Any:
    """Compile a module or a function; the arguments are those of `torch.compile`.

    Without `model` it is a decorator. `fullgraph=True` makes a graph break an error that names its line. `dynamic=True`
    compiles once for all sizes, `False` once for each size; `None` starts like `False` and makes a size symbolic when
    it changes. `backend` is None or "burnish" for our own compiler, "auto" to let Inductor serve graphs for which it is
    faster, or any backend that torch.compile takes. `mode` is one of burnish.options.MODES, `options` a dict of
    burnish.options.OPTION_NAMES (or an Options), and the two exclude each other. `disable=True` runs eager. `name` is
    what statistics and warnings call it.

    Each graph is compared with eager at its first call (`verify="off"` does not; "always" does even where an earlier
    process did), raced against it, and served by eager if that is faster (`gate=False` does not). `sample=0.001`
    compares one call in a thousand later on, too.

    `background=True` compiles in another thread: calls run in eager until a graph is ready and found right, and
    change over between two calls; `compiled.burnish.wait()` waits until nothing is left to compile. `budget=30` gives
    each compile 30 seconds, after which it is cancelled and eager serves: a call waits no longer than that, and not at
    all if both are given.

    `mode="max-autotune"` measures on a GPU in which form each kernel is fastest, and keeps that in the cache.
    `burnish.stats(compiled).tuning_record` is what it found; `tuning=` takes it back, as text in a file or as a dict,
    in any mode.

    Blocks that a model repeats (transformer layers) are traced once and copied; the program is the same as without.
    `regions=None` traces each, a list of classes and names of modules says which they are, and `@burnish.region` marks
    a class as one.

    `shapes=` is for calls whose sizes vary: "static" compiles each size, "dynamic" all with symbolic sizes, "pad" pads
    to one maximum; {"batch": [1, 2, 4, 8], "sequence": "auto"} pads to buckets, given or learnt from the calls; "auto"
    learns which sizes are worth a program. A call is padded only where that is proven not to change its results;
    `burnish.stats(compiled).shapes` says what was refused, and why. See docs/shapes.md.

    `cache=` is the URL of a store that machines share (`s3://…`, a folder): what one of them has compiled, the others
    load. It needs a key, because what is in it is code; see docs/operations.md.

    A module comes back as an object of its own class over the same parameters, buffers and hooks; `.eager` (and
    `.burnish.eager`, on functions too) is the original. Compiling a compiled object replaces its settings.
    """
    settings = Settings(
        fullgraph,
        dynamic,
        backend,
        mode,
        options,
        disable,
        name,
        verify,
        gate,
        sample,
        background,
        budget,
        tuning,
        regions,
        shapes,
        cache,
    )
    settings.resolved()  # a mistake in the arguments is raised here, not at the first call
    _check_backend(backend)
    return functools.partial(_compile, settings) if model is None else _compile(settings, model)


def _compile(settings: Settings, model: Any) -> Any:
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(_compile(settings, model.__func__))
    model = _original(model)
    if isinstance(model, (torch.jit.ScriptModule, type)) or not callable(model):
        raise NotCompilable(model)
    if isinstance(model, torch.nn.Module):
        return compiled_module(model, settings)
    return _compiled_function(model, settings)


def _original(model: Any) -> Any:
    """An object that was compiled before is compiled again from its original, not wrapped twice."""
    handle = _handle(model)
    if handle is not None:
        return handle.eager
    if isinstance(model, torch.nn.Module):
        return attribute(model, "_orig_mod", model)  # torch.compile(module)
    return attribute(model, "_torchdynamo_orig_callable", model)  # torch.compile(function)


def _check_backend(backend: object) -> None:
    if backend in (None, "burnish", "auto", "inductor", "eager") or callable(backend):
        return
    known = sorted({"burnish", "auto", *dynamo.list_backends(exclude_tags=())})
    if backend not in known:
        raise UnknownBackend(str(backend), nearest(str(backend), known), known)


def _compiled_function(function: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    return function_behind(Handle(function, settings))


def function_behind(handle: Handle) -> Callable[..., Any]:
    """The compiled function of a handle."""
    function: Callable[..., Any] = handle.eager
    compiled: Any = functools.wraps(function)(_way_in(function, handle.entrance))
    compiled.burnish = handle
    return compiled


def _way_in(function: Callable[..., Any], entrance: Any) -> Callable[..., Any]:
    """Inside a larger compiled function, `function` itself is traced. Coroutine functions and (async) generator
    functions keep their kind, because web servers and event loops check it."""
    if inspect.iscoroutinefunction(function):

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await entrance.call(*args, **kwargs)

        return traced_as(function, awaited)
    if inspect.isgeneratorfunction(function):

        def iterated(*args: Any, **kwargs: Any) -> Any:
            return (yield from entrance.call(*args, **kwargs))

        return traced_as(function, iterated)
    if inspect.isasyncgenfunction(function):

        async def iterated_later(*args: Any, **kwargs: Any) -> Any:
            inner = entrance.call(*args, **kwargs)
            with contextlib.suppress(StopAsyncIteration):
                value = await anext(inner)
                while True:  # as `yield from`, which there is none of
                    try:
                        sent = yield value
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as thrown:
                        value = await inner.athrow(thrown)
                    else:
                        value = await inner.asend(sent)

        return traced_as(function, iterated_later)
    given = _plain_parameters(function)
    if given is not None:
        # A wrapper with the function's own parameters avoids packing a tuple and a dict: half of this layer's cost.
        text = f"lambda {given}: _entrance.call({given})"
        way_in: Callable[..., Any] = eval(builtins.compile(text, "<burnish>", "eval"), {"_entrance": entrance})
        return traced_as(function, way_in)
    is_traced = torch.compiler.is_dynamo_compiling

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return function(*args, **kwargs)
        return entrance.call(*args, **kwargs)

    return call


def _plain_parameters(function: Callable[..., Any]) -> str | None:
    """The function's parameters, if all are plain and without defaults."""
    if not isinstance(function, types.FunctionType) or function.__defaults__ or function.__kwdefaults__:
        return None
    code = function.__code__
    varied = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount]
    if varied or code.co_kwonlyargcount or code.co_posonlyargcount or any(name.startswith("_") for name in names):
        return None
    return ", ".join(names)


def _handle(target: object) -> Handle | None:
    if isinstance(target, torch.nn.Module):
        return handle_of_module(target)
    if isinstance(target, (types.MethodType, staticmethod, classmethod)):
        target = target.__func__
    handle = attribute(target, "burnish")
    return handle if isinstance(handle, Handle) else None


def handle_of(compiled: object) -> Handle:
    """The handle of a compiled object."""
    handle = _handle(compiled)
    if handle is None:
        raise NotCompiled(compiled)
    return handle


def stats(target: object = None) -> Stats:
    """The statistics of `target` so far; without a target, those of all `torch.compile(..., backend="burnish")`
    together."""
    if target is None:
        from burnish.capture.dynamo import torch_compile_stats

        return torch_compile_stats()
    return handle_of(target).stats()


def seal(compiled: object, strict: bool = False) -> None:
    """From now on nothing compiles, and calls only check their signature and the program's assumptions, natively: see
    `compiled.burnish.seal`. Calls without compiled code run in eager; with `strict` they raise SealedError."""
    handle_of(compiled).seal(strict)


@overload
def disable(target: Model, *, reason: str | None = None) -> Model: ...


@overload
def disable(target: None = None, *, reason: str | None = None) -> Callable[[Model], Model]: ...


def disable(target: Any = None, *, reason: str | None = None) -> Any:
    """Keep a function or a module out of every graph: it runs in eager, and the code around it is compiled.

    A decorator, with or without arguments; on a module it gives back an object of its class over the same state."""
    if target is None:
        return functools.partial(disable, reason=reason)
    target = _original(target)
    if isinstance(target, torch.nn.Module):
        return disabled_module(target)
    if not callable(target):
        raise NotCompilable(target)
    return dynamo.disable(target, reason=reason)


def reset() -> None:
    """Forget everything compiled in this process, as after a restart: every object compiles again at its next call. The
    cache on disk is kept."""
    reset_all()
