"""Compiled frames without their guards: a sealed object calls them once the guards have passed for a signature.

Dynamo's code for a frame loads the graph's inputs, calls the graph and builds the results. Called as a function, it
does that without evaluating guards. Loading takes most of the time: BERT has 200 parameters at the end of long chains
of attributes. So where a frame is one graph, that part of the code is replaced by a call of a function that keeps the
parameters and buffers and loads only the other inputs.
"""

from __future__ import annotations

import dis
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from burnish.capture.entry.graph_inputs import SOURCES, Sources, loader, parameters_of, raising_unmet, still_held
from burnish.capture.entry.method_guards import all_as_compiled
from burnish.runtime.host.boxed import boxed_form
from burnish.runtime.host.extension import host_if_built
from burnish.torch_private.dynamo import create_call_function, create_instruction, transform_code_object

GRAPH = "__compiled_fn_"
_RESUME = "__resume_at_"
SET_ATTRIBUTE = "object_setattr_ignore_descriptor"  # of torch._dynamo.utils
LOAD = "burnish load"  # no name of anybody's
# Dynamo's code objects, by id (their constants may be unhashable), of frames that are compiled up to a graph break.
_broken: weakref.WeakValueDictionary[int, types.CodeType] = weakref.WeakValueDictionary()


def note_broken(code: types.CodeType) -> None:
    """Resume functions after such code look up their own compiled code."""
    _broken[id(code)] = code


def is_broken(code: types.CodeType) -> bool:
    return _broken.get(id(code)) is code


def is_resumed(code: types.CodeType) -> bool:
    """Whether it calls functions that Dynamo made of the rest of a frame, after a graph break."""
    return any(name.startswith(_RESUME) for name in code.co_names)


def is_whole(code: types.CodeType) -> bool:
    """Whether a whole frame is compiled, and no part of it looks up other compiled code."""
    return not is_resumed(code) and not is_broken(code)


def remember_sources(backend: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `backend` so that its compiled graphs record the source of each input in the frame."""

    def burnish_graph(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        sources = input_sources(graph)  # before it runs: Dynamo's records are deleted afterwards
        compiled = backend(graph, example_inputs)
        if sources is not None and isinstance(compiled, types.FunctionType):
            setattr(compiled, SOURCES, sources)
        return compiled

    return burnish_graph


def input_sources(graph: fx.GraphModule) -> Sources | None:
    """The source in the frame of each of the graph's inputs, if Dynamo has it for all."""
    found = []
    for node in graph.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        source = getattr(argument, "source", None)
        if source is None or getattr(argument, "pass_arg_as_tensor", False):  # a float: the graph gets it as a tensor
            return None
        name = source.name
        found.append(name() if callable(name) else name)
    return tuple(found)


class DynamoEntry:
    """An entry of Dynamo's cache, as a seal asks for it."""

    def __init__(self, entry: Any, frame: types.FunctionType) -> None:
        self._entry = entry
        self._frame = frame

    @property
    def key(self) -> types.CodeType:
        code: types.CodeType = self._entry.code
        return code

    def fits(self, values: Mapping[str, Any]) -> bool:
        return bool(self._entry.guard_manager.check(values))

    def unguarded(self) -> Unguarded:
        return Unguarded(self._entry.code, self._frame)

    def as_compiled(self, held: Callable[[], bool] | None) -> Callable[[], bool]:
        return all_as_compiled(self._entry.guard_manager, self._frame, held)


class Unguarded:
    """The code of an entry of Dynamo's cache as a function, `call`, of its frame's arguments. `first` makes the first
    call, and finds out which loads later calls can skip."""

    def __init__(self, code: types.CodeType, frame: types.FunctionType) -> None:
        self._code = code  # kept alive, because Dynamo removes the globals it refers to when it is freed
        self._frame = frame
        self._is_short = False
        self.held: Callable[[], bool] | None = None  # whether the kept tensors still belong to the module
        self.call: Callable[..., Any] = self._function(code, self._graphs())

    @property
    def is_whole(self) -> bool:
        return is_whole(self._code)

    def _graphs(self) -> dict[str, Any]:
        """The graphs by name, in the form called here: if their assumptions do not hold, the seal must know before
        anything has run."""
        names = [name for name in self._code.co_names if name.startswith(GRAPH)]
        graphs = {name: unwrapped(self._frame.__globals__.get(name)) for name in names}
        return {name: raising_unmet(graph) for name, graph in graphs.items() if boxed_form(graph) is not None}

    def _function(
        self, code: types.CodeType, also: Mapping[str, Any] | None = None, load: Callable[..., Any] | None = None
    ) -> types.FunctionType:
        frame = self._frame
        names = frame.__globals__ if also is None else {**frame.__globals__, **also}
        closure = frame.__closure__ if load is None else (*(frame.__closure__ or ()), types.CellType(load))
        function = types.FunctionType(code, names, frame.__name__, frame.__defaults__, closure)
        function.__kwdefaults__ = frame.__kwdefaults__
        return function

    def first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the frame, and record which inputs the graph gets."""
        if self._is_short:
            return self.call(*args, **kwargs)
        graphs = [name for name in self._code.co_names if name.startswith(GRAPH)]
        graph = unwrapped(self._frame.__globals__.get(graphs[0])) if len(graphs) == 1 else None
        sources: Sources | None = getattr(graph, SOURCES, None)
        if graph is None or sources is None or stores_globals(self._code):
            return self.call(*args, **kwargs)
        seen: list[Any] = []
        refusing = raising_unmet(graph)

        def watch(*inputs: Any) -> Any:
            seen.append(inputs)
            return refusing(*inputs)

        result = self._function(self._code, {graphs[0]: watch})(*args, **kwargs)
        if len(seen) == 1:
            shorter = self._without_loads(graph, sources, seen[0])
            if shorter is not None:
                self.call, self._is_short = shorter, True
                self.held = still_held(sources, self._frame)
        return result

    def _without_loads(
        self, graph: Callable[..., Any], sources: Sources, inputs: Sequence[Any]
    ) -> Callable[..., Any] | None:
        if len(inputs) != len(sources) or any("___" in source for source in sources):  # functions of Dynamo's own
            return None
        load = loader(graph, sources, inputs, self._frame)
        code = None if load is None else with_loader(self._code, parameters_of(self._frame.__code__))
        return None if code is None else self._function(code, load=load)


def unwrapped(function: Any) -> Any:
    """The graph without the wrapper that disables Dynamo inside it."""
    return getattr(function, "_torchdynamo_orig_callable", function)


def stores_globals(code: types.CodeType) -> bool:
    return any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(code))


def with_loader(code: types.CodeType, parameters: list[str], *, natively: bool = True) -> types.CodeType | None:
    """The code, with the instructions from loading the graph to calling it replaced by a call of its last free
    variable. A constant would be invisible to gc, and would keep alive a model that refers to its compiled object.
    `natively`: functions of the extension become constants of the code, which then is of this process."""
    free = (*code.co_freevars, LOAD)
    done = False

    def replace(instructions: list[Any], options: dict[str, Any]) -> None:
        nonlocal done
        span = _call_of_graph(instructions)
        if span is None:
            return
        start, end = span
        removed = instructions[start : end + 1]
        gone = {i.argval for i in removed if i.opname == "STORE_FAST"}
        before, after = instructions[:start], instructions[end + 1 :]
        after = [i for i in after if not (i.opname == "DELETE_FAST" and i.argval in gone)]
        if any(i.argval in gone for i in after if "FAST" in i.opname) or _is_target([*before, *after], removed):
            return
        call = [create_instruction("LOAD_DEREF", argval=LOAD)]
        call += [create_instruction("LOAD_FAST", argval=name) for name in parameters]
        call += create_call_function(len(parameters), True)
        before = [i for i in before if i.opname != "COPY_FREE_VARS"]
        options["co_freevars"] = free
        after = _quicker(after) if natively else after
        instructions[:] = [create_instruction("COPY_FREE_VARS", arg=len(free)), *before, *call, *after]
        done = True

    try:
        # Works on a copy, because Dynamo caches the code it disassembles, which would keep the whole compiled program
        # alive.
        made: Any = transform_code_object(code.replace(co_name=f"sealed {code.co_name}"), replace)
    except Exception:  # unknown instructions of a newer Python: use the frame unchanged
        return None
    made = made[0] if isinstance(made, tuple) else made
    return made if done else None


def _quicker(instructions: list[Any]) -> list[Any]:
    """Replaces Dynamo's Python function that sets the attributes of results by one in C."""
    host = host_if_built()
    if host is None:
        return instructions
    out = []
    for i in instructions:
        if i.opname == "LOAD_ATTR" and i.argval == SET_ATTRIBUTE and i.target is None:
            out += [
                create_instruction("POP_TOP"),
                create_instruction("LOAD_CONST", argval=host.set_in_dict),
            ]
        else:
            out.append(i)
    return out


def _call_of_graph(instructions: list[Any]) -> tuple[int, int] | None:
    """The range from the first instruction that pushes the graph to the one that leaves its result on the stack."""
    start = next((n for n, i in enumerate(instructions) if i.opname == "LOAD_GLOBAL" and _is_graph(i.argval)), None)
    if start is None:
        return None
    if start and instructions[start - 1].opname == "PUSH_NULL":
        start -= 1
    depth = 0
    for n in range(start, len(instructions)):
        i = instructions[n]
        if i.target is not None:
            return None  # no jumps among the loads of a graph that is always called
        depth += dis.stack_effect(i.opcode, i.arg if i.opcode >= dis.HAVE_ARGUMENT else None)
        if i.opname.startswith("CALL") and depth == 1:
            return start, n
    return None


def _is_graph(name: object) -> bool:
    return isinstance(name, str) and name.startswith(GRAPH)


def _is_target(instructions: list[Any], removed: list[Any]) -> bool:
    return any(i.target is r for i in instructions if i.target is not None for r in removed)
