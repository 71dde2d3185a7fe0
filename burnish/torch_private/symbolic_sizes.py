"""Symbolic sizes, as torch traces them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.torch_private.names import PrivateName, lookup_in

if TYPE_CHECKING:
    from torch.fx.experimental import _config as config

NAMES = (
    PrivateName(
        "torch.fx.experimental._config",
        "whether sizes that happen to be equal are one symbol",
        fallback="sizes that are equal in a traced call are taken for one",
        instead=None,
    ),
)

__getattr__ = lookup_in(globals(), NAMES)
