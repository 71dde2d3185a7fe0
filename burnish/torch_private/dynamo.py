"""TorchDynamo's way in, its cache and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.torch_private.names import (
    AS_TORCH_DOES,
    NO_BACKGROUND_PAUSES,
    NO_REGIONS,
    ORDER_OF_SETS,
    PrivateName,
    lookup_in,
)

if TYPE_CHECKING:
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list as debug_get_cache_entry_list
    from torch._C._dynamo.eval_frame import reset_code as reset_code
    from torch._C._dynamo.eval_frame import set_code_exec_strategy as set_code_exec_strategy
    from torch._C._dynamo.eval_frame import set_eval_frame as set_eval_frame
    from torch._C._dynamo.guards import GlobalStateGuard as GlobalStateGuard
    from torch._dynamo import config as config
    from torch._dynamo import convert_frame as convert_frame
    from torch._dynamo import disable as disable
    from torch._dynamo import eval_frame as eval_frame
    from torch._dynamo import graph_break as graph_break
    from torch._dynamo import guards as guards
    from torch._dynamo import list_backends as list_backends
    from torch._dynamo import mark_dynamic as mark_dynamic
    from torch._dynamo import mark_static_address as mark_static_address
    from torch._dynamo import optimize as optimize
    from torch._dynamo import output_graph as output_graph
    from torch._dynamo import polyfills as polyfills
    from torch._dynamo import register_backend as register_backend
    from torch._dynamo import reset as reset
    from torch._dynamo import symbolic_convert as symbolic_convert
    from torch._dynamo.bytecode_transformation import create_call_function as create_call_function
    from torch._dynamo.bytecode_transformation import create_instruction as create_instruction
    from torch._dynamo.bytecode_transformation import transform_code_object as transform_code_object
    from torch._dynamo.convert_frame import compile_lock as compile_lock
    from torch._dynamo.eval_frame import DynamoStance as DynamoStance
    from torch._dynamo.eval_frame import innermost_backend as innermost_backend
    from torch._dynamo.eval_frame import set_enable_dynamic as set_enable_dynamic
    from torch._dynamo.exc import FailOnRecompileLimitHit as FailOnRecompileLimitHit
    from torch._dynamo.exc import RestartAnalysis as RestartAnalysis
    from torch._dynamo.exc import ResumePrologueTracingError as ResumePrologueTracingError
    from torch._dynamo.exc import SkipFrame as SkipFrame
    from torch._dynamo.exc import TorchDynamoException as TorchDynamoException
    from torch._dynamo.exc import TorchRuntimeError as TorchRuntimeError
    from torch._dynamo.exc import UncapturedHigherOrderOpError as UncapturedHigherOrderOpError
    from torch._dynamo.exc import Unsupported as Unsupported
    from torch._dynamo.exc import UserError as UserError
    from torch._dynamo.mutation_guard import install_generation_tagging_init as install_generation_tagging_init
    from torch._dynamo.output_graph import OutputGraph as OutputGraph
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase as InstructionTranslatorBase
    from torch._dynamo.trace_rules import check as check
    from torch._dynamo.types import ConvertFrameReturn as ConvertFrameReturn
    from torch._dynamo.types import FrameAction as FrameAction
    from torch._dynamo.types import FrameExecStrategy as FrameExecStrategy
    from torch._dynamo.utils import compilation_time_metrics as compilation_time_metrics
    from torch._dynamo.utils import get_compilation_metrics as get_compilation_metrics
    from torch._dynamo.utils import graph_break_reasons as graph_break_reasons


def _as_it_is(function: Any, **settings: Any) -> Any:
    return function


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _no_backends(exclude_tags: Sequence[str]) -> list[str]:
    return []


NAMES = (
    PrivateName("torch._dynamo.optimize", "the context in which Dynamo traces with our backend"),
    PrivateName("torch._dynamo.disable", "keeps Dynamo out of a function", instead=_as_it_is),
    PrivateName("torch._dynamo.reset", "forgets everything compiled in the process", instead=_nothing),
    PrivateName("torch._dynamo.graph_break", "traced: what is around it is left to eager", instead=_nothing),
    PrivateName(
        "torch._dynamo.list_backends",
        "the backends that an error message names",
        fallback="only names of backends that every torch has are known",
        instead=_no_backends,
    ),
    PrivateName(
        "torch._dynamo.register_backend",
        "lets torch.compile find us where the package is not installed",
        fallback='torch.compile(backend="burnish") works where the package is installed',
        instead=_nothing,
    ),
    PrivateName("torch._dynamo.mark_static_address", "promises that a cache stays where it is in memory"),
    PrivateName(
        "torch._dynamo.mark_dynamic",
        "traces a size as a symbol, to prove that it may be padded",
        fallback="no dimension is padded",
    ),
    PrivateName("torch._dynamo.config", "Dynamo's settings: the recompile limit, which guards are checked"),
    PrivateName("torch._dynamo.eval_frame", "holds the stance that torch.compiler.set_stance replaces"),
    PrivateName("torch._dynamo.eval_frame._stance", "whether a stance other than the ordinary one is set"),
    PrivateName("torch._dynamo.eval_frame.DynamoStance", "what the ordinary stance is equal to"),
    PrivateName("torch._dynamo.eval_frame.innermost_backend", "tells whose entry in Dynamo's cache is ours"),
    PrivateName("torch._dynamo.eval_frame.set_enable_dynamic", "the user's dynamic=True or False"),
    PrivateName("torch._dynamo.convert_frame", "holds functions that are replaced for a while"),
    PrivateName("torch._dynamo.guards", "holds functions that are replaced for a while"),
    PrivateName("torch._dynamo.output_graph", "holds functions that are replaced for a while", fallback=AS_TORCH_DOES),
    PrivateName(
        "torch._dynamo.symbolic_convert", "holds functions that are replaced for a while", fallback=AS_TORCH_DOES
    ),
    PrivateName(
        "torch._dynamo.polyfills", "functions of Python's that Dynamo traces in another way", fallback=ORDER_OF_SETS
    ),
    PrivateName("torch._dynamo.output_graph.OutputGraph", "has a method that is replaced for a while"),
    PrivateName(
        "torch._dynamo.symbolic_convert.InstructionTranslatorBase",
        "has a method that is replaced for a while",
        fallback=NO_BACKGROUND_PAUSES,
    ),
    PrivateName("torch._dynamo.convert_frame.compile_lock", "held while something is compiled: Dynamo's own"),
    PrivateName(
        "torch._dynamo.mutation_guard.install_generation_tagging_init",
        "what Dynamo's own entry does before it compiles",
    ),
    PrivateName("torch._dynamo.trace_rules.check", "whether Dynamo leaves a function alone"),
    PrivateName("torch._dynamo.types.ConvertFrameReturn", "the answer to Dynamo's question what to do with a frame"),
    PrivateName("torch._dynamo.types.FrameAction", "a part of that answer"),
    PrivateName("torch._dynamo.types.FrameExecStrategy", "a part of that answer"),
    PrivateName("torch._C._dynamo.eval_frame.set_eval_frame", "installs the callback that compiles frames"),
    PrivateName("torch._C._dynamo.eval_frame.reset_code", "forgets what was compiled for a code object"),
    PrivateName(
        "torch._C._dynamo.eval_frame.set_code_exec_strategy", "stops Dynamo from compiling a code object again"
    ),
    PrivateName(
        "torch._C._dynamo.eval_frame._debug_get_cache_entry_list", "what is compiled for a code object, and its guards"
    ),
    PrivateName(
        "torch._C._dynamo.guards.GlobalStateGuard", "compares the process's settings with those at the first call"
    ),
    PrivateName("torch._dynamo.exc.FailOnRecompileLimitHit", "a failure to tell from others"),
    PrivateName("torch._dynamo.exc.ResumePrologueTracingError", "a failure to tell from others"),
    PrivateName("torch._dynamo.exc.RestartAnalysis", "a failure to tell from others"),
    PrivateName("torch._dynamo.exc.SkipFrame", "a failure to tell from others"),
    PrivateName("torch._dynamo.exc.TorchDynamoException", "a failure to tell from others", fallback=NO_REGIONS),
    PrivateName("torch._dynamo.exc.TorchRuntimeError", "a failure to tell from others"),
    PrivateName("torch._dynamo.exc.UncapturedHigherOrderOpError", "a failure to tell from others"),
    PrivateName("torch._dynamo.exc.Unsupported", "a graph break under fullgraph=True"),
    PrivateName("torch._dynamo.exc.UserError", "a mistake of the caller's, as Dynamo sees it"),
    PrivateName("torch._dynamo.utils.compilation_time_metrics", "how long Dynamo took to make guards"),
    PrivateName("torch._dynamo.utils.get_compilation_metrics", "why a frame was compiled again"),
    PrivateName("torch._dynamo.utils.graph_break_reasons", "where a graph broke, and why"),
    PrivateName("torch._dynamo.bytecode_transformation.create_instruction", "sealed calls: writes bytecode"),
    PrivateName("torch._dynamo.bytecode_transformation.create_call_function", "sealed calls: writes bytecode"),
    PrivateName("torch._dynamo.bytecode_transformation.transform_code_object", "sealed calls: writes bytecode"),
)

__getattr__ = lookup_in(globals(), NAMES)
