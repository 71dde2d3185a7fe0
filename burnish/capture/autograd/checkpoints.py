"""Checkpointed regions of a captured graph, run in eager.

Dynamo keeps such a region as one operation. In eager, that operation recomputes the region in the backward without
restoring the random state (AOTAutograd handles that in another way). A dropout would then draw different masks for the
gradients and the results. So the eager form of a graph calls torch.utils.checkpoint itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from burnish.capture.graphs.subgraphs import rewritten
from burnish.torch_private.aot import tag_activation_checkpoint


def drawing_alike_in_checkpoints(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph, or a copy, whose checkpointed regions (nested ones and those in autograd functions included) draw the
    same random numbers in the forward and in the recomputation."""
    return rewritten(graph, lambda node: node.target is tag_activation_checkpoint, _call_checkpoint)


def _call_checkpoint(node: fx.Node, graph: fx.GraphModule) -> None:
    is_reentrant = bool(node.kwargs.get("use_reentrant"))
    kept = _KEPT[:1] if is_reentrant else _KEPT
    settings = {name: value for name, value in node.kwargs.items() if name in kept}
    others = {name: value for name, value in node.kwargs.items() if name not in (*_KEPT, "use_reentrant", "context_fn")}
    node.target = _checkpointed
    node.kwargs = {"is_reentrant": is_reentrant, "settings": settings, **others}


_KEPT = ("preserve_rng_state", "determinism_check", "debug", "early_stop")  # the first is of both kinds
_ARGUMENTS = "burnish_arguments"


def note_arguments(node: fx.Node, region: fx.GraphModule, given: Sequence[torch.Tensor]) -> None:
    """Record which operands of a region's node are arguments that the user's program passes to the checkpoint: `given`
    are their values. All other operands are closed over by the region."""
    values = [x.meta.get("example_value") if isinstance(x, fx.Node) else None for x in node.args[1:]]
    region.meta[_ARGUMENTS] = tuple(k for k, value in enumerate(values) if any(value is x for x in given))


def _checkpointed(
    region: fx.GraphModule, *args: Any, is_reentrant: bool, settings: dict[str, Any], **kwargs: Any
) -> Any:
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if is_reentrant and any(x.is_inference() for x in tensors) and not any(x.requires_grad for x in tensors):
        with torch.no_grad():  # as the reentrant checkpoint does; the other kind would save them, which is not allowed
            return region(*args, **kwargs)
    context = region.meta.get("_checkpoint_context_fn")
    settings = settings if context is None else {"context_fn": context, **settings}
    given = region.meta.get(_ARGUMENTS, range(len(args)))
    closed_over = [None if k in given else x for k, x in enumerate(args)]

    def run(*arguments: Any) -> Any:
        """A checkpoint saves its arguments, which must not change until the backward. Closed-over values are read again
        in the recomputation, with their values at that time."""
        operands = list(closed_over)
        for k, x in zip(given, arguments, strict=True):
            operands[k] = x
        return region(*operands, **kwargs)

    return checkpoint(run, *(args[k] for k in given), use_reentrant=False, **settings)
