"""The dependence of each node of a backward graph on the tangents.

A backward is linear in its tangents, so a value that depends only on missing gradients is missing, too: `made_of` has
the tangents of each node. This determines which inputs get a gradient (`capture/autograd/missing_gradients.py`), which
nodes can be removed for missing gradients (`capture/autograd/backwards.py`), and which saved tensors are read then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from burnish.lower.aten_calls import mutates

ALWAYS = -1  # beside tangents: a value that is never missing
Made = Mapping[fx.Node, frozenset[int]]

_SUM = "aten.add.Tensor"
_SUMS = (_SUM, "aten.sub.Tensor")
_TANGENT = "tangents"  # the prefix of AOTAutograd's names of those inputs
_WHERE, _FORWARD = "partitioner_tag", "is_forward"  # AOTAutograd's mark on the nodes of a joint graph
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def tangents_of(backward: fx.Graph) -> list[fx.Node]:
    return [node for node in backward.find_nodes(op="placeholder") if str(node.target).startswith(_TANGENT)]


def made_of(backward: fx.Graph) -> dict[fx.Node, frozenset[int]]:
    """The tangents, by position, on which each node depends, for nodes that depend on any.

    A sum of such a node and one without tangents depends on more: the second term is a zero gradient whose origin is no
    longer visible (such as the gradient of `floor`)."""
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
    """Whether the node is a value of the forward, and so not a zero gradient: sums with it are part of a formula, such
    as the sums of logarithms in `logcumsumexp`."""
    while str(node.target) == "aten.detach.default":
        (node,) = node.all_input_nodes
    return node.op == "placeholder" or node.meta.get(_WHERE) == _FORWARD


def is_number(node: fx.Node) -> bool:
    """Whether it is a number, such as a size. It is also known for missing tensors."""
    return isinstance(node.meta.get("val"), _NUMBERS)


def other_term(node: fx.Node, missing: Mapping[fx.Node, Any] | set[fx.Node]) -> fx.Node | None:
    """For a sum with one missing term: the other term, if the sum does nothing else."""
    if str(node.target) != _SUM or node.kwargs or len(node.args) != 2:
        return None
    terms = [x for x in node.args if isinstance(x, fx.Node) and x not in missing]
    return terms[0] if len(terms) == 1 and form(terms[0]) == form(node) else None


def form(node: fx.Node) -> tuple[Any, ...] | None:
    value = node.meta.get("val")
    return (value.dtype, *map(str, value.shape)) if isinstance(value, torch.Tensor) else None


def can_leave_out(backward: fx.Graph, made: Made) -> bool:
    """Whether a graph can be made for every set of missing tangents."""
    sizes = sizes_in(backward)
    return not any(mutates(node) or _needs_what_is_missing(node, made, sizes) for node in backward.nodes)


def sizes_in(backward: fx.Graph) -> dict[str, tuple[fx.Node, int | None]]:
    """Where symbolic sizes are found: inputs, and dimensions of inputs. Inputs that are numbers come first, tangents
    last, because they may be missing."""
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
    """For each tangent, the graph's inputs that are read if only it is given; None: all, because nothing can be left
    out."""
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
    """For each tangent, the first tangent with which it shares a part of the backward that reads saved tensors. In
    eager, too, the backward of one cannot follow that of the other, unless the graph is retained."""
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
