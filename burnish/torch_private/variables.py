"""Dynamo's variables: what it knows of a value while it traces. Copying equal blocks reads and writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.torch_private.names import (
    ABSENCE_MISSED,
    BACKWARDS_ALIKE,
    BOUNDS_MISSED,
    CHECKPOINTS_ALIKE,
    CONTEXTS_TRACED,
    DRAWS_TRACED,
    ENVIRONMENT_MISSED,
    FACTS_MISSED,
    FUNCTIONS_INLINED,
    IDENTITY_MISSED,
    LAZY_WEIGHTS,
    NO_REGIONS,
    NUMPY_AS_TORCH,
    ORDER_OF_SETS,
    SINCE_2_12,
    SINCE_2_13,
    WORDS_OF_ERRORS,
    PrivateName,
    lookup_in,
)

if TYPE_CHECKING:
    from torch._dynamo.side_effects import SideEffects as SideEffects
    from torch._dynamo.variables import ConstantVariable as ConstantVariable
    from torch._dynamo.variables import ConstDictVariable as ConstDictVariable
    from torch._dynamo.variables import FrozensetVariable as FrozensetVariable
    from torch._dynamo.variables import ListVariable as ListVariable
    from torch._dynamo.variables import SetVariable as SetVariable
    from torch._dynamo.variables import SymNodeVariable as SymNodeVariable
    from torch._dynamo.variables import TensorVariable as TensorVariable
    from torch._dynamo.variables import TupleVariable as TupleVariable
    from torch._dynamo.variables import builtin as builtin
    from torch._dynamo.variables import lists as lists
    from torch._dynamo.variables import nn_module as nn_module
    from torch._dynamo.variables import object_protocol as object_protocol
    from torch._dynamo.variables import user_defined as user_defined
    from torch._dynamo.variables.base import AttributeMutationExisting as AttributeMutationExisting
    from torch._dynamo.variables.base import AttributeMutationNew as AttributeMutationNew
    from torch._dynamo.variables.base import ValueMutationNew as ValueMutationNew
    from torch._dynamo.variables.base import VariableTracker as VariableTracker
    from torch._dynamo.variables.builder import VariableBuilder as VariableBuilder
    from torch._dynamo.variables.builder import wrap_fx_proxy as wrap_fx_proxy
    from torch._dynamo.variables.builtin import BuiltinVariable as BuiltinVariable
    from torch._dynamo.variables.builtin import DictBuiltinVariable as DictBuiltinVariable
    from torch._dynamo.variables.ctx_manager import GradModeVariable as GradModeVariable
    from torch._dynamo.variables.dicts import DunderDictVariable as DunderDictVariable
    from torch._dynamo.variables.functions import UserFunctionVariable as UserFunctionVariable
    from torch._dynamo.variables.functions import UserMethodVariable as UserMethodVariable
    from torch._dynamo.variables.hashable import HashableTracker as HashableTracker
    from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable as AutogradFunctionApplyVariable
    from torch._dynamo.variables.higher_order_ops import CheckpointHigherOrderVariable as CheckpointHigherOrderVariable
    from torch._dynamo.variables.lazy import LazyConstantVariable as LazyConstantVariable
    from torch._dynamo.variables.lazy import LazyVariableTracker as LazyVariableTracker
    from torch._dynamo.variables.lists import DequeVariable as DequeVariable
    from torch._dynamo.variables.misc import AutogradFunctionContextVariable as AutogradFunctionContextVariable
    from torch._dynamo.variables.misc import AutogradFunctionVariable as AutogradFunctionVariable
    from torch._dynamo.variables.misc import ExceptionVariable as ExceptionVariable
    from torch._dynamo.variables.misc import NumpyVariable as NumpyVariable
    from torch._dynamo.variables.misc import PythonModuleVariable as PythonModuleVariable
    from torch._dynamo.variables.misc import RandomVariable as RandomVariable
    from torch._dynamo.variables.nn_module import UnspecializedNNModuleVariable as UnspecializedNNModuleVariable
    from torch._dynamo.variables.tensor import UntypedStorageVariable as UntypedStorageVariable
    from torch._dynamo.variables.torch import TorchCtxManagerClassVariable as TorchCtxManagerClassVariable
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable as TorchInGraphFunctionVariable
    from torch._dynamo.variables.user_defined import UserDefinedClassVariable as UserDefinedClassVariable
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable as UserDefinedObjectVariable

NAMES = (
    PrivateName(
        "torch._dynamo.side_effects.SideEffects",
        "writes back what the function has changed",
        fallback=BOUNDS_MISSED,
        instead=None,
    ),
    PrivateName("torch._dynamo.variables.lists.DequeVariable", "a deque", fallback=BOUNDS_MISSED, instead=None),
    PrivateName("torch._dynamo.variables.ConstantVariable", "a plain number, or other constant", fallback=NO_REGIONS),
    PrivateName(
        "torch._dynamo.variables.base.VariableTracker._nonvar_fields",
        "which fields of one are no variables",
        fallback=NO_REGIONS,
    ),
    PrivateName("torch._dynamo.variables.ConstDictVariable", "a dictionary", fallback=NO_REGIONS),
    PrivateName(
        "torch._dynamo.variables.builtin", "compares objects for identity", fallback=IDENTITY_MISSED, instead=None
    ),
    PrivateName(
        "torch._dynamo.variables.lists", "looks for a function in a list", fallback=IDENTITY_MISSED, instead=None
    ),
    PrivateName(
        "torch._dynamo.variables.object_protocol",
        "compares them, too",
        seen_in=SINCE_2_12,
        fallback=IDENTITY_MISSED,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.hashable.HashableTracker",
        "a key",
        seen_in=SINCE_2_12,
        fallback=IDENTITY_MISSED,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.FrozensetVariable",
        "a frozenset, whose order is Python's",
        fallback=ORDER_OF_SETS,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.SetVariable", "a set, whose order is Python's", fallback=ORDER_OF_SETS, instead=None
    ),
    PrivateName("torch._dynamo.variables.ListVariable", "a list", fallback=NO_REGIONS),
    PrivateName("torch._dynamo.variables.SymNodeVariable", "a size that may differ", fallback=NO_REGIONS),
    PrivateName("torch._dynamo.variables.TensorVariable", "a tensor", fallback=NO_REGIONS),
    PrivateName("torch._dynamo.variables.TupleVariable", "a tuple", fallback=NO_REGIONS),
    PrivateName(
        "torch._dynamo.variables.base.AttributeMutationExisting",
        "an object that was there before, and changed",
        fallback=NO_REGIONS,
    ),
    PrivateName(
        "torch._dynamo.variables.base.AttributeMutationNew", "an object made while tracing", fallback=NO_REGIONS
    ),
    PrivateName("torch._dynamo.variables.base.ValueMutationNew", "a list made while tracing", fallback=NO_REGIONS),
    PrivateName("torch._dynamo.variables.base.VariableTracker", "what all of them are", fallback=NO_REGIONS),
    PrivateName(
        "torch._dynamo.variables.builder.VariableBuilder",
        "makes a block's weight an input of the graph",
        fallback=NO_REGIONS,
    ),
    PrivateName(
        "torch._dynamo.variables.builder.wrap_fx_proxy", "makes a variable of a copied result", fallback=NO_REGIONS
    ),
    PrivateName(
        "torch._dynamo.variables.builtin.BuiltinVariable", "how operators treat a layer's number", fallback=NO_REGIONS
    ),
    PrivateName(
        "torch._dynamo.variables.builtin.DictBuiltinVariable",
        "`dict.fromkeys` of a set, whose order is Python's",
        fallback=ORDER_OF_SETS,
        seen_in=SINCE_2_12,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.ctx_manager.GradModeVariable",
        "grad mode as it is set while tracing: in a custom backward it is left to eager",
        fallback=BACKWARDS_ALIKE,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.functions.UserFunctionVariable",
        "a function that is traced: it may ask for an environment variable",
        fallback=ENVIRONMENT_MISSED,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.higher_order_ops.AutogradFunctionApplyVariable",
        "a call of a custom autograd function, some of which are left to eager",
        fallback=BACKWARDS_ALIKE,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.higher_order_ops.CheckpointHigherOrderVariable",
        "a checkpointed region: one of which eager records nothing is left to it",
        fallback=CHECKPOINTS_ALIKE,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.lazy.LazyVariableTracker", "a value that was not looked at", fallback=IDENTITY_MISSED
    ),
    PrivateName(
        "torch._dynamo.variables.lazy.LazyConstantVariable",
        "replaced, so that a layer's number is followed",
        fallback=NO_REGIONS,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.AutogradFunctionContextVariable",
        "the context of a custom autograd function: some of its methods are left to eager",
        fallback=CONTEXTS_TRACED,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.AutogradFunctionVariable",
        "a custom autograd function: applied as autograd applies it; left to eager in another's backward",
        fallback=f"{FUNCTIONS_INLINED}, and {BACKWARDS_ALIKE}",
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.AutogradFunctionVariable._resolve_kwargs",
        "its arguments in order, where some are given by name",
        fallback=FUNCTIONS_INLINED,
        seen_in=SINCE_2_13,
    ),
    PrivateName(
        "torch._dynamo.variables.functions.UserMethodVariable",
        "the forward of a custom autograd function that is a class method",
        fallback=FUNCTIONS_INLINED,
    ),
    PrivateName(
        "torch._dynamo.variables.user_defined.UserDefinedClassVariable",
        "the class that such a method is given",
        fallback=FUNCTIONS_INLINED,
    ),
    PrivateName(
        "torch._dynamo.variables.dicts.DunderDictVariable",
        "the `__dict__` of an object: guarded on keys that are not there",
        fallback=ABSENCE_MISSED,
        seen_in=SINCE_2_12,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.ExceptionVariable",
        "an exception that is caught: its text is left to eager where it need not be Python's",
        fallback=WORDS_OF_ERRORS,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.NumpyVariable",
        "what is NumPy's, its numbers included",
        fallback=NUMPY_AS_TORCH,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.PythonModuleVariable",
        "a module of Python's: guarded on attributes that are not there",
        fallback=ABSENCE_MISSED,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.misc.RandomVariable",
        "a generator of Python's random numbers: left to eager",
        fallback=DRAWS_TRACED,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.nn_module",
        "holds the function that makes a lazy module's weights while tracing",
        fallback=LAZY_WEIGHTS,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.nn_module.UnspecializedNNModuleVariable",
        "replaced: the call of a block",
        fallback=NO_REGIONS,
    ),
    PrivateName(
        "torch._dynamo.variables.tensor.UntypedStorageVariable",
        "a tensor's storage: its size is guarded on",
        fallback=FACTS_MISSED,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.torch.TorchCtxManagerClassVariable",
        "contexts such as no_grad: in a custom backward they are left to eager",
        fallback=BACKWARDS_ALIKE,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.torch.TorchInGraphFunctionVariable",
        "a function of torch's: a custom backward that asks for grad mode is left to eager",
        fallback=BACKWARDS_ALIKE,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.user_defined",
        "holds the function that draws Python's random numbers before the graph",
        fallback=DRAWS_TRACED,
        instead=None,
    ),
    PrivateName(
        "torch._dynamo.variables.user_defined.UserDefinedObjectVariable",
        "an object that blocks are given",
        fallback=NO_REGIONS,
    ),
)

__getattr__ = lookup_in(globals(), NAMES)
