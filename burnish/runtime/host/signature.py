"""The signature of a sealed call: a key of its arguments and the thread's state, computed by source generated for their
number.

See `burnish.handle.Handle.seal` for the list. Arguments are compared by properties that are cheap to read and determine
the fitting program; a tensor's key takes at most seven attribute reads.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from burnish.runtime.host.function_modes import default_devices
from burnish.torch_private.dispatch import is_any_autocast_enabled, len_torch_function_stack
from burnish.torch_private.tensors import dispatch_keys

Key = tuple[Hashable, ...]
KeyMaker = Callable[[tuple[Any, ...], dict[str, Any]], Key]

BY_VALUE = (int, str, bool, type(None), bytes, type(Ellipsis), torch.dtype, torch.device, torch.layout)
TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@functools.cache
def ignored_keys() -> int:
    """Dispatch keys, as a word of bits, in which tensors of one kind of memory may differ: those of autograd."""
    with torch.inference_mode():
        inference = torch.empty(0)
    return int(dispatch_keys(torch.empty(0)).raw_repr() ^ dispatch_keys(inference).raw_repr())


class Same:
    """An object compared by identity, kept alive so that its id is not reused."""

    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.held is other.held


def key_maker(target: object, positional: int, keywords: Sequence[str]) -> KeyMaker:
    """The key of a call with so many positional arguments and these keywords. Tensors among the arguments are
    described by inlined source: a call to a function for each would be half of what a sealed call costs."""
    names = [f"a{k}" for k in range(positional)] + [f"k{k}" for k in range(len(keywords))]
    lines = ["def key(args, kwargs):"]
    if positional:
        lines.append(f"    {''.join(name + ', ' for name in names[:positional])}= args")
    lines += [f"    k{k} = kwargs[{word!r}]" for k, word in enumerate(keywords)]
    lines.append("    tensors = []")
    parts = ["grad()", "inference()", "autocast() and autocast_state()", "function_modes() and default_devices()"]
    parts.append(repr((positional, *keywords)))  # the same values under other names are another call
    if isinstance(target, torch.nn.Module):
        parts.append("target.training")
    for n, name in enumerate(names):
        lines.append(f"    if type({name}) is Tensor:")
        lines.append(f"        tensors.append({name})")
        lines.append(f"        d{n} = {_TENSOR_KEY.replace('x', name)}")
        lines.append("    else:")
        lines.append(f"        d{n} = describe({name}, tensors)")
        parts.append(f"d{n}")
    lines.append(f"    return ({', '.join(parts)}, len(tensors) > 1 and repeated(tensors))")
    namespace: dict[str, Any] = {
        "target": target,
        "Tensor": torch.Tensor,
        "keys": dispatch_keys,
        "describe": describe,
        "repeated": _repeated,
        "grad": torch.is_grad_enabled,
        "inference": torch.is_inference_mode_enabled,
        "autocast": is_any_autocast_enabled,
        "autocast_state": _autocast_state,
        "function_modes": len_torch_function_stack,
        "default_devices": default_devices,
    }
    exec(compile("\n".join(lines), "<burnish signature>", "exec"), namespace)
    made: KeyMaker = namespace["key"]
    return made


_TENSOR_KEY = "(x.shape, x.stride(), x.dtype, x.device, x.requires_grad, keys(x).raw_repr())"
_tensor_key: Callable[[torch.Tensor], Key] = eval(f"lambda x: {_TENSOR_KEY}", {"keys": dispatch_keys})


def describe(x: Any, tensors: list[torch.Tensor]) -> Hashable:
    """A part of a key; tensors found on the way are appended to `tensors`."""
    kind = type(x)
    if kind in TENSORS:
        tensors.append(x)
        return _tensor_key(x)
    if kind in BY_VALUE:
        return kind, x
    if kind is float:
        return kind, x.hex()  # 0.0 and -0.0 differ, and NaN is NaN
    if kind in (tuple, list, torch.Size) or (isinstance(x, tuple) and hasattr(x, "_fields")):
        return (kind, *(describe(item, tensors) for item in x))
    if kind in (dict, OrderedDict):
        return (kind, *((name, describe(item, tensors)) for name, item in x.items()))
    return Same(x)


def _repeated(tensors: list[torch.Tensor]) -> Hashable:
    """Which arguments are one and the same tensor."""
    ids = list(map(id, tensors))
    return len(set(ids)) != len(ids) and tuple(map(ids.index, ids))


def _autocast_state() -> Hashable:
    on = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    return tuple((d, torch.get_autocast_dtype(d)) for d in on)
