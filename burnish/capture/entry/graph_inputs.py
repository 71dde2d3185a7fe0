"""How a sealed call gets a graph's inputs: parameters and buffers are kept, and other inputs are loaded in each call.

Nothing here needs TorchDynamo.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from burnish.assumptions import AssumptionUnmet
from burnish.runtime.host.boxed import boxed_form
from burnish.runtime.host.extension import host_if_built

Sources = tuple[str, ...]
SOURCES = "_burnish_sources"
_IN_MODULE = re.compile(r"\._(parameters|buffers)\['[^']+'\]$")
_STEP = re.compile(r"\._(modules|parameters|buffers)\['([^']+)'\]")


def raising_unmet(graph: Callable[..., Any]) -> Callable[..., Any]:
    """The graph, raising AssumptionUnmet instead of running in eager."""
    boxed = boxed_form(graph)
    if boxed is None:
        return graph
    run, recover = boxed

    def call(*inputs: Any) -> Any:
        try:
            return run(list(inputs))
        except AssumptionUnmet:
            raise
        except Exception as error:
            return recover(error, inputs)

    return call


def parameters_of(code: types.CodeType) -> list[str]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
    return list(code.co_varnames[:count])


def loader(
    graph: Callable[..., Any], sources: Sources, inputs: Sequence[Any], frame: types.FunctionType
) -> Callable[..., Any] | None:
    """A function of the frame's parameters that calls the graph. Consecutive parameters and buffers of modules are kept
    in lists; all other inputs are loaded in each call, as in Dynamo's own code."""
    parameters = parameters_of(frame.__code__)
    cells = dict(zip(frame.__code__.co_freevars, frame.__closure__ or (), strict=True))
    namespace: dict[str, Any] = {"graph": graph, "G": frame.__globals__, "AssumptionUnmet": AssumptionUnmet}
    namespace |= {f"cell_{name}": cell for name, cell in cells.items()}
    given: list[str] = []
    kept: list[Any] = []
    for source, value in zip(sources, inputs, strict=True):
        if is_kept(source, parameters):
            kept.append(value)
            continue
        if kept:
            given.append(_keep(kept, namespace))
            kept = []
        for name in parameters:
            source = source.replace(f"L[{name!r}]", name)
        for name in cells:
            source = source.replace(f"L[{name!r}]", f"cell_{name}.cell_contents")
        given.append(source)
    if kept:
        given.append(_keep(kept, namespace))
    boxed = boxed_form(graph)
    if boxed is not None:
        namespace["boxed"], namespace["recover"] = boxed
    text = f"def load({', '.join(parameters)}):\n" + _body(", ".join(given), boxed is not None)
    try:
        exec(compile(text, "<burnish sealed>", "exec"), namespace)
    except SyntaxError:
        return None
    load: Callable[..., Any] = namespace.pop("load")
    return load


def is_kept(source: str, parameters: Sequence[str]) -> bool:
    """Whether it is a parameter or buffer of a module that is not an argument."""
    return bool(_IN_MODULE.search(source)) and not any(source.startswith(f"L[{name!r}]") for name in parameters)


def still_held(sources: Sequence[str], frame: types.FunctionType) -> Callable[[], bool] | None:
    """A check that each kept parameter and buffer, and each module on its path, is still at the same place; None if
    nothing is kept. A weight that is tied has several places, of which a graph's inputs name one."""
    parameters = parameters_of(frame.__code__)
    cells = dict(zip(frame.__code__.co_freevars, frame.__closure__ or (), strict=True))
    scope = {"G": frame.__globals__, "L": {name: cell.cell_contents for name, cell in cells.items()}}
    shelves: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    known: dict[str, dict[str, Any]] = {}
    kept = [source for source in sources if is_kept(source, parameters)]
    roots = {source[: found.start()]: None for source in kept if (found := _STEP.search(source)) is not None}
    for source in (*kept, *(place for root in roots for place in _tied(root, eval(root, scope)))):
        for step in _STEP.finditer(source):
            place = f"{source[: step.start()]}._{step[1]}"
            holder = known[place] = known[place] if place in known else eval(place, scope)
            shelves.setdefault(id(holder), (holder, {}))[1][step[2]] = holder[step[2]]
    entries = tuple((holder, tuple(objects.items())) for holder, objects in shelves.values())
    if not entries:
        return None
    host = host_if_built()
    if host is not None:
        asked: Callable[[], bool] = host.Held(entries)
        return asked
    return lambda: all(holder.get(name) is each for holder, objects in entries for name, each in objects)


def _tied(root: str, module: Any) -> Iterator[str]:
    """The places of all parameters and buffers that a module has more than once."""
    if not isinstance(module, torch.nn.Module):
        return
    found: dict[int, list[str]] = {}
    kinds = {"_parameters": module.named_parameters, "_buffers": module.named_buffers}
    for kind, tensors in kinds.items():
        for name, tensor in tensors(remove_duplicate=False):
            *modules, own = name.split(".")
            path = "".join(f"._modules[{each!r}]" for each in modules)
            found.setdefault(id(tensor), []).append(f"{root}{path}.{kind}[{own!r}]")
    for places in found.values():
        if len(places) > 1:
            yield from places


def _body(given: str, is_boxed: bool) -> str:
    if not is_boxed:
        return f"    return graph({given})\n"
    # An input that is passed twice is one that the graph's own function would have kept.
    return f"""\
    box = [{given}]
    try:
        return boxed(box)
    except AssumptionUnmet:
        raise
    except Exception as error:
        return recover(error, ({given},))
"""


def _keep(values: list[Any], namespace: dict[str, Any]) -> str:
    name = f"kept_{len(namespace)}"
    namespace[name] = tuple(values)
    return f"*{name}"
