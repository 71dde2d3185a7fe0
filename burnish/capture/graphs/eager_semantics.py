"""Where what Dynamo and AOTAutograd make of a call is not what eager does, and how it is made so.

- A dropout that drops nothing returns its argument, which AOTAutograd copies: a change of the one would not be seen in
  the other.
- A view that was made under no_grad has no history, but AOTAutograd makes it anew, of an input, with one: gradients
  would flow through it.
- The gradient of a product of elements is computed in another way where it holds a zero, which no graph can ask.
- Some operations are taken apart before autograd sees them: their gradients would be those of the pieces.
- AOTAutograd gives the gradient of a result the strides of the result. Where elements of it share memory (`unfold`),
  their gradients would.
- A graph's Python, which eager runs, has `(-1) ** x` as `-1 ** x`, which is another number.
- Dynamo takes a double of no dimensions for a number that may be left out, and leaves out what writes to it.
- Dynamo remembers the shape that a tensor had before it was given another in place.
- Dynamo traces a custom autograd function as if its backward were given each gradient, and as if no input were dirty.
- Dynamo traces a custom backward under no_grad, so that what the backward does to grad mode is lost. Differentiated in
  turn, a compiled backward is given its gradients in parts, which comes to the same only if it is linear in them.
- Dynamo traces of a custom autograd function in a transform of torch.func its forward alone, or a backward of which
  nothing is recorded.
- Dynamo takes a reentrant checkpoint for the other kind, which records also what no argument asks it to.
- Dynamo takes a checkpointed region for one that runs once: what it writes to tensors from outside is written once, and
  what is written after it is not seen when it is run again.
- Dynamo inlines a custom autograd function where nothing is recorded: with gradients on, without its `setup_context`,
  and as if what it returns of its arguments were those. Where it is recorded, it gives a history to what is in lists.
- Dynamo traces the marks that a forward leaves in its context, compiled by itself, as if they did nothing.
- Dynamo draws Python's random numbers from a copy of the generator that there was while it traced.
- Dynamo does not see what a function writes to a class in the objects of the class.
- Dynamo writes back neither a change of the order of a dictionary's keys nor, where a deque has one, its `maxlen`.
- Dynamo takes the elements of a set in the order in which they were put there, and changes sets that were there before
  by making them anew.
- Dynamo guards neither on attributes of modules and functions that it does not find, nor on keys of a `__dict__`.
- Dynamo (of torch 2.11) does not guard on a number or a text that it takes from a class.
- Dynamo (of torch 2.11) gives a tensor one of its gradients that a custom autograd function is given twice.
- Dynamo guards on an environment variable that it has read, and not on one that was not set.
- Dynamo makes the weights of a lazy module while it traces: before what comes first in the call, and puts the random
  state back.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from burnish.capture.graphs.subgraphs import graphs_within
from burnish.capture.graphs.written_memory import memory_of_values, memory_written_by, requires_gradients
from burnish.torch_private.aot import config as functorch_config
from burnish.torch_private.aot import tag_activation_checkpoint
from burnish.torch_private.tensors import debug_has_internal_overlap

_DROPOUTS: dict[Any, tuple[str, ...]] = {
    F.dropout: ("input", "p", "training", "inplace"),
    torch.dropout: ("input", "p", "train"),
    torch.dropout_: ("input", "p", "train"),
}
_DEFAULTS = {"p": 0.5, "training": True, "train": True}


def drop_idle_dropouts(graph: fx.GraphModule) -> int:
    """Let those who read the result of a dropout that drops nothing read what it is given. Returns how many went."""
    count = 0
    for target, names in _DROPOUTS.items():
        for node in graph.graph.find_nodes(op="call_function", target=target):
            given = _DEFAULTS | dict(zip(names, node.args, strict=False)) | node.kwargs
            source, active, share = given.get("input"), given[names[2]], given["p"]
            if not isinstance(source, fx.Node) or type(share) not in (int, float):  # a share that changes has a node
                continue
            if 0 <= share <= 1 and (active is False or (active is True and share == 0)):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
                count += 1
    if count:
        graph.recompile()
    return count


def call_powers_of_negatives(graph: fx.GraphModule) -> int:
    """`(-1) ** x` as `pow(-1, x)`: torch prints the operator without parentheses. Returns how many there were."""
    count = 0
    for module in graphs_within(graph):
        found = [n for n in module.graph.find_nodes(op="call_function", target=operator.pow) if _is_negative(n.args[0])]
        for node in found:
            node.target = pow
        if found:
            module.recompile()
        count += len(found)
    return count


def _is_negative(x: Any) -> bool:
    return isinstance(x, (int, float)) and math.copysign(1.0, x) < 0


@dataclass(frozen=True)
class WithoutHistory:
    """A result that has none in eager. A view requires gradients if what it is a view of does, although none flow
    through it."""

    position: int
    requires_grad: bool
    is_view: bool = True

    def as_in_eager(self, result: torch.Tensor) -> torch.Tensor:
        if not self.is_view:
            return result.detach() if result.requires_grad else result
        if result.grad_fn is None and result.requires_grad is self.requires_grad:
            return result
        base = result if result.requires_grad else result.requires_grad_(self.requires_grad)
        with torch.no_grad():
            return base.view_as(base)


def without_history(graph: fx.GraphModule) -> tuple[WithoutHistory, ...]:
    """Of a graph's results, where gradients are recorded: views, and what is made of such views."""
    if not torch.is_grad_enabled():
        return ()
    (output,) = graph.graph.find_nodes(op="output")
    made = {k: x.meta.get("example_value") for k, x in enumerate(output.args[0]) if _is_made(x)}
    views = {k: x for k, x in made.items() if _is_historyless(x)}
    found = [WithoutHistory(k, x.requires_grad) for k, x in views.items()]
    if any(map(_has_lost_its_history, graph.graph.nodes)):
        plain = {k: x for k, x in made.items() if isinstance(x, torch.Tensor) and k not in views}
        found += [WithoutHistory(k, False, is_view=False) for k, x in plain.items() if not x.requires_grad]
    return tuple(found)


def _is_made(x: Any) -> bool:
    return isinstance(x, fx.Node) and x.op not in ("placeholder", "get_attr")


def _is_historyless(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value._is_view() and value.grad_fn is None


def _has_lost_its_history(node: fx.Node) -> bool:
    value: Any = node.meta.get("example_value")
    of = [x.meta.get("example_value") for x in node.all_input_nodes]
    return _is_historyless(value) and not value.requires_grad and any(getattr(x, "requires_grad", False) for x in of)


def leaving_out_history(run: Callable[..., Any], results_without: Sequence[WithoutHistory]) -> Callable[..., Any]:
    if not results_without:
        return run

    def call(*args: Any) -> Any:
        results = list(run(*args))
        for each in results_without:
            results[each.position] = each.as_in_eager(results[each.position])
        return results

    return call


# Where torch does not ask it, it takes gradients as contiguous.
_STRIDES_OF_RESULTS = "guess_tangent_strides_as_outputs"


def dense_gradients(graph: fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """While open, AOTAutograd takes the gradients of a graph's results as contiguous if elements of one may share
    memory. What `expand` returns it knows by itself, from torch 2.12 on."""
    (output,) = graph.graph.find_nodes(op="output")
    results = [x.meta.get("example_value") for x in output.args[0] if isinstance(x, fx.Node)]
    if any(map(_may_overlap, results)) and hasattr(functorch_config, _STRIDES_OF_RESULTS):
        patched: contextlib.AbstractContextManager[Any] = functorch_config.patch({_STRIDES_OF_RESULTS: False})
        return patched
    return contextlib.nullcontext()


def _may_overlap(result: Any) -> bool:
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or not result.requires_grad:
        return False
    if result._has_symbolic_sizes_strides:  # whose gradients it takes as contiguous anyway
        return False
    return debug_has_internal_overlap(result) != 0


def left_to_eager(graph: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Why a graph cannot be traced as eager computes it; nothing if it can."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors) and any(x.is_inference() for x in tensors):
        return "autograd takes an inference tensor only where eager would not save it"
    if any(x._is_zerotensor() for x in tensors):
        return "an input stands for zeros that lie in no memory"
    nodes = [n for each in graphs_within(graph) for n in each.graph.nodes]
    if torch.is_grad_enabled() and any(map(_is_differentiated_product, nodes)):
        return "the gradient of a product of elements (prod) depends on whether one of them is zero"
    if torch.is_grad_enabled() and any(map(_writes_what_a_region_reads, graphs_within(graph))):
        return "a checkpointed region reads what is written after it: run again, it finds what is there by then"
    return ""


def _writes_what_a_region_reads(graph: fx.GraphModule) -> bool:
    """After the region has run. In the trace of a backward it would find the one or the other."""
    written: frozenset[int] = frozenset()
    regions = graph.graph.find_nodes(op="call_function", target=tag_activation_checkpoint)
    for node in reversed(graph.graph.nodes) if regions else ():
        is_run_again = node.target is tag_activation_checkpoint and requires_gradients(node)
        if is_run_again and written & memory_of_values(*node.args[1:]):
            return True
        written |= memory_written_by(node, graph)
    return False


def _is_differentiated_product(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return node.target in (torch.prod, "prod") and isinstance(value, torch.Tensor) and value.requires_grad
