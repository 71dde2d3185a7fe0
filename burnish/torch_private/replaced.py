"""Functions of torch that burnish replaces for a while, and settings that it changes: none is imported from here."""

from __future__ import annotations

from burnish.torch_private.names import (
    AS_TORCH_DOES,
    BACKWARDS_ALIKE,
    BOUNDS_MISSED,
    CHECKPOINTS_ALIKE,
    CONTEXTS_TRACED,
    ENVIRONMENT_MISSED,
    LAZY_WEIGHTS,
    NO_BACKGROUND_PAUSES,
    NO_WARM_START,
    SINCE_2_14,
    UNTIL_2_13,
    PrivateName,
)

_WRITES_LOST = "a write to a double of no dimensions may be lost"
_SHAPES_MISSED = "a shape changed in place may be missed"
_ORDER_MISSED = "an order of keys that a function changes may be missed"
_LISTS_LEFT = "a list whose `__iadd__` is called by that name may be left as it was"
_CONTIGUOUS = "torch takes gradients as contiguous"
_LAZY_BACKWARD = "a backward is compiled when it is first wanted"


NAMES = (
    PrivateName(
        "torch._dynamo.output_graph.trace_call_log",
        "whether anybody reads Dynamo's log of calls",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName(
        "torch._dynamo.symbolic_convert.trace_call_log",
        "whether anybody reads Dynamo's log of calls",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName(
        "torch._dynamo.symbolic_convert.get_funcname",
        "names functions for a log that nobody reads",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName(
        "torch._dynamo.guards.profile_guard_manager",
        "measures guards for a log",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName(
        "torch._dynamo.guards.get_verbose_code_part",
        "writes guards' text: their comments are marked",
        fallback=NO_WARM_START,
    ),
    PrivateName(
        "torch._dynamo.convert_frame.CheckFunctionManager",
        "makes the guards of a frame: they are written down",
        fallback=NO_WARM_START,
    ),
    PrivateName(
        "torch._dynamo.output_graph.OutputGraph.remove_tensorify_specialized_graphargs",
        "loses writes to numbers",
        fallback=_WRITES_LOST,
    ),
    PrivateName(
        "torch._dynamo.variables.tensor.TensorVariable._sync_if_inplace_mutation",
        "misses shapes changed in place",
        fallback=_SHAPES_MISSED,
    ),
    PrivateName(
        "torch._dynamo.variables.nn_module.initialize_lazy_module",
        "makes a lazy module's weights while tracing",
        fallback=LAZY_WEIGHTS,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.AutogradFunctionContextVariable.var_getattr",
        "traces methods that change what a custom backward is given",
        fallback=CONTEXTS_TRACED,
        seen_in=UNTIL_2_13,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.AutogradFunctionContextVariable.tp_getattro_impl",
        "the same, as torch 2.14 names it",
        fallback=CONTEXTS_TRACED,
        seen_in=SINCE_2_14,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.AutogradFunctionContextVariable.call_method",
        "breaks the graph at methods that it does not know",
        fallback=CONTEXTS_TRACED,
    ),
    PrivateName(
        "torch._dynamo.variables.higher_order_ops.CheckpointHigherOrderVariable._call_function",
        "takes every checkpoint for one that is not reentrant",
        fallback=CHECKPOINTS_ALIKE,
    ),
    PrivateName(
        "torch._dynamo.variables.higher_order_ops.AutogradFunctionApplyVariable.call_function",
        "traces a custom function whose backward is not linear",
        fallback=BACKWARDS_ALIKE,
    ),
    PrivateName(
        "torch._dynamo.variables.higher_order_ops.AutogradFunctionApplyVariable.trace_backward_graph",
        "traces a custom backward under no_grad",
        fallback=BACKWARDS_ALIKE,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.AutogradFunctionVariable.call_apply",
        "traces of a function that a backward calls the forward alone",
        fallback=BACKWARDS_ALIKE,
    ),
    PrivateName(
        "torch._dynamo.variables.tensor.TensorVariable.method_attr_requires_grad",
        "knows that nothing is recorded, which a backward may have otherwise",
        fallback=BACKWARDS_ALIKE,
    ),
    PrivateName(
        "torch._dynamo.variables.ctx_manager.GradModeVariable.enter",
        "leaves out grad mode that is set already",
        fallback=BACKWARDS_ALIKE,
    ),
    PrivateName(
        "torch._dynamo.variables.torch.TorchCtxManagerClassVariable.call_function",
        "leaves out grad mode that is set already",
        fallback=BACKWARDS_ALIKE,
    ),
    PrivateName(
        "torch._dynamo.variables.torch.TorchInGraphFunctionVariable.call_function",
        "knows grad mode, which a backward may have otherwise",
        fallback=BACKWARDS_ALIKE,
    ),
    PrivateName(
        "torch._dynamo.variables.dicts.ConstDictVariable.has_new_items",
        "misses keys that change places",
        fallback=_ORDER_MISSED,
    ),
    PrivateName(
        "torch._dynamo.variables.functions.UserFunctionVariable.call_function",
        "traces functions that ask for environment variables, and guards on those that are set",
        fallback=ENVIRONMENT_MISSED,
    ),
    PrivateName(
        "torch._dynamo.variables.lists.ListVariable.call_method",
        "takes `__iadd__` of a list for `+`",
        fallback=_LISTS_LEFT,
    ),
    PrivateName(
        "torch._dynamo.variables.builder.VariableBuilder.wrap_listlike",
        "forgets how long a deque may become",
        fallback=BOUNDS_MISSED,
    ),
    PrivateName(
        "torch._dynamo.side_effects.SideEffects.codegen_update_mutated",
        "refuses to write back a deque of limited length",
        fallback=BOUNDS_MISSED,
    ),
    PrivateName(
        "torch._dynamo.symbolic_convert.InstructionTranslatorBase.step",
        "one instruction of the traced function",
        fallback=NO_BACKGROUND_PAUSES,
    ),
    PrivateName(
        "torch._subclasses.fake_tensor.FakeTensorMode.dispatch",
        "one operation on fake tensors",
        fallback=NO_BACKGROUND_PAUSES,
    ),
    PrivateName(
        "torch._functorch._aot_autograd.graph_compile.aot_joint_log",
        "whether anybody reads printed graphs",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName(
        "torch._functorch._aot_autograd.graph_compile.aot_graphs_log",
        "whether anybody reads printed graphs",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName(
        "torch._functorch._aot_autograd.graph_compile._log_joint_graph",
        "prints a graph for a log",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName(
        "torch._functorch._aot_autograd.graph_compile._log_fw_bw_graphs",
        "prints graphs for a log",
        fallback=AS_TORCH_DOES,
    ),
    PrivateName(
        "torch._functorch.config.guess_tangent_strides_as_outputs",
        "gradients in the strides of results",
        fallback=_CONTIGUOUS,
    ),
    PrivateName(
        "torch._functorch.config.force_non_lazy_backward_lowering",
        "compiles the backward with the forward",
        fallback=_LAZY_BACKWARD,
    ),
    PrivateName("torch._functorch.config.recompute_views", "whether views are recomputed in the backward"),
    PrivateName("torch._dynamo.config.recompile_limit", "raised where other objects' code counts towards it"),
    PrivateName("torch._inductor.config.fallback_random", "keeps draws that nobody reads"),
)
