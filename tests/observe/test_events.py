"""Events: what is told when, one JSON line each, and nothing about them ever fails a call."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
import torch

import burnish
from burnish.observe import sinks
from burnish.observe.events import KINDS, Event
from burnish.observe.log import CompileLog
from burnish.observe.sinks import EventFile
from burnish.stats import GraphBreak, Recompile

FIELDS = ["schema", "time", "pid", "object", "variant", "kind", "seconds", "reason", "detail"]


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- what is told -------------------------------------------------------------------------------------------------


def test_a_compile_is_told_and_a_call_is_not(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.jsonl"
    model = torch.nn.Linear(4, 4)
    compiled = burnish.compile(model, name="told", options={"events": str(path)})
    for rows in (2, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x))
    told = read(path)
    assert all(list(event) == FIELDS for event in told)
    assert all(event["pid"] == os.getpid() and event["object"] == "told" for event in told)
    kinds = [event["kind"] for event in told]
    assert kinds.count("compiled") == 2 == burnish.stats(compiled).compiles
    assert kinds.count("recompile") == 1
    assert kinds.count("cache_hit") + kinds.count("cache_miss") >= 2
    first, second = (event for event in told if event["kind"] == "compiled")
    assert (first["variant"], second["variant"]) == ("graph 1", "graph 2")
    assert first["seconds"] > 0 and first["detail"]["kernels"] >= 1
    (recompile,) = (event for event in told if event["kind"] == "recompile")
    assert "size mismatch" in recompile["reason"]
    for _ in range(3):
        compiled(x)
    assert read(path) == told


def test_a_fallback_is_told_and_is_no_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "burnish.pipeline.import_graph", lambda graph, **named: (_ for _ in ()).throw(ValueError("injected"))
    )
    path = tmp_path / "events.jsonl"
    compiled = burnish.compile(torch.nn.Linear(4, 4), options={"events": path})
    with pytest.warns(burnish.errors.FallbackWarning):
        compiled(torch.randn(2, 4))
    (fallback,) = (event for event in read(path) if event["kind"] == "fallback")
    assert "injected" in fallback["reason"] and fallback["detail"] == {"stage": "import"}
    assert "compiled" not in [event["kind"] for event in read(path)]


def test_every_method_of_the_log_tells_its_kind() -> None:
    told: list[Event] = []
    log = CompileLog(name="x", sinks=[told.append])
    log.cache(hit=True)
    log.cache(hit=False, why="flags changed")
    log.graph_break(GraphBreak("a.py", 3, "print"))
    log.graph_break(GraphBreak("a.py", 3, "print"))
    log.recompile(Recompile("a.py", 1, "f", "size mismatch"))
    log.fallback("build", ValueError("no disk"))
    log.captured()  # given to eager
    log.captured()
    kinds = [event.kind for event in told]
    assert kinds == ["cache_hit", "cache_miss", "graph_break", "recompile", "fallback", "compiled"]
    assert set(kinds) <= set(KINDS)


def test_an_event_is_one_line_whatever_it_holds() -> None:
    event = Event("fallback", "a\nb", "v", 0.5, 'two\nlines "quoted" ü', {"ratio": float("nan"), "path": Path("/x")})
    assert "\n" not in str(event) and "\n" not in event.to_json()
    back = json.loads(event.to_json())
    assert back["reason"] == 'two\nlines "quoted" ü' and back["detail"] == {"ratio": "nan", "path": "/x"}


def test_the_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_EVENTS", str(tmp_path / "from_env.jsonl"))
    burnish.compile(lambda x: x + 1)(torch.randn(3))
    assert "compiled" in [event["kind"] for event in read(tmp_path / "from_env.jsonl")]


# -- the file -----------------------------------------------------------------------------------------------------


def test_a_full_disk_does_not_fail_the_call(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    full = Path("/dev/full")  # each write there ends as on a full disk
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(sinks, "_files", {})
    model = torch.nn.Linear(4, 4)
    compiled = burnish.compile(model, options={"events": full})
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    assert burnish.stats(compiled).compiles == 1 and burnish.stats(compiled).fallbacks == ()
    assert sinks.dropped_events() >= 2
    complaints = [record for record in caplog.records if "No space left" in record.getMessage()]
    assert len(complaints) == 1
    assert f"burnish_events_dropped_total {sinks.dropped_events()}\n" in burnish.metrics()


def test_a_path_that_cannot_be_does_not_fail_the_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    compiled = burnish.compile(lambda x: x * 2, options={"events": tmp_path / "file" / "events.jsonl"})
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_pipe_that_nobody_reads_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = EventFile(tmp_path / "pipe")
    file.write(Event("compiled"))
    assert (file.written, file.dropped) == (0, 1)


def test_a_line_cut_short_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    whole = os.write
    monkeypatch.setattr(sinks.os, "write", lambda descriptor, data: whole(descriptor, data[: len(data) // 2]))
    file.write(Event("compiled", "torn"))
    monkeypatch.setattr(sinks.os, "write", whole)
    file.write(Event("compiled", "whole"))
    assert (file.written, file.dropped) == (1, 1)
    torn, line = file.path.read_text().splitlines()
    with pytest.raises(json.JSONDecodeError):
        json.loads(torn)
    assert json.loads(line)["object"] == "whole"


def test_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path, limit_bytes=1000)
    for number in range(50):
        file.write(Event("compiled", f"object {number}"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1"]
    longest = len(Event("compiled", "object 49").to_json()) + 100
    assert all(each.stat().st_size <= 1000 + longest for each in tmp_path.iterdir())
    newest = read(tmp_path / "events.jsonl.1") + (read(path) if path.exists() else [])
    assert [event["object"] for event in newest] == [f"object {n}" for n in range(50 - len(newest), 50)]
    assert file.dropped == 0


def _write_many(path: str, who: int) -> None:
    file = EventFile(Path(path), limit_bytes=1 << 30)
    for number in range(200):
        file.write(Event("compiled", f"{who}-{number}", reason="x" * 300))


def test_processes_and_threads_share_a_file_without_mixing_lines(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(path, who)) for who in range(2)]
    workers += [threading.Thread(target=_write_many, args=(path, who)) for who in (2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {event["object"] for event in read(Path(path))} == {f"{who}-{n}" for who in range(4) for n in range(200)}


def test_only_one_process_moves_a_full_file(tmp_path: Path) -> None:
    """A writer that opened the file before another one moved it must not move the new, small one in its place."""
    path = tmp_path / "events.jsonl"
    file = EventFile(path, limit_bytes=10)
    late = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    file.write(Event("compiled", "old"))  # over the limit: moved
    path.write_text("new\n")
    os.write(late, b"late\n")
    file._rotate(late)
    os.close(late)
    assert path.read_text() == "new\n"
    assert (tmp_path / "events.jsonl.1").read_text().endswith("late\n")
