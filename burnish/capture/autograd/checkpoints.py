"""Checkpointed regions of a captured graph, run in eager.

Dynamo keeps such a region as one operation. Called in eager, that runs the region again in the backward without putting
the random state back, because AOTAutograd has another way to do so: a dropout would draw another mask for the gradients
than for the results. The eager form of a graph calls torch.utils.checkpoint itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from burnish.capture.graphs.subgraphs import rewritten
from burnish.torch_private.aot import tag_activation_checkpoint


def drawing_alike_in_checkpoints(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph, or one like it, whose checkpointed regions, also those in others and in what autograd functions
    compute, draw the same random numbers both times."""
    return rewritten(graph, lambda node: node.target is tag_activation_checkpoint, _call_checkpoint)


def _call_checkpoint(node: fx.Node, graph: fx.GraphModule) -> None:
    others = {name: value for name, value in node.kwargs.items() if name not in _SETTINGS}
    node.target = _checkpointed
    node.kwargs = {"is_reentrant": bool(node.kwargs.get("use_reentrant")), **others}


_SETTINGS = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop", "context_fn")


def _checkpointed(region: fx.GraphModule, *args: Any, is_reentrant: bool, **kwargs: Any) -> Any:
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if is_reentrant and any(x.is_inference() for x in tensors) and not any(x.requires_grad for x in tensors):
        with torch.no_grad():  # as that kind of checkpoint does; the other would save them, which nobody may
            return region(*args, **kwargs)
    context = region.meta.get("_checkpoint_context_fn")
    settings = {} if context is None else {"context_fn": context}
    return checkpoint(region, *args, use_reentrant=False, **settings, **kwargs)
