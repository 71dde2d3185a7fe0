"""Gradients that share memory with others, or with a backward's inputs, are copied into memory of their own."""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from burnish.assumptions import meets_itself
from burnish.lower.aten_calls import memory_of_node


def give_own_memory(backward: fx.Graph) -> int:
    """Copy each gradient that shares memory with another gradient or with the backward's arguments. Autograd uses a
    gradient with no other reference as a leaf's `.grad` and adds the next gradient in place, without noticing that it
    is a view. Returns the number of copies."""
    (output,) = backward.find_nodes(op="output")
    results, count = list(output.args[0]), 0
    taken: dict[int, list[torch.Tensor]] = {}
    for node in backward.find_nodes(op="placeholder"):
        if (memory := memory_of_node(node)) is not None:
            taken[memory] = [node.meta["val"]]
    for k, result in enumerate(results):
        memory = memory_of_node(result)
        if memory is None:
            continue
        value, others = result.meta["val"], taken.setdefault(memory, [])
        if all(map(partial(_lie_apart, value), others)):
            others.append(value)
        elif not _is_expanded(value):  # of which autograd always makes a copy
            with backward.inserting_before(output):
                results[k] = backward.call_function(torch.ops.aten.clone.default, (result,))
            results[k].meta = {**result.meta, "val": value.clone()}
            count += 1
    output.args = (tuple(results),)
    return count


def _is_expanded(x: torch.Tensor) -> bool:
    return any(isinstance(s, int) and s == 0 and d != 1 for d, s in zip(x.shape, x.stride(), strict=True))


def _lie_apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two windows of one tensor, such as the parts of a `split`, have no element in common."""
    numbers = (*a.shape, *a.stride(), *b.shape, *b.stride(), a.storage_offset(), b.storage_offset())
    if not all(type(n) is int for n in numbers) or a.stride() != b.stride() or 0 in a.stride():
        return False
    first, second = sorted((a, b), key=torch.Tensor.storage_offset)
    left = int(second.storage_offset() - first.storage_offset())
    steps, whole = [], []  # the offset between the two; the span of both
    dims = sorted(zip(a.stride(), first.shape, second.shape, strict=True), reverse=True)
    for stride, size, other in dims:
        ahead, left = divmod(left, stride)
        steps.append(ahead)
        whole.append(max(size, ahead + other))
    if left or meets_itself(whole, [stride for stride, _, _ in dims]):
        return False
    return any(ahead >= size for ahead, (_, size, _) in zip(steps, dims, strict=True))
