"""The benchmark of compile time, without its processes: who runs when with which caches, and what is kept and shown."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compile_time
from benchmarks.compile_once import Job
from benchmarks.compile_time import Asked, Kept, line, measure, median, ratio_of

RATIO = {"value": 1.0, "low": 0.99, "high": 1.01, "rounds": 9}


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Job, str]]:
    """Every child that would have been started, with its cache."""
    seen: list[tuple[Job, str]] = []

    def run_child(job: Job, caches: dict[str, str]) -> dict[str, Any]:
        seen.append((job, caches["BURNISH_CACHE_DIR"]))
        if job.steady_seconds:
            return {"ratio": RATIO, "seconds": 0.1}
        return {"seconds": 2.0 if job.engine == "burnish" else 20.0, "host_bytes": 1 << 20}

    monkeypatch.setattr(compile_time, "run_child", run_child)
    return seen


def test_engines_take_turns_and_a_warm_start_finds_what_its_cold_one_left(jobs: list[tuple[Job, str]]) -> None:
    asked = Asked("cpu", ("burnish", "inductor"), ("cold", "warm", "steady"), "tiny", 2, 1.0)
    kept: list[dict[str, Any]] = []
    measure("bert-base", asked, lambda row: kept.append(copy.deepcopy(row)))
    row = kept[-1]
    assert [job.engine for job, _ in jobs] == 2 * ["burnish", "inductor"] + ["burnish"] + 2 * ["burnish", "inductor"]
    caches = [cache for _, cache in jobs]
    assert caches[0] == caches[2] == caches[4] != caches[1] == caches[3] and len(set(caches)) == 4
    assert ratio_of(row, "cold") == 0.1 and row["steady"]["ratio"] == RATIO
    assert len(kept) == len(jobs) and ratio_of(kept[0], "cold") is None, "each is kept as it comes"


def test_the_mode_of_a_row_is_that_of_both(jobs: list[tuple[Job, str]]) -> None:
    measure("llama-8b-decode", Asked("cuda", ("burnish", "inductor"), ("cold",), "full", 1, 1.0), lambda row: None)
    assert [job.mode for job, _ in jobs] == 2 * ["reduce-overhead"]


def test_a_later_run_adds_to_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "compile.json"
    growth = {"engines": {"burnish": {"cold": {"seconds": 1.0}}}}
    Kept(path, "cpu").add("rows", "bert-base", {"engines": {}})
    for layers in ("2", "8"):
        Kept(path, "cpu").add("growth", layers, growth)
    found = json.loads(path.read_text())
    assert found["what"] == "compile" and list(found["rows"]) == ["bert-base"] and list(found["growth"]) == ["2", "8"]
    assert path.with_suffix(".svg").read_text().count("<circle") == 2


def test_failures_are_rows_too() -> None:
    failed = {"failure": "a stack\nRuntimeError: no"}
    assert "FAILED RuntimeError: no" in line("bert-base", "inductor", "cold", failed)
    assert median([failed]) == failed and median([failed, {"seconds": 3.0}])["seconds"] == 3.0
    assert ratio_of({"engines": {"burnish": {"cold": {"seconds": 1.0}}, "inductor": {"cold": failed}}}, "cold") is None
