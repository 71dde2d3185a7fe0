"""A call's entry into TorchDynamo, with minimal host overhead.

`torch.compile` returns a wrapper that handles every special case in every call: about 8 us of the 16 that a compiled
call of a tiny module costs. A `DirectCall` rules out the special cases with four cheap checks, installs Dynamo's frame
callback and calls. Otherwise it calls torch's own wrapper.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from torch.autograd import forward_ad

from burnish.capture.entry.definition import Definition
from burnish.capture.entry.diagnosis import GRAPH_BREAKS, Place, graph_break_error, is_callers_mistake
from burnish.capture.entry.failure_cause import RETURNED
from burnish.capture.entry.frame_compiler import FrameCompiler, LookAgain
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.host.function_modes import users_modes_are_active
from burnish.torch_private.dispatch import (
    is_fx_symbolic_tracing,
    is_tracing,
    len_torch_dispatch_stack,
    len_torch_function_stack,
)
from burnish.torch_private.dynamo import DynamoStance, eval_frame, set_eval_frame
from burnish.trust.checkpoints import RegionCalls, region_of_call
from burnish.trust.saved_tensor_hooks import innermost_hooks

# The object that torch.compiler.set_stance replaces and restores. (None, which is no stance, if it was already
# replaced.)
ORDINARY_STANCE = eval_frame._stance if eval_frame._stance == DynamoStance() else None
_LOOKS = 8  # checks of Dynamo's list before eager serves a call
_LOOK_SECONDS = 0.0005


class DirectCall:
    """`call` enters `frame` with `callback`; `general` is torch's own wrapper of the two."""

    def __init__(
        self,
        target: Callable[..., Any],
        frame: types.FunctionType,
        callback: FrameCompiler,
        general: Callable[..., Any],
        definition: Definition | None,
        afresh: Callable[[Definition, tuple[Any, ...], dict[str, Any]], Any],
        options: Options,
        log: CompileLog,
        place: Place,
    ) -> None:
        """`afresh` makes a call after a change of `definition`, when no compiled code fits any more."""
        self._target = target
        self._frame = frame
        self._callback = callback
        self._general = general
        self._definition = definition
        self._afresh = afresh
        self._as_error = GRAPH_BREAKS if options.fullgraph else ()
        self._log = log
        self._place = place
        self.call = self._make_call()

    def _make_call(self) -> Callable[..., Any]:
        # Every name that the call reads is a local of this function, because a call has a budget of a few us.
        set_callback, dispatch_modes, function_modes = (
            set_eval_frame,
            len_torch_dispatch_stack,
            len_torch_function_stack,
        )
        stances, ordinary, target = eval_frame, ORDINARY_STANCE, self._target
        fx_tracing, jit_tracing, duals = is_fx_symbolic_tracing, is_tracing, forward_ad
        frame, callback, is_ending = self._frame, self._callback, sys.is_finalizing
        definition, afresh, as_error = self._definition, self._afresh, self._as_error
        doubts, settle = callback.doubts.open, callback.doubts.settle
        generally, owner = self._settling(self._general), self._log
        # The special cases may change between the forward of a checkpointed region and its recomputation (torch.fx
        # traces in some thread, a stance was set). The recomputation uses the path of the forward.
        in_region = RegionCalls(owner, target, self._settling(self._enter)).run
        saved_tensor_hooks = innermost_hooks

        def call(*args: Any, **kwargs: Any) -> Any:
            if saved_tensor_hooks(True) is not None and (here := region_of_call(owner)) is not None:
                return in_region(here, call, args, kwargs)
            if definition is not None and definition.changed():
                return afresh(definition, args, kwargs)
            if fx_tracing() or jit_tracing():  # a tracer records the model: run the original code
                return target(*args, **kwargs)
            if duals._current_level >= 0:  # compiled code would lose the tangents
                self._log.noticed("call in eager: forward-mode differentiation is going on")
                return target(*args, **kwargs)
            if function_modes() and users_modes_are_active():
                self._log.noticed("call in eager: under a function mode")
                return target(*args, **kwargs)
            if stances._stance is not ordinary or dispatch_modes():
                return generally(*args, **kwargs)
            prior, broken = set_callback(callback), None
            try:
                result = frame(*args, **kwargs)
            except LookAgain:
                set_callback(prior)
                return self._look_again(self._enter, args, kwargs)
            except as_error as error:
                set_callback(prior)
                broken = error
            except BaseException as error:
                if doubts:
                    set_callback(prior)
                    settle(error)
                # a `__del__` at interpreter exit: Dynamo cannot start any more
                if not (isinstance(error, ImportError) and is_ending()):
                    raise
            else:
                if doubts:
                    set_callback(prior)
                    settle()
                return result
            finally:
                set_callback(prior)
            return target(*args, **kwargs) if broken is None else self._refuse(broken, args, kwargs)

        return call

    def _enter(self, *args: Any, **kwargs: Any) -> Any:
        prior = set_eval_frame(self._callback)
        try:
            return self._frame(*args, **kwargs)
        finally:
            set_eval_frame(prior)

    def _settling(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        """`enter`, with its end reported to those who doubt what Dynamo said. For rare paths: `call` does the same."""
        settle, as_error = self._callback.doubts.settle, self._as_error

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = enter(*args, **kwargs)
            except LookAgain:
                return self._look_again(enter, args, kwargs)
            except as_error as error:
                return self._refuse(error, args, kwargs)
            except BaseException as error:
                settle(error)
                raise
            settle()
            return result

        return run

    def _refuse(self, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """A graph break under fullgraph=True: raise an error, or eager's exception if the call raises in eager."""
        noted = self._callback.doubts.taken()
        if is_callers_mistake(error):
            self._target(*args, **kwargs)
        for doubt in noted:
            doubt.hear(RETURNED)
        raise graph_break_error(error, self._place) from error.with_traceback(None)

    def _look_again(self, enter: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """No code of the frame has run yet, so retry: another thread's change of Dynamo's list takes microseconds."""
        callback = self._callback
        for _ in range(_LOOKS):
            time.sleep(_LOOK_SECONDS)
            try:
                result = enter(*args, **kwargs)
            except LookAgain:
                continue
            except GRAPH_BREAKS as error:  # under fullgraph=True
                raise graph_break_error(error, self._place) from error.with_traceback(None)
            except BaseException as error:
                callback.doubts.settle(error)
                raise
            callback.doubts.settle()
            return result
        callback.excuse(self._frame.__code__)
        return self._target(*args, **kwargs)


def is_ordinary(definition: Definition | None) -> bool:
    """Whether none of the special cases applies, so that Dynamo serves the call."""
    traced = is_fx_symbolic_tracing() or is_tracing()
    followed = traced or forward_ad._current_level >= 0 or users_modes_are_active()
    changed = definition is not None and definition.changed()
    return not followed and eval_frame._stance is ORDINARY_STANCE and not changed
