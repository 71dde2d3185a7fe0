"""Children that are forked with torch imported: what they are given, say and leave, and how they end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nursery import Child


def born(what: str, folder: Path, **variables: str) -> Child:
    out = folder / f"{what}.json"
    return Child("tests.tools.bench.nursling", [what, str(out)], out, variables)


def test_a_child_hears_and_says_and_leaves_a_result(tmp_path: Path) -> None:
    child = born("talks", tmp_path, BURNISH_NURSLING="its own")
    assert next(child.lines) == "begun\n" and not child.has_ended()
    child.tell.write("go\n")
    child.tell.flush()
    assert list(child.lines) == ["said\n"]
    wanted = {"imported": ["torch"], "heard": "go", "variable": "its own", "pid": child.pid}
    assert child.result() == wanted and "BURNISH_NURSLING" not in os.environ


def test_why_a_child_failed(tmp_path: Path) -> None:
    child = born("fails", tmp_path)
    assert list(child.lines) == ["begun\n"]
    assert child.result()["failure"].endswith("ValueError: on purpose")


def test_a_child_that_hangs(tmp_path: Path) -> None:
    child = born("hangs", tmp_path)
    assert next(child.lines) == "begun\n"
    assert child.result(limit=0.01) == {"failure": "not done in 0 s"} and child.has_ended()
    child = born("hangs", tmp_path)
    assert next(child.lines) == "begun\n"
    child.kill()
    assert list(child.lines) == [] and child.result() == {"failure": "it was stopped"}


_PARENT = """
import sys
from pathlib import Path
from benchmarks.nursery import Child
if __name__ == "__main__":
    child = Child("tests.tools.bench.nursling", ["hangs", sys.argv[1]], Path(sys.argv[1]), {})
    next(child.lines)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_no_child_outlives_who_started_it(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    command = [sys.executable, str(script), str(tmp_path / "out.json")]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        assert select.select([child], [], [], 60)[0], "still running"
        os.close(child)
