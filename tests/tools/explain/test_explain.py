"""What the compiler did, in numbers that add up: calls left to ATen, fusions, bytes, kernels, stages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from burnish.options import Options
from burnish.tools.cli import main
from burnish.tools.explain import ceiling
from burnish.tools.explain.ceiling import bandwidth_ceiling, measure_bandwidth
from burnish.tools.explain.render import as_text
from burnish.tools.explain.result import Explanation
from tests.tools.explain.test_advice import explained


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(nn.functional.gelu(self.first(x)))
        return torch.softmax(self.last(hidden).sort(-1)[0], -1)


@pytest.fixture(scope="module")
def block() -> Explanation:
    return explained(Block(), torch.randn(24, 32), seconds=0.02)


def test_calls_left_to_aten_have_a_count_and_a_reason(block: Explanation) -> None:
    (call,) = block.aten_calls
    assert (call.op, call.count) == ("aten::sort.default", 1) and call.reason == "no lowering"
    assert "aten::sort.default" in str(block)


def test_fusions_made_and_refused_have_reasons(block: Explanation) -> None:
    (graph,) = block.graphs
    assert graph.fusions == graph.unfused_kernels - len(graph.kernels) > 0
    assert graph.refused and all(r.reason and r.buffers and r.first != r.second for r in graph.refused)
    numbers = {k.number for k in graph.kernels}
    assert all({r.first, r.second} <= numbers for r in graph.refused)
    assert any("ATen call" in r.reason for r in graph.refused)
    full = as_text(block, full=True)
    assert all(r.reason in full for r in graph.refused) and "not fused" in str(block)


def test_fusion_moves_fewer_bytes(block: Explanation) -> None:
    (graph,) = block.graphs
    assert 0 < graph.fused_bytes < graph.unfused_bytes
    assert graph.fused_bytes == sum(k.bytes for k in graph.kernels)


def test_bytes_of_an_elementwise_chain_are_its_input_and_output() -> None:
    x = torch.randn(64, 32)
    (graph,) = explained(lambda x: (x.sin() + 1).exp() * 2, x).graphs
    once = x.numel() * 4
    assert graph.fused_bytes == 2 * once and graph.eager_bytes == 4 * 2 * once
    (kernel,) = graph.kernels
    assert kernel.kind == "loop" and kernel.ops == ("sin", "add", "exp", "mul") and kernel.flops == 0


def test_bytes_of_a_product_are_its_operands_and_its_result() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    (graph,) = explained(lambda a, b: a @ b, a, b).graphs
    (kernel,) = graph.kernels
    assert kernel.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4) and kernel.flops == 2 * 8 * 16 * 4
    assert kernel.kind == "product"


def test_a_broadcast_operand_is_read_once() -> None:
    (graph,) = explained(lambda x, b: x + b, torch.randn(64, 32), torch.randn(32)).graphs
    assert graph.fused_bytes == 4 * (64 * 32 * 2 + 32)


def test_every_kernel_has_a_time_and_they_add_up(block: Explanation) -> None:
    (graph,) = block.graphs
    assert {k.kind for k in graph.kernels} == {"loop", "product", "ATen"}
    assert all(k.seconds is not None and k.seconds >= 0 for k in graph.kernels)
    assert sum(k.seconds for k in graph.kernels) == graph.seconds > 0
    timed = [k for k in graph.kernels if k.seconds]
    assert all(k.bandwidth == k.bytes / k.seconds for k in timed)
    text = str(block)
    assert all(word in text for word in ("GB/s", "of ceiling", "computes", "native_layer_norm"))


def test_timing_leaves_the_model_as_it_was() -> None:
    norm = nn.BatchNorm1d(4).train()
    explained(norm, torch.randn(8, 4))
    calls = int(norm.num_batches_tracked)
    before = norm.running_mean.clone()
    explained(nn.Identity(), torch.randn(2))
    assert calls > 0 and torch.equal(before, norm.running_mean)


def test_a_training_step_has_a_forward_and_a_backward_graph() -> None:
    from burnish.tools.explain.session import ExplainSettings, run_explanation
    from burnish.tools.targets import Target

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.linear(x)).square().mean()

    plan = ExplainSettings(other_sizes=False, seconds=0.0, referee=False, ceiling=1e10)
    explanation = run_explanation(Target("step", Loss(), (torch.randn(4, 8),), "train"), plan)
    assert [graph.kind for graph in explanation.graphs] == ["forward", "backward"]
    assert all(kernel.seconds is not None for graph in explanation.graphs for kernel in graph.kernels)


def test_dynamic_sizes_are_counted_at_their_values() -> None:
    x = torch.randn(48, 32)
    (graph,) = explained(lambda x: x.sin(), x, dynamic=True).graphs
    assert graph.fused_bytes == 2 * x.numel() * 4 == graph.eager_bytes


def test_the_ceiling_is_the_best_of_several_runs_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([0.0, 0.0, 0.5, 9.0, 10.0, 12.0, 20.0, 21.0, 30.0, 40.0])
    speed = measure_bandwidth(torch.device("cpu"), lambda: next(readings), elements=1000, seconds=0.0)
    assert speed == 3 * 4000 / 1.0, "the first run, which touches the pages, does not count"
    speeds = iter([5e9, 4e9, 6e9, 3e9])
    monkeypatch.setattr(ceiling, "measure_bandwidth", lambda device, seconds: next(speeds))
    options = Options(cache_dir=tmp_path)
    assert [bandwidth_ceiling(torch.device("cpu"), options) for _ in range(3)] == [5e9, 5e9, 6e9]
    (tmp_path / "bandwidth.json").write_text("{ not json")
    assert bandwidth_ceiling(torch.device("cpu"), options) == 3e9


TARGET = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), (torch.ones(2, 4),)
"""


def test_the_command_prints_tables_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(TARGET)
    assert main(["explain", f"{tmp_path / 'model.py'}:build", "--timings", "--full"]) == 0
    out = capsys.readouterr().out
    assert "Compile time by stage" in out and "dynamo" in out and "GB/s" in out
    assert main(["explain", f"{tmp_path / 'model.py'}:build", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["graphs"][0]["kernels"][0]["seconds"] is not None and told["stats"]["compiles"] == 1
    assert told["ceiling"] > 0
