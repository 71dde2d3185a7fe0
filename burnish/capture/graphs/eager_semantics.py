"""Differences between eager and the graphs of Dynamo and AOTAutograd, and their corrections.

- A dropout that drops nothing returns its argument, but AOTAutograd copies it: an in-place change of one would not
  affect the other.
- A view made under no_grad has no autograd history, but AOTAutograd recreates it from an input, with history: gradients
  would flow through it.
- The gradient of `prod` has another formula if an element is zero, which a graph cannot test.
- Some operations are decomposed before autograd: their gradients would be those of the decomposition.
- AOTAutograd gives the gradient of a result the strides of the result. If elements of a result share memory (`unfold`),
  so would their gradients.
- A graph's generated Python, which eager runs, has `(-1) ** x` as `-1 ** x`, which is another number.
- Dynamo treats a zero-dimensional double as a number that it may remove, and removes writes to it.
- Dynamo keeps a tensor's old shape after an in-place change of the shape.
- Dynamo traces a custom autograd function as if its backward got every gradient, and as if no input were dirty.
- Dynamo traces a custom backward under no_grad, so changes of grad mode in it are lost. In a double backward, a
  compiled backward gets its gradients in parts, which gives the same sum only if it is linear in them.
- In a transform of torch.func, Dynamo traces only a custom autograd function's forward, or a backward that records
  nothing.
- Dynamo treats a reentrant checkpoint as a non-reentrant one, which records gradients even if no argument requires one.
- Dynamo assumes that a checkpointed region runs once: its writes to outside tensors happen once, and its recomputation
  does not see later writes.
- Dynamo inlines a custom autograd function where no gradients are recorded: with grad mode on, without its
  `setup_context`, and returning arguments themselves. Where gradients are recorded, it gives an autograd history to
  tensors in returned lists.
- Dynamo ignores the marks that a forward sets in its context if the forward is compiled by itself.
- Dynamo translates NumPy code to torch: an integer divided by an integer is a float32 there, a sum of small integers
  keeps their type, `np.fix` rounds, and the median of an array is an array of one element.
- Dynamo draws Python's random numbers from a copy of the generator at tracing time.
- After a function writes to a class attribute, Dynamo does not see the new value in the class's objects.
- Dynamo does not write back a changed order of a dictionary's keys, or a deque's `maxlen`.
- Dynamo iterates over a set in insertion order, and changes an existing set by rebuilding it.
- Dynamo does not guard on absent attributes of modules and functions, or on absent keys of a `__dict__`.
- Dynamo (of torch 2.11) does not guard on a number or a string that it reads from a class.
- Dynamo (of torch 2.11) loses one of the two gradients of a tensor that is given to a custom autograd function twice.
- Dynamo guards on an environment variable that it has read, but not on one that was not set.
- Dynamo creates a lazy module's weights while it traces: before earlier code of the call, and with the random state
  restored.
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
    """Make readers of a dropout that drops nothing read its argument. Returns the number of removed dropouts."""
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
    """`(-1) ** x` as `pow(-1, x)`: torch prints the operator without parentheses. Returns the number of changed
    nodes."""
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
    """A result without autograd history in eager. A view requires gradients if its base does, although none flow
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
    """Such results of a graph, where gradients are recorded: views, and values derived from them."""
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


# Where torch does not call this, it assumes contiguous gradients.
_STRIDES_OF_RESULTS = "guess_tangent_strides_as_outputs"


def dense_gradients(graph: fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """While open, AOTAutograd takes the gradients of a graph's results as contiguous if elements of one may share
    memory. From torch 2.12 on, AOTAutograd handles `expand` itself."""
    (output,) = graph.graph.find_nodes(op="output")
    results = [x.meta.get("example_value") for x in output.args[0] if isinstance(x, fx.Node)]
    if any(map(_may_overlap, results)) and hasattr(functorch_config, _STRIDES_OF_RESULTS):
        patched: contextlib.AbstractContextManager[Any] = functorch_config.patch({_STRIDES_OF_RESULTS: False})
        return patched
    return contextlib.nullcontext()


def _may_overlap(result: Any) -> bool:
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or not result.requires_grad:
        return False
    if result._has_symbolic_sizes_strides:  # whose gradients it assumes contiguous anyway
        return False
    return debug_has_internal_overlap(result) != 0


def left_to_eager(graph: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """The reason why a graph cannot be traced with eager's semantics; empty if it can."""
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
    """Whether the graph writes, after a region has run, a tensor that the region reads. The traced recomputation would
    read only one of the two values."""
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
