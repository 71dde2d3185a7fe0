"""Lowerings of ATen operations to graph operations: one function per op, registered by name.

All modules of this package are loaded here, so that a new file of lowerings is known without a list of files.
"""

import importlib
import pkgutil

from burnish.lower.registry import LOWERINGS, lowered_names

__all__ = ["LOWERINGS", "lowered_names"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
