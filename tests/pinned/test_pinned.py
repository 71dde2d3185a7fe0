"""No kernel of the built-in workloads changes unnoticed: `python -m tests.pinned --write` pins what there is now."""

from __future__ import annotations

import json

import pytest

from burnish.tools.workloads import WORKLOADS
from tests.pinned.workloads import MADE_WITH, PINNED, TARGETS, compiled

KEPT = json.loads(PINNED.read_text())


@pytest.mark.skipif(KEPT["made_with"] != MADE_WITH, reason=f"pinned with {KEPT['made_with']}")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_kernels_are_those_that_were_pinned(name: str, target: str) -> None:
    made = {graph.name: graph.pin for graph in compiled(WORKLOADS[name], "tiny", target)}
    assert made == {graph: pin for graph, pin in KEPT["graphs"].items() if graph.startswith(f"{name}.{target}.tiny.")}
