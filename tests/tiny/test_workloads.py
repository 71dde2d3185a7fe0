"""Every built-in workload builds, repeats itself exactly, traces as one graph and has a float64 referee."""

from __future__ import annotations

import sys

import pytest
import torch

from burnish.errors import MissingExtra
from burnish.tools.parity import float64_errors, outcome, reference
from burnish.tools.targets import load_target
from burnish.tools.workloads import WORKLOADS


@pytest.fixture(params=list(WORKLOADS))
def name(request: pytest.FixtureRequest) -> str:
    if WORKLOADS[request.param].extra == "hf":
        pytest.importorskip("transformers")
    return str(request.param)


def test_a_workload_repeats_itself_and_leaves_the_random_state_alone(name: str) -> None:
    state = torch.random.get_rng_state()
    first, second = load_target(f"{name}@tiny"), load_target(f"{name}@tiny")
    assert torch.equal(state, torch.random.get_rng_state())
    runs = [outcome(first), outcome(first), outcome(second)]
    for run in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(runs[0], run, strict=True))


def test_the_referee_runs_in_float64_throughout(name: str) -> None:
    target = load_target(f"{name}@tiny")
    assert {tensor.dtype for tensor in reference(target)} == {torch.float64}
    error = float64_errors(target, {"eager": target.model})["eager"]
    assert error is not None and 0 < error < 1e-5


def test_a_workload_traces_as_one_graph(name: str) -> None:
    target = load_target(f"{name}@tiny")
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(target.model, backend=keep, fullgraph=True)
    with target.grad_mode():
        target.step(compiled)()
        target.step(compiled)()
    assert len(graphs) == 1


def test_the_decode_step_writes_its_cache_in_place() -> None:
    pytest.importorskip("transformers")
    target = load_target("llama-decode@tiny")
    token, position = target.inputs
    keys = target.model.cache.layers[0].keys
    before = keys.clone()
    with target.grad_mode():
        target.model(token, position + 1)
    changed = (keys != before).any(dim=3).any(dim=1)[0].nonzero().flatten()
    assert changed.tolist() == [int(position) + 1]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"'bert-base' needs transformers.*pip install 'burnish\[hf\]'"):
        load_target("bert-base")
