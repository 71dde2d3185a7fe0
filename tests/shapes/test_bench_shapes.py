"""`burnish bench TARGET --shapes TRAFFIC`: strategies side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.errors import BadOptionValue, BadShapes
from burnish.tools.bench.machine import this_machine
from burnish.tools.bench.varying import ShapesResult, StrategyResult, bench_shapes
from burnish.tools.cli import main
from burnish.tools.report.varying import page

MODEL = """
import torch
from torch import nn

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.embed(ids)).relu()

def build():
    return Tokens().eval(), (torch.randint(50, (1, 8)),)
"""


@pytest.mark.timeout(600)
def test_two_strategies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    out = tmp_path / "out.json"
    arguments = ["bench", f"{model}:build", "--shapes", "uniform:4-24,batch=2-3", "--requests", "24"]
    report = tmp_path / "out.html"
    written = ["--json", str(out), "--html", str(report)]
    assert main([*arguments, "--candidates", "eager,buckets", *written]) == 0
    said = capsys.readouterr().out
    assert "requests/s" in said and "buckets: planned sequence" in said
    eager, buckets = json.loads(out.read_text())["rows"]
    assert eager["compiles"] == 0 and 1 <= buckets["compiles"] <= 8
    assert buckets["compiles_later"] == 0 and 0.0 <= buckets["waste"] < 1.0
    text = report.read_text()
    assert text.count("<svg") == 4 and "planned sequence" in text and "Throughput" in text


def test_a_strategy_that_fails_is_a_row_of_its_own(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(MODEL + "\ntorch.compile = None\n")
    result = bench_shapes(f"{model}:build", "uniform:4-8", candidates=("eager", "torch-dynamic"), requests=4)
    eager, failed = result.rows
    assert not eager.failure and len(eager.later) == 4
    assert failed.failure == "TypeError: 'NoneType' object is not callable" and result.measured == (eager,)
    assert "failed: TypeError" in page(result)


def test_the_report_of_one_size() -> None:
    """There is no line to draw through it."""
    row = StrategyResult("eager", requests_per_s=2.0, p50_s=0.5, p99_s=0.5, first=(0.5,) * 3, later=(0.5,) * 3)
    result = ShapesResult("t", "8-8", 3, (row,), ({"sequence": 8},) * 3, this_machine(1))
    assert "Time by size" in page(result) and "eager serves the most" in page(result)


def test_mistakes_are_said_before_anything_is_measured() -> None:
    with pytest.raises(BadOptionValue, match="with --shapes"):
        bench_shapes("mlp", "1-8", candidates=("inductor",))
    with pytest.raises(BadShapes, match="ARGUMENT.DIM"):
        bench_shapes("mlp", "1-8,depth=3")
