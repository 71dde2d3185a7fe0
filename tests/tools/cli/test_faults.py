"""What goes wrong in a target or a call: one line that names the user's line, the documented status, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.tools.cli import main

SOURCE = """\
import torch
from torch import nn

class Fails(nn.Module):
    def __init__(self, when):
        super().__init__()
        self.linear, self.when, self.calls = nn.Linear(4, 4), when, 0

    def forward(self, x):
        self.calls += 1
        if self.when == "always" or (self.when == "second" and self.calls > 1):
            raise ValueError("I cannot do this")  # LINE forward
        if self.when == "exit":
            raise SystemExit(5)  # LINE exit
        return self.linear(x)

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient here")  # LINE backward

class FailsInBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return Backward.apply(self.linear(x)).sum()

def fails(when):
    return Fails(when), (torch.randn(2, 4),)

def good(): return fails("never")
def in_forward(): return fails("always")
def in_second_call(): return fails("second")
def exits_in_forward(): return fails("exit")
def in_backward(): return {"model": FailsInBackward(), "inputs": (torch.randn(2, 4),), "kind": "train"}
def in_build(): raise ValueError("no weights")  # LINE build
def exits_in_build(): raise SystemExit(7)  # LINE exits
def interrupted(): raise KeyboardInterrupt
def returns_nothing(): pass
def needs_arguments(size): return good()
def wrong_shape(): return nn.Linear(4, 4), (torch.randn(2, 5),)
def no_inputs(): return nn.Linear(4, 4), 7
number = 3
"""

COMMANDS: dict[str, list[str]] = {
    "explain": ["explain"],
    "cache why": ["cache", "why"],
    "verify": ["verify", "--no-bisect"],
    "doctor": ["doctor", "--calls", "2"],
}
# The target; what the message says; the line it names, if it has one.
BUILDING = {
    "in_build": ("no weights", "build"),
    "exits_in_build": ("status 7", "exits"),
    "returns_nothing": ("must return (model, example_inputs)", None),
    "needs_arguments": ("missing 1 required positional argument", None),
    "no_inputs": ("example_inputs must be", None),
    "number": ("not a function", None),
    "nowhere": ("has no 'nowhere'", None),
}
RUNNING = {
    "in_forward": ("I cannot do this", "forward"),
    "exits_in_forward": ("status 5", "exit"),
    "in_backward": ("no gradient here", "backward"),
    "wrong_shape": ("mat1 and mat2", None),
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BURNISH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return path


def assert_told(capsys: pytest.CaptureFixture[str], file: Path, says: str, mark: str | None) -> None:
    printed = capsys.readouterr()
    (message,) = [line for line in printed.err.splitlines() if line.startswith("burnish: ")]
    assert says in message
    assert "Traceback" not in printed.err + printed.out
    if mark is not None:
        line = 1 + next(n for n, text in enumerate(SOURCE.splitlines()) if text.endswith(f"# LINE {mark}"))
        assert f"{file}:{line}" in message


@pytest.mark.parametrize("fault", [*BUILDING, *RUNNING])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_target_that_fails(command: str, fault: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = COMMANDS[command]
    arguments = [first, *rest[:1], f"{file}:{fault}"] if command == "cache why" else [first, f"{file}:{fault}", *rest]
    assert main(arguments) == 2
    assert_told(capsys, file, *(BUILDING | RUNNING)[fault])


@pytest.mark.parametrize("fault", BUILDING)
def test_generate_from_a_target_that_fails(fault: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", f"{file}:{fault}"]) == 2
    assert_told(capsys, file, *BUILDING[fault])


@pytest.mark.parametrize("fault", ["in_build", "in_forward", "in_second_call", "in_backward"])
def test_bench_of_a_target_that_fails(fault: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"in_second_call": ("I cannot do this", "forward"), **BUILDING, **RUNNING}[fault]
    assert main(["bench", f"{file}:{fault}", "--seconds", "0.1", "--candidates", "burnish"]) == 2
    assert_told(capsys, file, *told)


def test_a_second_call_that_fails(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{file}:in_second_call"]) == 2
    assert_told(capsys, file, "I cannot do this", "forward")


@pytest.mark.parametrize("command", ["explain", "verify", "doctor", "generate", "bench"])
def test_a_file_with_a_syntax_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import torch\n\ndef build(:\n    pass\n")
    assert main([command, f"{path}:build"]) == 2
    error = capsys.readouterr().err
    assert f"SyntaxError: invalid syntax (at {path}:3)" in error and "Traceback" not in error


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c(command: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = COMMANDS[command]
    where = f"{file}:interrupted"
    assert main([first, *rest[:1], where] if command == "cache why" else [first, where, *rest]) == 130
    assert "Traceback" not in capsys.readouterr().err


BAD_CALLS = {
    "no GPU": (["bench", "mlp@tiny", "--device", "cuda:99"], "--device"),
    "no device": (["bench", "mlp@tiny", "--device", "cda"], "as torch names it"),
    "generate without a GPU": (["generate", "mlp@tiny", "--device", "cuda:99"], "--device"),
    "no time": (["bench", "mlp@tiny", "--seconds", "0"], "--seconds"),
    "no number": (["bench", "mlp@tiny", "--seconds", "nan"], "--seconds"),
    "no time for the demo": (["demo", "mlp@tiny", "--seconds", "-1"], "--seconds"),
    "no threads": (["bench", "mlp@tiny", "--threads", "0"], "--threads"),
    "no type": (["bench", "mlp@tiny", "--dtype", "float33"], "--dtype"),
    "no folder": (["bench", "mlp@tiny", "--json", "/nowhere/at/all.json"], "--json"),
    "a folder": (["bench", "mlp@tiny", "--html", "/"], "--html"),
    "no such candidate": (["bench", "mlp@tiny", "--candidates", "inducter"], "Did you mean"),
    "no such set": (["verify", "mlp@tiny", "--sets", "gven"], "Did you mean"),
    "no such mode": (["explain", "mlp@tiny", "--mode", "fast"], "unknown mode"),
    "no such target": (["doctor", "bert-bass"], "Did you mean"),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_mistake_in_the_call(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, says = BAD_CALLS[call]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["explain", "mlp@tiny", "--dump", str(tmp_path / "file" / "dump")]) == 1
    assert f"cannot use {tmp_path / 'file' / 'dump'}" in capsys.readouterr().err


def fails_inside(arguments: object) -> int:
    raise KeyError("deep inside")


@pytest.mark.parametrize("debug", [True, False])
def test_a_failure_of_ours(debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("burnish.tools.cli._run_workloads", fails_inside)
    assert main(["workloads", *(["--debug"] if debug else [])]) == 1
    error = capsys.readouterr().err
    assert "KeyError: 'deep inside'" in error and ("Traceback" in error) is debug


def test_debug_may_come_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("burnish.tools.cli._run_workloads", fails_inside)
    assert main(["--debug", "workloads"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_statuses_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "exit status:" in capsys.readouterr().out
