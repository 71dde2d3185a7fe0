"""burnish: a compiler for PyTorch models. `model = burnish.compile(model)`."""

from __future__ import annotations

import importlib as _importlib
import sys as _sys
import types as _types
from importlib import metadata as _metadata
from typing import TYPE_CHECKING, Any

from burnish.version import __version__ as __version__

if TYPE_CHECKING:
    from burnish import errors
    from burnish.api import compile, disable, reset, seal, stats
    from burnish.capture.regions.blocks import region
    from burnish.observe import metrics
    from burnish.options import Options
    from burnish.packs.loading import load
    from burnish.packs.packing import pack
    from burnish.stats import Stats
    from burnish.tools.bench import bench
    from burnish.tools.explain import explain
    from burnish.tools.verify import verify
    from burnish.warmup import warmup

__all__ = [
    "Options",
    "Stats",
    "__version__",
    "bench",
    "compile",
    "disable",
    "errors",
    "explain",
    "load",
    "metrics",
    "pack",
    "region",
    "reset",
    "seal",
    "stats",
    "verify",
    "warmup",
]

# The module of each public name, imported at first use: importing torch takes seconds, and `burnish --help` does not
# need it.
_HOMES = {
    "Options": "burnish.options",
    "Stats": "burnish.stats",
    "bench": "burnish.tools.bench",
    "compile": "burnish.api",
    "disable": "burnish.api",
    "explain": "burnish.tools.explain",
    "load": "burnish.packs.loading",
    "metrics": "burnish.observe",
    "pack": "burnish.packs.packing",
    "region": "burnish.capture.regions.blocks",
    "reset": "burnish.api",
    "seal": "burnish.api",
    "stats": "burnish.api",
    "verify": "burnish.tools.verify",
    "warmup": "burnish.warmup",
}


class _Package(_types.ModuleType):
    """This package. Keeps `burnish.stats` a function: importing the submodule `stats` would replace it."""

    def __getattr__(self, name: str) -> Any:
        if name in _HOMES:
            value = getattr(_importlib.import_module(_HOMES[name]), name)
            setattr(self, name, value)
            return value
        if not name.startswith("_"):
            try:
                return _importlib.import_module(f"burnish.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"burnish.{name}":
                    raise
        raise AttributeError(f"module 'burnish' has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, _types.ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


_sys.modules[__name__].__class__ = _Package


def _register_backend() -> None:
    """Register the backend for `torch.compile(model, backend="burnish")`. If the package is installed, torch finds the
    entry point itself, and nothing is imported now."""
    try:
        _metadata.distribution("burnish")
    except _metadata.PackageNotFoundError:
        from burnish.capture.dynamo import burnish_backend
        from burnish.torch_private.dynamo import register_backend

        register_backend(burnish_backend, name="burnish")


_register_backend()
