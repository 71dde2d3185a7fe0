"""A record goes through text, files and options, and what is none is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish
from burnish.errors import BadOptionValue
from burnish.handle import Settings
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.deadline import UNLIMITED
from burnish.tools.cli import main
from burnish.tuning.record import Tuned, Tuning
from burnish.tuning.tuner import tuner_for

ENTRIES = (
    Tuned("backend product 8x8x8 bf16 #1", "library", "ours splits=1", 1e-6, 2e-6, 3, device="a GPU"),
    Tuned("launch loop 8 #2", "map XBLOCK=32 warps=1", "map XBLOCK=32 warps=1", source="cached", device="a GPU"),
)


def test_it_goes_through_text(tmp_path: Path) -> None:
    record = Tuning.of(ENTRIES)
    file = tmp_path / "tuning.json"
    file.write_text(str(record))
    for source in (file, str(file), json.loads(str(record)), record):
        assert Tuning.read(source) == record and Tuning.read(source).digest == record.digest
    assert Tuning.read(dict(record.forms)).forms == record.forms  # the forms alone are enough
    assert record.get("launch loop 8 #2") == "map XBLOCK=32 warps=1" and record.get("launch loop 9 #2") is None
    assert Tuning.of(ENTRIES[:1]).digest != record.digest


@pytest.mark.parametrize("source", [3, "no such file", ["a"], {"forms": 3}, {"a": 3}, {"device": 1, "forms": {}}])
def test_what_is_none_is_an_error_at_once(source: Any) -> None:
    with pytest.raises(BadOptionValue, match="burnish explain --tuning"):
        burnish.compile(torch.nn.Linear(2, 2), tuning=source)


def test_it_goes_with_any_mode_and_into_options() -> None:
    record = Tuning.of(ENTRIES)
    for settings in (
        Settings(mode="max-autotune", tuning=dict(record.forms)),
        Settings(mode="reduce-overhead", tuning=record),
        Settings(options={"tuning": dict(record.forms)}),
    ):
        found = settings.resolved().tuning
        assert found is not None and found.forms == record.forms
    assert Settings(mode="max-autotune-no-cudagraphs").resolved().searches
    assert not Options(mode="reduce-overhead").searches and not Options().searches


def test_a_cpu_is_not_tuned_for() -> None:
    options = Options(mode="max-autotune", tuning=Tuning.of(ENTRIES))
    assert tuner_for(torch.device("cpu"), options, CompileLog(), UNLIMITED) is None
    assert tuner_for(torch.device("cuda"), Options(mode="reduce-overhead"), CompileLog(), UNLIMITED) is None


def test_stats_tell() -> None:
    log = CompileLog()
    for entry in ENTRIES:
        log.tuned(entry)
    stats = log.snapshot()
    assert stats.tuning == ENTRIES and stats.tuning_record == Tuning.of(ENTRIES)
    assert "library (measured, 2.00 x as fast as ours splits=1)" in str(stats)
    assert stats.to_dict()["tuning"][0]["form"] == "library"


def test_explain_prints_a_record(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import torch\ndef build():\n    return torch.nn.Linear(4, 4), (torch.randn(2, 4),)\n")
    assert main(["explain", f"{file}:build", "--tuning"]) == 0
    assert Tuning.read(json.loads(capsys.readouterr().out)) == Tuning()  # nothing to tune on a CPU
