"""The page that `make matrix` writes."""

from __future__ import annotations

import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from burnish.torch_private.versions import RELEASES
from tests.matrix import __main__ as matrix

ROW = {
    "torch": "2.13.0+cpu",
    "python": "3.11.7",
    "machine": "x86_64",
    "names": "183 of 184",
    "missing": ["torch._dynamo.reset"],
    "counts": {"passed": 10, "failed": 1},
    "failed": {"tests/x.py::test": "E"},
    "seconds": 100,
}


def test_the_table_has_a_line_for_each_known_version() -> None:
    lines = matrix.table({"2.13": ROW, "3.0": {"error": "no environment could be made"}}).splitlines()
    last = ".".join(map(str, RELEASES[-1]))
    assert lines[-2:] == [f"| {last} | | | | not run | |", "| 3.0 | | | | no environment could be made | |"]
    found = next(line for line in lines if line.startswith("| 2.13.0"))
    assert "183 of 184, without torch._dynamo.reset | 10 passed, 1 failed | 100" in found


def test_a_version_that_cannot_be_installed_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(command: list[str], check: bool) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(matrix.venv, "create", lambda place, with_pip, clear: place.mkdir())
    monkeypatch.setattr(matrix.subprocess, "run", refuse)
    asked = Namespace(environments=tmp_path, pip="", pytest="")
    assert "no environment could be made" in matrix.run("2.99", None, asked)["error"]


def test_the_page_in_the_docs_is_of_the_results_in_the_tree() -> None:
    assert matrix.TABLE.read_text() == matrix.table(matrix.json.loads(matrix.RESULTS.read_text())["rows"])
