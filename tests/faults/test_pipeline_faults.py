"""Whatever breaks on the way from a graph to its program: eager's result, one warning that helps, and a count."""

from __future__ import annotations

import copy
import errno
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnish
from burnish.errors import GraphBreakError
from burnish.runtime.build import shared_library
from burnish.runtime.cache import store as cache_store
from burnish.stats import Stats
from tests.against_eager import fallback_warnings

X = torch.linspace(-1, 2, 24).reshape(4, 6)


@pytest.fixture(autouse=True)
def _nothing_built_before() -> Iterator[None]:
    """A library this process has loaded already would hide a compiler that does not work."""
    shared_library.forget_loaded()
    yield
    shared_library.forget_loaded()


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def served_by_eager(compiled: Any, *args: Any, grad: bool = False) -> tuple[str, Stats]:
    """Call twice: eager's own numbers both times, one warning in all. Returns the warning."""
    eager = copy.deepcopy(compiled.burnish.eager) if isinstance(compiled, nn.Module) else compiled.burnish.eager
    messages: list[str] = []
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            result, said = fallback_warnings(lambda: compiled(*args))
            messages += said
            assert torch.equal(result, eager(*args)), "eager's own ops give eager's own bits"
    (message,) = messages
    assert message.count("Way out: ") == 1 and "runs in eager" in message
    return message, burnish.stats(compiled)


# --- each stage ---------------------------------------------------------------------------------------------------

STAGES = {
    "import_graph": "import",
    "run_passes": "passes",
    "lower_graph": "schedule",
    "run_schedule_passes": "fuse",
    "generate": "codegen",
    "build_program": "codegen",
    "open_cache": "build",
    "build_shared": "build",
    "load_while_building": "load",
}


@pytest.mark.parametrize("function", STAGES)
def test_a_stage_that_raises(function, monkeypatch):
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a table has no rows")

    monkeypatch.setattr(f"burnish.pipeline.{function}", broken)
    compiled = burnish.compile(model(), name="the head")
    message, stats = served_by_eager(compiled, X)
    for part in ("the head", f"stage '{STAGES[function]}'", "ZeroDivisionError: a table has no rows", "BURNISH_DUMP"):
        assert part in message
    (fallback,) = stats.fallbacks
    assert fallback.stage == STAGES[function] and "a table has no rows" in fallback.reason
    assert stats.compiles == 1 and stats.graphs == {} and stats.kernels == 0


@pytest.mark.parametrize("function", ["import_graph", "run_schedule_passes", "load_while_building", "build_shared"])
def test_a_stage_that_raises_in_training(function, monkeypatch):
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("no such axis")

    monkeypatch.setattr(f"burnish.pipeline.{function}", broken)
    compiled = burnish.compile(model())
    twin = copy.deepcopy(compiled.eager)
    _, messages = fallback_warnings(lambda: compiled(X).square().sum().backward())
    twin(X).square().sum().backward()
    assert len(messages) == 1 and STAGES[function] in messages[0]
    for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert len(burnish.stats(compiled).fallbacks) == 1


def test_a_backward_that_does_not_compile(monkeypatch):
    from burnish import pipeline

    whole = pipeline.compile_graph

    def forwards_only(gm: Any, inputs: Any, *, kind: Any, **given: Any) -> Any:
        if kind == "backward":
            raise ZeroDivisionError("backwards is harder")
        return whole(gm, inputs, kind=kind, **given)

    monkeypatch.setattr(pipeline, "compile_graph", forwards_only)
    compiled = burnish.compile(model())
    twin = copy.deepcopy(compiled.eager)
    for step in range(2):
        _, messages = fallback_warnings(lambda: compiled(X).square().sum().backward())
        assert len(messages) == (1 if step == 0 else 0)
        twin(X).square().sum().backward()
        for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    stats = burnish.stats(compiled)
    assert stats.graphs == {"forward": 1} and "backwards is harder" in stats.fallbacks[0].reason


def test_a_lowering_that_raises_is_an_aten_call(monkeypatch):
    """The way out of a gap in our tables is eager's own op, inside the program, by name: no fallback at all."""
    from burnish.lower import LOWERINGS

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("nobody thought of this")

    monkeypatch.setitem(LOWERINGS, "aten::sin.default", broken)
    compiled = burnish.compile(lambda x: (x * 2).sin() + 1)
    result, messages = fallback_warnings(lambda: compiled(X))
    torch.testing.assert_close(result, (X * 2).sin() + 1)
    assert messages == [] and burnish.stats(compiled).aten_calls == {"aten::sin.default": 1}


def test_a_form_that_does_not_verify(monkeypatch):
    from burnish.schedule.kernels import Schedule

    def verify(self: Schedule) -> None:
        raise AssertionError("b7 is read before it is written")

    monkeypatch.setattr(Schedule, "verify", verify)
    message, stats = served_by_eager(burnish.compile(model(), options={"verify_ir": True}), X)
    assert "'verify'" in message and "b7 is read before it is written" in message
    assert stats.fallbacks[0].stage == "verify"


def test_running_out_of_memory_in_a_pass(monkeypatch):
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("burnish.pipeline.run_passes", broken)
    message, _ = served_by_eager(burnish.compile(model()), X)
    assert "MemoryError" in message


def test_a_deep_recursion_in_a_pass(monkeypatch):
    def deeper(*args: Any, **kwargs: Any) -> Any:
        return deeper(*args, **kwargs)

    monkeypatch.setattr("burnish.pipeline.run_schedule_passes", deeper)
    message, _ = served_by_eager(burnish.compile(model()), X)
    assert "'fuse'" in message and "RecursionError" in message


def test_one_warning_for_all_graphs_of_a_model(monkeypatch):
    """Graph breaks make several graphs, and each of them fails."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("again and again")

    monkeypatch.setattr("burnish.pipeline.lower_graph", broken)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        z = y.cos()
        torch._dynamo.graph_break()
        return z.exp()

    compiled = burnish.compile(fn)
    result, messages = fallback_warnings(lambda: compiled(X))
    assert torch.equal(result, fn(X)) and len(messages) == 1
    stats = burnish.stats(compiled)
    assert stats.compiles == 3 and len(stats.fallbacks) == 3


def test_what_failed_once_works_after_a_reset(monkeypatch):
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("no")

    compiled = burnish.compile(model())
    with monkeypatch.context() as patched:
        patched.setattr("burnish.pipeline.run_schedule_passes", broken)
        fallback_warnings(lambda: compiled(X))
    burnish.reset()
    result, messages = fallback_warnings(lambda: compiled(X))
    torch.testing.assert_close(result, compiled.eager(X))
    assert messages == [] and burnish.stats(compiled).fallbacks == ()


# --- compiler and disk --------------------------------------------------------------------------------------------


def fake_cc(directory: Path, body: str) -> str:
    path = directory / "fake-cc"
    path.write_text(f'#!/bin/sh\ncase "$*" in *--version*) echo "fakecc 1.0"; exit 0;; esac\n{body}\n')
    path.chmod(0o755)
    return str(path)


def test_no_compiler(tmp_path):
    cc = str(tmp_path / "nowhere" / "cc")
    options = {"cc": cc, "cache_dir": tmp_path / "cache"}  # one that has nothing to give
    message, stats = served_by_eager(burnish.compile(model(), options=options), X)
    assert "'build'" in message and "no C compiler" in message and cc in message and "BURNISH_CC" in message
    assert stats.fallbacks[0].stage == "build" and stats.graphs == {}


def test_no_compiler_on_the_path(monkeypatch, tmp_path):
    for name in ("BURNISH_CC", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    message, _ = served_by_eager(burnish.compile(model(), options={"cache_dir": tmp_path / "cache"}), X)
    assert "no C compiler" in message and "install gcc or clang" in message


def test_a_compiler_that_fails(tmp_path):
    cc = fake_cc(tmp_path, 'echo "internal compiler error: out of luck" >&2; exit 4')
    message, stats = served_by_eager(burnish.compile(model(), options={"cc": cc}), X)
    assert "'build'" in message and "out of luck" in message and "BURNISH_CC" in message
    assert stats.fallbacks[0].stage == "build"


def test_a_compiler_that_fails_for_every_graph_is_named_once(tmp_path):
    cc = fake_cc(tmp_path, "echo no >&2; exit 1")

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    compiled = burnish.compile(fn, options={"cc": cc})
    result, messages = fallback_warnings(lambda: compiled(X))
    assert torch.equal(result, fn(X)) and len(messages) == 1, messages
    assert len(burnish.stats(compiled).fallbacks) == 2


@pytest.mark.parametrize("hangs", ["when it compiles", "when it is asked who it is"])
def test_a_compiler_that_hangs_holds_up_no_call_for_long(tmp_path, hangs):
    """Each call returns eager's result; the first waits as long as the option says, and later ones hardly."""
    cc = Path(fake_cc(tmp_path, f"echo run >> {tmp_path}/runs; exec tail -f /dev/null"))
    if hangs == "when it is asked who it is":
        cc.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs; exec tail -f /dev/null\n")
    options = {"cc": str(cc), "cache_dir": tmp_path / "cache", "compiler_seconds": 0.5}
    message, stats = served_by_eager(burnish.compile(model(), options=options), X)
    assert "did not end within 0.5" in message and "BURNISH_COMPILER_SECONDS" in message
    assert stats.fallbacks[0].stage == "build"
    for _ in range(2):  # by now the compiler is known
        served_by_eager(burnish.compile(model(), options=options), X)
    before = (tmp_path / "runs").read_text()
    message, _ = served_by_eager(burnish.compile(model(), options=options), X)
    assert "did not end" in message and (tmp_path / "runs").read_text() == before


def test_a_compiler_that_writes_nonsense(tmp_path):
    cc = fake_cc(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"')
    message, _ = served_by_eager(burnish.compile(model(), options={"cc": cc}), X)
    assert "'build'" in message and "cannot be loaded" in message


def test_the_source_of_a_failed_build_is_kept(tmp_path):
    dump = tmp_path / "dump"
    cc = fake_cc(tmp_path, "exit 1")
    message, _ = served_by_eager(burnish.compile(model(), options={"cc": cc, "dump_dir": dump}), X)
    assert str(dump) in message and any(path.suffix == ".c" for path in dump.iterdir())


def test_training_without_a_compiler(tmp_path):
    compiled = burnish.compile(model(), options={"cc": str(tmp_path / "cc"), "cache_dir": tmp_path / "cache"})
    twin = copy.deepcopy(compiled.eager)
    _, messages = fallback_warnings(lambda: compiled(X).square().sum().backward())
    twin(X).square().sum().backward()
    assert len(messages) == 1
    for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def compiles_without_a_cache(compiled: Any) -> None:
    """The cache is a convenience: without it the model still compiles."""
    result, messages = fallback_warnings(lambda: compiled(X))
    torch.testing.assert_close(result, compiled.eager(X))
    stats = burnish.stats(compiled)
    assert messages == [] and stats.fallbacks == () and sum(stats.graphs.values()) == 1


def test_a_cache_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    compiles_without_a_cache(burnish.compile(model(), options={"cache_dir": tmp_path / "file" / "cache"}))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_directory_without_permission(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    compiles_without_a_cache(burnish.compile(model(), options={"cache_dir": tmp_path / "cache"}))


def test_a_cache_on_a_full_disk(tmp_path, monkeypatch):
    def no_room(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_store.Cache, "workspace", no_room)
    monkeypatch.setattr(cache_store.Cache, "put", lambda *args, **kwargs: None)
    compiles_without_a_cache(burnish.compile(model(), options={"cache_dir": tmp_path / "cache"}))


def test_no_room_anywhere(tmp_path, monkeypatch):
    def no_room(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_store.Cache, "workspace", no_room)
    monkeypatch.setattr(shared_library, "_own_workspace", no_room)
    message, stats = served_by_eager(burnish.compile(model(), options={"cache_dir": tmp_path / "cache"}), X)
    assert "'build'" in message and "No space left on device" in message and "BURNISH_CACHE_DIR" in message
    assert stats.fallbacks[0].stage == "build"


def test_a_dump_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    compiled = burnish.compile(model(), options={"dump_dir": tmp_path / "file" / "dump"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), compiled.eager(X))
    assert sum(burnish.stats(compiled).graphs.values()) == 1


def test_a_damaged_entry_is_built_again(tmp_path):
    options = {"cache_dir": tmp_path / "cache"}
    with torch.no_grad():
        burnish.compile(model(), options=options)(X)
        for path in (tmp_path / "cache").rglob("data"):
            half = path.read_bytes()[: path.stat().st_size // 2]
            path.unlink()  # the file itself is mapped into this process
            path.write_bytes(half)
        burnish.reset()
        shared_library.forget_loaded()
        compiles_without_a_cache(burnish.compile(model(), options=options))


# --- graph breaks under fullgraph=True ----------------------------------------------------------------------------


def prints(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print("now")
    return y.cos()


def branches(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.sum() > 0:
        return y + 1
    return y - 1


def reads_a_number(x: torch.Tensor) -> torch.Tensor:
    scale = float(x.max().item())
    torch._dynamo.graph_break()
    return x * scale


BREAKS: dict[Callable[[torch.Tensor], torch.Tensor], str] = {
    branches: "if y.sum() > 0:",
    reads_a_number: "torch._dynamo.graph_break()",
}


@pytest.mark.parametrize("fn", BREAKS)
def test_a_graph_break_is_an_error_that_names_its_line(fn):
    lines, first = inspect.getsourcelines(fn)
    expected = first + next(i for i, line in enumerate(lines) if BREAKS[fn] in line)
    compiled = burnish.compile(fn, fullgraph=True)
    with pytest.raises(GraphBreakError) as caught:
        compiled(X)
    assert (caught.value.file, caught.value.line) == (__file__, expected)
    assert f"{Path(__file__).name}:{expected}" in str(caught.value) and "Way out: " in str(caught.value)


def test_a_graph_break_inside_a_module():
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(x) if x.sum() > 0 else x

    line = inspect.getsourcelines(Broken.forward)[1] + 1
    net = nn.Sequential(nn.Linear(6, 6), Broken())
    with pytest.raises(GraphBreakError) as caught:
        burnish.compile(net, fullgraph=True)(X)
    assert (caught.value.file, caught.value.line) == (__file__, line)


@pytest.mark.parametrize("fn", [prints, *BREAKS])
def test_the_same_without_fullgraph_runs_in_several_graphs(fn, capsys):
    compiled = burnish.compile(fn)
    result, messages = fallback_warnings(lambda: compiled(X))
    torch.testing.assert_close(result, fn(X))
    stats = burnish.stats(compiled)
    assert messages == [] and stats.fallbacks == () and stats.compiles >= 1


def test_a_stage_that_fails_under_fullgraph_still_gives_a_result(monkeypatch):
    """fullgraph is about one graph, not about who runs it."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("no")

    monkeypatch.setattr("burnish.pipeline.generate", broken)
    message, _ = served_by_eager(burnish.compile(model(), fullgraph=True), X)
    assert "'codegen'" in message
