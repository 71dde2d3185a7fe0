"""`burnish.warmup`: what traffic needs is compiled before it arrives."""

from __future__ import annotations

import pytest
import torch

import burnish
from burnish.errors import BadTrace, BadWarmup, NotCompiled, SealedError
from burnish.shapes.traffic import drawn, write_trace
from tests.shapes.models import Attending, Rows, Tokens, ids, mask


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def test_example_calls() -> None:
    compiled = burnish.compile(Rows().eval())
    report = burnish.warmup(compiled, [(torch.randn(2, 8),), torch.randn(3, 8), {"x": torch.randn(2, 8)}])
    compiles = burnish.stats(compiled).compiles
    assert report.compiles == compiles >= 2 and len(report.calls) == 3
    assert "2 calls" in str(report) and "[2, 8]" in str(report)
    compiled(torch.randn(2, 8)), compiled(torch.randn(3, 8))
    assert burnish.stats(compiled).compiles == compiles


def test_buckets_learnt_from_a_trace_and_sealed(tmp_path) -> None:
    model = Attending().eval()
    compiled = burnish.compile(model, shapes={"batch": "auto", "sequence": "auto", "variants": 4})
    requests = drawn("lognormal:4-40,batch=2-5", 100)
    write_trace(tmp_path / "trace.json", requests)
    example = {"ids": ids(1, 7), "attention_mask": mask(1, 7)}
    report = burnish.warmup(compiled, tmp_path / "trace.json", example=example)
    assert report.compiles == burnish.stats(compiled).shapes.variants <= 4
    traces = burnish.stats(compiled).shapes.traces
    burnish.seal(compiled, strict=True)
    for k, request in enumerate(requests):
        x, m = ids(request["batch"], request["sequence"], k), mask(request["batch"], request["sequence"])
        ours, eager = compiled(ids=x, attention_mask=m), model(ids=x, attention_mask=m)
        torch.testing.assert_close(ours["states"], eager["states"], rtol=2e-5, atol=2e-6)
    stats = burnish.stats(compiled)
    assert (stats.compiles, stats.shapes.traces) == (report.compiles, traces)
    with pytest.raises(SealedError):
        compiled(ids=ids(2, 100), attention_mask=mask(2, 100))


def test_given_buckets_need_no_traffic() -> None:
    compiled = burnish.compile(Tokens().eval(), shapes={"batch": [2, 4], "sequence": [8, 16]})
    report = burnish.warmup(compiled, example=ids(3, 5))
    assert report.compiles == 4
    for batch, length in [(2, 3), (3, 9), (4, 8), (4, 11)]:
        compiled(ids(batch, length))
    assert burnish.stats(compiled).compiles == 4


def test_sizes_without_shapes() -> None:
    compiled = burnish.compile(Rows().eval(), dynamic=False)
    burnish.warmup(compiled, [{"batch": 2}, {"batch": 5}], example=torch.randn(3, 8))
    assert burnish.stats(compiled).compiles == 2


def test_mistakes() -> None:
    compiled = burnish.compile(Rows().eval())
    with pytest.raises(BadWarmup, match="example"):
        burnish.warmup(compiled, [{"batch": 2}])
    with pytest.raises(BadWarmup, match="not a list"):
        burnish.warmup(compiled, torch.randn(2))
    with pytest.raises(BadTrace):
        burnish.warmup(compiled, "no such file.json", example=torch.randn(2, 8))
    with pytest.raises(NotCompiled):
        burnish.warmup(Rows(), [torch.randn(2, 8)])


BUCKETS = {"batch": [2, 4], "sequence": [8, 16]}


@pytest.mark.parametrize(
    ("shapes", "traffic", "example", "said"),
    [
        (BUCKETS, [{"batch": 2, "sequnce": 57}], ids(2, 5), "no dimension 'sequnce'.*batch, sequence.*'sequence'"),
        (BUCKETS, [{"sequence": 5, "height": 5}], ids(2, 5), "no dimension 'height'; it has batch, sequence, ids.0"),
        (None, [{"idss.1": 5}], ids(2, 5), "no dimension 'idss.1'.*'ids.1'"),
        (BUCKETS, [{"sequence": 5}], (), "no tensor"),
        (BUCKETS, None, ids(5, 2).T, "not contiguous"),
        ({"labels": {1: [8]}}, None, ids(2, 5), "none of the dimensions of shapes=: labels.1"),
    ],
)
def test_mistakes_in_sizes(shapes: object, traffic: object, example: object, said: str) -> None:
    compiled = burnish.compile(Tokens().eval(), shapes=shapes)
    with pytest.raises(BadWarmup, match=said):
        burnish.warmup(compiled, traffic, example=example)


def test_sizes_of_dimensions_without_buckets() -> None:
    compiled = burnish.compile(Tokens().eval(), shapes={"sequence": [8]})
    burnish.warmup(compiled, [{"batch": 2, "sequence": 5}, {"batch": 3, "sequence": 7}], example=ids(4, 6))
    burnish.seal(compiled, strict=True)
    for batch in (2, 3):
        assert compiled(ids(batch, 4)).shape == (batch, 4, 16)


def test_sizes_of_an_argument_by_name() -> None:
    compiled = burnish.compile(Rows().eval(), dynamic=False)
    report = burnish.warmup(compiled, [{"x.0": 2}, {"x.0": 5}], example=torch.randn(3, 8))
    assert [call.inputs for call in report.calls] == ["[2, 8]", "[5, 8]"]
