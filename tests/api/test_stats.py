"""What burnish.stats says, asserted beside the numbers."""

import dataclasses
import sys
import types

import pytest
import torch
from torch import nn

import burnish
from burnish.observe.log import CompileLog
from burnish.stats import Fallback, Stats


def this_file_and_line(function):
    return function.__code__.co_filename, function.__code__.co_firstlineno


def test_one_compile_for_one_shape():
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model)
    for _ in range(4):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), model(x))
    stats = burnish.stats(compiled)
    assert stats.compiles == 1 and stats.recompiles == () and stats.graph_breaks == ()
    assert stats.seconds["dynamo"] > 0 and stats.seconds["aot"] > 0
    assert stats.compile_seconds == pytest.approx(sum(stats.seconds.values()))


def test_auto_dynamic_compiles_twice_for_five_sizes():
    model = nn.Linear(4, 4)
    compiled = burnish.compile(model)
    for rows in (2, 3, 5, 7, 11):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x))
    stats = burnish.stats(compiled)
    assert stats.compiles == 2
    (recompile,) = stats.recompiles
    assert recompile.reason.startswith("tensor 'input' size mismatch at index 0. expected 2, actual 3")
    assert recompile.function == "Linear" and recompile.file.endswith("linear.py")


def test_dynamic_compiles_once():
    def f(x):
        return x.softmax(-1) * x.shape[0]

    compiled = burnish.compile(f, dynamic=True)
    for rows in (2, 3, 5, 7, 11):
        x = torch.randn(rows, rows + 1)
        torch.testing.assert_close(compiled(x), f(x))
    assert burnish.stats(compiled).compiles == 1


def test_static_compiles_for_each_size():
    compiled = burnish.compile(lambda x: x + 1, dynamic=False)
    for rows in (2, 3, 5):
        compiled(torch.randn(rows))
    assert burnish.stats(compiled).compiles == 3


def test_a_recompile_names_its_function_and_reason():
    def scaled(x, by):
        return x * by

    compiled = burnish.compile(scaled)
    x = torch.randn(3)
    compiled(x, 2)
    compiled(x.double(), 2)
    (recompile,) = burnish.stats(compiled).recompiles
    assert (recompile.file, recompile.line) == this_file_and_line(scaled)
    assert recompile.function == "scaled" and "dtype mismatch" in recompile.reason


def test_training_counts_forward_and_backward(plain_pipeline):
    compiled = burnish.compile(nn.Linear(4, 4))
    compiled(torch.randn(2, 4)).sum().backward()
    with torch.no_grad():
        compiled(torch.randn(2, 4))
    stats = burnish.stats(compiled)
    assert stats.compiles == 2 and stats.graphs == {"forward": 1, "backward": 1, "inference": 1}
    assert [given["kind"] for given in plain_pipeline] == ["forward", "backward", "inference"]


def test_objects_of_one_class_are_counted_apart():
    models = [nn.Linear(4, 4) for _ in range(12)]
    compiled = [burnish.compile(model) for model in models]
    x = torch.randn(2, 4)
    for model, ours in zip(models, compiled, strict=True):
        torch.testing.assert_close(ours(x), model(x))
    assert [burnish.stats(ours).compiles for ours in compiled] == [1] * 12, "one's sizes and limits are not another's"
    compiled[0](torch.randn(5, 4))
    assert [burnish.stats(ours).compiles for ours in compiled] == [2] + [1] * 11


def test_one_function_compiled_twice():
    def f(x):
        return x.exp()

    first, second = burnish.compile(f), burnish.compile(f, fullgraph=True)
    first(torch.randn(2)), second(torch.randn(3))
    assert burnish.stats(first).compiles == burnish.stats(second).compiles == 1
    assert burnish.stats(second).recompiles == ()


def test_the_recompile_limit_is_counted_and_warned_about():
    compiled = burnish.compile(lambda x, n: x * n, dynamic=False)
    x = torch.randn(3)
    with pytest.warns(burnish.errors.FallbackWarning, match="recompile limit"):
        results = [compiled(x, n) for n in range(12)]
    torch.testing.assert_close(results, [x * n for n in range(12)])
    stats = burnish.stats(compiled)
    assert stats.compiles == torch._dynamo.config.recompile_limit
    assert [entry.stage for entry in stats.fallbacks if entry.stage == "recompile limit"] == ["recompile limit"]


def test_printing():
    compiled = burnish.compile(nn.Linear(4, 4), name="projection")
    compiled(torch.randn(2, 4))
    compiled(torch.randn(3, 4))
    text = str(burnish.stats(compiled))
    for part in ("projection", "compiles", "recompiles (1)", "size mismatch", "dynamo"):
        assert part in text


def test_stats_are_a_snapshot():
    compiled = burnish.compile(lambda x: x + 1)
    before = burnish.stats(compiled)
    compiled(torch.randn(2))
    assert before.compiles == 0 and burnish.stats(compiled).compiles == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.compiles = 3


# -- CompileLog, as the pipeline writes it -----------------------------------------------------------------------


def test_log_collects():
    log = CompileLog(name="x")
    log.aten_call("aten.sort")
    log.aten_call("aten.sort")
    log.kernels(3)
    log.kernels(2)
    log.cache(hit=True)
    log.cache(hit=False, why="flags changed")
    log.fusion("add into mm")
    assert log.fallback("build", ValueError("two\nlines")) is True
    assert log.fallback("build", ValueError("two\nlines")) is False
    assert log.snapshot() == Stats(
        name="x",
        aten_calls={"aten.sort": 2},
        kernels=5,
        cache_hits=1,
        cache_misses=1,
        cache_reasons=("flags changed",),
        fusions=("add into mm",),
        fallbacks=(Fallback("build", "ValueError: two"),) * 2,
        events={"cache_hit": 1, "cache_miss": 1, "fallback": 2},
    )


def test_stages_are_charged_for_their_own_time(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 5.0])
    clock = types.SimpleNamespace(perf_counter=lambda: next(now))
    monkeypatch.setattr(sys.modules[CompileLog.__module__], "time", clock)
    log = CompileLog()
    with log.stage("outer"), log.stage("inner"):
        pass
    assert log.seconds == {"inner": 3.0, "outer": 2.0}


def test_a_stage_that_raises_is_charged():
    log = CompileLog()
    with pytest.raises(ValueError), log.stage("a"):
        raise ValueError
    assert "a" in log.seconds


def test_dump(tmp_path):
    CompileLog().dump("graph.txt", "nothing happens")
    log = CompileLog(dump_dir=tmp_path / "new")
    log.dump("sub/graph.txt", "text")
    assert (tmp_path / "new/sub/graph.txt").read_text() == "text"
    (tmp_path / "file").write_text("")
    blocked = CompileLog(dump_dir=tmp_path / "file")
    blocked.dump("graph.txt", "text")
    assert blocked.snapshot().fallbacks[0].stage == "dump"
