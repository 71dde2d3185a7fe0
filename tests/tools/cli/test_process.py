"""The command as a process: what it imports before it has to, closed pipes, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.tools.cli import main

INTERRUPTED = """
import os, signal
def build():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and pass that on
    os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does
"""


def burnish(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "burnish", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, env=environment, **settings)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["verify", "--help"], ["cache"], ["benhc"]])
def test_help_imports_no_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from burnish.tools.cli import main
try:
    main({arguments})
except SystemExit:
    pass
print("torch" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split()[-1] == "False"


@pytest.mark.parametrize("arguments", [["--help"], ["workloads"], ["doctor"]])  # by argparse, print and rich
def test_a_closed_pipe_is_one_line(arguments: list[str], closed_pipe: int) -> None:
    done = burnish(*arguments, stdout=closed_pipe)
    assert (done.returncode, done.stderr) == (141, "burnish: the reader of the output has gone\n")


def test_a_signal_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(INTERRUPTED)
    done = burnish("explain", f"{tmp_path}/model.py:build", stdout=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (130, "burnish: interrupted\n")


@pytest.mark.parametrize("command", ["bench", "explain", "verify", "doctor", "generate", "demo", "cache why"])
def test_a_missing_file_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([*command.split(), f"{tmp_path}/nowhere.py:build"])
    lines = capsys.readouterr().err.splitlines()
    assert (status, len(lines), lines[0].startswith("burnish: ")) == (2, 1, True)


def test_debug_shows_the_traceback_of_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text("def build(): raise ValueError('no weights')")
    main(["explain", f"{tmp_path}/model.py:build", "--debug"])
    assert "Traceback" in capsys.readouterr().err


def test_a_process_that_ended_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from burnish.errors import TrialFailed

    def fails(arguments: object) -> int:
        raise TrialFailed("mlp", -signal.SIGKILL, "Traceback (most recent call last):\n  ...\nMemoryError: no room")

    monkeypatch.setattr("burnish.tools.cli._run_workloads", fails)
    main(["workloads"])
    error = capsys.readouterr().err
    assert error == "burnish: measuring 'mlp' failed: its process ended with status -9, saying: MemoryError: no room\n"


def test_a_locale_without_our_letters_is_no_failure(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "BURNISH_CC": "/no/such/compiler"}
    environment = {**os.environ, **plain, "BURNISH_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "burnish", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "tier: " in done.stdout and done.stderr == ""
