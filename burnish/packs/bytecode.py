"""Dynamo's code for a frame as a pack keeps it: without its loads, and without anything of Dynamo's."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Mapping

from burnish.capture.entry.graph_inputs import parameters_of
from burnish.capture.entry.unguarded import GRAPH, is_resumed, stores_globals, with_loader
from burnish.packs.stand_ins import STAND_INS
from burnish.torch_private.without_dynamo import is_of_dynamo


class CannotKeep(Exception):
    """Why the code cannot be called elsewhere."""


def kept_code(code: types.CodeType, frame: types.CodeType, modules: Mapping[str, str]) -> types.CodeType:
    """`modules` are the modules among its globals. Raises CannotKeep."""
    if is_resumed(code):
        raise CannotKeep("a graph break leaves parts that look for their own code")
    if len([name for name in code.co_names if name.startswith(GRAPH)]) != 1:
        raise CannotKeep("it does not call one graph")
    if stores_globals(code):
        raise CannotKeep("it sets globals")
    made = with_loader(code, parameters_of(frame), natively=False)
    if made is None:
        raise CannotKeep("the loads of the graph's inputs cannot be told from the rest of its code")
    for module, attribute in _uses(made, {n: m for n, m in modules.items() if is_of_dynamo(m)}):
        if attribute not in STAND_INS.get(module, {}):
            raise CannotKeep(f"its code uses {module}.{attribute}")
    return made.replace(co_filename="<burnish pack>", co_name=code.co_name or "packed")


def globals_read(code: types.CodeType) -> set[str]:
    found = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return found.union(*map(globals_read, inner))


def _uses(code: types.CodeType, modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The attributes of these modules that the code reads; "" where it uses a module in another way."""
    instructions = list(dis.get_instructions(code))
    for this, following in zip(instructions, [*instructions[1:], None], strict=True):
        if this.opname == "LOAD_GLOBAL" and this.argval in modules:
            is_read = following is not None and following.opname in ("LOAD_ATTR", "LOAD_METHOD")
            yield modules[this.argval], str(following.argval) if is_read and following is not None else ""
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _uses(each, modules)
