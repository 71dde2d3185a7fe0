"""Results of a forward that share memory with saved tensors, and the backward after they are changed.

The caller may write to a result such as `h.view(-1)` or `h.detach()` before the backward of another result. In eager
that backward may have saved another tensor (a log-softmax saves its own result) and is not affected. A program may have
saved h itself, in the same memory. So the version counter of such a result is checked at the backward. If the result
was changed, the backward runs the captured graph in eager (`double_backward.py`) on the forward's inputs. There the
changed result counts as changed, too, so autograd raises exactly where eager does. No copies are made, and the check
costs one comparison of numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from burnish.capture.autograd.saved_values import State
from burnish.lower.aten_calls import memory_of_node
from burnish.torch_private.operators import UNSAFE_VIEW, OpOverload

# A result, and the indices of the saved tensors that may share its memory.
Shared = tuple[tuple[int, tuple[int, ...]], ...]


def shared_with_saved(forward: fx.Graph, returned: int) -> Shared:
    """Such results of a forward graph, whose first `returned` results go to the caller. Memory of inputs belongs to the
    caller."""
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
    """Keys that a value shares with all values that may be in its memory: its storage in the trace, and its base (a
    pass may have replaced the base by another node with its own memory)."""
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
    return target is UNSAFE_VIEW or any(argument.alias_info for argument in arguments)


def in_one_memory(shared: Shared, results: Sequence[Any], saved: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """The pairs that do share memory in a call: the engine may have allocated separate memory for either."""
    for k, members in shared:
        if isinstance(results[k], torch.Tensor):
            memory = results[k].untyped_storage().data_ptr()
            for j in members:
                if j >= len(saved) or saved[j].untyped_storage().data_ptr() == memory:
                    yield k, j


class Watched(NamedTuple):
    """A result, and how it left."""

    position: int
    tensor: torch.Tensor  # an alias of its memory with the same version counter
    left: State

    @staticmethod
    def of(position: int, result: torch.Tensor) -> Watched:
        return Watched(position, result.detach(), State.of(result))

    @property
    def has_changed(self) -> bool:
        return not self.left.still_of(self.tensor)
