"""The proof that padding a graph's inputs is safe (`burnish/shapes/padding.py`), for a graph as Dynamo captures it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from burnish.bucketed.form import Padded
from burnish.bucketed.tracer import Proven, Unprovable


def prove_padding(graph: fx.GraphModule, examples: Sequence[Any], padded: Sequence[Padded]) -> Proven:
    raise Unprovable("nothing can be proven yet")
