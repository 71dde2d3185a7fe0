"""Results of a forward that lie in memory which is saved for its backward, and what follows when they are changed.

Whoever is given `h.view(-1)` or `h.detach()` may write to it before the backward of another result, which in eager has
saved something else (a log-softmax its own result) and notices nothing. A program may have saved h, in the very memory.
So such a result is watched: if it has been changed when the backward comes, that goes through the captured graph in
eager (`double_backward.py`), on the forward's inputs. There the changed result counts as changed, too: autograd raises
exactly where eager does. Nothing is copied, and what is not changed costs a look at a number.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from burnish.capture.autograd.saved_values import State
from burnish.lower.aten_calls import memory_of_node
from burnish.torch_private.operators import OpOverload

# A result, and of the saved tensors, counted from the first, those that may lie in its memory.
Shared = tuple[tuple[int, tuple[int, ...]], ...]


def shared_with_saved(forward: fx.Graph, returned: int) -> Shared:
    """In a forward graph, whose first results are the `returned` ones. Memory of inputs is the caller's."""
    (output,) = forward.find_nodes(op="output")
    given = {memory_of_node(x) for x in forward.find_nodes(op="placeholder")}
    results = [_memory(x) if memory_of_node(x) not in given else frozenset() for x in output.args[0]]
    saved: dict[Any, list[int]] = {}
    for j, memory in enumerate(results[returned:]):
        for key in memory:
            saved.setdefault(key, []).append(j)
    found = [(k, {j for key in memory for j in saved.get(key, ())}) for k, memory in enumerate(results[:returned])]
    return tuple((k, tuple(sorted(members))) for k, members in found if members)


def _memory(node: Any) -> frozenset[Any]:
    """What a value has in common with all that may lie in its memory: what tracing says, and what it is a view of (a
    pass may have put another node in place of that, which is in memory of its own)."""
    if memory_of_node(node) is None:
        return frozenset()
    of = node
    while of.op == "call_function" and _is_window(of):
        of = of.all_input_nodes[0]
    return frozenset({memory_of_node(node)} if of.op == "placeholder" else {memory_of_node(node), of})


def _is_window(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload) or not node.all_input_nodes:
        return False
    arguments = target._schema.arguments
    return target is torch.ops.aten._unsafe_view.default or any(argument.alias_info for argument in arguments)


def in_one_memory(shared: Shared, results: Sequence[Any], saved: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Of a call, those that do: who serves it may have given either memory of its own."""
    for k, members in shared:
        if isinstance(results[k], torch.Tensor):
            memory = results[k].untyped_storage().data_ptr()
            for j in members:
                if j >= len(saved) or saved[j].untyped_storage().data_ptr() == memory:
                    yield k, j


class Watched(NamedTuple):
    """A result, and how it left."""

    position: int
    tensor: torch.Tensor  # another over its memory, with its count of changes
    left: State

    @staticmethod
    def of(position: int, result: torch.Tensor) -> Watched:
        return Watched(position, result.detach(), State.of(result))

    @property
    def has_changed(self) -> bool:
        return not self.left.still_of(self.tensor)
