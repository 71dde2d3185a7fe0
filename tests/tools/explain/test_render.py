"""What `burnish explain` prints of what it found."""

from __future__ import annotations

from burnish.stats import RegionStats, Stats
from burnish.tools.explain.render import as_text
from burnish.tools.explain.result import Explanation


def test_repeated_blocks_are_listed_with_why_one_was_not_shared() -> None:
    regions = (RegionStats("encoder.layer", 1, 11, 12), RegionStats("decoder.layer", 2, 4, 5, "its eps is another"))
    found = Explanation(
        name="model", stats=Stats(regions=regions), breaks=(), recompiles=(), aten_calls=(), graphs=(), ceiling=1e9,
        first_call_seconds=1.0, call_seconds=1e-3, outside_seconds=1e-4,
    )  # fmt: skip
    text = as_text(found)
    assert "encoder.layer: 1 traced, 11 copied, 12 as one" in text
    assert "decoder.layer: 2 traced, 4 copied" in text and "its eps is another" in text
