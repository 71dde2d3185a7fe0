"""The recent calls of a sealed object, compared in C with the next call.

The comparison covers the data that `signature.py` puts into a key, read from the call's arguments. A call that differs,
or has arguments of other types, takes the Python path, which decides. So the C code need not be complete.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from burnish.assumptions import AssumptionUnmet
from burnish.capture.entry.definition import Attribute, Definition
from burnish.runtime.host.extension import Host
from burnish.runtime.host.signature import BY_VALUE, TENSORS, Key
from burnish.torch_private.dispatch import (
    is_any_autocast_enabled,
    is_tracing,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    where_fx_tracing_is_kept,
)
from burnish.torch_private.dynamo import set_eval_frame
from burnish.torch_private.guards import device as default_device

_TENSOR, _VALUE, _FLOAT, _REFUSED = range(4)  # as sealed.h numbers them
_KINDS: dict[type, int] = {
    **dict.fromkeys(TENSORS, _TENSOR),
    **dict.fromkeys(BY_VALUE, _VALUE),
    float: _FLOAT,
    **dict.fromkeys((tuple, list, dict, OrderedDict, torch.Size), _REFUSED),  # Python looks into them
}
_PATIENCE = 64  # calls without a fitting route, with all slots full, before a slot is replaced
_MANY = 256


class KnownCalls:
    """`call` is the sealed entrance: it calls a fitting route, or `otherwise`."""

    def __init__(
        self,
        host: Host,
        definition: Definition | None,
        stance: Attribute,
        otherwise: Callable[..., Any],
        refused: Callable[..., Any],
    ) -> None:
        self._host = host
        self._definition = definition
        self.call = host.Sealed(otherwise, set_eval_frame, AssumptionUnmet, refused)
        self._known: OrderedDict[Key, Any] = OrderedDict()
        self._refused: frozenset[Key] = frozenset()
        self._misses = 0
        fx_attributes, self._fx_state = where_fx_tracing_is_kept()
        self._attributes: tuple[Attribute, ...] = (
            stance,
            *fx_attributes,
            (forward_ad, "_current_level", -1),  # compiled code would lose the tangents
        )

    def add(
        self,
        key: Key,
        route: tuple[Callable[[], bool], Callable[[], bool], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Calls with this key take `route`. Called after no known call matched, so a known call with the same key is
        from another state of the process, and is replaced."""
        if key in self._refused or is_any_autocast_enabled():  # with its types: more than one check
            return
        if len_torch_function_stack() > 1:
            return
        if self._definition is not None and self._definition.is_asked_each_call:
            return
        if self._known.pop(key, None) is not None:
            self._put_all()
        elif self.call.count >= self._host.MOST_ROUTES:
            self._misses += 1
            if self._misses % _PATIENCE:
                return
            self._known.popitem(last=False)
            self._put_all()
        made = self._made(route, args, kwargs)
        if made is None:  # not plain arguments: Python handles lists and dicts
            self._refused = frozenset((key,)) if len(self._refused) >= _MANY else self._refused | {key}
            return
        self._known[key] = made
        self.call.add(made)

    def forget(self, key: Key) -> None:
        if self._known.pop(key, None) is not None:
            self._put_all()

    def _put_all(self) -> None:
        self.call.forget()
        for each in self._known.values():
            self.call.add(each)

    def _made(
        self, route: tuple[Callable[[], bool], Callable[[], bool], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        state = (
            (len_torch_dispatch_stack, 0),
            (len_torch_function_stack, len_torch_function_stack()),  # one is that of the default device, see below
            (is_tracing, False),
            *self._fx_state,
            (is_any_autocast_enabled, False),
            (torch.is_grad_enabled, torch.is_grad_enabled()),
            (torch.is_inference_mode_enabled, torch.is_inference_mode_enabled()),
            (route[0], True),
            (route[1], True),
        )
        own = self._definition.attributes() if self._definition is not None else ()
        place = (default_device, "CURRENT_DEVICE", default_device.CURRENT_DEVICE)
        attributes = (*self._attributes, place, *own)
        try:
            return self._host.Route(args, kwargs, _KINDS, TENSORS, state, attributes, route[2])
        except ValueError:
            return None
