"""`burnish bench TARGET --shapes TRAFFIC`: strategies side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.errors import BadOptionValue, BadShapes
from burnish.tools.bench.varying import bench_shapes
from burnish.tools.cli import main

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
    assert main([*arguments, "--candidates", "eager,buckets", "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "requests/s" in said and "buckets: sequence" in said.replace("buckets: buckets", "buckets")
    eager, buckets = json.loads(out.read_text())["rows"]
    assert eager["compiles"] == 0 and 1 <= buckets["compiles"] <= 8
    assert buckets["compiles_later"] == 0 and 0.0 <= buckets["waste"] < 1.0


def test_mistakes_are_said_before_anything_is_measured() -> None:
    with pytest.raises(BadOptionValue, match="with --shapes"):
        bench_shapes("mlp", "1-8", candidates=("inductor",))
    with pytest.raises(BadShapes, match="ARGUMENT.DIM"):
        bench_shapes("mlp", "1-8,depth=3")
