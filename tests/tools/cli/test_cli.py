"""The command line: help, versions, lists, the cache, explain; each mistake ends in one line and status 2."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import burnish
from burnish.runtime.build.shared_library import forget_loaded
from burnish.tools.cli import main

TARGET = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), (torch.ones(2, 4),)
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small model of the user's, and a cache of its own."""
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.py"
    path.write_text(TARGET)
    return f"{path}:build"


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["bench"], ["verify"], ["explain"], ["cache"], ["cache", "ls"], ["cache", "why"]]
)
def test_every_command_explains_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "usage: burnish" in capsys.readouterr().out


def test_no_command_prints_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "explain" in capsys.readouterr().out


def test_version_names_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    out = capsys.readouterr().out
    assert burnish.__version__ in out and torch.__version__ in out


def test_the_module_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "burnish", "explain", "bert-bass"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("burnish: unknown target 'bert-bass'. Did you mean 'bert-base'?")
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["expalin"])
    assert caught.value.code == 2
    assert "expalin" in capsys.readouterr().err


def test_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads"]) == 0
    assert re.search(r"^gpt2-train +train ", capsys.readouterr().out, re.M)


def test_explain_says_what_was_done(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", target]) == 0
    out = capsys.readouterr().out
    assert re.search(r"compiles +1\b", out)
    assert "error" in out and "against float64" in out
    assert "--dump" in out


def test_explain_dump_leaves_every_stage_as_a_file(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dump"
    assert main(["explain", target, "--dump", str(folder)]) == 0
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".c" for path in files)
    assert "compile time" in (folder / "stats.txt").read_text()
    out = capsys.readouterr().out
    assert all(str(path.relative_to(folder)) in out for path in files)


def test_the_cache_can_be_listed_asked_and_cleared(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    forget_loaded()  # by earlier tests: what this process has loaded already is not looked up again
    assert main(["cache", "why", target]) == 0
    cold = capsys.readouterr().out
    assert re.search(r": 0 hits, [1-9]\d* misses", cold) and "miss  " in cold

    torch.compiler.reset()
    forget_loaded()
    assert main(["cache", "why", target]) == 0
    assert re.search(r": [1-9]\d* hits, 0 misses", capsys.readouterr().out)

    assert main(["cache", "ls", "--long"]) == 0
    listed = capsys.readouterr().out
    count = int(re.search(r"^(\d+) entries", listed, re.M)[1])
    assert count >= 1

    assert main(["cache", "clear"]) == 0
    assert f"removed {count} entries" in capsys.readouterr().out
    assert main(["cache", "ls"]) == 0
    assert capsys.readouterr().out.startswith("0 entries")
