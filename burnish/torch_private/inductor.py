"""Inductor: its settings, and its program where it takes part in the race."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.torch_private.names import PrivateName, lookup_in

if TYPE_CHECKING:
    from torch._inductor import config as config
    from torch._inductor.compile_fx import compile_fx as compile_fx

NAMES = (
    PrivateName("torch._inductor.config", "the switch by which AOTAutograd keeps draws that nobody reads"),
    PrivateName(
        "torch._inductor.compile_fx.compile_fx",
        'Inductor\'s program for a graph (backend="auto")',
        fallback="Inductor takes no part in the race",
    ),
)

__getattr__ = lookup_in(globals(), NAMES)
