"""A captured graph's assumptions about its inputs, derived from the example inputs of the capture."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from burnish.assumptions import PLAIN, Assumptions, Input, NumberInput, OtherInput, TensorInput, class_of
from burnish.errors import CompileError
from burnish.lower.aten_calls import blank_like, memory_of, memory_of_node
from burnish.lower.symbols import Symbols
from burnish.torch_private.fake_tensors import FakeTensor

_COUNTING_FROM_STORAGE = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)


def assumptions_of(
    inputs: Sequence[Any],
    names: Sequence[str] | None,
    written: Collection[int],
    *,
    records_gradients: bool,
    offsets_matter: bool = False,
) -> Assumptions:
    """`inputs` are those of the capture (`as_captured`); `written`, by their positions, those that a call changes.
    `records_gradients`: the grad mode of the capture. `offsets_matter`: an operation of the graph uses offsets from the
    start of an input's storage."""
    symbols = Symbols()
    named = names or [f"input {k}" for k in range(len(inputs))]
    stated = [_stated(x, name, k in written, symbols) for k, (x, name) in enumerate(zip(inputs, named, strict=True))]
    found = Assumptions(tuple(stated), records_gradients)
    return found.with_offsets(inputs) if offsets_matter else found


def _stated(x: Any, name: str, is_written: bool, symbols: Symbols) -> Input:
    if isinstance(x, torch.Tensor):
        return _tensor(x, name, is_written, symbols)
    if isinstance(x, torch.SymInt) or type(x) is int:
        return NumberInput(name, symbols.dim(x))
    return OtherInput(name)


def _tensor(x: torch.Tensor, name: str, is_written: bool, symbols: Symbols) -> TensorInput:
    kind = PLAIN if isinstance(x, FakeTensor) else class_of(x)
    if kind != PLAIN or x.layout is not torch.strided:
        kind = kind if kind != PLAIN else str(x.layout)
        return TensorInput(name, kind, x.dtype, x.device, (), (), requires_grad=x.requires_grad, written=is_written)
    try:
        shape, strides = tuple(map(symbols.dim, x.shape)), tuple(map(symbols.dim, x.stride()))
    except CompileError:  # symbolic sizes of an unsupported form
        shape, strides = (), ()
        kind = "unusual sizes"
    return TensorInput(
        name,
        kind,
        x.dtype,
        x.device,
        shape,
        strides,
        negative=x.is_neg(),
        conjugate=x.is_conj(),
        requires_grad=x.requires_grad,
        written=is_written,
    )


def counts_from_storage(graph: fx.GraphModule) -> bool:
    """Whether an operation of the graph uses offsets from the start of an input's storage."""
    inputs = {memory_of_node(node) for node in graph.graph.find_nodes(op="placeholder")} - {None}
    return any(
        len(node.args) > 3 and node.args[3] is not None and memory_of_node(node.args[0]) in inputs
        for target in _COUNTING_FROM_STORAGE
        for node in graph.graph.find_nodes(op="call_function", target=target)
    )


def as_captured(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """A Dynamo graph's inputs in the trace: fake tensors, with sizes that may vary as symbols."""
    nodes = graph.graph.find_nodes(op="placeholder")
    if len(nodes) != len(inputs):
        return list(inputs)
    return [node.meta.get("example_value", x) for node, x in zip(nodes, inputs, strict=True)]


def apart(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, each with its own storage. A graph that writes an input is compiled for inputs that do not alias it:
    for aliased inputs, AOTAutograd would specialise on their offsets in the shared memory without a guard."""
    seen: set[int] = set()
    out = []
    for x, fake in zip(inputs, as_captured(graph, inputs), strict=True):
        is_plain = isinstance(x, torch.Tensor) and x.layout is torch.strided and class_of(x) in (PLAIN, "FakeTensor")
        key = memory_of(x) if is_plain else None
        out.append(_moved(fake) if key in seen and isinstance(fake, FakeTensor) else x)
        seen |= {key} if key is not None else set()
    return out


def _moved(x: FakeTensor) -> torch.Tensor:
    with x.fake_mode, torch.enable_grad():
        other = blank_like(x)
        if x.requires_grad:
            other.requires_grad_()
            other = other if x.is_leaf else other.view_as(other)
    return other
