"""Inputs without a gradient: those on which nothing depends that a backward is given a gradient of.

A loss may leave a result out: that of a second head, say. For it autograd would hand zeros to a compiled backward,
which makes zeros of them for every parameter behind that result. In eager those parameters have no gradient, and an
optimiser leaves them alone; zeros it takes for a step, in which weights decay and momentum goes on. So autograd is
asked to fill in nothing. We do, for the program, and take back what it has made of nothing but that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

_SUMS = ("aten.add.Tensor", "aten.sub.Tensor")
_WITH_TANGENT = ("non_alias", "unsafe_view_alias", "custom_function_view")
_WHERE, _FORWARD = "partitioner_tag", "is_forward"  # as AOTAutograd marks the nodes of a joint graph
Sources = tuple[frozenset[int] | None, ...]


@dataclass(frozen=True)
class Flow:
    """`given` are the gradients that the backward reads, by their positions among those that autograd has for it.
    `sources` says for each input which of these its gradient is made of; None where that is not known."""

    given: tuple[int, ...]
    sources: Sources

    def missing(self, gradients: Sequence[Any]) -> list[int]:
        return [k for k in self.given if gradients[k] is None]

    def found(
        self, gradients: Sequence[Any], missing: Sequence[int], waited_for: frozenset[int] | None
    ) -> tuple[Any, ...]:
        """Of the inputs, without those that were made of nothing; but for those that a hook waits for (None: all of
        them may be): autograd calls it, and it takes a tensor."""
        if waited_for is None:
            return tuple(gradients)
        there = frozenset(self.given) - set(missing)
        return tuple(
            None if sources is not None and not sources & there and k not in waited_for else gradient
            for k, (gradient, sources) in enumerate(zip(gradients, self.sources, strict=True))
        )


def filled(ctx: Any, gradients: Sequence[Any], missing: Sequence[int]) -> list[Any]:
    """With zeros for what is missing. `ctx` is autograd's node."""
    result, about = list(gradients), ctx._input_metadata
    for k in missing:
        result[k] = torch.zeros(about[k].shape, dtype=about[k].dtype, device=about[k].device)
    return result


def sources_of(joint: fx.Graph, inputs: int, returned: int) -> Sources:
    """Of the gradients that a joint graph of a forward with so many `inputs` and results has after these, by the
    positions of the tangents that it takes after the inputs.

    A backward is linear in what it is given: a term that is made of none of it is a zero, of which it cannot be seen
    any more where it comes from (the gradient of `floor` is one)."""
    tangents = {node: k for k, node in enumerate(joint.find_nodes(op="placeholder")[inputs:])}
    made_of: dict[fx.Node, frozenset[int] | None] = {}
    for node in joint.nodes:
        if node in tangents:
            made_of[node] = frozenset((tangents[node],))
        elif node.op not in ("placeholder", "output"):
            operands = node.all_input_nodes
            if _is_sum(node):
                operands = [operand for operand in operands if not _is_value(operand)]
            made_of[node] = _union(node, [made_of.get(operand, frozenset()) for operand in operands])
    (output,) = joint.find_nodes(op="output")
    return tuple(
        (made_of.get(node) or None) if isinstance(node, fx.Node) else None for node in output.args[0][returned:]
    )


def _is_sum(node: fx.Node) -> bool:
    return str(node.target) in _SUMS


def _is_value(node: fx.Node) -> bool:
    """Whether it is a number of the forward's, and so no gradient, and none that is zero: sums with it are a formula's
    own, like those of logarithms by which `logcumsumexp` multiplies."""
    while str(node.target) == "aten.detach.default":
        (node,) = node.all_input_nodes
    return node.meta.get(_WHERE) == _FORWARD


def _union(node: fx.Node, operands: Sequence[frozenset[int] | None]) -> frozenset[int] | None:
    if any(sources is None for sources in operands):
        return None
    known = [sources for sources in operands if sources is not None]
    has_lost_zero = _is_sum(node) and any(known) and not all(known)
    return None if has_lost_zero else frozenset().union(*known)


def flow_of(metadata: Any, sources: Sources, tangents: int) -> Flow | None:
    """`metadata` is AOTAutograd's, for a backward with so many `tangents`. None where its wrapper does more than to
    hand gradients on."""
    changed = metadata.mutated_inp_runtime_indices
    infos = [metadata.input_info[k] for k in changed]
    first = [k for k, info in enumerate(infos) if info.mutates_data and info.requires_grad]
    results = [len(changed) + k for k, info in enumerate(metadata.output_info) if _has_tangent(info)]
    bases = len(changed) + len(metadata.output_info)
    given = (*first, *results, *range(bases, bases + metadata.num_intermediate_bases))
    if len(given) != tangents or len(sources) != len(metadata.input_info):
        return None
    return Flow(given, tuple(None if of is None else frozenset(given[k] for k in of) for of in sources))


def _has_tangent(info: Any) -> bool:
    return is_tensor(info) and needs_gradient(info) and info.output_type.name in _WITH_TANGENT


def is_tensor(info: Any) -> bool:
    """Whether a result is one, of which this is AOTAutograd's information."""
    return isinstance(info.raw_type, type) and issubclass(info.raw_type, torch.Tensor)


def needs_gradient(info: Any) -> bool:
    """Whether the backward is given that of a result."""
    return bool(getattr(info, "requires_grad_for_backward", info.requires_grad))
