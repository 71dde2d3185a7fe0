"""backend="auto": Inductor serves the graphs at which it is faster, judged as ours are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import burnish
from burnish.errors import UnknownBackend
from burnish.trust.faults import RaisesInCompile, Slower, WrongBy
from tests.against_eager import fallback_warnings

X = torch.randn(64, 256)


def fn(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.sin(x) * 0.5 + torch.cos(x).abs().sqrt()
    return x.softmax(-1)


@pytest.mark.parametrize("fault", [Slower(), WrongBy(0.01), RaisesInCompile()], ids=lambda f: type(f).__name__)
def test_inductor_serves_where_we_cannot(fault):
    compiled = burnish.compile(fn, backend="auto", options={"fault": fault}, gate=True)
    for _ in range(3):
        result, _ = fallback_warnings(lambda: compiled(X))
        torch.testing.assert_close(result, fn(X))
    (variant,) = burnish.stats(compiled).variants
    # Whether it beats eager depends on the machine; what it must not be is ours.
    assert variant.engine in ("inductor", "eager"), variant
    assert "inductor" in dict(variant.gate.engines_us) and ("burnish" in dict(variant.gate.engines_us)) == isinstance(
        fault, Slower
    )
    assert burnish.stats(compiled).compiles == 1


def test_both_are_raced_and_the_result_is_right():
    model = nn.Sequential(nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 8)).eval()
    compiled = burnish.compile(model, backend="auto", gate=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
    (variant,) = burnish.stats(compiled).variants
    assert {name for name, _ in variant.gate.engines_us} == {"burnish", "inductor"}
    fastest = min(variant.gate.engines_us, key=lambda item: item[1])[0]
    assert variant.engine in (fastest, "eager")


def test_without_a_race_inductor_is_not_asked():
    compiled = burnish.compile(fn, backend="auto", gate=False)
    compiled(X)
    stats = burnish.stats(compiled)
    assert stats.variants[0].engine == "burnish" and "inductor" not in stats.seconds


def test_a_mistyped_backend():
    with pytest.raises(UnknownBackend, match="auto"):
        burnish.compile(fn, backend="autos")
