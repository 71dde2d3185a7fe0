"""AOTAutograd, and what it does with a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.torch_private.names import AS_TORCH_DOES, FUNCTIONS_INLINED, NO_REGIONS, SINCE_2_12, PrivateName, lookup_in

if TYPE_CHECKING:
    from torch._C._autograd import _get_current_graph_task_keep_graph as get_current_graph_task_keep_graph
    from torch._C._autograd import _top_saved_tensors_default_hooks as top_saved_tensors_default_hooks
    from torch._decomp import _core_aten_decompositions_post_autograd as core_aten_decompositions_post_autograd
    from torch._decomp import core_aten_decompositions as core_aten_decompositions
    from torch._decomp import decomposition_table as decomposition_table
    from torch._functorch import config as config
    from torch._functorch._aot_autograd import graph_compile as graph_compile
    from torch._functorch.aot_autograd import aot_export_joint_simple as aot_export_joint_simple
    from torch._functorch.aot_autograd import aot_module_simplified as aot_module_simplified
    from torch._functorch.autograd_function import (
        DynamoAutogradFunctionTraceHelper as DynamoAutogradFunctionTraceHelper,
    )
    from torch._functorch.partitioners import min_cut_rematerialization_partition as min_cut_rematerialization_partition
    from torch._higher_order_ops.effects import with_effects as with_effects
    from torch._higher_order_ops.wrap import tag_activation_checkpoint as tag_activation_checkpoint
    from torch._logging._internal import trace_log as trace_log

    unpack: Any

NAMES = (
    PrivateName(
        "torch._functorch.aot_autograd.aot_module_simplified",
        "takes a graph of Dynamo's to ATen operations and gradients",
    ),
    PrivateName(
        "torch._functorch.aot_autograd.aot_export_joint_simple", "the same for one block of many", fallback=NO_REGIONS
    ),
    PrivateName("torch._functorch.partitioners.min_cut_rematerialization_partition", "splits forward from backward"),
    PrivateName(
        "torch._functorch.autograd_function.DynamoAutogradFunctionTraceHelper",
        "what is traced around the forward of a custom autograd function",
        fallback=FUNCTIONS_INLINED,
        instead=None,
    ),
    PrivateName("torch._functorch.config", "AOTAutograd's settings"),
    PrivateName(
        "torch._functorch._aot_autograd.graph_compile",
        "holds functions that are replaced for a while",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName("torch._logging._internal.trace_log", "whether torch's trace is read", fallback=AS_TORCH_DOES),
    PrivateName("torch._decomp.decomposition_table", "all decompositions of composite operations"),
    PrivateName("torch._decomp.core_aten_decompositions", "the core ones"),
    PrivateName(
        "torch._decomp._core_aten_decompositions_post_autograd",
        "the core ones, without a search of custom operations",
        fallback="the table with that search is used, 150 ms later",
        instead=None,
    ),
    PrivateName("torch._higher_order_ops.effects.with_effects", "an operation with side effects in a graph"),
    PrivateName("torch._higher_order_ops.wrap.tag_activation_checkpoint", "a checkpointed region in a graph"),
    PrivateName("torch._C._autograd._get_current_graph_task_keep_graph", "whether a backward keeps its graph"),
    PrivateName("torch._C._FunctionBase._input_metadata", "what the gradients are of that a backward is not given"),
    PrivateName("torch._C._FunctionBase._raw_saved_tensors", "what a forward has saved, each by itself"),
    PrivateName(
        "torch._C._autograd.SavedTensor.unpack",
        "gives one of them back",
        fallback="what was changed in place is refused also where no gradient that is asked for needs it",
        seen_in=SINCE_2_12,
        instead=None,
    ),
    PrivateName(
        "torch._C._autograd._top_saved_tensors_default_hooks",
        "whether hooks on saved tensors are active",
        fallback="they are taken to be active",
        instead=None,
    ),
)

__getattr__ = lookup_in(globals(), NAMES)
