"""A forward and a backward program as one autograd function, for training steps that need nothing else.

AOTAutograd's own wrapper also handles changed inputs, results that are views, subclasses, random state and sizes saved
for the backward. A graph that needs one of these has no `TrainingLayout`, and is captured again in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from burnish.capture.autograd.backwards import LeftOut, Zeros, tangents_of
from burnish.capture.autograd.double_backward import Replay, is_replayed, own_tensors
from burnish.capture.autograd.missing_gradients import Flow, is_tensor, needs_gradient
from burnish.capture.autograd.shared_results import Shared
from burnish.capture.restore import NotWarm
from burnish.capture.restore.graph_source import GraphText
from burnish.lower.aten_calls import in_memory
from burnish.runtime.program import restrided

Boxed = Callable[[list[Any]], Sequence[Any]]
_CHANGED_IN_BACKWARD = "indices_of_inputs_that_requires_grad_with_mutations_in_bw"
_PLAIN_OUTPUTS = ("non_alias", "unsafe_view_alias")


@dataclass(frozen=True)
class TrainingLayout:
    returned: int  # number of the forward's results; saved tensors come after them
    constant: tuple[int, ...]  # results without a gradient
    tangents: tuple[int, ...]  # results whose gradients the backward gets, in its order
    shapes: tuple[tuple[int, ...], ...]  # of those, and their strides
    strides: tuple[tuple[int, ...], ...]
    decisive: tuple[int, ...]  # inputs on which gradients depend
    shared: Shared  # results that may share memory with saved tensors
    flow: Flow | None  # which gradients are missing


@dataclass(frozen=True)
class StoredBackward:
    """One of a graph's backwards (`capture/autograd/backwards.py`)."""

    left_out: LeftOut
    inputs: tuple[int, ...]
    zeros: Zeros
    program: bytes
    eager: GraphText
    draws: bool


def training_layout(
    metadata: Any, decisive: Collection[int], shared: Shared, flow: Flow | None, backward: fx.GraphModule
) -> TrainingLayout:
    """`metadata` is AOTAutograd's; gradients depend on the `decisive` inputs. Raises NotWarm."""
    _require_plain(metadata)
    outputs = metadata.output_info
    tangents = tuple(i for i, info in enumerate(outputs) if needs_gradient(info))
    given: list[Any] = [node.meta.get("val") for node in tangents_of(backward.graph)]
    if len(given) != len(tangents) or not all(
        isinstance(x, torch.Tensor) and all(type(d) is int for d in (*x.shape, *x.stride())) for x in given
    ):
        raise NotWarm("the sizes of gradients are only known later")
    constant = tuple(i for i, info in enumerate(outputs) if not info.requires_grad and is_tensor(info))
    shapes, strides = tuple(tuple(x.shape) for x in given), tuple(tuple(x.stride()) for x in given)
    returned, inputs = metadata.num_forward_returns, tuple(sorted(decisive))
    return TrainingLayout(returned, constant, tangents, shapes, strides, inputs, shared, flow)


def _require_plain(metadata: Any) -> None:
    reasons = {
        "results that are views": metadata.num_outputs_aliased or metadata.num_intermediate_bases,
        "side effects": metadata.tokens or getattr(metadata, "num_backward_tokens", 0),
        "inputs that are changed": any(i.mutates_data or i.mutates_metadata for i in metadata.input_info),
        "inputs changed in the backward": getattr(metadata, _CHANGED_IN_BACKWARD, ()),
        "random state": metadata.is_rng_op_functionalized or getattr(metadata, "num_graphsafe_rng_states", 0),
        "sizes saved for the backward": metadata.num_symints_saved_for_bw,
        "objects saved for the backward": getattr(metadata, "num_opaque_objects_saved_for_bw", 0),
        "saved tensors that may change": getattr(metadata, "num_tensors_saved_with_no_vc_check", 0),
        "views": any(info.output_type.name not in _PLAIN_OUTPUTS for info in metadata.output_info),
    }
    if reason := next((text for text, found in reasons.items() if found), ""):
        raise NotWarm(f"a training step with {reason}")


def training_function(forward: Boxed, backward: Boxed, layout: TrainingLayout, again: Replay) -> Callable[..., Any]:
    """`again` runs the graph in eager, for a backward that autograd records."""
    returned, wanted = layout.returned, tuple(zip(layout.tangents, layout.shapes, layout.strides, strict=True))

    class RestoredStep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            again.hold(ctx, args)
            results = tuple(forward(list(args)))
            ctx.save_for_backward(*results[returned:])
            again.save(ctx, results[:returned])
            ctx.mark_non_differentiable(*(results[i] for i in layout.constant))
            return results[:returned]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            if is_replayed(gradients):
                return again.gradients(ctx, gradients)

            def run(given: Sequence[Any]) -> tuple[Any, ...]:
                tangents = [restrided(in_memory(given[i]), shape, strides) for i, shape, strides in wanted]
                return tuple(backward([*own_tensors(ctx), *tangents]))

            return tuple(again.plain(ctx, gradients, run))

    apply: Callable[..., Any] = RestoredStep.apply
    return apply
