"""What a process leaves in the temporary directory: nothing."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.runtime.build import scratch
from burnish.runtime.build.scratch import load_python, own_directory

LOADS = """
from burnish.runtime.build.scratch import load_python, own_directory
module = load_python("ANSWER = 42")
assert module.ANSWER == 42
assert len(list(own_directory().glob("*.py"))) == 1
"""
COMPILES = """
import torch, burnish
compiled = burnish.compile(lambda x: (x * 2).exp())
with torch.no_grad():
    compiled(torch.ones(8))
(graph,) = burnish.stats(compiled).graphs
"""
CHILDREN = """
import multiprocessing, os
from burnish.runtime.build.scratch import own_directory

def child(parent, queue):
    assert own_directory() != parent and own_directory().is_dir()
    queue.put(own_directory())

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=child, args=(own_directory(), queue))
        process.start()
        folder = queue.get(timeout=60)
        process.join()
        assert process.exitcode == 0
        assert own_directory().is_dir() and not folder.exists()
"""


@pytest.mark.parametrize(
    ("text", "cache"),
    [(LOADS, "on"), (COMPILES, "on"), (COMPILES, "off"), (CHILDREN, "on")],
    ids=["loads", "compiles", "compiles without a cache", "children"],
)
def test_nothing_is_left_behind(text: str, cache: str, tmp_path: Path) -> None:
    program, temporary, cached = tmp_path / "program.py", tmp_path / "temporary", tmp_path / "cache"
    program.write_text(text)
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "BURNISH_CACHE_DIR": str(cached)}
    environment |= {"BURNISH_NO_CACHE": "1"} if cache == "off" else {}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [p for p in temporary.iterdir() if p.name.startswith("burnish")] == []


KILLED = """
import os, signal
from burnish.runtime.build.scratch import load_python
load_python("ANSWER = 42")
os.kill(os.getpid(), signal.SIGKILL)
"""
SEES_ANOTHER = """
import pathlib, sys
from burnish.runtime.build.scratch import own_directory
before = set(pathlib.Path(sys.argv[1]).iterdir())
own_directory()
print(len(before), len(before & set(pathlib.Path(sys.argv[1]).iterdir())))
"""


def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path) -> None:
    def process(text: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", text, str(tmp_path)]
        return subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)

    assert process(KILLED).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "burnish-models").mkdir()  # somebody's own
    assert process(SEES_ANOTHER).stdout.split() == ["2", "1"]
    assert [path.name for path in tmp_path.iterdir()] == ["burnish-models"]


def test_what_a_living_process_uses_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = scratch._directory_of.__wrapped__(1)
    second = scratch._directory_of.__wrapped__(2)
    assert first.is_dir() and second.is_dir()


def test_a_module_has_a_source_to_read() -> None:
    text = "def double(x):\n    return 2 * x\n"
    first, second = load_python(text), load_python(text)
    assert first.double(4) == second.double(4) == 8
    assert inspect.getsource(first.double) == text
    assert Path(first.__file__ or "").parent == own_directory()
