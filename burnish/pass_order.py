"""Which passes there are, and their order. Each pass names, in its own file, the pass that it runs after: a new pass is
one new file, and no list has to be edited. docs/layout.md has the order as a table.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Protocol, TypeVar

from burnish.errors import CompileError


class Pass(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def after(self) -> str:
        """The pass that this one follows, if any."""

    @property
    def before(self) -> str:
        """A pass that follows this one: needed only if another pass runs `after` the same one."""


AnyPass = TypeVar("AnyPass", bound=Pass)


def declared(package: str, kind: type[AnyPass]) -> list[AnyPass]:
    """The passes that the modules of a package declare."""
    found: dict[str, AnyPass] = {}
    folder = importlib.import_module(package)
    for module in pkgutil.walk_packages(folder.__path__, f"{package}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, kind) and found.setdefault(value.name, value) is not value:
                raise CompileError("passes", f"two passes are called {value.name!r}")
    return list(found.values())


def in_order(passes: Iterable[AnyPass]) -> tuple[AnyPass, ...]:
    """The passes in the only order that their `after` and `before` allow. Raises unless there is exactly one."""
    left = {each.name: each for each in passes}
    earlier = {each.name: {each.after} - {""} for each in left.values()}
    for each in left.values():
        for named in {each.after, each.before} - {"", *left}:
            raise CompileError("passes", f"no pass is called {named!r}, which {each.name} names")
        if each.before:
            earlier[each.before].add(each.name)
    order: list[AnyPass] = []
    while left:
        ready = [name for name in left if not earlier[name] & left.keys()]
        if len(ready) != 1:
            choice = f"{' and '.join(sorted(ready))} are not ordered" if ready else f"{sorted(left)} follow one another"
            raise CompileError("passes", f"{choice}: one must name the other, in `after` or `before`")
        order.append(left.pop(ready[0]))
    return tuple(order)
