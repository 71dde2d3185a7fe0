"""`burnish pack TARGET FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest

import burnish
from burnish.tools.cli import main
from burnish.tools.workloads import WORKLOADS


def test_a_target_becomes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BURNISH_WARM_START", "1")
    path = tmp_path / "model.burnish"
    assert main(["pack", "resnet50@tiny", str(path), "--no-gate", "--calls", "2"]) == 0
    assert "1 variants" in capsys.readouterr().out
    model, _ = WORKLOADS["resnet50"].build("tiny")
    assert burnish.load(path, model, missing="error").burnish.name == "ResNet"


def test_what_cannot_be_packed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "resnet50@tiny", str(tmp_path / "a.burnish"), "--no-gate"]) == 2  # no warm starts
    assert "warm_start" in capsys.readouterr().err
