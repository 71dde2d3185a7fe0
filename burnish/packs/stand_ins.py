"""What Dynamo's code for results takes from Dynamo's own modules, without importing these."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

from burnish.runtime.host.extension import host_if_built
from burnish.torch_private.without_dynamo import UTILS


def _set_in_dict(obj: Any, name: str, value: Any) -> None:
    """Set an attribute as `object.__setattr__` does for one that no descriptor handles."""
    owner = threading.local if isinstance(obj, threading.local) else object
    owner.__getattribute__(obj, "__dict__")[name] = value


# By Dynamo's modules and their names.
STAND_INS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    UTILS: {"object_setattr_ignore_descriptor": _set_in_dict},
}


def stand_in(module: str) -> types.SimpleNamespace:
    found = dict(STAND_INS.get(module, {}))
    host = host_if_built()
    if host is not None and "object_setattr_ignore_descriptor" in found:
        found["object_setattr_ignore_descriptor"] = host.set_in_dict
    return types.SimpleNamespace(**found)
