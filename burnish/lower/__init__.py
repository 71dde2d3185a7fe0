"""Lowerings of ATen operations to graph operations: one function per op, registered by name."""

from burnish.lower import contractions, convolutions, gradients, indexing, nn, pointwise, reductions, views
from burnish.lower.registry import LOWERINGS, lowered_names

__all__ = [
    "LOWERINGS",
    "contractions",
    "convolutions",
    "gradients",
    "indexing",
    "lowered_names",
    "nn",
    "pointwise",
    "reductions",
    "views",
]
