"""Reads at positions that are known in advance."""

from __future__ import annotations

from burnish.fuel import Fuel
from burnish.ir.graph import Gather, View
from burnish.passes.fold import gather_to_view
from burnish.passes.rewrite import rewrite
from tests.passes.start import SHAPE, check, start


def test_gathers_at_known_positions_become_views() -> None:
    s = start()
    at = s.b.iota((2,), lambda a: 1 - a)
    out = s.b.gather(s.x, SHAPE, [s.b.reshape(at, (2, 1))], lambda a, v: [v[0], a[1]])
    s.b.graph.outputs = [out]
    after = check(gather_to_view, s.b.graph)
    assert not any(isinstance(n.op, Gather) for n in after.nodes)
    assert any(isinstance(n.op, View) for n in after.nodes)


def test_gathers_that_may_leave_their_source_stay() -> None:
    s = start()
    at = s.b.iota((2,), lambda a: a + 1)
    s.b.graph.outputs = [s.b.gather(s.x, SHAPE, [s.b.reshape(at, (2, 1))], lambda a, v: [v[0], a[1]])]
    after = rewrite(s.b.graph, gather_to_view, "gathers", Fuel())
    assert any(isinstance(n.op, Gather) for n in after.nodes)
