"""Which of the gradients that a backward is given each part of its graph is made of.

A backward is linear in what it is given, so what is made of a gradient that is missing is missing, too: `made_of` says
of which each node is. From that follows what inputs have a gradient of (`capture/autograd/missing_gradients.py`), what
can be left out where some are missing (`capture/autograd/backwards.py`), and which of the saved tensors are read then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from burnish.lower.aten_calls import mutates

ALWAYS = -1  # beside tangents: something that is there whatever is missing
Made = Mapping[fx.Node, frozenset[int]]

_SUM = "aten.add.Tensor"
_SUMS = (_SUM, "aten.sub.Tensor")
_TANGENT = "tangents"  # what AOTAutograd's names of those inputs begin with
_WHERE, _FORWARD = "partitioner_tag", "is_forward"  # as AOTAutograd marks the nodes of a joint graph
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def tangents_of(backward: fx.Graph) -> list[fx.Node]:
    return [node for node in backward.find_nodes(op="placeholder") if str(node.target).startswith(_TANGENT)]


def made_of(backward: fx.Graph) -> dict[fx.Node, frozenset[int]]:
    """Of which tangents, by their positions, each node is that is made of any.

    A sum of such a node and one that is made of none of them is made of more: that term is a zero, of which it cannot
    be seen any more where it comes from (the gradient of `floor` is one)."""
    found = {node: frozenset((k,)) for k, node in enumerate(tangents_of(backward))}
    for node in backward.nodes:
        if node.op in ("placeholder", "output") or is_number(node):
            continue
        operands = [found.get(x, frozenset[int]()) for x in node.all_input_nodes if x in found or not _is_value(x)]
        if any(operands):
            lost = {ALWAYS} if str(node.target) in _SUMS and not all(operands) else frozenset[int]()
            found[node] = frozenset().union(lost, *operands)
    return found


def _is_value(node: fx.Node) -> bool:
    """Whether it is the forward's, and so no gradient, and none that is zero: sums with it are a formula's own, like
    those of logarithms by which `logcumsumexp` multiplies."""
    while str(node.target) == "aten.detach.default":
        (node,) = node.all_input_nodes
    return node.op == "placeholder" or node.meta.get(_WHERE) == _FORWARD


def is_number(node: fx.Node) -> bool:
    """Such as a size. It is known of what is missing, too."""
    return isinstance(node.meta.get("val"), _NUMBERS)


def other_term(node: fx.Node, missing: Mapping[fx.Node, Any] | set[fx.Node]) -> fx.Node | None:
    """Of a sum of which one term is missing: it is the other, where that is all that the sum is."""
    if str(node.target) != _SUM or node.kwargs or len(node.args) != 2:
        return None
    terms = [x for x in node.args if isinstance(x, fx.Node) and x not in missing]
    return terms[0] if len(terms) == 1 and form(terms[0]) == form(node) else None


def form(node: fx.Node) -> tuple[Any, ...] | None:
    value = node.meta.get("val")
    return (value.dtype, *map(str, value.shape)) if isinstance(value, torch.Tensor) else None


def can_leave_out(backward: fx.Graph, made: Made) -> bool:
    """Whether there is a graph of what is left, whichever tangents are missing."""
    sizes = sizes_in(backward)
    return not any(mutates(node) or _needs_what_is_missing(node, made, sizes) for node in backward.nodes)


def sizes_in(backward: fx.Graph) -> dict[str, tuple[fx.Node, int | None]]:
    """Where sizes that vary are found: inputs, and dimensions of inputs. One that is a number itself comes first, and
    one of a tangent last: it may be missing."""
    found: dict[str, tuple[fx.Node, int | None]] = {}
    tangents = set(tangents_of(backward))
    inputs = backward.find_nodes(op="placeholder")
    for node in sorted(inputs, key=lambda node: (not is_number(node), node in tangents)):
        value = node.meta.get("val")
        if is_number(node):
            found.setdefault(str(value), (node, None))
        for k, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            found.setdefault(str(size), (node, k))
    return found


def _needs_what_is_missing(node: fx.Node, made: Made, sizes: Mapping[str, Any]) -> bool:
    gradients = [x for x in node.all_input_nodes if x in made]
    if node.op == "output" or not gradients:
        return False
    if is_number(node):
        return True
    if all(made[x] == made[node] for x in gradients) or _is_plain_sum(node):
        return False
    return not all(_has_known_sizes(x, sizes) for x in gradients)  # one of them would have to be zeros


def _is_plain_sum(node: fx.Node) -> bool:
    return str(node.target) == _SUM and not node.kwargs and all(form(x) == form(node) for x in node.all_input_nodes)


def _has_known_sizes(node: fx.Node, sizes: Mapping[str, Any]) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and all(type(d) is int or str(d) in sizes for d in value.shape)


def read_for(backward: fx.Graph, made: Made) -> list[frozenset[int]] | None:
    """For each tangent, the inputs of the graph that are read where it alone is given; None where that is everything,
    because nothing can be left out."""
    if not can_leave_out(backward, made):
        return None
    tangents = frozenset(range(len(tangents_of(backward))))
    wanted: dict[fx.Node, frozenset[int]] = {}
    for node in reversed(backward.nodes):
        if node.op == "output":
            reason = tangents
        else:
            reason = made.get(node) or wanted.get(node, frozenset())
            reason = tangents if ALWAYS in reason else reason
        for operand in node.all_input_nodes:
            if operand not in made:
                wanted[operand] = wanted.get(operand, frozenset()) | reason
    inputs = backward.find_nodes(op="placeholder")
    return [frozenset(k for k, node in enumerate(inputs) if t in wanted.get(node, ())) for t in sorted(tangents)]


def groups_of(backward: fx.Graph, made: Made) -> list[int]:
    """For each tangent, the first of those with which it shares a part of the backward that reads what was saved: in
    eager, too, no backward of one comes after one of another, unless the graph is retained."""
    group = list(range(len(tangents_of(backward))))
    saved = {x for x in backward.find_nodes(op="placeholder") if not is_number(x)} - set(made)
    reading = set[fx.Node]()
    for node in backward.nodes:
        if node.op != "output" and any(x in saved or x in reading for x in node.all_input_nodes if x not in made):
            if node in made:
                _join(group, sorted(made[node] - {ALWAYS}))
            elif not is_number(node):
                reading.add(node)
    return group


def _join(group: list[int], tangents: Sequence[int]) -> None:
    together = {group[t] for t in tangents}
    if len(together) > 1:
        group[:] = [min(together) if g in together else g for g in group]
