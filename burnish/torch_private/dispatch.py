"""The state of the calling thread: modes, autocast, layers of functorch, and whatever traces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from burnish.torch_private.names import NO_REGIONS, UNTIL_2_13, PrivateName, look_up, lookup_in

if TYPE_CHECKING:
    from torch._C import DisableTorchFunction as DisableTorchFunction
    from torch._C import _DisableAutocast as DisableAutocast
    from torch._C import _DisablePythonDispatcher as DisablePythonDispatcher
    from torch._C import _dispatch_tls_local_exclude_set as dispatch_tls_local_exclude_set
    from torch._C import _dispatch_tls_local_include_set as dispatch_tls_local_include_set
    from torch._C import _exit_dual_level as exit_dual_level
    from torch._C import _ForceDispatchKeyGuard as ForceDispatchKeyGuard
    from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
    from torch._C import _is_tracing as is_tracing
    from torch._C import _len_torch_dispatch_stack as len_torch_dispatch_stack
    from torch._C import _len_torch_function_stack as len_torch_function_stack
    from torch._C._functorch import get_dynamic_layer_stack_depth as get_dynamic_layer_stack_depth
    from torch._C._functorch import is_batchedtensor as is_batchedtensor
    from torch._C._functorch import is_legacy_batchedtensor as is_legacy_batchedtensor
    from torch._C._functorch import peek_interpreter_stack as peek_interpreter_stack
    from torch._C._functorch import (
        pop_dynamic_layer_stack_and_undo_to_depth as pop_dynamic_layer_stack_and_undo_to_depth,
    )
    from torch.amp.autocast_mode import _enter_autocast as enter_autocast
    from torch.amp.autocast_mode import _exit_autocast as exit_autocast
    from torch.fx import _symbolic_trace as symbolic_trace
    from torch.fx._symbolic_trace import is_fx_symbolic_tracing as is_fx_symbolic_tracing
    from torch.overrides import _get_current_function_mode_stack as get_current_function_mode_stack
    from torch.overrides import _pop_mode as pop_mode
    from torch.overrides import _push_mode as push_mode
    from torch.utils._device import DeviceContext as DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

Attributes = tuple[tuple[object, str, object], ...]
Results = tuple[tuple[Callable[[], object], object], ...]

_FX_FLAG = "_is_fx_tracing_flag"
_AS_ONE = "a backward takes many gradients at once for one, and raises where it cannot"


def _never(x: object) -> bool:
    return False


def where_fx_tracing_is_kept() -> tuple[Attributes, Results]:
    """What to compare in each call to know that torch.fx does not trace: attributes, and what functions return."""
    held: Any = look_up("torch.fx._symbolic_trace")
    if hasattr(held, _FX_FLAG):
        return ((held, _FX_FLAG, False),), ()
    return (), ((held.is_fx_symbolic_tracing, False),)  # torch 2.14: each thread has a flag of its own


NAMES = (
    PrivateName("torch._C._len_torch_dispatch_stack", "whether a dispatch mode is active"),
    PrivateName("torch._C._len_torch_function_stack", "whether a function mode is active"),
    PrivateName("torch._C.DisableTorchFunction", "hides what we do ourselves from function modes"),
    PrivateName("torch._C._is_tracing", "whether torch.jit traces"),
    PrivateName("torch._C._is_any_autocast_enabled", "whether autocast is on"),
    PrivateName("torch._C._DisableAutocast", "switches it off for a while"),
    PrivateName("torch._C._DisablePythonDispatcher", "asks eager, not a fake mode"),
    PrivateName("torch._C._ForceDispatchKeyGuard", "puts the dispatch state back after a failure"),
    PrivateName("torch._C._dispatch_tls_local_include_set", "the dispatch state"),
    PrivateName("torch._C._dispatch_tls_local_exclude_set", "the dispatch state"),
    PrivateName("torch._C._exit_dual_level", "leaves forward-mode differentiation after a failure"),
    PrivateName("torch._C._functorch.get_dynamic_layer_stack_depth", "how many transforms of torch.func are active"),
    PrivateName(
        "torch._C._functorch.is_batchedtensor",
        "whether a gradient is many, of torch.func.vmap",
        fallback=_AS_ONE,
        instead=_never,
    ),
    PrivateName(
        "torch._C._functorch.is_legacy_batchedtensor",
        "whether a gradient is many, by is_grads_batched=True",
        fallback=_AS_ONE,
        instead=_never,
    ),
    PrivateName("torch._C._functorch.peek_interpreter_stack", "whether one is active"),
    PrivateName("torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth", "leaves them after a failure"),
    PrivateName("torch.autograd.forward_ad._current_level", "whether forward-mode differentiation is going on"),
    PrivateName("torch.fx._symbolic_trace", "holds whether torch.fx traces"),
    PrivateName("torch.fx._symbolic_trace.is_fx_symbolic_tracing", "whether torch.fx traces"),
    PrivateName(
        f"torch.fx._symbolic_trace.{_FX_FLAG}",
        "the same, as the C extension reads it",
        seen_in=UNTIL_2_13,
        fallback="is_fx_symbolic_tracing is called instead",
        instead=None,
    ),
    PrivateName(
        "torch.amp.autocast_mode._enter_autocast", "autocast as a captured graph enters it", fallback=NO_REGIONS
    ),
    PrivateName(
        "torch.amp.autocast_mode._exit_autocast", "autocast as a captured graph leaves it", fallback=NO_REGIONS
    ),
    PrivateName(
        "torch.overrides._get_current_function_mode_stack", "function modes, taken along to the compiling thread"
    ),
    PrivateName("torch.overrides._pop_mode", "function modes, taken along to the compiling thread"),
    PrivateName("torch.overrides._push_mode", "function modes, taken along to the compiling thread"),
    PrivateName(
        "torch.utils._device.DeviceContext", "the function mode of a default device, which only places tensors"
    ),
    PrivateName(
        "torch.utils._python_dispatch.TorchDispatchMode", "sees every operation: records draws, rounds at random"
    ),
    PrivateName("torch.utils._python_dispatch._disable_current_modes", "real tensors, where a fake mode is active"),
    PrivateName("torch.utils._python_dispatch.is_traceable_wrapper_subclass", "a tensor made of other tensors"),
)

__getattr__ = lookup_in(globals(), NAMES)
