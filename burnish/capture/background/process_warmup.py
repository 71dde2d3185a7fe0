"""One-time work of a process's first compile: imports, tables of ops and rules, Dynamo's own caches.

With background compiling this work is done in `burnish.compile`, which takes longer, so that it does not compete with
later calls for the GIL.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from burnish.capture.graphs.decompositions import decomposition_table
from burnish.torch_private import dynamo
from burnish.torch_private.aot import aot_module_simplified
from burnish.torch_private.dispatch import disable_current_modes, len_torch_dispatch_stack, len_torch_function_stack

_done = threading.Event()


class _Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(4, 4, device="cpu", dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.layer_norm(F.linear(x, self.get_buffer("weight")), (4,))).softmax(-1)


def warm_up() -> None:
    """Compile a tiny function, up to its C source. An error here is ignored, because it will occur again where it can
    be reported."""
    if _done.is_set() or len_torch_dispatch_stack() or len_torch_function_stack():
        return
    _done.set()
    with contextlib.suppress(Exception), torch.no_grad():
        compiled = dynamo.optimize(backend=_backend)(_Small())
        compiled(torch.ones(2, 4, device="cpu", dtype=torch.float32))
    gc.collect()  # a quarter of a second with so many new objects; otherwise a later call would pay for it


def _backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    whole: Callable[..., Any] = aot_module_simplified(
        graph, inputs, fw_compiler=_draft, decompositions=decomposition_table(), keep_inference_input_mutations=True
    )
    return whole


def _draft(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:  # AOTAutograd's own names
    from burnish.codegen.c.unit import generate
    from burnish.fuel import Fuel
    from burnish.lower.importer import import_graph
    from burnish.passes import run_passes
    from burnish.schedule.lower import lower_graph
    from burnish.schedule.passes import Context, run_schedule_passes

    with disable_current_modes():
        captured = import_graph(gm)
        captured.graph = run_passes(captured.graph, Fuel(), lambda name, graph: None)
        generate(run_schedule_passes(lower_graph(captured), captured.target, Context()))
    return gm.forward
