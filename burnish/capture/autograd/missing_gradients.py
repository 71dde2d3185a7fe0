"""Missing gradients: which results get none, and which saved tensors a backward then reads.

A loss may not use a result, for instance that of a second head. Autograd would pass zeros for it to a compiled
backward, which would give zero gradients to every parameter behind that result. In eager those parameters have no
gradient, and an optimiser skips them; with zero gradients it would apply weight decay and momentum. So autograd is told
not to fill in zeros, and a program with fewer inputs runs (`capture/autograd/backwards.py`). As in eager, it does not
read the tensors saved for the missing gradients. They stay available for a later backward that shares no part with this
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from burnish.capture.autograd.tangents import ALWAYS, Made, groups_of, is_number, made_of, read_for

_WITH_TANGENT = ("non_alias", "unsafe_view_alias", "custom_function_view")
Sources = tuple[frozenset[int] | None, ...]


@dataclass(frozen=True)
class Behind:
    """Facts of a backward graph about its tangents (by number): the tangents on which each result depends (None: not
    known), the saved tensors that are read for each tangent (None: all for any), and for each the first tangent with
    which it shares a part of the backward."""

    sources: Sources
    saved: tuple[frozenset[int], ...] | None
    groups: tuple[int, ...]
    unseen: frozenset[int] = frozenset()  # results that are there, although nothing shows of which tangents


def behind(backward: fx.Graph) -> Behind:
    made = made_of(backward)
    inputs = backward.find_nodes(op="placeholder")
    numbers = sum(map(is_number, inputs))  # they come first, and are no tensors
    read = read_for(backward, made)
    saved = None if read is None else tuple(frozenset(k - numbers for k in each if k >= numbers) for each in read)
    sources = sources_of(backward, made)
    (output,) = backward.find_nodes(op="output")
    unseen = {k for k, node in enumerate(output.args[0]) if node is not None and sources[k] is None}
    return Behind(sources, saved, tuple(groups_of(backward, made)), frozenset(unseen))


def sources_of(backward: fx.Graph, made: Made) -> Sources:
    """The tangents on which each result depends; None if not known, because it may be a zero that depends on others."""
    (output,) = backward.find_nodes(op="output")
    known = (made.get(node) if isinstance(node, fx.Node) else None for node in output.args[0])
    return tuple(None if tangents is None or ALWAYS in tangents else tangents for tangents in known)


@dataclass(frozen=True)
class Flow:
    """`given` are the backward's tangents, by position among autograd's gradients (of inputs that the forward changed,
    of results, of the results' bases). `behind` has one entry for each of them."""

    given: tuple[int, ...]
    behind: Behind
    changed: int = 0  # inputs
    returned: int = 0  # results

    def missing(self, gradients: Sequence[Any]) -> list[int]:
        return [k for k in self.given if gradients[k] is None]

    def left_out(self, missing: Sequence[int]) -> frozenset[int]:
        """The missing gradients' positions among the tangents."""
        return frozenset(self.given.index(k) for k in missing)

    def results(self, left_out: frozenset[int]) -> frozenset[int]:
        """The results to which these tangents belong."""
        return frozenset(range(self.returned)) & {self.given[k] - self.changed for k in left_out}

    def apart(self, left_out: frozenset[int]) -> frozenset[int]:
        """The missing tangents that share no part of the backward with a present one."""
        groups = self.behind.groups
        begun = {groups[k] for k in range(len(self.given)) if k not in left_out}
        return frozenset(k for k in left_out if groups[k] not in begun)

    def saved_for(self, tangents: frozenset[int]) -> frozenset[int] | None:
        """The saved tensors that a backward of these tangents reads; None: all."""
        saved = self.behind.saved
        return None if saved is None else frozenset().union(*(saved[k] for k in tangents))

    def found(
        self, gradients: Sequence[Any], left_out: frozenset[int], waited_for: Mapping[int, torch.Tensor]
    ) -> tuple[Any, ...]:
        """The inputs' gradients, with None for missing ones, except where a hook needs a tensor because autograd calls
        it."""
        sources = self.behind.sources
        made = [
            None if tangents is not None and tangents <= left_out else gradient
            for gradient, tangents in zip(gradients, sources, strict=True)
        ]
        for k, x in waited_for.items():
            if made[k] is None and sources[k] is not None:
                made[k] = torch.zeros_like(x)
        return tuple(made)


def filled(ctx: Any, gradients: Sequence[Any], missing: Sequence[int]) -> list[Any]:
    """With placeholders for missing gradients, of which only shape and type are read. `ctx` is autograd's node."""
    result, about = list(gradients), ctx._input_metadata
    for k in missing:
        result[k] = torch.empty(about[k].shape, dtype=about[k].dtype, device="meta")
    return result


def led_to(forward: fx.Graph, places: Sequence[int]) -> list[frozenset[int]]:
    """For each input of a graph, which of the results at these places are made of it, by their positions among them."""
    (output,) = forward.find_nodes(op="output")
    found: dict[Any, frozenset[int]] = {}
    for k, place in enumerate(places):
        node = output.args[0][place]
        found[node] = found.get(node, frozenset()) | {k}
    for node in reversed(forward.nodes):
        if node in found and node is not output:
            for operand in node.all_input_nodes:
                found[operand] = found.get(operand, frozenset()) | found[node]
    return [found.get(node, frozenset()) for node in forward.find_nodes(op="placeholder")]


def _seen_from(forward: fx.Graph, given: Sequence[int], behind: Behind) -> Behind:
    """A gradient that shows no tangents (a formula's zero) is made of those of the results that its input leads to."""
    if not behind.unseen:
        return behind
    results = led_to(forward, given)
    sources = [results[k] if k in behind.unseen else known for k, known in enumerate(behind.sources)]
    return replace(behind, sources=tuple(sources), unseen=frozenset())


def flow_of(metadata: Any, behind: Behind, forward: fx.Graph) -> Flow | None:
    """`metadata` is AOTAutograd's. None if its wrapper does more than pass gradients on."""
    changed = metadata.mutated_inp_runtime_indices
    infos = [metadata.input_info[k] for k in changed]
    first = [k for k, info in enumerate(infos) if info.mutates_data and info.requires_grad]
    results = [len(changed) + k for k, info in enumerate(metadata.output_info) if _has_tangent(info)]
    bases = len(changed) + len(metadata.output_info)
    given = (*first, *results, *range(bases, bases + metadata.num_intermediate_bases))
    if len(given) != len(behind.groups) or len(behind.sources) != len(metadata.input_info):
        return None
    if len(forward.find_nodes(op="placeholder")) == len(behind.sources):
        behind = _seen_from(forward, given, behind)
    return Flow(given, behind, len(changed), len(metadata.output_info))


def _has_tangent(info: Any) -> bool:
    return is_tensor(info) and needs_gradient(info) and info.output_type.name in _WITH_TANGENT


def is_tensor(info: Any) -> bool:
    """Whether a result is a tensor, given AOTAutograd's information about it."""
    return isinstance(info.raw_type, type) and issubclass(info.raw_type, torch.Tensor)


def needs_gradient(info: Any) -> bool:
    """Whether the backward gets the gradient of a result."""
    return bool(getattr(info, "requires_grad_for_backward", info.requires_grad))
