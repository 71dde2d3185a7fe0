"""A captured graph as text that is equal in all processes: the graph's part of a cache key.

It contains everything that the compiler reads of a graph: the calls, the types and layouts of all values, their
aliasing, the known facts about sizes, and the constants by their bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import fx

from burnish.torch_private.operators import HigherOrderOperator, OpOverload

_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


class Unprintable(Exception):
    """Something in the graph that another process would print differently."""


def graph_text(gm: fx.GraphModule) -> str:
    printer = _Printer()
    printer.graph(gm)
    text = "\n".join([*printer.lines, *sorted(printer.sizes)])
    if found := _ADDRESS.search(text):
        line = next(line for line in text.splitlines() if found[0] in line)
        raise Unprintable(f"an address is part of it: {line[:200]}")
    return text


class _Printer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sizes: set[str] = set()
        self._storages: dict[int, int] = {}

    def graph(self, gm: fx.GraphModule) -> None:
        for node in gm.graph.nodes:
            held = self._attribute(gm, node) if node.op == "get_attr" else ""
            value = self._value(node.meta.get("val"))
            self.lines.append(f"{node.op} {node.name} {_target(node)} {node.args} {node.kwargs} {value}{held}")

    def _attribute(self, gm: fx.GraphModule, node: fx.Node) -> str:
        held: Any = gm
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if isinstance(held, fx.GraphModule):
            self.lines.append(f"graph {node.target}:")
            self.graph(held)
            return ""
        if not isinstance(held, torch.Tensor):
            raise Unprintable(f"{node.target} is a {type(held).__name__}")
        data = bytes(held.detach().cpu().clone(memory_format=torch.contiguous_format).untyped_storage())
        digest = hashlib.sha256(data).hexdigest()
        return f" holds {self._value(held)} {digest}"

    def _value(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return f"({', '.join(map(self._value, value))})"
        return self._size(value)

    def _tensor(self, value: torch.Tensor) -> str:
        if value.layout is not torch.strided:
            return f"{type(value).__name__} {value.dtype} {value.layout} {value.device}"
        storage = self._storages.setdefault(value.untyped_storage()._cdata, len(self._storages))
        sizes, strides = (",".join(map(self._size, dims)) for dims in (value.shape, value.stride()))
        flags = "".join(name for name, on in (("~", value.is_conj()), ("-", value.is_neg())) if on)
        at = self._size(value.storage_offset())
        return f"{type(value).__name__} {value.dtype}[{sizes}][{strides}]+{at} of {storage} {value.device}{flags}"

    def _size(self, value: Any) -> str:
        if isinstance(value, torch.SymInt):
            ranges = value.node.shape_env.var_to_range
            self.sizes |= {f"{s} in {ranges[s]}" for s in value.node.expr.free_symbols if s in ranges}
            return str(value.node.expr)
        return str(value)


def _target(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, str | OpOverload | HigherOrderOperator):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"
