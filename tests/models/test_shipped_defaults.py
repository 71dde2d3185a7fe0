"""Models with the gate as well, and a second object of each, which starts warm.

Which engine serves is up to the race, so these tests ask for results and compile counts only.
"""

from __future__ import annotations

import copy

import pytest

import burnish
from burnish.tools.targets import Target
from tests.models.test_architectures import build, judge

CALLS = 3  # the trial, the first call of the race, and another


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama", "vit", "resnet"])
@pytest.mark.parametrize("kind", ["inference", "train"])
def test_a_cold_and_a_warm_object(name: str, kind: str) -> None:
    target = build(name, kind)
    compiles = [called(target), called(target)]
    # The second object's graph and guards come from the cache, unless a training step writes to buffers.
    assert compiles == ([1, 1] if (name, kind) == ("resnet", "train") else [1, 0])


def called(target: Target) -> int:
    """The graphs that a new compiled object traces, with every call's results judged."""
    own = Target(target.name, copy.deepcopy(target.model), target.inputs, target.kind)
    compiled = burnish.compile(own.model)
    for _ in range(CALLS):
        judge(own, compiled)
    stats = burnish.stats(compiled)
    assert stats.fallbacks == () and stats.rollbacks == {} and stats.recompiles == ()
    return 0 if "dynamo" not in stats.seconds else stats.compiles
