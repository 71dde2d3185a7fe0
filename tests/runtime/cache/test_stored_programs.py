"""Programs in the cache: the same graph is not compiled twice, and what cannot be read is compiled again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.cache import stored_program
from burnish.runtime.cache.data import Codec, NotData
from burnish.runtime.cache.store import open_cache
from tests.programs import Compiler, compiled

STAGES = {"import", "passes", "schedule", "fuse", "codegen"}


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path / "cache", warm_start=True)


def run(fn: Callable[..., Any], options: Options, *args: torch.Tensor, dynamic: bool = False) -> tuple[Any, CompileLog]:
    """As a process that has compiled nothing yet would."""
    compiler = Compiler(options)
    return compiled(fn, compiler, dynamic)(*args), compiler.log


def told(log: CompileLog) -> tuple[object, ...]:
    return log.kernel_count, dict(log.aten_calls), log.fusions


def mixed(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([[0.5, 2.0], [float("inf"), -1.0]])
    return torch.cumsum(torch.softmax(x, -1), 0).reshape(-1, 2) @ table.nan_to_num(posinf=3.0) + x.shape[0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_same_graph_is_compiled_once(options: Options, dynamic: bool) -> None:
    x = torch.randn(6, 4)
    first, cold = run(mixed, options, x, dynamic=dynamic)
    again, warm = run(mixed, options, x, dynamic=dynamic)
    assert torch.equal(first, again)
    torch.testing.assert_close(again, mixed(x))
    assert set(cold.seconds) >= STAGES and not STAGES & set(warm.seconds)
    assert told(cold) == told(warm)
    assert warm.cache_misses == 0 and cold.cache_misses > 0


def test_sizes_known_later_are_put_in_by_a_restored_program(options: Options) -> None:
    run(mixed, options, torch.randn(6, 4), dynamic=True)
    compiler = Compiler(options)
    warm = compiled(mixed, compiler, dynamic=True)
    warm(torch.randn(6, 4))
    for rows in (2, 10):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(warm(x), mixed(x))
    assert not STAGES & set(compiler.log.seconds)


def test_both_graphs_of_a_training_step(options: Options) -> None:
    def gradient() -> tuple[torch.Tensor, CompileLog]:
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        out, log = run(lambda x: torch.tanh(x * x).sum(), options, x)
        out.backward()
        assert x.grad is not None
        return x.grad, log

    first, _ = gradient()
    again, warm = gradient()
    assert torch.equal(first, again) and not STAGES & set(warm.seconds)


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        (lambda x: x[:4], "graph"),  # a smaller input
        (lambda x: x.double(), "graph"),
        (lambda x: x.t().contiguous().t(), "graph"),  # the same values in another order of memory
    ],
)
def test_what_decides_the_program_is_in_the_key(
    options: Options, change: Callable[[torch.Tensor], torch.Tensor], factor: str
) -> None:
    x = torch.randn(6, 4)
    run(lambda x: torch.exp(x) + 1, options, x)
    _, log = run(lambda x: torch.exp(x) + 1, options, change(x))
    assert set(log.seconds) >= STAGES
    assert any(f"{factor}: " in reason for reason in log.cache_reasons), log.cache_reasons


def test_another_torch_misses_and_says_so(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 4)
    run(torch.exp, options, x)
    monkeypatch.setattr(stored_program, "machine_factors", lambda device: (("torch", "1.0"),))
    _, log = run(torch.exp, options, x)
    assert any("torch: " in reason and "-> 1.0" in reason for reason in log.cache_reasons), log.cache_reasons


def _files(options: Options) -> list[Path]:
    found = list((options.cache_dir / stored_program.KIND).rglob("data"))
    assert found
    return found


def test_a_damaged_entry_is_compiled_again(options: Options) -> None:
    x = torch.randn(6, 4)
    run(mixed, options, x)
    for path in _files(options):
        path.write_bytes(path.read_bytes()[:-20])
    got, log = run(mixed, options, x)
    torch.testing.assert_close(got, mixed(x))
    assert set(log.seconds) >= STAGES and log.cache_misses == 1
    _, log = run(mixed, options, x)
    assert log.cache_misses == 0  # and stored again


@pytest.mark.parametrize("data", [b"", b"{}", b'["object","StoredProgram"]', b'["object","os.system","ls"]', b"[[]]"])
def test_an_entry_that_only_claims_to_be_a_program(options: Options, data: bytes) -> None:
    x = torch.randn(6, 4)
    run(mixed, options, x)
    cache = open_cache(options)
    (entry,) = [entry for entry in cache.entries() if entry.kind == stored_program.KIND]
    key = stored_program.CacheKey(entry.factors)
    cache.discard(stored_program.KIND, key)
    assert cache.put(stored_program.KIND, key, data)
    got, log = run(mixed, options, x)
    torch.testing.assert_close(got, mixed(x))
    assert "cannot be read" in log.cache_reasons[-1]


def test_nothing_is_stored_where_somebody_looks_inside(tmp_path: Path) -> None:
    for looking in (Options(verify_ir=True), Options(fuel=3), Options(dump_dir=tmp_path / "dump")):
        options = Options(
            cache_dir=tmp_path / "cache", warm_start=True, verify_ir=looking.verify_ir, fuel=looking.fuel,
            dump_dir=looking.dump_dir,
        )  # fmt: skip
        for _ in range(2):
            _, log = run(mixed, options, torch.randn(6, 4))
            assert "schedule" in log.seconds
    assert not (tmp_path / "cache" / stored_program.KIND).exists()


def test_names_that_were_read_are_the_names_in_use() -> None:
    """Guards look up attributes by them: a name that is not the very object takes half as long again."""
    codec = Codec([])
    (found,) = codec.loads(codec.dumps(("in_features",)))
    assert found is sys.intern("in_features")


def test_the_codec_refuses_what_it_does_not_know() -> None:
    codec = Codec([])
    value = {
        "a": [1, (2.5, float("-inf"))],
        (3,): {torch.float16, torch.device("cpu")},
        "t": torch.Size([2]),
        "n": None,
        "classes": [list, torch.nn.Linear],
    }
    assert codec.loads(codec.dumps(value)) == value
    assert torch.equal(codec.loads(codec.dumps(torch.arange(6).reshape(2, 3).t())), torch.arange(6).reshape(2, 3).t())
    for refused in (object(), open, torch.nn.Linear(1, 1), torch.empty(1 << 20), lambda: None, type("Local", (), {})):
        with pytest.raises(NotData):
            codec.dumps(refused)
    for text in (
        b'["eval", "1"]',
        b'["op", "aten.mm"]',
        b'["dtype", "load"]',
        b'["class", "os", "system"]',
        b'["class", "no.such", "C"]',
        b'["object", "Path", "/"]',
        b"nonsense",
    ):
        with pytest.raises(NotData):
            codec.loads(text)
