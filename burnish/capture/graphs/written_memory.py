"""The memory that the nodes of a Dynamo graph write to: the storage of the values in the trace."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from burnish.capture.graphs.called import operation_name
from burnish.capture.graphs.subgraphs import graphs_within
from burnish.lower.aten_calls import memory_of
from burnish.torch_private.operators import OpOverload, OpOverloadPacket, pytree

_IN_PLACE = frozenset(
    "setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul copy_".split()
)
_NO_WRITES = frozenset("and_ or_ not_ requires_grad_".split())
_KERNEL = "triton_kernel_wrapper_mutation"
_TRAINS = ("training", "train", "use_input_stats")  # the argument's name in normalisations
_STATISTICS = ("running_mean", "running_var")


def writes(node: fx.Node) -> bool:
    """Whether an operation writes to an operand, judged by its name or arguments."""
    name = operation_name(node)
    by_name = (name.endswith("_") and name not in _NO_WRITES) or name in _IN_PLACE
    return by_name or bool(node.kwargs.get("inplace")) or "out" in node.kwargs


def memory_of_values(*values: Any) -> frozenset[int]:
    """The memory of the tensors of all nodes in these values."""
    nodes = [x for x in pytree.tree_leaves(values) if isinstance(x, fx.Node)]
    tensors = pytree.tree_leaves([node.meta.get("example_value") for node in nodes])
    found = (_memory_of(x) for x in tensors if isinstance(x, torch.Tensor) and x.layout is torch.strided)
    return frozenset(x for x in found if x is not None)


def _memory_of(tensor: torch.Tensor) -> int | None:
    """None in a transform of torch.func, whose tensors hide their storage."""
    try:
        return memory_of(tensor)
    except NotImplementedError:
        return None


def requires_gradients(node: fx.Node) -> bool:
    """Whether a node's value may require gradients."""
    values = pytree.tree_leaves(node.meta.get("example_value"))
    return any(x is None or (isinstance(x, torch.Tensor) and x.requires_grad) for x in values)


def memory_written_in(graph: fx.GraphModule) -> frozenset[int]:
    """The memory written by the graph and all graphs within it."""
    return frozenset().union(*(_written(node) for each in graphs_within(graph) for node in each.graph.nodes))


def memory_written_by(node: fx.Node, graph: fx.GraphModule) -> frozenset[int]:
    """The memory written by a node, including the graphs that are its arguments."""
    inner = [x.target for x in node.all_input_nodes if x.op == "get_attr"] if node.op == "call_function" else []
    modules = [each for name, each in graph.named_modules() if name in inner and isinstance(each, fx.GraphModule)]
    return _written(node).union(*map(memory_written_in, modules))


def _written(node: fx.Node) -> frozenset[int]:
    if node.op not in ("call_function", "call_method"):
        return frozenset()
    return memory_of_values(*operands_written(node))


def operands_written(node: fx.Node) -> Iterator[Any]:
    if operation_name(node) == _KERNEL:
        yield from node.all_input_nodes  # any of them may be written by a kernel
    if writes(node) and node.args:
        yield node.args[0]
    yield node.kwargs.get("out")
    schemas = _schemas(node)
    for schema in schemas:
        given = dict(zip((x.name for x in schema.arguments), node.args, strict=False)) | node.kwargs
        yield from (given.get(x.name) for x in schema.arguments if x.alias_info is not None and x.alias_info.is_write)
        yield from _written_by_settings(given)
    if not schemas and inspect.isfunction(node.target):
        yield from _written_by_settings(_arguments(node))


def _written_by_settings(given: Mapping[str, Any]) -> Iterator[Any]:
    """Operands that are written because of an argument, not declared in a schema."""
    if given.get("inplace", False) is not False:
        yield next(iter(given.values()))
    if given.get("max_norm") is not None:  # an embedding that shortens its rows
        yield given.get("weight")
    if any(given.get(name, False) is not False for name in _TRAINS):
        yield from (given.get(name) for name in _STATISTICS)


def _arguments(node: fx.Node) -> Mapping[str, Any]:
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return node.kwargs
    bound.apply_defaults()
    return bound.arguments


def _schemas(node: fx.Node) -> list[Any]:
    """The schemas of the called operator, or of all its overloads; of the ATen operator for a torch function or
    method."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        return [target._schema]
    if not isinstance(target, OpOverloadPacket):
        if inspect.isfunction(target):
            return []
        target = getattr(torch.ops.aten, operation_name(node), None)
    if not isinstance(target, OpOverloadPacket):
        return []
    return [getattr(target, name)._schema for name in target.overloads()]
