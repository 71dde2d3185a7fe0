"""Dynamo's guards as data: what a second process makes again from the cache, and what blocks are compared by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.torch_private.names import (
    IDENTITY_MISSED,
    NO_REGIONS,
    NO_REGIONS_NOR_WARM_START,
    NO_WARM_START,
    PrivateName,
    lookup_in,
)
from burnish.torch_private.versions import is_at_least

if TYPE_CHECKING:
    from torch._dynamo import source as source
    from torch._dynamo.convert_frame import orig_code_map as orig_code_map
    from torch._dynamo.convert_frame import output_codes as output_codes
    from torch._dynamo.convert_frame import wrap_guarded_code as wrap_guarded_code
    from torch._dynamo.guards import CheckFunctionManager as CheckFunctionManager
    from torch._dynamo.guards import GuardBuilder as GuardBuilder
    from torch._dynamo.guards import ShapeCodeParts as ShapeCodeParts
    from torch._dynamo.guards import _get_closure_vars as get_closure_vars
    from torch._dynamo.guards import get_verbose_code_parts as get_verbose_code_parts
    from torch._dynamo.guards import install_guard as install_guard
    from torch._dynamo.output_graph import OutputGraphCommon as OutputGraphCommon
    from torch._dynamo.output_graph import OutputGraphGuardsState as OutputGraphGuardsState
    from torch._dynamo.output_graph import get_builtins_dict as get_builtins_dict
    from torch._dynamo.source import AttrSource as AttrSource
    from torch._dynamo.source import ConstDictKeySource as ConstDictKeySource
    from torch._dynamo.source import GetItemSource as GetItemSource
    from torch._dynamo.types import GuardedCode as GuardedCode
    from torch._dynamo.utils import CleanupHook as CleanupHook
    from torch._dynamo.utils import CleanupManager as CleanupManager
    from torch._guards import ChainedSource as ChainedSource
    from torch._guards import CompileId as CompileId
    from torch._guards import DuplicateInputs as DuplicateInputs
    from torch._guards import Guard as Guard
    from torch._guards import GuardSource as GuardSource
    from torch._guards import GuardsSet as GuardsSet
    from torch._guards import Source as Source
    from torch._guards import StorageOverlap as StorageOverlap
    from torch._guards import TracingContext as TracingContext
    from torch._guards import tracing as tracing
    from torch.fx.experimental.symbolic_shapes import _ShapeGuardsHelper as ShapeGuardsHelper
    from torch.utils import _device as device

NAMES = (
    PrivateName("torch._guards.Guard", "one check before a compiled frame is used"),
    PrivateName("torch._guards.Source", "where in a frame a guard looks"),
    PrivateName("torch._guards.ChainedSource", "a place within another place"),
    PrivateName("torch._guards.TracingContext", "what AOTAutograd found out about a graph"),
    PrivateName("torch._guards.tracing", "where a source's own guards go, as it is read", fallback=NO_WARM_START),
    PrivateName("torch._guards.CompileId", "names a restored frame in torch's logs", fallback=NO_WARM_START),
    PrivateName("torch._guards.DuplicateInputs", "which inputs are one tensor", fallback=NO_WARM_START),
    PrivateName("torch._guards.GuardSource", "a part of stored sources", fallback=NO_WARM_START),
    PrivateName("torch._guards.GuardsSet", "holds guards that are made again", fallback=NO_WARM_START),
    PrivateName("torch._guards.StorageOverlap", "which inputs share memory", fallback=NO_WARM_START),
    PrivateName("torch._dynamo.source", "the classes that stored sources may be of", fallback=NO_WARM_START),
    PrivateName("torch._dynamo.source.ConstDictKeySource", "a key of a dict from outside", fallback=IDENTITY_MISSED),
    PrivateName("torch._dynamo.source.AttrSource", "an attribute of what a block holds", fallback=NO_REGIONS),
    PrivateName("torch._dynamo.source.GetItemSource", "an element of a list that blocks share", fallback=NO_REGIONS),
    PrivateName("torch._dynamo.guards.CheckFunctionManager", "makes a manager of guards", fallback=NO_WARM_START),
    PrivateName(
        "torch._dynamo.guards.GuardBuilder", "the kinds of guards there are", fallback=NO_REGIONS_NOR_WARM_START
    ),
    PrivateName("torch._dynamo.guards.ShapeCodeParts", "guards between sizes", fallback=NO_WARM_START),
    PrivateName(
        "torch._dynamo.guards._get_closure_vars", "the names that a source's text is read with", fallback=NO_WARM_START
    ),
    PrivateName("torch._dynamo.guards.get_verbose_code_parts", "a guard as text", fallback=IDENTITY_MISSED),
    PrivateName("torch._dynamo.guards.install_guard", "guards for a block that was copied", fallback=NO_REGIONS),
    PrivateName(
        "torch._dynamo.output_graph.OutputGraphCommon", "what a manager of guards is made of", fallback=NO_WARM_START
    ),
    PrivateName(
        "torch._dynamo.output_graph.OutputGraphGuardsState",
        "what a manager of guards is made of",
        fallback=NO_WARM_START,
    ),
    PrivateName(
        "torch._dynamo.output_graph.get_builtins_dict", "the builtins that guards look at", fallback=NO_WARM_START
    ),
    PrivateName(
        "torch._dynamo.convert_frame.output_codes", "code that Dynamo made, and does not trace", fallback=NO_WARM_START
    ),
    PrivateName("torch._dynamo.convert_frame.orig_code_map", "which code that was made of", fallback=NO_WARM_START),
    PrivateName(
        "torch._dynamo.convert_frame.wrap_guarded_code", "a restored frame as Dynamo's answer", fallback=NO_WARM_START
    ),
    PrivateName("torch._dynamo.types.GuardedCode", "a restored frame", fallback=NO_WARM_START),
    PrivateName("torch._dynamo.utils.CleanupHook", "takes a restored graph out of the globals", fallback=NO_WARM_START),
    PrivateName(
        "torch._dynamo.utils.CleanupManager", "takes a restored graph out of the globals", fallback=NO_WARM_START
    ),
    PrivateName(
        "torch.fx.experimental.symbolic_shapes._ShapeGuardsHelper", "guards between sizes", fallback=NO_WARM_START
    ),
    PrivateName("torch.utils._device", "holds the default device, which guards and sealed calls compare"),
)

__getattr__ = lookup_in(globals(), NAMES)


def guards_are_whole() -> bool:
    """Whether Dynamo's guards look at each tensor in every call. Before 2.13 those of parameters are left out while the
    dict that holds them is as it was."""
    return is_at_least(2, 13)
